"""The clock that leaders use stays within bounds of the other nodes' clocks."""

from __future__ import annotations

from strata_multiraft.peering.bounded_clock import BoundedClock
from strata_testing import ManualClock


def bounded(clock: ManualClock) -> BoundedClock:
    """Return a clock within 250 ms of the others that notices a jump after a second."""
    return BoundedClock(clock, max_skew_ms=250, notice_s=1.0)


def test_right_clock_is_left_alone() -> None:
    """A clock within the bounds is used as it is, compared or not."""
    clock = ManualClock(100.0, wall_offset_ms=1_000_000)
    leader = bounded(clock)
    assert leader.wall_ms() == clock.wall_ms()
    leader.compared(-200)
    clock.advance(5)
    assert leader.wall_ms() == clock.wall_ms()
    assert leader.monotonic_s() == clock.now_s


def test_wrong_clock_is_kept_within_bounds() -> None:
    """An error of a clock beyond the bounds is taken away, on both sides."""
    clock = ManualClock(100.0, wall_offset_ms=1_000_000)
    leader = bounded(clock)
    leader.compared(5_000)
    assert leader.wall_ms() == clock.wall_ms() - 4_750
    leader.compared(-5_000)
    assert leader.wall_ms() == clock.wall_ms() + 4_750


def test_jump_never_shows() -> None:
    """A jump moves the leader's time not at all before it is noticed, then within the bounds."""
    clock = ManualClock(100.0, wall_offset_ms=1_000_000)
    leader = bounded(clock)
    leader.compared(0)
    true_ms = clock.wall_ms()
    clock.wall_offset_ms += 3_000
    assert leader.wall_ms() == true_ms
    for skew_ms in (0, 0, 3_000):  # the comparison is late
        leader.compared(skew_ms)
        assert leader.wall_ms() == true_ms
        clock.advance(0.4)
        true_ms += 400
    leader.compared(3_000)
    assert leader.wall_ms() == true_ms + 250
