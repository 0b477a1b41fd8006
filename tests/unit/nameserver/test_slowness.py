"""Slow storage nodes: found by comparison, after a while, and trusted again later."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from strata_nameserver.slowness import SlownessOptions, SlowNodes

if TYPE_CHECKING:
    from tests.unit.nameserver.conftest import ManualClock


class Nodes:
    """Heartbeats of storage nodes every 250 ms."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.slow_nodes = SlowNodes(SlownessOptions(5.0, 50.0, 10.0), clock)

    def run(self, duration_ms: int, **latencies_ms: float) -> set[str]:
        """Return who is slow after that time."""
        slow: set[str] = set()
        for _ in range(0, duration_ms, 250):
            self.clock.now_ms += 250
            for node_id, latency_ms in latencies_ms.items():
                self.slow_nodes.measured(node_id, latency_ms)
            slow = set(self.slow_nodes.judge())
        return slow


@pytest.fixture
def nodes() -> Nodes:
    from tests.unit.nameserver.conftest import ManualClock

    return Nodes(ManualClock())


def test_a_node_that_is_slow_for_long_is_found(nodes: Nodes) -> None:
    """Not a burst, but ten seconds of five times the others."""
    assert nodes.run(20_000, a=10, b=12, c=11) == set()
    assert nodes.run(2_000, a=400, b=12, c=11) == set()
    assert nodes.run(20_000, a=10, b=12, c=11) == set()
    assert nodes.run(20_000, a=400, b=12, c=11) == {"a"}


def test_what_is_slow_for_all_is_nobodys_fault(nodes: Nodes) -> None:
    """A busy machine slows everybody down."""
    assert nodes.run(30_000, a=900, b=700, c=800) == set()


def test_below_the_floor_nobody_is_slow(nodes: Nodes) -> None:
    """Forty times two microseconds is still fast."""
    assert nodes.run(30_000, a=49, b=1, c=1) == set()


def test_a_node_alone_is_not_slow(nodes: Nodes) -> None:
    """There is nobody to compare it with."""
    assert nodes.run(30_000, a=5_000) == set()


def test_it_is_trusted_again_when_it_is_much_better(nodes: Nodes) -> None:
    """Half of the limit for ten seconds."""
    assert nodes.run(20_000, a=400, b=10, c=10) == {"a"}
    assert nodes.run(30_000, a=45, b=10, c=10) == {"a"}
    assert nodes.run(30_000, a=20, b=10, c=10) == set()


def test_one_that_shows_nothing_is_tried_again(nodes: Nodes) -> None:
    """It leads nothing, so nothing is appended there: after a minute it may lead again."""
    assert nodes.run(20_000, a=400, b=10, c=10) == {"a"}
    assert nodes.run(59_000, a=0, b=10, c=10) == {"a"}
    assert nodes.run(2_000, a=0, b=10, c=10) == set()
