"""docs/rules.md: every rule that is cited is there, and every test that it names exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from tests.repo.sources import ROOT, nodes_of, tracked, written_code

RULES = ROOT / "docs/rules.md"
HEADING = re.compile(r"^### Rule (\d+)\. ", re.MULTILINE)
NAMED_TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
# "rule 7", "rules 1, 5 and 6", "rules 7 to 10", "rule_8"
CITED = re.compile(r"\brules?[ _](\d+(?:(?:, | and |, and | to )\d+)*)\b", re.IGNORECASE)
# Texts that operators and clients read say a rule in words.
PUBLISHED = (
    "README.md",
    "docs/metrics.md",
    "docs/metrics.json",
    "docs/cli.md",
    "docs/configuration.md",
    "charts/*",
    "docker-compose.yml",
)


def rules() -> dict[int, str]:
    """The rules' paragraphs by number."""
    _, *parts = HEADING.split(RULES.read_text())
    return {int(number): text for number, text in zip(parts[::2], parts[1::2], strict=True)}


def cited(text: str) -> set[int]:
    """Numbers of the rules that a text cites."""
    return {int(number) for found in CITED.findall(text) for number in re.findall(r"\d+", found)}


def texts_that_run(path: Path) -> list[str]:
    """String literals of a file that are not docstrings: errors, metrics, help, descriptions."""
    nodes = nodes_of(path)
    lone = {
        id(node.value)
        for node in nodes
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    return [
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in lone
    ]


def test_rules_are_numbered_without_a_gap() -> None:
    """Numbers are cited all over the code: none is given twice, none is taken away."""
    numbers = [int(number) for number in HEADING.findall(RULES.read_text())]
    assert numbers == list(range(1, len(numbers) + 1))


def test_every_rule_that_is_cited_is_there() -> None:
    """In code, protos, tests, docs and build files."""
    unknown = {
        str(path.relative_to(ROOT)): numbers
        for path in tracked("*.py", "*.proto", "*.md", "*.toml", "*.yaml", "*.sh", "Makefile")
        if (numbers := cited(path.read_text()) - set(rules()))
    }
    assert unknown == {}


def test_every_rule_says_why_and_names_tests_that_exist() -> None:
    """A test is found by its file and name, without running anything."""
    broken = []
    for number, text in rules().items():
        named = NAMED_TEST.findall(text)
        if "**Why:**" not in text or not named:
            broken.append(f"rule {number} lacks its reason or its tests")
        for file, name in named:
            if not (ROOT / file).is_file() or name not in _functions(ROOT / file):
                broken.append(f"rule {number} names {file}::{name}")
    assert broken == []


def test_published_texts_say_it_in_words() -> None:
    """Readers of a metric, a command's help, a description or an error have no page of rules."""
    found = [str(path.relative_to(ROOT)) for path in tracked(*PUBLISHED) if cited(path.read_text())]
    for path in written_code("libs", "services"):
        if cited(path.read_text()):
            found += [f"{path.relative_to(ROOT)}: {t}" for t in texts_that_run(path) if cited(t)]
    assert found == []


def test_no_file_is_mapped_into_memory() -> None:
    """A page fault would block every thread, and a read error end the process (rule 31)."""
    found = []
    for path in written_code("libs", "services"):
        if "mmap" not in path.read_text():
            continue
        for node in nodes_of(path):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if "mmap" in names or (isinstance(node, ast.keyword) and node.arg == "mmap_mode"):
                found.append(f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}")
    assert found == []


@cache
def _functions(path: Path) -> frozenset[str]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in nodes_of(path) if isinstance(node, functions))
