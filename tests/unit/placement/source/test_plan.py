"""Offsets that tasks of the data source read."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from strata_placement.source.plan import (
    QueueSpan,
    advance,
    between,
    divide,
    ends_of,
    not_behind,
    starts_of,
)

MOVED = [QueueSpan(0, 10, 40), QueueSpan(0, 40, 100), QueueSpan(1, 0, 0), QueueSpan(2, 5, 7)]


def test_spans_are_cut_into_tasks() -> None:
    """No task has more offsets than it may, an empty span has none, and none is left out."""
    assert divide(MOVED, 25) == [
        QueueSpan(0, 10, 35),
        QueueSpan(0, 35, 40),
        QueueSpan(0, 40, 65),
        QueueSpan(0, 65, 90),
        QueueSpan(0, 90, 100),
        QueueSpan(2, 5, 7),
    ]


def test_a_queue_begins_at_its_oldest_message() -> None:
    """An empty queue begins where it ends; a moved one at its oldest epoch."""
    assert starts_of(MOVED) == {"0": 10, "1": 0, "2": 5}
    assert ends_of(MOVED) == {"0": 100, "1": 0, "2": 7}
    assert starts_of([QueueSpan(0, 9, 9)]) == {"0": 9}


def test_an_empty_older_epoch_does_not_hide_messages() -> None:
    """Trimmed messages of an older epoch say nothing of the newer one."""
    assert starts_of([QueueSpan(0, 40, 40), QueueSpan(0, 40, 60)]) == {"0": 40}


def test_a_micro_batch_crosses_epochs() -> None:
    """A range is cut where an epoch ends, so that tasks read from one raft group each."""
    assert between(MOVED, {"0": 20, "2": 7}, {"0": 50, "1": 0, "2": 7}) == [
        QueueSpan(0, 20, 40),
        QueueSpan(0, 40, 50),
    ]


def test_what_was_trimmed_stays_in_the_range() -> None:
    """The reader has to notice the loss, not the planner to hide it."""
    trimmed = [QueueSpan(0, 30, 100)]
    ranges = between(trimmed, {"0": 10}, {"0": 50})
    assert (ranges[0].first, ranges[-1].end) == (10, 50)


def test_a_new_queue_joins_a_stream() -> None:
    """A queue that the checkpoint does not know is read from its start."""
    assert advance({"0": 5}, {"0": 5, "1": 3}, 0) == {"0": 5, "1": 3}


def test_a_query_goes_on_at_the_end_of_a_topic_that_was_made_again() -> None:
    """Else nothing came until the queue is as long as before, and what lies before is lost."""
    start = not_behind({"0": 30, "1": 5}, {"0": 3, "1": 9, "2": 4})
    assert start == {"0": 3, "1": 5}
    assert advance(start, {"0": 7, "1": 9, "2": 4}, 0) == {"0": 7, "1": 9, "2": 4}


def test_a_limit_is_shared_by_the_queues() -> None:
    """A queue with little leaves its share to the others, and nothing goes beyond the limit."""
    assert advance({"0": 0, "1": 0, "2": 0}, {"0": 2, "1": 100, "2": 100}, 42) == {
        "0": 2,
        "1": 20,
        "2": 20,
    }


offsets = st.dictionaries(st.integers(0, 5).map(str), st.integers(0, 1_000), min_size=1)


@given(offsets, offsets, st.integers(0, 300))
def test_advancing_never_goes_back_nor_too_far(
    start: dict[str, int], ends: dict[str, int], limit: int
) -> None:
    """Every queue stays between its start and its end; the limit holds and is used."""
    reached = advance(start, ends, limit)
    taken = {key: reached[key] - start.get(key, 0) for key in reached}
    waiting = {key: max(0, end - start.get(key, 0)) for key, end in ends.items()}
    assert all(0 <= taken[key] <= waiting.get(key, 0) for key in taken)
    most = sum(waiting.values())
    assert sum(taken.values()) == (min(limit, most) if limit else most)


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=5),
    st.integers(0, 60),
    st.integers(0, 60),
    st.integers(1, 20),
)
def test_every_offset_is_read_once(lengths: list[int], low: int, more: int, most: int) -> None:
    """A micro-batch's tasks cover its range exactly, whatever the epochs are."""
    spans, at = [], 0
    for length in lengths:
        spans.append(QueueSpan(0, at, at + length))
        at += length
    tasks = divide(between(spans, {"0": low}, {"0": low + more}), most)
    read = Counter(offset for task in tasks for offset in range(task.first, task.end))
    assert read == Counter(range(low, low + more))
    assert all(task.end - task.first <= most for task in tasks)
