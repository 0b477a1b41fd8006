"""The window of known message ids."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from strata_storage.base.dedupe import DedupeOptions, DedupeWindow


def ids(*numbers: int) -> list[bytes]:
    return [number.to_bytes(17, "big") for number in numbers]


def test_an_id_is_known_for_the_window_and_forgotten_after_two() -> None:
    """Two generations: at least one window, at most two."""
    window = DedupeWindow(DedupeOptions(window_ms=100, max_ids=1_000))
    window.add(1, ids(1), 0)
    window.add(1, ids(2), 150)
    assert window.known(1, *ids(1))
    window.add(1, ids(3), 300)
    assert not window.known(1, *ids(1))
    assert window.known(1, *ids(2))


def test_topics_are_apart_and_can_be_forgotten() -> None:
    """The key of the window is (topic id, message id)."""
    window = DedupeWindow(DedupeOptions())
    window.add(1, ids(1), 0)
    assert window.all_new(2, ids(1))
    assert not window.all_new(1, ids(5, 1))
    window.forget_topic(1)
    assert (len(window), window.all_new(1, ids(1))) == (0, True)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), max_size=80))
def test_it_never_holds_more_than_its_limit(steps: list[tuple[int, int]]) -> None:
    """A flood of ids rotates early instead of growing; the newest batch is always known."""
    window = DedupeWindow(DedupeOptions(window_ms=1_000, max_ids=100))
    now_ms = number = 0
    for pause_ms, count in steps:
        now_ms += pause_ms
        batch = ids(*range(number, number + count))
        number += count
        window.add(1, batch, now_ms)
        assert len(window) <= 100
        assert all(window.known(1, one) for one in batch)


def test_a_window_takes_over_what_a_later_one_knows() -> None:
    """A new leader's own ids join the history that was read meanwhile."""
    history, later = DedupeWindow(DedupeOptions()), DedupeWindow(DedupeOptions())
    history.add(1, ids(1), 0)
    later.add(1, ids(2), 10)
    later.add(2, ids(3), 10)
    history.add_all(later, 20)
    assert not history.all_new(1, ids(1))
    assert not history.all_new(1, ids(2))
    assert not history.all_new(2, ids(3))
    assert len(history) == 3


def test_it_says_since_when_it_knows_every_id() -> None:
    """Since it began, then since its older generation began; a flood makes that sooner."""
    window = DedupeWindow(DedupeOptions(window_ms=100, max_ids=10), since_ms=1_000)
    window.add(1, ids(*range(5)), 1_010)
    assert window.since_ms == 1_000
    window.add(1, ids(*range(5, 10)), 1_020)
    assert window.since_ms == 1_000
    window.add(1, ids(10), 1_030)
    # An id that was stored in the same millisecond, before, may be gone with the generation before.
    assert window.since_ms == 1_021
    window.add(1, ids(11), 1_200)
    assert window.since_ms == 1_031


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), max_size=80))
def test_every_id_that_was_stored_since_then_is_known(steps: list[tuple[int, int]]) -> None:
    """The ids are known whatever the rotations."""
    window = DedupeWindow(DedupeOptions(window_ms=200, max_ids=100), since_ms=1)
    now_ms = number = 0
    stored: list[tuple[int, bytes]] = []
    for pause_ms, count in steps:
        now_ms += pause_ms
        batch = ids(*range(number, number + count))
        number += count
        window.add(1, batch, now_ms)
        stored += [(now_ms, one) for one in batch]
        assert all(window.known(1, one) for at_ms, one in stored if at_ms >= window.since_ms)
