"""A leader's decisions on parts whose messages wait: names, duplicates, queues (rule 23)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.commands.common import Duplicate, decode_append
from strata_mq.commands.rare import (
    EpochCommand,
    OwnCommand,
    SlotGrant,
    encode_own,
    encode_seal,
)
from strata_mq.layout.batch import OutgoingMessage, PartKey, PartKind
from strata_mq.layout.pending_rows import NO_QUEUE, PendingRef
from strata_storage.base.config import EngineOptions
from strata_storage.base.dedupe import DedupeOptions, DedupeWindow
from strata_storage.base.errors import Refused
from strata_storage.leading.appends import append
from strata_storage.leading.appends.append import AppendResult, GroupAppender
from strata_storage.leading.appends.in_flight import Stored
from tests.unit.storage.pending_entries import (
    START_MS,
    TOPIC_ID,
    Log,
    message,
    part_key,
    resolved,
)

BOOT_ID = 5


class FakeProposer:
    """Takes proposals; the test says when they are committed and applied."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.waiting: list[tuple[tuple[bytes, ...], asyncio.Future[int], Callable[[], None]]] = []

    def now_ms(self) -> int:
        return START_MS

    def propose(
        self, payload: tuple[bytes, ...], when_applied: Callable[[], None] = lambda: None
    ) -> asyncio.Future[int]:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.waiting.append((payload, future, when_applied))
        return future

    def commit(self) -> None:
        """Commit what was proposed."""
        for number, (_, future, _) in enumerate(self.waiting, self.log.next_index):
            if not future.done():
                future.set_result(number)

    def apply(self) -> None:
        """Commit and apply it."""
        self.commit()
        waiting, self.waiting = self.waiting, []
        for payload, _, when_applied in waiting:
            self.log.add(*payload)
            when_applied()


class Leader:
    """An appender over a log in memory."""

    def __init__(self) -> None:
        self.log = Log()
        self.log.add(encode_own(OwnCommand([SlotGrant(0, 4096, True)])))
        self.proposer = FakeProposer(self.log)
        self.appender = GroupAppender(self.log.machine, self.proposer, EngineOptions())  # type: ignore[arg-type]
        self.appender.adopt(DedupeWindow(DedupeOptions()))
        self.sequence = 0

    def submit(
        self,
        *parts: tuple[PartKey, Sequence[OutgoingMessage]],
        boot_id: int = BOOT_ID,
        sequence: int | None = None,
        may_repeat: bool = False,
    ) -> AppendResult:
        """Take a batch of parts."""
        if sequence is None:
            self.sequence += 1
            sequence = self.sequence
        batch, _ = resolved(self.log.machine, parts)
        return self.appender.submit(batch, boot_id, sequence, may_repeat=may_repeat)


@pytest.fixture
async def leader() -> Leader:
    return Leader()


def due(number: int) -> OutgoingMessage:
    return message(number, START_MS + number)


async def test_a_pending_part_is_named_by_ordinals_and_takes_no_offset(leader: Leader) -> None:
    """The sender is told what the entry says; plain parts beside it take offsets."""
    parts = [
        (part_key(PartKind.PLAIN), [message(1)]),
        (part_key(PartKind.DELAYED), [due(2), due(3)]),
        (part_key(PartKind.HALF), [due(4)]),
    ]
    result = leader.submit(*parts)
    assert [(part.queue, part.base_offset, part.kind) for part in result.parts] == [
        (0, 0, PartKind.PLAIN),
        (NO_QUEUE, 1, PartKind.DELAYED),
        (NO_QUEUE, 3, PartKind.HALF),
    ]
    ((head, _), *_), *_ = leader.proposer.waiting
    assert list(decode_append(head).parts) == list(result.parts)
    assert leader.appender.next_offset(TOPIC_ID, 0) == 1
    leader.proposer.apply()
    assert await result.wait() == 2
    assert leader.appender.next_offset(TOPIC_ID, 0) == 1


async def test_a_repeat_of_a_batch_knows_the_entry_after_a_change_of_leader(
    leader: Leader,
) -> None:
    """The broker's row says the index, so that names come out the same."""
    result = leader.submit((part_key(), [due(1)]))
    leader.proposer.apply()
    index = await result.wait()
    options = EngineOptions()
    later = GroupAppender(leader.log.machine, leader.proposer, options)  # type: ignore[arg-type]
    batch, _ = resolved(leader.log.machine, [(part_key(), [due(1)])])
    again = later.submit(batch, BOOT_ID, 1)
    assert (await again.wait(), list(again.parts)) == (index, list(result.parts))
    assert not leader.proposer.waiting


async def test_a_duplicate_in_flight_has_a_name_once_it_is_committed(leader: Leader) -> None:
    """Before that the batch is refused, unchanged; whoever sent it tries again."""
    leader.submit((part_key(), [due(1), due(2)]))
    with pytest.raises(Refused) as refused:
        leader.submit((part_key(), [due(2)]), boot_id=6, sequence=1)
    assert refused.value.outcome == pb.OUTCOME_NOT_READY
    leader.proposer.commit()
    result = leader.submit((part_key(), [due(2), due(3)]), boot_id=6, sequence=1)
    first = Duplicate(0, 0, 0, PendingRef(2, 1))
    assert list(result.parts[0].duplicates) == [first]
    leader.proposer.apply()
    result = leader.submit((part_key(), [due(2)]))
    assert list(result.parts[0].duplicates) == [first]


async def test_duplicates_within_a_batch(leader: Leader) -> None:
    """The first one is named by its ordinal; index 0 is the batch's own entry."""
    result = leader.submit(
        (part_key(), [due(1), due(2), due(1)]),
        (part_key(PartKind.HALF), [due(2), due(5)]),
        (part_key(PartKind.PLAIN), [message(5), message(6), message(6)]),
    )
    assert [list(part.duplicates) for part in result.parts] == [
        [Duplicate(2, 0, 0, PendingRef(0, 0))],
        [Duplicate(0, 0, 0, PendingRef(0, 1))],
        [Duplicate(0, 0, 0, PendingRef(0, 4)), Duplicate(2, 0, 0)],
    ]
    leader.proposer.apply()
    assert [key.ref for key, _ in leader.log.machine.rows.pending.scan()] == [
        PendingRef(2, 0),
        PendingRef(2, 1),
        PendingRef(2, 4),
    ]
    state = leader.log.machine.queues.get(TOPIC_ID, 0)
    assert state is not None
    assert state.next_offset == 1


async def test_whoever_may_repeat_is_looked_up_in_the_rows(leader: Leader) -> None:
    """An append of nobody, sent again by another leader, stores nothing twice (rule 18)."""
    plain = (part_key(PartKind.PLAIN), [message(1)])
    leader.submit(plain, boot_id=0, sequence=0)
    leader.proposer.apply()
    options = EngineOptions()
    later = GroupAppender(leader.log.machine, leader.proposer, options)  # type: ignore[arg-type]
    # A window that was filled from too little of the log.
    later.adopt(DedupeWindow(DedupeOptions()))
    batch, _ = resolved(leader.log.machine, [plain])
    known = later.submit(batch, 0, 0, may_repeat=True)
    assert list(known.parts[0].duplicates) == [Duplicate(0, 0, 0)]
    new = later.submit(batch, 0, 0)
    assert list(new.parts[0].duplicates) == []


@pytest.mark.parametrize("is_applied", [True, False])
async def test_a_queue_that_left_tells_what_it_stored_of_a_repeat(
    leader: Leader, is_applied: bool
) -> None:
    """A forwarder learns that the others are not here; other senders cost no look (rule 37)."""
    key = PartKey(TOPIC_ID, 2, 5, 4)
    leader.submit((key, [message(1)]), boot_id=0, sequence=0)
    if is_applied:
        leader.proposer.apply()
    leader.appender.seal(TOPIC_ID, 2)
    proposals = len(leader.proposer.waiting)
    part = (key, [message(2), message(1)])
    for may_repeat, known in ((True, [Duplicate(1, 2, 0)]), (False, [])):
        refused = leader.submit(part, boot_id=0, sequence=0, may_repeat=may_repeat)
        assert refused.parts[0].outcome == pb.OUTCOME_SEALED
        assert list(refused.parts[0].duplicates) == known
        assert refused.future is None
    assert len(leader.proposer.waiting) == proposals


async def test_open_queues_for_what_waited(leader: Leader) -> None:
    """Its own queue while that is open, else another of the topic, else none (rule 18)."""
    appender, log = leader.appender, leader.log
    assert appender.open_queue(TOPIC_ID, 2, 5, 4) == 2
    assert [appender.open_queue(TOPIC_ID, -1, 5, 4) for _ in range(5)] == [0, 1, 2, 3, 0]
    appender.seal(TOPIC_ID, 2)
    log.add(encode_seal(EpochCommand(TOPIC_ID, 0, 0, 0, 9)))
    assert {appender.open_queue(TOPIC_ID, 2, 5, 4) for _ in range(8)} == {1, 3}
    assert {appender.open_queue(TOPIC_ID, -1, 5, 4) for _ in range(8)} == {1, 3}
    assert appender.has_open_queue(TOPIC_ID, 2, 5, 4)
    for queue in (1, 3):
        appender.seal(TOPIC_ID, queue)
    assert appender.open_queue(TOPIC_ID, 2, 5, 4) is None
    assert not appender.has_open_queue(TOPIC_ID, -1, 5, 4)


async def test_parts_that_wait_do_not_take_turns_at_queues(leader: Leader) -> None:
    """Plain messages rotate over all queues, however many delayed ones come between."""
    chosen = []
    for number in range(1, 9, 2):
        result = leader.submit(
            (part_key(), [due(number)]), (part_key(PartKind.PLAIN), [message(number + 1)])
        )
        chosen.append(result.parts[1].queue)
    assert chosen == [0, 1, 2, 3]


class CountedRun(Stored):
    """Counts how often a part is looked at by those after it."""

    looks = 0

    @property
    def queue(self) -> int:
        CountedRun.looks += 1
        return self[1]

    @property
    def ids(self) -> list[bytes]:
        CountedRun.looks += 1
        return self[3]


async def test_the_parts_of_one_topic_are_not_compared_with_each_other(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch may have thousands of them, as lite topics have one topic; the answers are right."""
    monkeypatch.setattr(append, "Stored", CountedRun)
    count = 300
    keys = [PartKey(TOPIC_ID, queue, 0, 4_096, PartKind.PLAIN) for queue in range(2 * count)]
    first = [(key, [message(number)]) for number, key in enumerate(keys[:count])]
    repeats = [
        (key, [message(number), message(count + number)]) for number, key in enumerate(keys[count:])
    ]
    # Any of one queue, which is the first one.
    last = (PartKey(TOPIC_ID, -1, 0, 1, PartKind.PLAIN), [message(2 * count)])
    CountedRun.looks = 0
    result = leader.submit(*first, *repeats, last)
    assert 0 < CountedRun.looks <= 20 * 2 * count
    parts = [(part.queue, part.base_offset, list(part.duplicates)) for part in result.parts]
    assert parts[:count] == [(queue, 0, []) for queue in range(count)]
    assert parts[count:-1] == [(count + one, 0, [Duplicate(0, one, 0)]) for one in range(count)]
    assert parts[-1] == (0, 1, [])
    # They are in flight, and then in rows.
    for _ in range(2):
        CountedRun.looks = 0
        again = leader.submit(*repeats)
        assert CountedRun.looks <= 20 * 2 * count
        assert [list(part.duplicates) for part in again.parts] == [
            [Duplicate(0, one, 0), Duplicate(1, count + one, 0)] for one in range(count)
        ]
        leader.proposer.apply()
    assert [leader.appender.next_offset(TOPIC_ID, queue) for queue in (0, 1, count)] == [2, 1, 1]
