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


def chosen(backlog: Backlog, now_ms: int = 0) -> list[OffsetRange]:
    """Return what the next object holds."""
    ranges: list[OffsetRange] = []
    for _ in backlog.choose(ranges, now_ms):
        pass
    return ranges


def commit(queues: Queues, backlog: Backlog, ranges: list[OffsetRange]) -> None:
    """Bring ranges to the tier."""
    queues.commit(ranges)
    for _ in backlog.committed(ranges):
        pass


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
            ranges = chosen(backlog)
            assert len(ranges) <= OPTIONS.ranges_max
            commit(queues, backlog, ranges)
    for _ in backlog.rescan():
        pass
    look_at_all(backlog)
    while backlog.is_due(10_000):
        commit(queues, backlog, chosen(backlog))
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
    commit(queues, backlog, [OffsetRange(TOPIC_ID, 0, 0, 30)])
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
    assert chosen(backlog) == [OffsetRange(TOPIC_ID, 0, 0, 8)]
    commit(queues, backlog, chosen(backlog))
    look_at_all(backlog)
    first, second = chosen(backlog)
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
        commit(queues, backlog, chosen(backlog))
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
    assert chosen(backlog) == []
    answers[TOPIC_ID] = True
    backlog.retry_unknown()
    look_at_all(backlog)
    assert chosen(backlog) == [OffsetRange(TOPIC_ID, 0, 0, 5)]


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
    assert chosen(backlog, 1_100) == [OffsetRange(TOPIC_ID, 0, 0, 10)]
    assert chosen(backlog, 1_500) == [OffsetRange(OTHER_TOPIC_ID, 0, 0, 1)]
    commit(queues, backlog, chosen(backlog, 1_100))
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
        commit(queues, backlog, chosen(backlog, now_ms))
        look_at_all(backlog, 100_000)
        objects += 1
    assert queues.committed == queues.ends
    assert objects <= message_bytes // options.object_bytes + 1


class Sums:
    """The oldest message and the bytes of a space, summed over all that waits."""

    def __init__(self) -> None:
        self.message_bytes, self.oldest_ms = 0, 1 << 63


def sums_of(backlog: Backlog) -> dict[str, Sums]:
    """Return the spaces of which something waits."""
    # In the order in which the backlog has them: equal ones are chosen by it.
    found = {space: Sums() for space in backlog._spaces}
    for waiting in backlog._waiting.values():
        assert waiting.since_ms is not None
        found[waiting.space].message_bytes += waiting.message_bytes
        found[waiting.space].oldest_ms = min(found[waiting.space].oldest_ms, waiting.since_ms)
    return found


def chosen_among_all(backlog: Backlog, now_ms: int) -> list[OffsetRange]:
    """Return what the next object holds, by a look at everything that waits."""
    waiting_of = {key: each for key, each in backlog._waiting.items() if backlog._is_wanted(key)}
    by_space = sums_of(backlog)
    if not by_space:
        return []
    space = min(by_space, key=lambda each: by_space[each].oldest_ms)
    if now_ms - by_space[space].oldest_ms < OPTIONS.flush_age_ms:
        fullest = max(by_space, key=lambda each: by_space[each].message_bytes)
        if by_space[fullest].message_bytes >= OPTIONS.object_bytes:
            space = fullest
    of_space = [item for item in waiting_of.items() if item[1].space == space]
    ranges: list[OffsetRange] = []
    left_bytes = OPTIONS.object_bytes
    for key, waiting in sorted(of_space, key=lambda item: item[1].since_ms or 0):
        if left_bytes <= 0 or len(ranges) == OPTIONS.ranges_max:
            break
        is_cut = waiting.message_bytes > left_bytes
        end = backlog._cut(key, waiting, left_bytes) if is_cut else waiting.seen
        ranges.append(OffsetRange(*key, waiting.first, end))
        left_bytes -= waiting.message_bytes
    return ranges


@pytest.mark.parametrize("round_", range(20))
def test_the_choice_is_that_of_a_look_at_everything(round_: int) -> None:
    """The oldest queues of the right space, and the same sums, after every kind of change."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    queues, now_ms = Queues(), 1
    topic_ids = range(1, 7)
    tiered = set(topic_ids)
    # Topics leave the tier where there is one space: another one may be chosen where there are
    # more of them.
    spaces = rng.choice([1, 3])
    backlog = Backlog(
        queues,  # type: ignore[arg-type]
        queues,
        tiered.__contains__,
        options=OPTIONS,
        space_of=lambda topic_id: f"space-{topic_id % spaces}",
    )
    for _ in range(300):
        now_ms += rng.choice([0, 0, 1, 40])
        key = rng.choice(topic_ids), rng.randrange(3)
        chance = rng.random()
        if chance < 0.6:
            # Group time goes backward now and then.
            queues.append(*key, rng.randrange(1, 6), max(1, now_ms - rng.choice([0, 0, 50])))
            backlog.appended(*key)
        elif chance < 0.65 and spaces == 1:
            tiered.symmetric_difference_update({key[0]})
            list(backlog.rescan())
        elif chance < 0.7 and queues.ends.get(key, 0) > queues.committed.get(key, 0):
            # Retention overtakes the uploads.
            queues.committed[key] = queues.ends[key]
            list(backlog.rescan())
        elif chance < 0.72:
            backlog.forget()
            list(backlog.rescan())
        look_at_all(backlog)
        by_space = sums_of(backlog)
        assert backlog.message_bytes == sum(each.message_bytes for each in by_space.values())
        times = [each.oldest_ms for each in by_space.values()]
        assert backlog.oldest_ms == min(times, default=None)
        assert backlog.is_due(now_ms) == any(
            now_ms - each.oldest_ms >= OPTIONS.flush_age_ms
            or each.message_bytes >= OPTIONS.object_bytes
            for each in by_space.values()
        )
        expected = chosen_among_all(backlog, now_ms)
        assert chosen(backlog, now_ms) == expected
        if backlog.is_due(now_ms):
            commit(queues, backlog, expected)


class CountedQueues(Queues):
    """Counts the queue rows that are read."""

    reads = 0

    def get(self, topic_id: int, queue: int) -> QueueRow | None:
        self.reads += 1
        return super().get(topic_id, queue)


def test_only_what_is_chosen_is_looked_up() -> None:
    """A choice and a commit read no row of the other queues, of which there may be many."""
    queues = CountedQueues()
    backlog = backlog_of(queues)
    for queue in range(500):
        queues.append(TOPIC_ID, queue, 1, 1_000 - queue)
        backlog.appended(TOPIC_ID, queue)
    look_at_all(backlog)
    queues.reads = 0
    ranges = chosen(backlog)
    assert ranges == [OffsetRange(TOPIC_ID, queue, 0, 1) for queue in (499, 498, 497)]
    commit(queues, backlog, ranges)
    assert backlog.oldest_ms == 1_000 - 496
    assert queues.reads == OPTIONS.ranges_max


def test_a_look_is_bounded_where_nothing_is_left() -> None:
    """Queues whose messages all were uploaded count, too, like rows of messages."""
    queues = CountedQueues()
    backlog = backlog_of(queues)
    for queue in range(500):
        queues.append(TOPIC_ID, queue, 1, 1)
        backlog.appended(TOPIC_ID, queue)
        queues.committed[TOPIC_ID, queue] = 1
    looks = 1
    while not backlog.scan(10):
        looks += 1
    assert (looks, queues.reads) == (50, 500)
    assert backlog.oldest_ms is None


def test_what_retention_overtook_is_seen_anew() -> None:
    """The next range of a queue begins where the tier ends, though nothing of it was uploaded."""
    queues = Queues()
    backlog = backlog_of(queues)
    for queue in (0, 1):
        queues.append(TOPIC_ID, queue, 4, 1)
        backlog.appended(TOPIC_ID, queue)
    look_at_all(backlog)
    queues.append(TOPIC_ID, 0, 4, 5)
    for queue in (0, 1):
        queues.committed[TOPIC_ID, queue] = 4
    list(backlog.rescan())
    look_at_all(backlog)
    assert (backlog.message_bytes, backlog.oldest_ms) == (4 * LENGTH, 5)
    assert chosen(backlog) == [OffsetRange(TOPIC_ID, 0, 4, 8)]


def test_a_space_without_wanted_messages_gives_way() -> None:
    """Where the oldest messages belong to no tiered topic any more, the next space is chosen."""
    queues = Queues()
    spaces, tiered = {1: "acme", 2: "acme", 3: ""}, {1, 2, 3}
    backlog = Backlog(
        queues,  # type: ignore[arg-type]
        queues,
        tiered.__contains__,
        options=OPTIONS,
        space_of=spaces.__getitem__,
    )
    for topic_id, time_ms in ((1, 5), (3, 6), (2, 7)):
        queues.append(topic_id, 0, 1, time_ms)
        backlog.appended(topic_id, 0)
    look_at_all(backlog)
    tiered.remove(1)
    assert chosen(backlog) == [OffsetRange(3, 0, 0, 1)]
    assert (backlog.message_bytes, backlog.oldest_ms) == (2 * LENGTH, 6)


class Failing:
    """Spaces and queues that are left out of objects."""

    def __init__(self) -> None:
        self.spaces: set[str] = set()
        self.queues: set[tuple[int, int]] = set()

    def is_space_aside(self, space: str, /) -> bool:
        return space in self.spaces

    def is_queue_aside(self, topic_id: int, queue: int, /) -> bool:
        return (topic_id, queue) in self.queues


def failing_backlog(queues: Queues, failing: Failing) -> Backlog:
    return Backlog(
        queues,  # type: ignore[arg-type]
        queues,
        lambda _: True,
        options=OPTIONS,
        space_of=lambda topic_id: "" if topic_id == TOPIC_ID else "acme",
        left_out=failing,
    )


def test_a_space_that_is_left_out_makes_nothing_due() -> None:
    """Others are uploaded as if it had nothing; it still waits, and is chosen when it may be."""
    queues, failing = Queues(), Failing()
    backlog = failing_backlog(queues, failing)
    queues.append(OTHER_TOPIC_ID, 0, 2, 1_000)
    queues.append(TOPIC_ID, 0, 2, 2_000)
    for topic_id in (TOPIC_ID, OTHER_TOPIC_ID):
        backlog.appended(topic_id, 0)
    look_at_all(backlog)
    failing.spaces = {"acme"}
    assert (backlog.oldest_ms, backlog.ready_ms()) == (1_000, 2_000)
    assert (backlog.is_due(2_499), backlog.is_due(2_500)) == (False, True)
    ranges = chosen(backlog, 2_500)
    assert ranges == [OffsetRange(TOPIC_ID, 0, 0, 2)]
    commit(queues, backlog, ranges)
    look_at_all(backlog)
    assert (backlog.ready_ms(), chosen(backlog, 9_000)) == (None, [])
    failing.spaces.clear()
    assert chosen(backlog, 9_000) == [OffsetRange(OTHER_TOPIC_ID, 0, 0, 2)]


def test_a_queue_that_is_left_out_is_looked_at_again() -> None:
    """Its messages count as waiting, and are uploaded from where they were once it is read."""
    queues, failing = Queues(), Failing()
    backlog = failing_backlog(queues, failing)
    for queue in (0, 1):
        queues.append(TOPIC_ID, queue, 2, 1_000)
        backlog.appended(TOPIC_ID, queue)
    failing.queues = {(TOPIC_ID, 0)}
    look_at_all(backlog)
    ranges = chosen(backlog, 9_000)
    assert ranges == [OffsetRange(TOPIC_ID, 1, 0, 2)]
    commit(queues, backlog, ranges)
    backlog.retry_unknown()
    look_at_all(backlog)
    assert (backlog.is_due(9_000), backlog.messages_behind()) == (False, 2)
    failing.queues.clear()
    backlog.retry_unknown()
    look_at_all(backlog)
    assert chosen(backlog, 9_000) == [OffsetRange(TOPIC_ID, 0, 0, 2)]
