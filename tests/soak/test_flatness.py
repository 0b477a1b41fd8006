"""The verdict of a soak: what grows is found, what moves to and fro is not taken for growth."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.soak.flatness import Allowed, Course, Sample, course_of

LASTED_S = 7_200.0


def course(value_at: Callable[[float], float], allowed: Allowed, messages: int = 0) -> Course:
    samples = [Sample(at_s, value_at(at_s)) for at_s in range(0, int(LASTED_S), 10)]
    return course_of(samples, allowed, LASTED_S, messages)


def test_a_figure_that_fills_up_and_stays_is_flat() -> None:
    """Caches fill in the first third; what comes to and fro later is not growth."""
    chance = random.Random(7)
    seen = course(lambda at_s: min(200, 100 + at_s / 10) + chance.uniform(-20, 20), Allowed(5))
    assert seen.is_flat
    assert seen.first < seen.middle
    assert seen.most > seen.last


@pytest.mark.parametrize("per_hour", [10, 100])
def test_a_slow_leak_is_found(per_hour: float) -> None:
    """Even 10 MB an hour beside noise of the same size."""
    chance = random.Random(7)
    leak = course(lambda at_s: 150 + per_hour * at_s / 3_600 + chance.uniform(-5, 5), Allowed(3))
    assert not leak.is_flat
    assert leak.last - leak.middle == pytest.approx(per_hour * 2 / 3, abs=2)


def test_what_a_message_may_leave_is_allowed() -> None:
    """Rows of ids stay for a day; more than that for each message is growth."""
    allowed = Allowed(1, per_message=0.5)
    assert course(lambda at_s: at_s / 24, allowed, messages=200).is_flat
    assert not course(lambda at_s: at_s / 20, allowed, messages=200).is_flat


def test_a_share_is_of_what_was_there() -> None:
    """A large figure may move more than a small one."""
    assert course(lambda at_s: 1_000 + at_s / 100, Allowed(1, share=0.05)).is_flat
    assert not course(lambda at_s: 100 + at_s / 100, Allowed(1, share=0.05)).is_flat


def test_each_third_needs_a_sample() -> None:
    """A run that was sampled at its begin only shows nothing."""
    with pytest.raises(ValueError, match="each third"):
        course_of([Sample(0, 1), Sample(9, 1)], Allowed(1), 10)
