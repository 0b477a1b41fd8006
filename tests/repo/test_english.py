"""Texts that people read begin with their subject (CONTRIBUTING, "How we write").

The pages, the descriptions that operators see, docstrings and comments: one pattern for all.
"""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.repo.sources import ROOT, nodes_of, tracked, written_code

# A sentence that begins with a relative clause or a genitive; questions are left alone.
_BACKWARDS = re.compile(
    r"(?:^|(?<=[.:;] ))(?:What|Who|Whoever|Whatever|Which|Whichever|Whose|Of)\b[^.?!]*(?:[.!]|\Z)"
)
_STIFF = re.compile(r"\b(shall|for ever|metadata say|metadata are|data are|whosoever)\b")
# Most texts have none of the words, and are not taken apart.
_WORDS = re.compile(r"\b(?:Wh(?:at|o|ich|ose)|Of|shall|for\s+ever|metadata\s|data\s+are|whosoever)")
_BLOCKS = re.compile(r"\n\s*\n|\n(?=\s*[-*|0-9])|\n\s*[\w, ]+: ")
_OURS = ("libs", "services", "testing", "bench", "scripts", "tests")


def pages() -> Iterator[tuple[str, str]]:
    """Yield page and text without code blocks, tables' code and headings."""
    for path in tracked("*.md"):
        if path.name == "CONTRIBUTING.md":
            continue
        text = re.sub(r"```.*?```", "", path.read_text(), flags=re.S)
        lines = [line for line in text.split("\n") if not line.startswith("#")]
        yield str(path.relative_to(ROOT)), "\n".join(lines)


def texts_in_code() -> Iterator[tuple[str, str]]:
    """Yield docstrings, errors, help and descriptions: every literal that has a space.

    Only docstrings of tests are read: their other literals are data.
    """
    for path in written_code(*_OURS):
        nodes: Iterable[ast.AST] = nodes_of(path)
        if path.relative_to(ROOT).parts[0] == "tests":
            nodes = (node.value for node in nodes if isinstance(node, ast.Expr))
        for node in nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node.value


def comments() -> Iterator[tuple[str, str]]:
    """Yield comments, neighbouring lines as one: of code, service definitions and settings."""
    for path in written_code(*_OURS):
        tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
        lines = {each.start[0]: each.string for each in tokens if each.type == tokenize.COMMENT}
        yield from _joined(path, lines)
    for path in tracked("*.rs", "*.proto"):
        text = path.read_text().split("\n")
        found = {
            at: match[0] for at, line in enumerate(text, 1) if (match := _SLASHES.search(line))
        }
        yield from _joined(path, found)
    for path in tracked("*.toml", "*.yaml", "*.yml", "*.sh", "*.in", "Makefile", "*Dockerfile"):
        text = path.read_text().split("\n")
        found = {at: match[0] for at, line in enumerate(text, 1) if (match := _HASHES.search(line))}
        yield from _joined(path, found)


_HASHES = re.compile(r"(?:^|(?<=\s))#.*")
_SLASHES = re.compile(r"(?:^|(?<=\s))//.*")


def _joined(path: Path, lines: dict[int, str]) -> Iterator[tuple[str, str]]:
    block: list[str] = []
    for at in sorted(lines):
        block.append(lines[at].lstrip("#/!: "))
        if at + 1 not in lines:
            yield f"{path.relative_to(ROOT)}:{at}", " ".join(block)
            block = []


def published() -> Iterator[tuple[str, str]]:
    """Yield name and help of every metric."""
    for metric in json.loads((ROOT / "docs" / "metrics.json").read_text())["metrics"]:
        yield metric["name"], metric["description"]


def found(texts: Iterator[tuple[str, str]]) -> list[str]:
    """Return where a sentence begins backwards or is stiff, with its first words."""
    places = []
    for name, text in texts:
        for block in _BLOCKS.split(text) if _WORDS.search(text) else ():
            sentence_of = " ".join(block.split()).lstrip("-*|0123456789. ")
            places += [
                f"{name}: {match[0][:60]}"
                for match in (*_BACKWARDS.finditer(sentence_of), *_STIFF.finditer(sentence_of))
            ]
    return places


def test_pages_begin_with_their_subject() -> None:
    """Documentation, decisions, README, changelog."""
    assert found(pages()) == []


def test_texts_in_code_begin_with_their_subject() -> None:
    """Docstrings, errors, help of commands, descriptions of keys."""
    assert found(texts_in_code()) == []


def test_comments_begin_with_their_subject() -> None:
    """Comments are read by the same people."""
    assert found(comments()) == []


def test_metrics_begin_with_their_subject() -> None:
    """Help of metrics, as dashboards show it."""
    assert found(published()) == []


def test_the_pattern_finds_what_it_is_for() -> None:
    """A relative clause, a genitive and a stiff word are found; a question is not."""
    texts = ["What is refused waits.", "Of one answer.", "It shall wait.", "What is a lease?"]
    assert len(found(("text", text) for text in texts)) == 3
