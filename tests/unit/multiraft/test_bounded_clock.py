"""The clock that leaders use stays within bounds of the other nodes' clocks."""

from __future__ import annotations

from strata_multiraft.peering.bounded_clock import BoundedClock


class FakeClock:
    """Both clocks of a machine, set by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.offset_ms = 1_000_000

    def monotonic_s(self) -> float:
        """Seconds."""
        return self.now_s

    def wall_ms(self) -> int:
        """Milliseconds."""
        return int(self.now_s * 1_000) + self.offset_ms


def bounded(clock: FakeClock) -> BoundedClock:
    """Return a clock within 250 ms of the others that notices a jump after a second."""
    return BoundedClock(clock, max_skew_ms=250, notice_s=1.0)


def test_right_clock_is_left_alone() -> None:
    """A clock within the bounds is used as it is, compared or not."""
    clock = FakeClock()
    leader = bounded(clock)
    assert leader.wall_ms() == clock.wall_ms()
    leader.compared(-200)
    clock.now_s += 5
    assert leader.wall_ms() == clock.wall_ms()
    assert leader.monotonic_s() == clock.now_s


def test_wrong_clock_is_kept_within_bounds() -> None:
    """What a clock is off by beyond the bounds is taken away, on both sides."""
    clock = FakeClock()
    leader = bounded(clock)
    leader.compared(5_000)
    assert leader.wall_ms() == clock.wall_ms() - 4_750
    leader.compared(-5_000)
    assert leader.wall_ms() == clock.wall_ms() + 4_750


def test_jump_never_shows() -> None:
    """A jump moves the leader's time not at all before it is noticed, then within the bounds."""
    clock = FakeClock()
    leader = bounded(clock)
    leader.compared(0)
    true_ms = clock.wall_ms()
    clock.offset_ms += 3_000
    assert leader.wall_ms() == true_ms
    for skew_ms in (0, 0, 3_000):  # the comparison is late
        leader.compared(skew_ms)
        assert leader.wall_ms() == true_ms
        clock.now_s += 0.4
        true_ms += 400
    leader.compared(3_000)
    assert leader.wall_ms() == true_ms + 250
