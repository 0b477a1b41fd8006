"""Apply of messages that wait: what rows say after each command (rules 1 and 26)."""

from __future__ import annotations

import pytest

from strata_mq.commands.common import Duplicate
from strata_mq.commands.pending import deliver, discard, reschedule
from strata_mq.commands.rare import TrimCommand, TrimmedQueue
from strata_mq.layout.batch import PartKind
from strata_mq.layout.pending_rows import (
    ORDINAL_OF_ALL,
    PendingKey,
    PendingRef,
    PendingRow,
    PinRow,
    PinRun,
    PinState,
)
from strata_mq.layout.rows import MessagePosition
from strata_storage.base.errors import ApplyError
from tests.unit.storage.pending_entries import (
    DAY_MS,
    START_MS,
    TODAY,
    TOPIC_ID,
    Log,
    message,
    part_key,
)

DEAD_LETTER_TOPIC_ID = 9


def waiting(log: Log) -> dict[PendingKey, bytes]:
    """Return what waits: key -> message id."""
    return {key: row.message_id for key, row in log.machine.rows.pending.scan()}


def pins(log: Log) -> dict[PendingRef, PinRow]:
    return dict(log.machine.rows.pins.scan())


def queue_of(log: Log, topic_id: int = TOPIC_ID, queue: int = 0) -> list[tuple[int, int, int]]:
    """Return (offset, raft index, tag hash, which is the message's number) of a queue."""
    return [
        (base + number, row.raft_index, tag_hash)
        for base, row in log.machine.rows.cq.from_base(topic_id, queue, 0)
        for number, tag_hash in enumerate(row.tag_hashes)
    ]


def row_of(log: Log, key: PendingKey) -> PendingRow:
    row = log.machine.rows.pending.get(key)
    assert row is not None
    return row


def test_what_is_stored_to_wait_takes_no_offset() -> None:
    """Pending rows, pins and id rows; no queue row, no cq row, no key row; the leader is told."""
    log = Log()
    due = [START_MS + 5_000, START_MS + 2_000]
    index = log.append((part_key(), [message(1, due[0], keys=[99]), message(2, due[1])]))
    keys = [PendingKey(due[0], index, 0), PendingKey(due[1], index, 1)]
    assert list(waiting(log)) == [keys[1], keys[0]]
    assert pins(log) == {
        key.ref: PinRow.pending(PartKind.DELAYED, TOPIC_ID, key.due_ms) for key in keys
    }
    row = row_of(log, keys[0])
    assert (row.kind, row.checks, row.topic_id, row.queue) == (PartKind.DELAYED, 0, TOPIC_ID, -1)
    assert (row.slot_base, row.queue_count, row.key_hashes) == (5, 4, (99,))
    assert row.store_time_ms == START_MS
    rows = log.machine.rows
    assert rows.ids.get(TODAY, TOPIC_ID, message(2).message_id) == keys[1].ref
    assert rows.keys.find(TODAY, TOPIC_ID, 99, 10) == []
    assert rows.queues.get(TOPIC_ID, 0) is None
    assert queue_of(log) == []
    assert log.listener.pending == [(key, PartKind.DELAYED) for key in keys]
    assert log.listener.appended == []


def test_duplicates_are_not_stored_again() -> None:
    """A message that the leader knew has no row; the others keep their ordinals as names."""
    log = Log()
    duplicates = [Duplicate(1, 0, 0, PendingRef(1, 0))]
    index = log.append(
        (part_key(), [message(1, 10), message(2, 20), message(3, 30)]), duplicates=duplicates
    )
    assert list(pins(log)) == [PendingRef(index, 0), PendingRef(index, 2)]
    row = row_of(log, PendingKey(30, index, 2))
    data = b"".join(log.entries[0].payload)
    assert data[row.message_at : row.message_at + row.length] == b"message 3"


def test_placing_gives_offsets_in_the_order_of_the_items() -> None:
    """One cq row for what lies side by side; store time is the placing; the pin tells where."""
    log = Log()
    log.append((part_key(PartKind.PLAIN), [message(0)]))
    index = log.append((part_key(), [message(n, n, keys=[n]) for n in range(1, 5)]))
    items = []
    for offset, ordinal in enumerate((1, 2, 0), 1):
        key = PendingKey(ordinal + 1, index, ordinal)
        items.append(deliver(key, row_of(log, key), TOPIC_ID, 0, offset))
    now_ms = START_MS + 7_000
    resolve_index = log.resolve(*items, now_ms=now_ms)
    assert queue_of(log) == [(0, 1, 0), (1, index, 2), (2, index, 3), (3, index, 1)]
    runs = list(log.machine.rows.cq.from_base(TOPIC_ID, 0, 0))
    assert [(base, run.count, run.offset_index) for base, run in runs] == [
        (0, 1, 1),
        (1, 2, resolve_index),
        (3, 1, resolve_index),
    ]
    assert {run.store_time_ms for _, run in runs[1:]} == {now_ms}
    cached = log.machine.consume_queues.runs(TOPIC_ID, 0, 0, 10)
    assert [(base, run.count) for base, run in cached] == [(base, r.count) for base, r in runs]
    state = log.machine.queues.get(TOPIC_ID, 0)
    assert state is not None
    assert (state.next_offset, state.last_store_time_ms) == (4, now_ms)
    assert list(waiting(log)) == [PendingKey(4, index, 3)]
    assert pins(log)[PendingRef(index, 0)] == PinRow.placed(PartKind.DELAYED, TOPIC_ID, 0, 3)
    assert log.machine.rows.keys.find(TODAY, TOPIC_ID, 2, 10) == [(0, 1)]
    assert log.listener.appended == [(TOPIC_ID, 0)] * 2
    for run_base, run in runs:
        for ordinal in range(run.count):
            at, length, _ = run.location(ordinal)
            entry = b"".join(log.entries[run.raft_index - 1].payload)
            number = queue_of(log)[run_base + ordinal][2]
            assert entry[at : at + length] == b"message %d" % number


def test_an_id_row_keeps_the_name_and_is_repeated_on_the_day_of_the_placing() -> None:
    """A repeat of the send gets the first receipt; a query finds the message under both days."""
    log = Log()
    index = log.append((part_key(), [message(1, START_MS + 2 * DAY_MS), message(2, START_MS)]))
    keys = [PendingKey(START_MS + 2 * DAY_MS, index, 0), PendingKey(START_MS, index, 1)]
    log.resolve(deliver(keys[1], row_of(log, keys[1]), TOPIC_ID, 0, 0))
    log.resolve(
        deliver(keys[0], row_of(log, keys[0]), TOPIC_ID, 0, 1), now_ms=START_MS + 2 * DAY_MS
    )
    ids = log.machine.rows.ids
    found = [ids.get(day, TOPIC_ID, message(1).message_id) for day in range(TODAY, TODAY + 3)]
    assert found == [keys[0].ref, None, keys[0].ref]
    found = [ids.get(day, TOPIC_ID, message(2).message_id) for day in range(TODAY, TODAY + 3)]
    assert found == [keys[1].ref, None, None]


def test_a_half_message_may_go_to_a_dead_letter_topic() -> None:
    """It is in that topic's queue, found by id there, and nowhere else."""
    log = Log()
    index = log.append((part_key(PartKind.HALF), [message(1, START_MS)]))
    key = PendingKey(START_MS, index, 0)
    log.resolve(deliver(key, row_of(log, key), DEAD_LETTER_TOPIC_ID, 3, 0))
    assert queue_of(log, DEAD_LETTER_TOPIC_ID, 3) == [(0, index, 1)]
    assert queue_of(log) == []
    ids = log.machine.rows.ids
    assert ids.get(TODAY, DEAD_LETTER_TOPIC_ID, message(1).message_id) == key.ref
    assert pins(log)[key.ref] == PinRow.placed(PartKind.HALF, DEAD_LETTER_TOPIC_ID, 3, 0)


def test_dropping_leaves_nothing_but_the_id() -> None:
    """Rolled back or recalled: no row, no pin; its name stays taken for repeats of the send."""
    log = Log()
    index = log.append((part_key(PartKind.HALF), [message(1, 5), message(2, 6)]))
    log.resolve(discard(PendingKey(START_MS + 5, index, 0), TOPIC_ID))
    assert list(waiting(log)) == [PendingKey(START_MS + 6, index, 1)]
    assert list(pins(log)) == [PendingRef(index, 1)]
    assert queue_of(log) == []
    ids = log.machine.rows.ids
    assert ids.get(TODAY, TOPIC_ID, message(1).message_id) == PendingRef(index, 0)


def test_a_half_is_first_asked_about_so_long_after_it_was_stored() -> None:
    """By group time, whatever the clock of who sent it; what an older version wrote is a time."""
    log = Log()
    index = log.append(
        (part_key(PartKind.HALF), [message(1, 6_000), message(2, START_MS + 9_000)]),
    )
    assert list(waiting(log)) == [
        PendingKey(START_MS + 6_000, index, 0),
        PendingKey(START_MS + 9_000, index, 1),
    ]


def test_putting_off_moves_the_row_and_counts() -> None:
    """The pin follows; the leader is told; it may be put off to the same time again."""
    log = Log()
    index = log.append((part_key(PartKind.HALF), [message(1, 5)]))
    for number, (before, after) in enumerate(((5, 50), (50, 50), (50, 7)), 1):
        log.resolve(reschedule(PendingKey(before, index, 0), TOPIC_ID, after, number))
        key = PendingKey(after, index, 0)
        assert list(waiting(log)) == [key]
        assert row_of(log, key).checks == number
        assert pins(log) == {key.ref: PinRow.pending(PartKind.HALF, TOPIC_ID, after)}
        assert log.listener.pending[-1] == (key, PartKind.HALF)


def test_everything_may_happen_in_one_apply() -> None:
    """Rows that are not in the store yet are found: storing, putting off, placing in one batch."""
    one, other = Log(), Log()
    key = PendingKey(5, 1, 0)
    row: PendingRow | None = None
    for log, apply in ((one, True), (other, False)):
        log.append((part_key(), [message(1, 5), message(2, 6)]), apply=apply)
        log.resolve(reschedule(key, TOPIC_ID, 60, 1), apply=apply)
        row = row_of(log, key._replace(due_ms=60)) if apply else row
        assert row is not None
        log.resolve(deliver(key._replace(due_ms=60), row, TOPIC_ID, 0, 0), apply=apply)
        log.resolve(discard(PendingKey(6, 1, 1), TOPIC_ID))
    assert list(one.machine.rows.all()) == list(other.machine.rows.all())
    assert queue_of(other) == [(0, 1, 1)]
    assert waiting(other) == {}


@pytest.mark.parametrize("how", ["twice", "unknown", "offset"])
def test_what_contradicts_the_rows_stops_apply(how: str) -> None:
    """A message that does not wait, or an offset that is not the next: nothing is written."""
    log = Log()
    index = log.append((part_key(), [message(1, 5)]))
    key = PendingKey(5, index, 0)
    row = row_of(log, key)
    items = {
        "twice": [deliver(key, row, TOPIC_ID, 0, 0), discard(key, TOPIC_ID)],
        "unknown": [discard(key._replace(ordinal=8), TOPIC_ID)],
        "offset": [deliver(key, row, TOPIC_ID, 0, 1)],
    }[how]
    before = list(log.machine.rows.all())
    with pytest.raises(ApplyError):
        log.resolve(*items)
    assert list(log.machine.rows.all()) == before
    assert log.machine.applied_index() == index
    assert log.machine.queues.get(TOPIC_ID, 0) is None


# Repairs (rule 8) -------------------------------------------------------------------------------


def test_a_repaired_log_is_applied_to_its_end() -> None:
    """A lost message is passed over: its offset stays empty, the others are placed."""
    log = Log()
    index = log.append((part_key(), [message(1, 5), message(2, 6), message(3, 7)]))
    keys = [PendingKey(5 + ordinal, index, ordinal) for ordinal in range(3)]
    rows = [row_of(log, key) for key in keys]
    log.resolve(reschedule(keys[1], TOPIC_ID, 66, 1))
    late = keys[1]._replace(due_ms=66)
    log.resolve(deliver(keys[0], rows[0], TOPIC_ID, 0, 0), deliver(late, rows[1], TOPIC_ID, 0, 1))
    log.resolve(discard(keys[2], TOPIC_ID))

    one_lost = log.lose(index, [1])
    assert queue_of(one_lost) == [(0, index, 1)]
    assert one_lost.machine.queues.get(TOPIC_ID, 0) == log.machine.queues.get(TOPIC_ID, 0)
    assert pins(one_lost)[PendingRef(index, 1)].state is PinState.LOST
    ids = one_lost.machine.rows.ids
    assert ids.get(TODAY, TOPIC_ID, message(2).message_id) is None

    all_lost = log.lose(index)
    assert queue_of(all_lost) == []
    assert all_lost.machine.queues.get(TOPIC_ID, 0) == log.machine.queues.get(TOPIC_ID, 0)
    assert list(pins(all_lost)) == [PendingRef(index, ORDINAL_OF_ALL)]

    never_put_off = log.lose(index + 1)
    assert queue_of(never_put_off) == queue_of(log)
    assert waiting(never_put_off) == {}


# Retracting, trimming, dropping a topic ---------------------------------------------------------


def test_a_retracted_message_leaves_a_hole() -> None:
    """The cq row is split around it, in the store and in memory; a row of its own says why."""
    log = Log()
    log.append((part_key(PartKind.PLAIN), [message(n) for n in range(5)]))
    index = log.retract((TOPIC_ID, 0, 1), (TOPIC_ID, 0, 3), (TOPIC_ID, 0, 4))
    assert queue_of(log) == [(0, 1, 0), (2, 1, 2)]
    cached = log.machine.consume_queues.runs(TOPIC_ID, 0, 0, 10)
    assert [(base, run.count) for base, run in cached] == [(0, 1), (2, 1)]
    assert pins(log) == {}
    assert list(log.machine.rows.retracted.all()) == [(TOPIC_ID, 0, at) for at in (1, 3, 4)]
    state = log.machine.queues.get(TOPIC_ID, 0)
    assert state is not None
    assert state.next_offset == 5
    assert log.append((part_key(PartKind.PLAIN), [message(9)])) == index + 1
    assert queue_of(log)[-1] == (5, index + 1, 9)
    with pytest.raises(ApplyError):
        log.retract((TOPIC_ID, 0, 3))


def test_retracting_what_is_trimmed_does_nothing() -> None:
    """A trim may have come first in the log."""
    log = Log()
    log.append((part_key(PartKind.PLAIN), [message(n) for n in range(3)]))
    log.trim(TrimCommand(1, START_MS, [TrimmedQueue(TOPIC_ID, 0, 2)]))
    log.retract((TOPIC_ID, 0, 1), (99, 0, 0))
    assert list(log.machine.rows.retracted.all()) == []
    assert queue_of(log)[-1] == (2, 1, 2)


def test_what_was_taken_back_is_known_for_a_day_after_its_offset_is_trimmed() -> None:
    """However soon that is: a repeat of the recall gets the answer of the first one (rule 37)."""
    log = Log()
    log.append((part_key(PartKind.PLAIN), [message(n) for n in range(6)]))
    log.retract((TOPIC_ID, 0, 1), (TOPIC_ID, 0, 2), (TOPIC_ID, 0, 4))
    log.trim(TrimCommand(1, START_MS, [TrimmedQueue(TOPIC_ID, 0, 3)]))
    retracted = log.machine.rows.retracted
    assert list(retracted.all()) == [(TOPIC_ID, 0, at) for at in (1, 2, 4)]
    assert not retracted.has(TOPIC_ID, 0, 5)
    two_days_ms = 2 * 86_400_000
    later = part_key(PartKind.PLAIN), [message(9)]
    log.append(later, now_ms=START_MS + two_days_ms)
    log.trim(TrimCommand(1, START_MS, [TrimmedQueue(TOPIC_ID, 0, 4)]))
    assert list(retracted.all()) == [(TOPIC_ID, 0, 4)]
    assert retracted.has(TOPIC_ID, 0, 4)


def test_a_dropped_topic_forgets_what_was_taken_back() -> None:
    log = Log()
    log.append((part_key(PartKind.PLAIN), [message(n) for n in range(6)]))
    log.retract((TOPIC_ID, 0, 1), (TOPIC_ID, 0, 4))
    log.drop_topic(TOPIC_ID)
    assert list(log.machine.rows.retracted.all()) == []


def test_a_trim_removes_the_pins_it_names() -> None:
    """And rows that wait, of dropped topics."""
    log = Log()
    index = log.append((part_key(), [message(n, 10 + n) for n in range(4)]))
    run = PinRun(PendingRef(index, 1), PendingRef(index, 3))
    dropped = [PendingKey(11, index, 1), PendingKey(12, index, 2)]
    log.trim(TrimCommand(1, START_MS, [], [run], dropped))
    assert list(pins(log)) == [PendingRef(index, 0), PendingRef(index, 3)]
    assert list(waiting(log)) == [PendingKey(10, index, 0), PendingKey(13, index, 3)]


def test_entries_behind_the_drop_of_their_topic_do_nothing() -> None:
    """They were decided before it was applied: no row comes back, apply goes on."""
    log = Log()
    index = log.append(
        (part_key(PartKind.PLAIN), [message(0)]), (part_key(), [message(n, n) for n in range(1, 5)])
    )
    keys = [PendingKey(n, index, n) for n in range(1, 5)]
    rows = [row_of(log, key) for key in keys]
    log.drop_topic()
    log.append((part_key(PartKind.PLAIN), [message(5)]), (part_key(), [message(6, 6)]))
    log.trim(TrimCommand(1, START_MS, [TrimmedQueue(TOPIC_ID, 0, 1)]))
    log.resolve(deliver(keys[0], rows[0], TOPIC_ID, 0, 1), discard(keys[1], TOPIC_ID))
    assert list(waiting(log)) == keys[2:]
    assert queue_of(log) == []
    assert log.machine.rows.queues.get(TOPIC_ID, 0) is None
    # A trim takes the rest; what was given to a dead-letter topic meanwhile leaves a hole there.
    log.trim(
        TrimCommand(1, START_MS, [], [PinRun(PendingRef(index, 0), PendingRef(index, 9))], keys[2:])
    )
    log.resolve(
        deliver(keys[2], rows[2], DEAD_LETTER_TOPIC_ID, 3, 0), reschedule(keys[3], TOPIC_ID, 50, 1)
    )
    assert waiting(log) == {}
    assert queue_of(log, DEAD_LETTER_TOPIC_ID, 3) == []
    state = log.machine.queues.get(DEAD_LETTER_TOPIC_ID, 3)
    assert state is not None
    assert state.next_offset == 1
    assert pins(log) == {}


def test_a_row_that_a_trim_missed_goes_when_its_message_is_let_go() -> None:
    """The trim was decided before the message was put off, so it names a row that was not there."""
    log = Log()
    index = log.append((part_key(), [message(0, 10)]))
    key, later = PendingKey(10, index, 0), PendingKey(50, index, 0)
    log.drop_topic()
    log.resolve(reschedule(key, TOPIC_ID, later.due_ms, 0))
    log.trim(TrimCommand(1, START_MS, [], [PinRun(key.ref, key.ref.following())], [key]))
    assert (list(waiting(log)), pins(log)) == ([later], {})
    log.resolve(discard(later, TOPIC_ID))
    assert waiting(log) == {}


def test_plain_parts_beside_pending_ones_are_stored_as_ever() -> None:
    """A batch may have parts of all kinds."""
    log = Log()
    index = log.append(
        (part_key(PartKind.HALF), [message(1, 5)]),
        (part_key(PartKind.PLAIN), [message(2), message(3)]),
        (part_key(PartKind.DELAYED), [message(4, 6)]),
    )
    assert queue_of(log) == [(0, index, 2), (1, index, 3)]
    assert list(waiting(log)) == [PendingKey(6, index, 3), PendingKey(START_MS + 5, index, 0)]
    position = log.machine.rows.ids.get(TODAY, TOPIC_ID, message(3).message_id)
    assert position == MessagePosition(0, 1)
