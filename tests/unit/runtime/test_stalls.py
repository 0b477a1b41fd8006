"""A process that stood still knows for how long."""

from __future__ import annotations

from strata_runtime.stalls import OwnStalls
from strata_testing.clock import ManualClock


def test_a_turn_that_comes_much_too_late_ends_a_stall() -> None:
    """The turn itself is no stall, nor is a little delay; who asks before the turn is told, too."""
    clock = ManualClock()
    stalls = OwnStalls(0.5, grace_s=1.0, time_s=clock.monotonic_s)
    clock.advance(60.0)
    assert stalls.total_s == 0.0, "it has not begun"
    stalls.turn()
    for late_s in (0.0, 0.25, 0.75):
        clock.advance(0.5 + late_s)
        stalls.turn()
    assert stalls.total_s == 0.0
    clock.advance(20.5)
    assert stalls.total_s == 20.0
    stalls.turn()
    clock.advance(0.5)
    assert stalls.total_s == 20.0
    stalls.turn()
    clock.advance(2.5)
    stalls.turn()
    assert stalls.total_s == 22.0
