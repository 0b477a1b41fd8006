"""Parts that all tests share: stages, lanes of a parallel run, property tests without time limits.

`make test` runs seven lanes (pytest-xdist). Tests that share a server stay in one lane, or each
lane would start its own; these long lanes come first. Modules that mostly wait are spread among
those that mostly compute: seven lanes that wait at once leave the processors idle.
"""

from __future__ import annotations

import gc
import os
import resource
from collections import defaultdict
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests import stages

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

# A busy machine makes a good test slow; Hypothesis would call that a failure.
settings.register_profile("strata", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("strata")

# A stack with the values of all variables takes a tenth of a second, on the event loop of a test in
# which calls have deadlines. No process of ours shows them.
_PLAIN = structlog.dev.ConsoleRenderer(
    colors=False, exception_formatter=structlog.dev.plain_traceback
)
structlog.configure(processors=[*structlog.get_config()["processors"][:-1], _PLAIN])

# Two clusters at once would not fit on two cores.
CLUSTERS = (
    "tests/chaos/",
    "tests/e2e/test_cluster",
    "tests/e2e/test_placement_live",
    "tests/e2e/test_replica_reads",
    "tests/e2e/test_tier_restore",
    "tests/compat/test_cluster",
)
CLIENTS = ("tests/compat/",)
# One HDFS, one S3 server and one emulator for all of them.
STORES = (
    "tests/contract/test_object_store",
    "tests/integration/object_stores/",
    "tests/integration/tiered_stores/",
)
SPARK = ("tests/integration/spark/",)
# The code that people wrote is parsed once for all of them.
REPOSITORY = ("tests/repo/",)
ALONE = ("tests/sim/", "tests/mutations/planted")
FIRST = (*CLUSTERS, *CLIENTS, "tests/sim/test_cluster", *STORES, *SPARK)
WAITING = ("tests/e2e/",)


def lane(node_id: str) -> str:
    """Return what a test shares a lane with: others that need the same parts, or its module.

    Simulations and planted mistakes share nothing: each is dealt out by itself.
    """
    if node_id.startswith(CLUSTERS):
        return "clusters"
    if node_id.startswith(CLIENTS):
        return "clients"
    if node_id.startswith(STORES):
        return "stores"
    if node_id.startswith(SPARK):
        return "spark"
    if node_id.startswith(REPOSITORY):
        return "repository"
    return node_id if node_id.startswith(ALONE) else node_id.partition("::")[0]


@pytest.fixture(scope="module", autouse=True)
def _leaves_nothing_open() -> Iterator[None]:
    """A socket that a module's tests left open fails this module, not whichever comes next."""
    yield
    gc.collect()


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--stage`: what `tests/stages.py` says of it."""
    parser.addoption("--stage", choices=stages.STAGES, help="run the tests of one stage only")


def pytest_configure(config: pytest.Config) -> None:
    """Tell modules, and the processes that they start, which stage it is and how much to do."""
    if stage := config.getoption("--stage"):
        os.environ[stages.VARIABLE] = stage
        for name, count in stages.COUNTS.get(stage, {}).items():
            os.environ.setdefault(name, count)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep those of the stage, and put the long ones first."""
    for item in items:
        if stages.FULL in _stages(item):
            item.add_marker(pytest.mark.full)
    if stage := config.getoption("--stage"):
        others = [item for item in items if stage not in _stages(item)]
        items[:] = [item for item in items if stage in _stages(item)]
        config.hook.pytest_deselected(items=others)
    items.sort(key=_turn)
    items[:] = spread(items)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Spare later collections of garbage the modules and the tests: one ends each module."""
    gc.collect()
    gc.freeze()
    _USED.until_s = _used_s()


def _stages(item: pytest.Item) -> tuple[str, ...]:
    call = getattr(item, "callspec", None)
    parameters = call.params if call else {}
    seed = parameters.get("seed")
    return stages.stages_of(item.nodeid, seed if isinstance(seed, int) else None)


def _used_s() -> float:
    """Return processor seconds of this process, and of those it started that have ended."""
    used = [resource.getrusage(each) for each in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


@dataclass
class _Used:
    """Processor seconds at the last report, and whether it is the last test of this process."""

    until_s: float = field(default_factory=_used_s)
    is_last: bool = False


_USED = _Used()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """See `_Used`."""
    _USED.is_last = nextitem is None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to a report how many processor seconds were used since the report before."""
    report = yield
    used_s = _used_s()
    spent_s, _USED.until_s = used_s - _USED.until_s, used_s
    # All servers of a session end with its last test, which is no reason to charge that.
    report.processor_s = 0.0 if _USED.is_last else spent_s  # type: ignore[attr-defined]
    return report


SPENT_S: defaultdict[str, float] = defaultdict(float)
"""Processor seconds by part of `tests/stages.py`, where this process hears of every test."""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up what each part takes."""
    if part := stages.part_of(report.nodeid):
        # A test that ended its process has none.
        SPENT_S[part.start] += getattr(report, "processor_s", 0.0)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say which parts took more than their budget: nothing fails for it, machines differ."""
    stage = config.getoption("--stage")
    if stage and SPENT_S:
        total_s = sum(SPENT_S.values())
        terminalreporter.section(f"{total_s:.0f} seconds of a processor for {stage}, by part")
        for start, spent_s in sorted(SPENT_S.items(), key=lambda each: -each[1]):
            part = stages.part_of(start)
            budget_s = part.budget_in(stage) if part else 0
            over = "  more than its budget" if spent_s > budget_s else ""
            terminalreporter.write_line(f"{spent_s:8.1f} of {budget_s:4d}  {start}{over}")


def spread(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Deal lanes that wait out among those that compute; those of `FIRST` stay first.

    All of them are dealt in the first half: one that began last would be alone at the end.
    """
    lanes: dict[str, list[pytest.Item]] = {}
    for item in items:
        lanes.setdefault(lane(item.nodeid), []).append(item)
    first = [own for own in lanes.values() if own[0].nodeid.startswith(FIRST)]
    waiting = [own for own in lanes.values() if own[0].nodeid.startswith(WAITING)]
    waiting = [own for own in waiting if own not in first]
    computing = [own for own in lanes.values() if own not in first and own not in waiting]
    every = max(1, len(computing) // 2 // (len(waiting) + 1))
    mixed = []
    for number, own in enumerate(computing):
        if waiting and number % every == 0:
            mixed.append(waiting.pop(0))
        mixed.append(own)
    return [item for own in (*first, *mixed, *waiting) for item in own]


def _turn(item: pytest.Item) -> int:
    turns = [turn for turn, start in enumerate(FIRST) if item.nodeid.startswith(start)]
    return min(turns, default=len(FIRST))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Deal tests out by their lanes.

    Not by marks and `--dist loadgroup`: xdist 3.8 hands those on in node ids, which pytest 9.2 does
    not let it change.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Lanes(LoadScopeScheduling):  # type: ignore[misc]
        """Work units are lanes, in the order of their first tests."""

        def _split_scope(self, nodeid: str) -> str:
            return lane(nodeid)

        def _reschedule(self, node: Any) -> None:
            # A worker that stands in for one that crashed may be handed a unit with nothing left
            # in it, or with one test, which it holds back until it knows the next: it would never
            # report, so never be asked again, and the run would not end.
            waiting = -1
            while waiting != len(self.workqueue) and not node.shutting_down:
                waiting = len(self.workqueue)
                super()._reschedule(node)

    config.option.loadscopereorder = False
    return Lanes(config, log)
