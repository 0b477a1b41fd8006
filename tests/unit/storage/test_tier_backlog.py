"""Order of uploads: every offset once, in order, never more than an object holds."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from strata_mq.layout.columns import pack_longs, pack_words
from strata_mq.layout.cq_rows import CqRow, encode_cq_row
from strata_mq.layout.rows import QueueRow
from strata_mq.layout.tier_rows import OffsetRange
from strata_storage.tiering.backlog import Backlog
from strata_storage.tiering.options import UploadOptions

TOPIC_ID, OTHER_TOPIC_ID = 7, 8
LENGTH = 100
OPTIONS = UploadOptions(object_bytes=1_000, flush_age_ms=500, ranges_max=3)


class Queues:
    """Rows of queues, and how far they are in the tier: what a backlog looks at."""

    def __init__(self, message_bytes: int = LENGTH) -> None:
        self.message_bytes = message_bytes
        self.runs: dict[tuple[int, int], list[tuple[int, CqRow]]] = {}
        self.ends: dict[tuple[int, int], int] = {}
        self.committed: dict[tuple[int, int], int] = {}

    def append(self, topic_id: int, queue: int, count: int, time_ms: int) -> None:
        key = topic_id, queue
        base = self.ends.get(key, 0)
        columns = (
            pack_words([self.message_bytes] * count)
            + pack_words([0] * count)
            + pack_longs([0] * count)
        )
        value = encode_cq_row(0, 1, time_ms, columns + pack_longs([0] * count), count)
        self.runs.setdefault(key, []).append((base, CqRow(value)))
        self.ends[key] = base + count

    # The machine's side.

    @property
    def rows(self) -> Queues:
        return self

    @property
    def queues(self) -> Queues:
        return self

    @property
    def consume_queues(self) -> Queues:
        return self

    def get(self, topic_id: int, queue: int) -> QueueRow | None:
        end = self.ends.get((topic_id, queue))
        return None if end is None else QueueRow(end, 0, 0, 0)

    def all(self) -> Iterator[tuple[int, int, QueueRow]]:
        return ((*key, QueueRow(end, 0, 0, 0)) for key, end in self.ends.items())

    def from_offset(self, topic_id: int, queue: int, offset: int) -> Iterator[tuple[int, CqRow]]:
        return (
            (base, row) for base, row in self.runs[topic_id, queue] if base + row.count > offset
        )

    # The side of the tier's state.

    def commit_offset(self, topic_id: int, queue: int) -> int | None:
        return self.committed.get((topic_id, queue))

    def commit(self, ranges: list[OffsetRange]) -> None:
        for topic_id, queue, first, end in ranges:
            assert first == self.committed.get((topic_id, queue), 0), "ranges leave no gap"
            assert end > first
            self.committed[topic_id, queue] = end


def backlog_of(queues: Queues) -> Backlog:
    return Backlog(queues, queues, lambda topic_id: topic_id == TOPIC_ID, options=OPTIONS)  # type: ignore[arg-type]


def look_at_all(backlog: Backlog, rows_at_once: int = 2) -> None:
    while not backlog.scan(rows_at_once):
        pass


@pytest.mark.parametrize("round_", range(10))
def test_everything_is_uploaded_once(round_: int) -> None:
    """Ranges of a queue follow each other up to its end, whatever comes in whatever order."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    queues = Queues()
    backlog = backlog_of(queues)
    for now_ms in range(1, 60):
        queue = rng.randrange(4)
        queues.append(TOPIC_ID, queue, rng.randrange(1, 8), now_ms)
        if rng.random() < 0.5:
            backlog.appended(TOPIC_ID, queue)
        if rng.random() < 0.3:
            look_at_all(backlog)
            ranges = backlog.choose()
            assert len(ranges) <= OPTIONS.ranges_max
            queues.commit(ranges)
            backlog.committed()
    for _ in backlog.rescan():
        pass
    look_at_all(backlog)
    while backlog.is_due(10_000):
        queues.commit(backlog.choose())
        backlog.committed()
        look_at_all(backlog)
    assert queues.committed == queues.ends
    assert backlog.message_bytes == 0


def test_what_waits_is_counted_whether_it_was_looked_at_or_not() -> None:
    """Offsets of tiered topics up to the end of their queues, less what the tier has."""
    queues = Queues()
    backlog = backlog_of(queues)
    for topic_id, queue, count in ((TOPIC_ID, 0, 30), (TOPIC_ID, 1, 5), (OTHER_TOPIC_ID, 0, 9)):
        queues.append(topic_id, queue, count, 1)
        backlog.appended(topic_id, queue)
    assert backlog.messages_behind() == 35
    look_at_all(backlog)
    assert backlog.messages_behind() == 35
    # Comes while something else is being uploaded, and is looked at after that.
    queues.append(TOPIC_ID, 1, 3, 2)
    backlog.appended(TOPIC_ID, 1)
    assert backlog.messages_behind() == 38
    queues.commit([OffsetRange(TOPIC_ID, 0, 0, 30)])
    backlog.committed()
    assert backlog.messages_behind() == 8


def test_an_object_is_cut_at_its_size() -> None:
    """More than one object's worth of a queue is left for the next one; one run always goes."""
    queues = Queues()
    backlog = backlog_of(queues)
    for _ in range(4):
        queues.append(TOPIC_ID, 0, 4, 1)
    queues.append(TOPIC_ID, 1, 30, 2)
    for queue in (0, 1):
        backlog.appended(TOPIC_ID, queue)
    look_at_all(backlog)
    assert backlog.choose() == [OffsetRange(TOPIC_ID, 0, 0, 8)]
    queues.commit(backlog.choose())
    backlog.committed()
    look_at_all(backlog)
    first, second = backlog.choose()
    assert first == OffsetRange(TOPIC_ID, 0, 8, 16)
    assert second == OffsetRange(TOPIC_ID, 1, 0, 30)


def test_a_long_backlog_is_not_looked_at_again_and_again() -> None:
    """A look takes no more of a queue than an object takes; the rest comes after that."""
    queues = Queues()
    backlog = backlog_of(queues)
    for _ in range(100):
        queues.append(TOPIC_ID, 0, 5, 1)
    backlog.appended(TOPIC_ID, 0)
    look_at_all(backlog)
    assert backlog.message_bytes == OPTIONS.object_bytes
    uploads = 0
    while backlog.is_due(1):
        queues.commit(backlog.choose())
        backlog.committed()
        look_at_all(backlog)
        uploads += 1
    assert (uploads, queues.committed) == (50, queues.ends)


def test_little_waits_until_it_is_old() -> None:
    """An object is due by its size, or by the age of its oldest message."""
    queues = Queues()
    backlog = backlog_of(queues)
    queues.append(TOPIC_ID, 0, 1, 1_000)
    backlog.appended(TOPIC_ID, 0)
    look_at_all(backlog)
    assert (backlog.message_bytes, backlog.oldest_ms) == (LENGTH, 1_000)
    assert not backlog.is_due(1_499)
    assert backlog.is_due(1_500)
    queues.append(TOPIC_ID, 0, 9, 1_100)
    backlog.appended(TOPIC_ID, 0)
    look_at_all(backlog)
    assert backlog.is_due(1_100)


def test_topics_without_a_tier_are_left_alone() -> None:
    """Messages without a tier do not count; those of an unknown topic are looked at again."""
    queues = Queues()
    answers: dict[int, bool | None] = {TOPIC_ID: None, OTHER_TOPIC_ID: False}
    backlog = Backlog(queues, queues, answers.get, options=OPTIONS)  # type: ignore[arg-type]
    for topic_id in answers:
        queues.append(topic_id, 0, 5, 1)
        backlog.appended(topic_id, 0)
    look_at_all(backlog)
    assert backlog.choose() == []
    answers[TOPIC_ID] = True
    backlog.retry_unknown()
    look_at_all(backlog)
    assert backlog.choose() == [OffsetRange(TOPIC_ID, 0, 0, 5)]


def test_an_object_is_of_one_space() -> None:
    """Spaces share no object; one that waited for too long goes before one that is full."""
    queues = Queues()
    spaces = {TOPIC_ID: "", OTHER_TOPIC_ID: "acme"}
    backlog = Backlog(queues, queues, lambda _: True, options=OPTIONS, space_of=spaces.__getitem__)  # type: ignore[arg-type]
    queues.append(OTHER_TOPIC_ID, 0, 1, 1_000)
    queues.append(TOPIC_ID, 0, 10, 1_100)
    for topic_id in spaces:
        backlog.appended(topic_id, 0)
    look_at_all(backlog)
    assert backlog.is_due(1_100)
    assert backlog.choose(1_100) == [OffsetRange(TOPIC_ID, 0, 0, 10)]
    assert backlog.choose(1_500) == [OffsetRange(OTHER_TOPIC_ID, 0, 0, 1)]
    queues.commit(backlog.choose(1_100))
    backlog.committed()
    look_at_all(backlog)
    assert not backlog.is_due(1_499)
    assert backlog.is_due(1_500)


def test_many_queues_share_objects() -> None:
    """100,000 queues make no more objects than their bytes fill, and one for the flush."""
    options = UploadOptions()
    queues = Queues(message_bytes=1_000)
    backlog = Backlog(queues, queues, lambda _: True, options=options)  # type: ignore[arg-type]
    queues.append(TOPIC_ID, 0, 1, 1_000)
    runs = queues.runs[TOPIC_ID, 0]
    for queue in range(100_000):
        queues.runs[TOPIC_ID, queue], queues.ends[TOPIC_ID, queue] = runs, 1
        backlog.appended(TOPIC_ID, queue)
    look_at_all(backlog, 100_000)
    message_bytes = backlog.message_bytes
    assert message_bytes == 100_000 * 1_000
    objects, now_ms = 0, 1_000 + options.flush_age_ms
    while backlog.is_due(now_ms):
        queues.commit(backlog.choose(now_ms))
        backlog.committed()
        look_at_all(backlog, 100_000)
        objects += 1
    assert queues.committed == queues.ends
    assert objects <= message_bytes // options.object_bytes + 1
