"""What all tests share: lanes of a parallel run, and property tests without time limits.

`make test` runs three lanes (pytest-xdist). Tests that share a server stay in one lane, or each
lane would start its own; the long ones that mostly wait come first, and the short ones that mostly
compute fill what is left.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

# A busy machine makes a good test slow; Hypothesis would call that a failure.
settings.register_profile("strata", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("strata")

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
FIRST = (*CLUSTERS, *CLIENTS, "tests/sim/test_cluster", *STORES, *SPARK, "tests/e2e/")


def lane(node_id: str) -> str:
    """Return what a test shares a lane with: clusters, clients, stores, Spark, or its module.

    Simulations share nothing and take long: each is dealt out by itself.
    """
    if node_id.startswith(CLUSTERS):
        return "clusters"
    if node_id.startswith(CLIENTS):
        return "clients"
    if node_id.startswith(STORES):
        return "stores"
    if node_id.startswith(SPARK):
        return "spark"
    return node_id if node_id.startswith("tests/sim/") else node_id.partition("::")[0]


@pytest.fixture(scope="module", autouse=True)
def _leaves_nothing_open() -> Iterator[None]:
    """A socket that a module's tests left open fails this module, not whichever comes next."""
    yield
    gc.collect()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the long ones first."""
    items.sort(key=_turn)


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
