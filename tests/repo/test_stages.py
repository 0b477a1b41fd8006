"""tests/stages.py: every test has a stage and a budget, budgets fit, docs/testing.md shows them."""

from __future__ import annotations

import ast
import os
import re
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import lane
from tests.parts import ports
from tests.repo import conftest, sources
from tests.repo.sources import ROOT, nodes_of, tracked
from tests.stages import (
    FULL,
    LIMITS_S,
    PARTS,
    PROCESSORS,
    QUICK,
    STAGES,
    TEST,
    UNIT,
    Part,
    part_of,
    stages_of,
)

PAGE = ROOT / "docs/testing.md"
BEGIN, END = "<!-- parts: begin -->\n", "<!-- parts: end -->"
PURE = ("raft", "mq", "remoting", "kv", "state", "seglog", "metadata")


def table() -> str:
    """The parts as docs/testing.md shows them."""
    rows = ["| tests | seconds | in full | lane | runs in |", "|---|---|---|---|---|"]
    for part in PARTS:
        own = lane(part.start)
        shared = own if own in ("clusters", "clients", "stores", "spark") else "-"
        runs_in = part.stage + (", full with higher counts" if part.again else "")
        in_full = part.budget_in(FULL) or "-"
        rows.append(f"| `{part.start}` | {part.budget_s} | {in_full} | {shared} | {runs_in} |")
    return "\n".join(rows) + "\n"


def costs_s(stage: str) -> list[int]:
    """Budgets of what a stage runs; `test` runs what `unit` does, too."""
    if stage == FULL:
        return [part.budget_in(FULL) for part in PARTS]
    earlier = STAGES[: STAGES.index(stage) + 1]
    return [part.budget_s for part in PARTS if part.stage in earlier]


def test_every_test_module_has_a_part() -> None:
    """Else nobody would decide when it runs and what it may cost."""
    modules = [str(path.relative_to(ROOT)) for path in tracked("tests/*test_*.py")]
    assert modules
    assert [module for module in modules if part_of(module) is None] == []


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.start)
def test_every_part_has_tests(part: Part) -> None:
    """A part whose tests were renamed or removed goes, too."""
    file, _, name = part.start.partition("::")
    assert (ROOT / file).exists()
    if name:
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        assert any(
            isinstance(node, functions) and node.name == name for node in nodes_of(ROOT / file)
        )


@pytest.mark.parametrize("stage", STAGES)
def test_budgets_fit_into_the_stage(stage: str) -> None:
    """The processors have room for all parts, and each shared lane for its own."""
    assert sum(costs_s(stage)) <= PROCESSORS * LIMITS_S[stage]
    lanes: defaultdict[str, int] = defaultdict(int)
    for part in PARTS:
        lanes[lane(part.start)] += part.budget_in(FULL)
    assert max(lanes.values()) <= LIMITS_S[FULL]


def test_every_lane_has_ports_of_its_own() -> None:
    """With more lanes than shares of ports two servers would take one port, now and then."""
    lanes = re.findall(r"LANES := -n (\d+)", (ROOT / "Makefile").read_text())
    assert lanes
    assert max(map(int, lanes)) <= ports.LANES


def test_parsed_code_is_given_back_when_the_folder_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each module that follows would be followed by a look at millions of objects."""
    times: list[int] = []
    monkeypatch.setattr(sources, "forget", lambda: times.append(1))
    given_back = []
    for next_path in (ROOT / "tests/repo/test_tree.py", ROOT / "tests/unit/raft/test_log.py", None):
        next_item: Any = next_path and SimpleNamespace(path=next_path)
        conftest.pytest_runtest_teardown(next_item)
        given_back.append(len(times))
    assert given_back == [0, 1, 2]


def test_nothing_is_left_out_and_nothing_runs_twice_for_nothing() -> None:
    """`make test` and `make test-full` together are the whole suite."""
    for part in PARTS:
        stages = stages_of(part.start)
        assert TEST in stages or FULL in stages
        assert (TEST in stages and FULL in stages) == part.again
        assert part.full_s > 0 or not part.again
        assert not (part.full_s and part.stage == FULL)


def test_make_quick_names_the_pure_packages() -> None:
    """It collects their folders only: collecting everything takes longer than to run them."""
    quick = {Path(part.start).parts[2] for part in PARTS if part.stage == QUICK}
    assert quick == set(PURE)
    assert f"PURE := {' '.join(PURE)}\n" in (ROOT / "Makefile").read_text()
    outside = [p.start for p in PARTS if p.stage == UNIT and not p.start.startswith("tests/unit/")]
    assert outside == ["tests/repo/", "tests/e2e/test_history.py"]


def test_the_page_shows_the_parts() -> None:
    """`REWRITE=1` writes them."""
    head, _, rest = PAGE.read_text().partition(BEGIN)
    shown, _, tail = rest.partition(END)
    if os.environ.get("REWRITE"):
        PAGE.write_text(head + BEGIN + table() + END + tail)
        return
    assert shown == table()
