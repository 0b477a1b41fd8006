"""Texts that people read begin with their subject (CONTRIBUTING, "How we write")."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# A sentence that begins with a relative clause or a genitive; questions are left alone.
_BACKWARDS = re.compile(
    r"(?:^|(?<=[.:;] ))(?:What|Who|Whoever|Whatever|Which|Whichever|Whose|Of)\b[^.?!]*[.!]?(?!\?)"
)
_STIFF = re.compile(r"\b(shall|for ever|metadata say|metadata are|whosoever)\b")


def pages() -> Iterator[tuple[str, str]]:
    """Yield page and text without code blocks, tables' code and headings."""
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/adr/*.md")]:
        if path.name == "CONTRIBUTING.md":
            continue
        text = re.sub(r"```.*?```", "", path.read_text(), flags=re.S)
        lines = [line for line in text.split("\n") if not line.startswith("#")]
        yield str(path.relative_to(ROOT)), "\n".join(lines)


def module_docstrings() -> Iterator[tuple[str, str]]:
    """Yield path and docstring of every module that is shipped."""
    for folder in ("libs", "services"):
        for path in (ROOT / folder).rglob("*.py"):
            if "_pb2" in path.name or "/proto/" in str(path):
                continue
            text = ast.get_docstring(ast.parse(path.read_text()))
            if text:
                yield str(path.relative_to(ROOT)), text


def published() -> Iterator[tuple[str, str]]:
    """Yield name and help of every metric."""
    for metric in json.loads((ROOT / "docs" / "metrics.json").read_text())["metrics"]:
        yield metric["name"], metric["description"]


def found(texts: Iterator[tuple[str, str]]) -> list[str]:
    """Return where a sentence begins backwards or is stiff, with its first words."""
    places = []
    for name, text in texts:
        for block in re.split(r"\n\s*\n|\n(?=[-*|0-9])", text):
            sentence_of = " ".join(block.split()).lstrip("-*|0123456789. ")
            places += [
                f"{name}: {match[0][:60]}"
                for match in (*_BACKWARDS.finditer(sentence_of), *_STIFF.finditer(sentence_of))
                if not sentence_of[match.end() :].startswith("?")
            ]
    return places


def test_pages_begin_with_their_subject() -> None:
    """Documentation, decisions, README, changelog."""
    assert found(pages()) == []


def test_module_docstrings_begin_with_their_subject() -> None:
    """The first thing that a reader of a file reads."""
    assert found(module_docstrings()) == []


def test_metrics_begin_with_their_subject() -> None:
    """Help of metrics, as dashboards show it."""
    assert found(published()) == []
