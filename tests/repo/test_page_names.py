"""Commands, options, configuration keys and metrics that pages name exist.

The generated pages say what exists; they are compared with the code by test_generated_pages.
"""

from __future__ import annotations

import json
import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.repo.sources import ROOT, tracked

_FENCE = re.compile(r"^```\w*\n(.*?)^```", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"`([^`]+)`")
_OPTION = re.compile(r"--[a-z][a-z0-9-]*")
# Written by others or by hand, and what is history.
_LEFT_OUT = ("CHANGELOG.md", "docs/cli.md", "docs/configuration.md", "docs/metrics.md")
# It names values of RocketMQ's charts beside ours.
_OTHER_CHARTS = ROOT / "docs/kubernetes.md"
# Files and attributes that look like keys.
_MODULES = ("receive.py", "broker.broker_under_test")
PAGES = sorted(
    path
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/runbooks/*.md"))
    if str(path.relative_to(ROOT)) not in _LEFT_OUT
)

# Decisions that are superseded name what was then.
WITH_DECISIONS = [*PAGES, *sorted(ROOT.glob("docs/adr/*.md"))]
_SOURCE = re.compile(r"(?<![\w.*{/])(?:[\w.-]+/)*[\w-]+\.(?:py|rs|proto)\b(?!\*)")


@cache
def commands() -> dict[tuple[str, ...], set[str]]:
    """Return the options of every command, by its words."""
    found: dict[tuple[str, ...], set[str]] = {}
    words: tuple[str, ...] = ()
    everywhere: set[str] = {"--help", "--version", "--output"}
    for line in (ROOT / "docs/cli.md").read_text().splitlines():
        if heading := re.match(r"## `strata (.*)`", line):
            words = tuple(word for word in heading[1].split() if word.islower() or "-" in word)
            found[words] = set()
        elif line.startswith("## Options of every command"):
            words = ()
        elif line.startswith("| `-"):
            options = set(_OPTION.findall(line.split("|")[1]))
            (found[words] if words else everywhere).update(options)
    return {words: options | everywhere for words, options in found.items()}


@cache
def keys() -> dict[str, set[str]]:
    """Return the keys of every section of the configuration."""
    found: dict[str, set[str]] = {}
    section = ""
    for line in (ROOT / "docs/configuration.md").read_text().splitlines():
        if heading := re.match(r"##+ `?\[?([a-z_.]+)\]?`?", line):
            section = heading[1]
        elif row := re.match(r"\| `([a-z0-9_]+)` \|", line):
            found.setdefault(section, set()).add(row[1])
    return found


@cache
def chart() -> Any:
    """Return the values of the chart."""
    return yaml.safe_load((ROOT / "charts/strata/values.yaml").read_text())


def is_chart_value(path: str) -> bool:
    """Whether the chart has a value of this name."""
    place = chart()
    for name in path.split("."):
        if not isinstance(place, dict) or name not in place:
            return False
        place = place[name]
    return True


@cache
def metrics() -> set[str]:
    """Return the names of all declared metrics."""
    listed = json.loads((ROOT / "docs/metrics.json").read_text())["metrics"]
    return {metric["name"] for metric in listed}


@cache
def files() -> list[str]:
    """Return the paths of all files, each after a slash."""
    return [f"/{path.relative_to(ROOT)}" for path in tracked()]


def lines_of(page: Path) -> list[str]:
    """Return every line of code of a page: of its blocks, and inline."""
    text = page.read_text()
    blocks = [line for block in _FENCE.findall(text) for line in _joined(block)]
    inline = _INLINE.findall(_FENCE.sub("", text))
    return [line.removeprefix("$ ").strip() for line in (*blocks, *inline)]


def _joined(block: str) -> list[str]:
    return block.replace("\\\n", " ").splitlines()


def problem_of(line: str) -> str:
    """Return what is wrong with a line that runs the command; empty: nothing."""
    try:
        # In a table's cell a pipe is written with a backslash.
        words = shlex.split(line.replace("\\|", "|").partition("|")[0], comments=True)
    except ValueError:
        return "unbalanced quotes"
    words = words[1:]
    given = [word.partition("=")[0] for word in words if word.startswith("--")]
    path = next(
        (tuple(words[:size]) for size in (3, 2, 1) if tuple(words[:size]) in commands()), None
    )
    if path is None:
        group = {known[0] for known in commands()}
        # `strata --version`, and a group of commands as in `strata tier` and `strata tier --help`.
        names = [word for word in words if not word.startswith("--")]
        fine = not names or (len(names) == 1 and names[0] in group and not set(given) - {"--help"})
        return "" if fine else "no such command"
    unknown = [option for option in given if option not in commands()[path]]
    return f"no option {unknown}" if unknown else ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_their_options_exist(page: Path) -> None:
    """A reader who types what a page shows meets no wrong command line."""
    lines = [line for line in lines_of(page) if re.match(r"(\w+=\S+ )*strata [a-z-]", line)]
    bare = [line[line.index("strata ") :] for line in lines]
    assert {line: problem for line in bare if (problem := problem_of(line))} == {}


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page != _OTHER_CHARTS],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_configuration_keys_exist(page: Path) -> None:
    """A key that a page names by section and name is one of the configuration, or of the chart."""
    named = set()
    for line in lines_of(page):
        if found := re.fullmatch(r"([a-z_]+(?:\.[a-z_]+)?)\.([a-z0-9_]+)(?: = .*)?", line):
            named.add((found[1], found[2]))
    unknown = [
        f"{section}.{key}"
        for section, key in sorted(named)
        if section in keys()
        and key not in keys()[section]
        and f"{section}.{key}" not in _MODULES
        and not is_chart_value(f"{section}.{key}")
    ]
    assert unknown == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_metrics_exist(page: Path) -> None:
    """A metric of ours that a page names is declared."""
    named = {
        name
        for line in lines_of(page)
        for name in re.findall(r"\bstrata_[a-z0-9_]+\b(?![.(*])", line)
    }
    modules = {
        path.name for path in (*ROOT.glob("libs/*/strata_*"), *ROOT.glob("services/*/strata_*"))
    }
    modules |= {path.name for path in ROOT.glob("testing/strata_*")}
    endings = ("_total", "_bucket", "_count", "_sum")
    unknown = [
        name
        for name in sorted(named - modules)
        if name not in metrics() and not any(name.removesuffix(end) in metrics() for end in endings)
    ]
    assert unknown == []


@pytest.mark.parametrize("page", WITH_DECISIONS, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_exist(page: Path) -> None:
    """A source file, or a path of the repository, that a page names is there."""
    lines = lines_of(page)
    # A name that stands for one of the reader's.
    named = {name for line in lines for name in _SOURCE.findall(line)} - {"job.py"}
    unknown = [name for name in named if not any(file.endswith(f"/{name}") for file in files())]
    paths = [
        line for line in lines if re.fullmatch(r"(tests|libs|services|bench|docs)/[\w/.*-]+", line)
    ]
    # Results are made by a target.
    made = [path for path in paths if not path.startswith("bench/results/")]
    unknown += [path for path in made if not any(ROOT.glob(path.rstrip("/")))]
    assert unknown == []


def test_what_does_not_exist_is_found() -> None:
    """The test above can fail."""
    assert problem_of("strata topic invent orders") == "no such command"
    assert problem_of("strata topic create orders --colour red") == "no option ['--colour']"
    assert problem_of("strata topic create orders --queues 3  # a comment") == ""
    assert problem_of("strata tier") == ""
