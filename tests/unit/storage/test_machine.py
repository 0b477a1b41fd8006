"""Apply of messages and leases: it asserts what was decided, and writes it in one piece."""

from __future__ import annotations

import pytest

from strata_mq.commands import (
    CommandKind,
    LiteChange,
    TrimCommand,
    TrimmedQueue,
    encode_lite_topics,
    encode_trim,
)
from strata_mq.commands.common import PartResolution, encode_append, encode_leases
from strata_mq.commands.rare import DropCommand, DropKind, encode_dead_letter, encode_drop
from strata_mq.layout.batch import PartKind
from strata_mq.leases.types import Lease, LeaseChange, LeaseState
from strata_state.memory_store import MemoryStore
from strata_state.ports import RowBatch
from strata_storage.base.errors import ApplyError
from strata_storage.lite.group import LiteGroup
from strata_storage.lite.options import LiteOptions
from tests.unit.storage.pending_entries import (
    START_MS,
    TOPIC_ID,
    Log,
    machine_of,
    message,
    part_key,
    resolved,
)

CONSUMER_GROUP_ID = 5
DEAD_LETTER_TOPIC_ID = 9
KEY = (CONSUMER_GROUP_ID, TOPIC_ID, 0)
PLAIN = part_key(PartKind.PLAIN)


def leased() -> bytes:
    """Return a command that leases the message at offset 0 and moves the head behind it."""
    lease = Lease(LeaseState.LEASED, 1, 8, 1, 0, START_MS + 1_000, START_MS, 0, 0, 0, False)
    return leases(LeaseChange(0, 1, True, ((0, lease),)))


def leases(change: LeaseChange) -> bytes:
    return encode_leases(START_MS, [(*KEY, change)])


def state_of(log: Log) -> tuple[int, int]:
    """Return how many leases are stored, and the head; -1: none is."""
    head = log.machine.rows.heads.get(KEY)
    return len(log.machine.rows.leases.of_queue(KEY)), -1 if head is None else head.head


@pytest.mark.parametrize("base_offset", [0, 2])
def test_an_offset_that_does_not_follow_stops_apply(base_offset: int) -> None:
    """Neither used again nor left out: the leader decided on other rows than these (rule 1)."""
    log = Log()
    log.append((PLAIN, [message(1)]))
    before = log.store.after_crash(), log.machine.queues.get(TOPIC_ID, 0)
    batch, _ = resolved(log.machine, [(PLAIN, [message(2)])])
    with pytest.raises(ApplyError, match=f"goes on at 1, the entry says {base_offset}"):
        log.add(encode_append(START_MS, 77, 2, [PartResolution(0, base_offset)]), batch)
    assert log.machine.applied_index() == 1
    assert log.machine.queues.get(TOPIC_ID, 0) == before[1]


def test_rows_and_applied_index_are_one_batch() -> None:
    """A store that dies between any two batches has all of an entry or nothing (rule 5)."""

    class CountingStore(MemoryStore):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[tuple[int, int]] = []

        def write(self, batch: RowBatch) -> None:
            super().write(batch)
            machine = machine_of(self)
            row = machine.queues.get(TOPIC_ID, 0)
            self.seen.append((machine.applied_index(), row.next_offset if row else 0))

    log = Log()
    log.store = CountingStore()
    log.machine = machine_of(log.store)
    for number in range(3):
        log.append((PLAIN, [message(number)]))
    assert log.store.seen == [(1, 1), (2, 2), (3, 3)]


def test_a_cleared_consumer_group_has_no_leases() -> None:
    """A reset takes all of them away at once, without naming them (rule 24)."""
    log = Log()
    log.append((PLAIN, [message(1)]))
    log.add(leased())
    assert state_of(log) == (1, 1)
    log.add(leases(LeaseChange(1, 0, True, clear=True)))
    assert state_of(log) == (0, 0)


def test_a_dead_letter_is_in_one_of_the_two_places() -> None:
    """The entry that stores the copy takes the lease away (rule 26)."""
    log = Log()
    log.append((PLAIN, [message(1)]))
    log.add(leased())
    copy = (part_key(PartKind.PLAIN, DEAD_LETTER_TOPIC_ID), [message(1)])
    batch, resolutions = resolved(log.machine, [copy])
    taken = leases(LeaseChange(0, 1, False, (), (0,)))
    log.add(encode_dead_letter(taken, encode_append(START_MS, 0, 0, resolutions)), batch)
    row = log.machine.queues.get(DEAD_LETTER_TOPIC_ID, 0)
    assert row is not None
    assert (state_of(log), row.next_offset) == ((0, 1), 1)


@pytest.mark.parametrize(
    "drop",
    [
        DropCommand(DropKind.TOPIC, TOPIC_ID),
        DropCommand(DropKind.CONSUMER_GROUP, CONSUMER_GROUP_ID),
    ],
)
def test_leases_that_were_decided_before_a_drop_write_nothing(drop: DropCommand) -> None:
    """Else rows of a topic or consumer group that is gone would be there forever (rule 17)."""
    log = Log()
    log.append((PLAIN, [message(1)]))
    log.add(leased())
    log.add(encode_drop(drop))
    assert state_of(log) == (0, -1)
    log.add(leased())
    assert state_of(log) == (0, -1)
    assert log.machine.applied_index() == 4


@pytest.mark.parametrize(
    "ending",
    [
        encode_drop(DropCommand(DropKind.TOPIC, TOPIC_ID)),
        encode_trim(TrimCommand(2, START_MS, [TrimmedQueue(TOPIC_ID, 0, 1)])),
        encode_lite_topics(START_MS, [LiteChange(TOPIC_ID, 1, 1, 0, 4, dropped=[(0, b"lite")])]),
    ],
    ids=["drop", "trim", "end of a lite topic"],
)
def test_rows_of_entries_before_it_go_also_if_all_are_applied_at_once(ending: bytes) -> None:
    """It deletes the rows that it finds in the store, so those before it must be there."""
    log = Log()
    lite = LiteGroup(log.machine, LiteOptions(max_lite_topics=10))
    log.machine.plugins.add((CommandKind.LITE_TOPICS,), lite)
    log.append((PLAIN, [message(1)]), apply=False)
    log.add(ending)
    assert list(log.machine.rows.cq.from_base(TOPIC_ID, 0, 0)) == []


def test_messages_that_were_decided_before_a_drop_write_nothing() -> None:
    """The same for appends: the topic's id is never used again (rule 17)."""
    log = Log()
    log.append((PLAIN, [message(1)]))
    log.drop_topic()
    log.append((PLAIN, [message(2)]))
    assert log.machine.queues.get(TOPIC_ID, 0) is None
    assert list(log.machine.rows.cq.from_base(TOPIC_ID, 0, 0)) == []
