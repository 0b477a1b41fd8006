"""A clock that a test moves."""

from __future__ import annotations

from strata_runtime.clock import Clock
from strata_testing import ManualClock


def test_small_steps_add_up() -> None:
    """Ten thousand steps of 100 us are one second, in both clocks."""
    clock = ManualClock(5.0, wall_offset_ms=7)
    for _ in range(10_000):
        clock.advance(0.0001)
    assert clock.monotonic_s() == 6.0
    assert clock.wall_ms() == 6_007


def test_wall_time_may_jump() -> None:
    """The other clock goes on as if nothing were."""
    clock: Clock = (manual := ManualClock(5.0, wall_offset_ms=0))
    manual.wall_offset_ms -= 2_000
    assert (clock.monotonic_s(), clock.wall_ms()) == (5.0, 3_000)
