"""Messages whose queues are elsewhere when they are due: brought there, each of them once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from unittest.mock import patch

import pytest

from strata_mq.commands.pending import ResolveAction
from strata_mq.commands.rare import (
    EpochCommand,
    OwnCommand,
    SlotGrant,
    TrimCommand,
    encode_own,
    encode_seal,
    encode_trim,
)
from strata_mq.layout.batch import OutgoingMessage, PartKey, PartKind
from strata_mq.layout.pending_rows import PendingRef, PinRun
from strata_mq.slots import slot_of
from strata_state.metadata import MetadataStoreError
from strata_storage.base.config import PendingOptions
from strata_storage.leading.pending.forwarding import ForwardFailed
from strata_storage.leading.pending.forwards import Forwards
from strata_storage.leading.pending.resolver import DELIVERING, Ended, Place, Waiting
from strata_storage.leading.pending.retry_slots import RetrySlots
from tests.unit.storage.waiting_leader import (
    QUEUES,
    QUICK,
    TOPIC_ID,
    LeaderUnderTest,
    id_of,
    let_pass,
    proposed,
    running,
    start,
    turns,
)

ELSEWHERE = 5


class Elsewhere:
    """Another raft group; keeps what it is given, each message once."""

    def __init__(self) -> None:
        self.failures = 0
        self.failure: Exception = ForwardFailed("no answer")
        self.calls: list[tuple[int, PartKey, list[bytes]]] = []
        self.stored: list[bytes] = []
        # Slot -> raft group.
        self.owners: dict[int, int] = {}
        # It has no queue any more, and tells what it stored before.
        self.is_sealed = False
        # Nothing reaches it.
        self.loses_all = False

    def holder(self, topic_id: int, queue: int, slot_base: int, moved_to: int) -> int:
        return moved_to or self.owners.get(slot_of(slot_base, queue), 0)

    async def forward(
        self, raft_group: int, key: PartKey, messages: Sequence[OutgoingMessage]
    ) -> list[Place | None]:
        bodies = [message.stored for message in messages]
        self.calls.append((raft_group, key, bodies))
        if self.loses_all:
            raise ForwardFailed("no way")
        if self.is_sealed:
            return [
                Place(key.topic_id, key.queue, self.stored.index(body))
                if body in self.stored
                else None
                for body in bodies
            ]
        self.stored += [body for body in bodies if body not in self.stored]
        if self.failures:
            # It may have arrived all the same.
            self.failures -= 1
            raise self.failure
        return [Place(key.topic_id, key.queue, self.stored.index(body)) for body in bodies]


def seal_all(leader: LeaderUnderTest, queues: Sequence[int] = range(QUEUES)) -> None:
    """Move queues to another raft group."""
    for queue in queues:
        end_offset = leader.appender.seal(TOPIC_ID, queue)
        leader.apply(encode_seal(EpochCommand(TOPIC_ID, queue, 0, end_offset, ELSEWHERE)))


async def test_a_message_whose_queues_moved_is_brought_there_and_dropped_then() -> None:
    """Its row stays until the other raft group has confirmed it (rule 18)."""
    elsewhere = Elsewhere()
    leader = LeaderUnderTest(QUICK, elsewhere)
    async with running(leader):
        name = leader.wait_for(b"later", 1_000, queue=2)
        seal_all(leader)
        await let_pass(leader, 1)
        await begin(leader)
        ((raft_group, key, bodies),) = elsewhere.calls
        assert (raft_group, key[:2], bodies) == (ELSEWHERE, (TOPIC_ID, 2), [b"later"])
        assert leader.machine.rows.pins.get(name) is not None
        (item,) = proposed(leader)
        assert item.action is ResolveAction.DISCARD
        leader.commit()
        assert leader.machine.rows.pins.get(name) is None
        ended = leader.resolver.find(name)
        assert isinstance(ended, Ended)
        assert ended.place == Place(TOPIC_ID, 0, 0)
    assert leader.count("forwarded") == 1


async def begin(leader: LeaderUnderTest) -> None:
    """Let it be written that messages are to be delivered; they are on their way then."""
    assert {(item.action, item.checks) for item in proposed(leader)} == {
        (ResolveAction.RESCHEDULE, DELIVERING)
    }
    leader.commit()
    await turns()


async def test_a_message_is_on_its_way_only_when_no_leader_lets_it_be_recalled() -> None:
    """The next leader's clock may be behind: it would take it back, and it arrives all the same."""
    elsewhere = Elsewhere()
    elsewhere.failures = 1
    leader = LeaderUnderTest(QUICK, elsewhere)
    async with running(leader):
        name = leader.wait_for(b"later", 1_000)
        seal_all(leader)
        await let_pass(leader, 1)
        assert elsewhere.calls == []
        leader.clock.now_s -= 0.5
        await begin(leader)
        recall = await start(leader.recalls.recall(name, TOPIC_ID, id_of(b"later")))
        assert "due" in str(recall.exception())


async def test_a_timer_that_reads_rows_when_its_term_ends_decides_nothing() -> None:
    """The next leader decides on the rows that it read (rule 38)."""
    leader = LeaderUnderTest(QUICK, Elsewhere())
    leader.wait_for(b"later", 1_000)
    seal_all(leader)
    leader.clock.advance(1)
    read = leader.timers._run_read

    async def slowly(work: Callable[[], list[object]]) -> list[object]:
        leader.timers.end()
        return await read(work)

    decided: list[object] = []
    with (
        patch.object(leader.timers, "_run_read", slowly),
        patch.object(leader.timers, "decide", lambda keys, now_ms: decided.append(keys)),
    ):
        await leader.timers.run()
    assert decided == []


async def test_a_message_whose_queues_left_with_their_slots_is_brought_there() -> None:
    """Nothing was sealed; until the slots have an owner it waits for one (rule 17)."""
    elsewhere = Elsewhere()
    leader = LeaderUnderTest(PendingOptions(turn_interval_ms=0, retry_ms=1_000), elsewhere)
    async with running(leader):
        any_queue = leader.wait_for(b"any", 1_000)
        one_queue = leader.wait_for(b"one", 1_000, queue=2)
        leader.apply(encode_own(OwnCommand([SlotGrant(0, 4096, False)])))
        await let_pass(leader, 1)
        leader.commit()
        assert elsewhere.calls == []
        elsewhere.owners = {1: ELSEWHERE, 2: ELSEWHERE + 1}
        await let_pass(leader, 1)
        leader.commit()
        places = {(raft_group, key.queue): bodies for raft_group, key, bodies in elsewhere.calls}
        assert places[ELSEWHERE + 1, 2][-1:] == [b"one"]
        assert sorted(elsewhere.stored) == [b"any", b"one"]
        for name in (any_queue, one_queue):
            assert leader.machine.rows.pins.get(name) is None


async def test_a_message_whose_slots_come_back_is_delivered_here() -> None:
    """A queue is given when it is placed, whoever owned it in between."""
    leader = LeaderUnderTest(PendingOptions(turn_interval_ms=0, retry_ms=1_000), Elsewhere())
    async with running(leader):
        leader.wait_for(b"later", 1_000, queue=2)
        leader.apply(encode_own(OwnCommand([SlotGrant(0, 4096, False)])))
        await let_pass(leader, 1)
        leader.commit()
        leader.apply(encode_own(OwnCommand([SlotGrant(0, 4096, True)])))
        await let_pass(leader, 1)
        leader.commit()
    assert leader.next_offsets() == {2: 1}


@pytest.mark.parametrize(
    "failure", [ForwardFailed("no answer"), MetadataStoreError("rows cannot be read")]
)
async def test_a_forward_without_answer_is_repeated_and_arrives_once(failure: Exception) -> None:
    """The message is marked to be delivered, put off, and sent again as it was."""
    elsewhere = Elsewhere()
    elsewhere.failures, elsewhere.failure = 2, failure
    leader = LeaderUnderTest(PendingOptions(turn_interval_ms=0, retry_ms=1_000), elsewhere)
    async with running(leader):
        name = leader.wait_for(b"later", 1_000)
        seal_all(leader)
        await let_pass(leader, 1)
        await begin(leader)
        for number in range(3):
            await let_pass(leader, number and 1)
            leader.commit()
            await turns()
            recall = await start(leader.recalls.recall(name, TOPIC_ID, id_of(b"other")))
            assert recall.exception() is not None
    assert elsewhere.stored == [b"later"]
    assert len(elsewhere.calls) == 3
    assert list(leader.machine.rows.pending.keys()) == []


async def put_to_the_test(
    leader: LeaderUnderTest, elsewhere: Elsewhere, *, arrives: bool
) -> PendingRef:
    """Send a message away, lose its trace, and give its queue back to this raft group."""
    elsewhere.owners = {slot: ELSEWHERE for slot in range(QUEUES)}
    elsewhere.failures, elsewhere.loses_all = int(arrives), not arrives
    name = leader.wait_for(b"later", 1_000, queue=2)
    leader.apply(encode_own(OwnCommand([SlotGrant(0, 4096, False)])))
    await let_pass(leader, 1)
    await begin(leader)
    leader.commit()
    leader.apply(encode_own(OwnCommand([SlotGrant(0, 4096, True)])))
    return PendingRef(*name)


async def test_a_message_that_may_have_arrived_is_not_delivered_here() -> None:
    """Its slots come back before the answer came: the forward is repeated, wherever they are."""
    elsewhere = Elsewhere()
    leader = LeaderUnderTest(PendingOptions(turn_interval_ms=0, retry_ms=1_000), elsewhere)
    async with running(leader):
        name = await put_to_the_test(leader, elsewhere, arrives=True)
        elsewhere.is_sealed, elsewhere.owners = True, {}
        await let_pass(leader, 1)
        leader.commit()
        assert leader.machine.rows.pins.get(name) is None
        assert not leader.timers.forwards_unanswered
    assert [(raft_group, key.queue) for raft_group, key, _ in elsewhere.calls] == [
        (ELSEWHERE, 2),
        (ELSEWHERE, 2),
    ]
    assert elsewhere.stored == [b"later"]
    assert leader.next_offsets() == {}
    assert leader.count("forwarded") == 1


async def test_a_message_that_may_have_arrived_goes_to_no_third_raft_group() -> None:
    """The queue moved on meanwhile: first the raft group is asked that did not answer."""
    elsewhere = Elsewhere()
    leader = LeaderUnderTest(PendingOptions(turn_interval_ms=0, retry_ms=1_000), elsewhere)
    async with running(leader):
        await put_to_the_test(leader, elsewhere, arrives=True)
        leader.apply(encode_own(OwnCommand([SlotGrant(0, 4096, False)])))
        elsewhere.is_sealed, elsewhere.owners = True, {2: ELSEWHERE + 1}
        await let_pass(leader, 1)
        leader.commit()
    assert {raft_group for raft_group, _, _ in elsewhere.calls} == {ELSEWHERE}
    assert elsewhere.stored == [b"later"]


async def test_a_message_that_did_not_arrive_is_delivered_here() -> None:
    """The raft group says that it does not have it, and can take it no more."""
    elsewhere = Elsewhere()
    leader = LeaderUnderTest(PendingOptions(turn_interval_ms=0, retry_ms=1_000), elsewhere)
    async with running(leader):
        name = await put_to_the_test(leader, elsewhere, arrives=False)
        await let_pass(leader, 1)
        leader.commit()
        assert leader.next_offsets() == {}
        elsewhere.loses_all, elsewhere.is_sealed = False, True
        for _ in range(2):
            await let_pass(leader, 1)
            leader.commit()
        assert leader.machine.rows.pins.get(name) is not None
    assert len(elsewhere.calls) == 3
    assert elsewhere.stored == []
    assert leader.next_offsets() == {2: 1}


@pytest.mark.parametrize("arrived", [False, True])
async def test_the_next_leader_does_not_know_where_a_message_was_sent(arrived: bool) -> None:
    """The gap that docs/adr/0032 names: its queue is back, so it is delivered here, too."""
    elsewhere = Elsewhere()
    leader = LeaderUnderTest(PendingOptions(turn_interval_ms=0, retry_ms=1_000), elsewhere)
    async with running(leader):
        name = await put_to_the_test(leader, elsewhere, arrives=arrived)
        leader.lose()
    leader.lead()
    async with running(leader):
        elsewhere.is_sealed, elsewhere.owners = True, {}
        await let_pass(leader, 1)
        leader.commit()
        assert leader.next_offsets() == {2: 1}
        assert isinstance(leader.resolver.find(name), Ended)
    assert elsewhere.stored == ([b"later"] if arrived else [])


async def test_where_a_message_of_a_dropped_topic_was_sent_is_forgotten() -> None:
    """Nothing decides about it any more."""
    elsewhere = Elsewhere()
    leader = LeaderUnderTest(PendingOptions(turn_interval_ms=0, retry_ms=1_000), elsewhere)
    async with running(leader):
        await put_to_the_test(leader, elsewhere, arrives=True)
        assert leader.timers.forwards_unanswered == 1
        leader.drop_topic()
        await turns()
        assert not leader.timers.forwards_unanswered


async def test_a_message_that_goes_with_its_topic_while_it_is_read_is_forgotten() -> None:
    """It is sent all the same, and nothing of it stays behind."""
    elsewhere = Elsewhere()
    leader = LeaderUnderTest(PendingOptions(turn_interval_ms=0, retry_ms=1_000), elsewhere)
    read = Forwards._read

    async def read_late(forwards: Forwards, waiting: Waiting) -> OutgoingMessage:
        message = await read(forwards, waiting)
        leader.drop_topic()
        key = waiting.key
        runs = [PinRun(key.ref, key.ref.following())]
        leader.apply(encode_trim(TrimCommand(0, 0, [], runs, [key])))
        return message

    async with running(leader):
        leader.wait_for(b"later", 1_000, queue=2)
        elsewhere.owners = {slot: ELSEWHERE for slot in range(QUEUES)}
        leader.apply(encode_own(OwnCommand([SlotGrant(0, 4096, False)])))
        with patch.object(Forwards, "_read", read_late):
            await let_pass(leader, 1)
            await begin(leader)
        assert elsewhere.stored == [b"later"]
        assert leader.timers.forwards_unanswered == 0


async def test_messages_without_an_answer_are_limited() -> None:
    """Further ones are not sent before it is known where these are; then they are."""
    elsewhere = Elsewhere()
    options = PendingOptions(turn_interval_ms=0, retry_ms=1_000, forwards_unanswered_max=10)
    leader = LeaderUnderTest(options, elsewhere)
    async with running(leader):
        bodies = [b"%d" % number for number in range(15)]
        leader.submit(bodies, leader.now_ms() + 1_000, PartKind.DELAYED)
        leader.commit()
        seal_all(leader)
        elsewhere.loses_all = True
        await let_pass(leader, 1)
        await begin(leader)
        for _ in range(3):
            leader.commit()
            await let_pass(leader, 1)
        sent = {body for _, _, sent in elsewhere.calls for body in sent}
        assert len(sent) == leader.timers.forwards_unanswered == 10
        elsewhere.loses_all = False
        for _ in range(3):
            leader.commit()
            await let_pass(leader, 1)
        assert sorted(elsewhere.stored) == sorted(bodies)
        leader.commit()
        assert leader.timers.forwards_unanswered == 0


async def test_a_commit_is_decided_here_and_carried_out_elsewhere() -> None:
    """It is answered when it is written; a rollback loses from then on, also at a new leader."""
    elsewhere = Elsewhere()
    leader = LeaderUnderTest(QUICK, elsewhere)
    async with running(leader):
        half = leader.half()
        seal_all(leader)
        commit = await start(leader.transactions.commit(half, TOPIC_ID))
        repeat = await start(leader.transactions.commit(half, TOPIC_ID))
        rollback = await start(leader.transactions.roll_back(half, TOPIC_ID))
        assert rollback.exception() is not None
        (item,) = proposed(leader)
        assert (item.action, item.checks) == (ResolveAction.RESCHEDULE, DELIVERING)
        assert not commit.done()
        assert not repeat.done()
        leader.commit()
        assert await commit == await repeat == Place(TOPIC_ID, 0, 0)
        await turns()
        assert elsewhere.stored == [b"half"]
        leader.commit()
        late = await start(leader.transactions.commit(half, TOPIC_ID))
        assert (await late).topic_id == TOPIC_ID


async def test_without_another_node_a_message_waits_for_a_queue() -> None:
    """It is put off until one is open again."""
    leader = LeaderUnderTest(PendingOptions(turn_interval_ms=0, retry_ms=1_000))
    async with running(leader):
        leader.wait_for(b"later", 1_000)
        for queue in range(QUEUES):
            leader.appender.seal(TOPIC_ID, queue)
        await let_pass(leader, 1)
        (item,) = proposed(leader)
        assert (item.action, item.checks) == (ResolveAction.RESCHEDULE, DELIVERING)
        leader.commit()
        leader.appender.opened(TOPIC_ID, 3)
        await let_pass(leader, 1)
        leader.commit()
    assert leader.next_offsets() == {3: 1}


async def test_a_topic_dropped_while_its_message_is_on_its_way_is_left_alone() -> None:
    """The row went with the topic, or goes as one of a dropped topic; nothing stops."""
    elsewhere = Elsewhere()
    leader = LeaderUnderTest(QUICK, elsewhere)
    async with running(leader):
        name = leader.wait_for(b"later", 1_000)
        seal_all(leader)
        leader.drop_topic()
        await let_pass(leader, 1)
        leader.commit()
        await turns()
        leader.commit()
        assert leader.machine.rows.pins.get(PendingRef(*name)) is None
    assert leader.next_offsets() == {}


async def test_a_damaged_message_keeps_no_other_one_of_its_batch_here() -> None:
    """Those that can be read are sent at once; the other one is put off alone, until it can be."""
    elsewhere = Elsewhere()
    leader = LeaderUnderTest(PendingOptions(turn_interval_ms=0, retry_ms=1_000), elsewhere)
    async with running(leader):
        names = [leader.wait_for(b"m%d" % number, 1_000, queue=2) for number in range(5)]
        seal_all(leader)
        payloads, bad = leader.log.payloads, names[0].raft_index
        intact = payloads[bad]
        payloads[bad] = intact.replace(b"m0", b"XX")
        await let_pass(leader, 1)
        await begin(leader)
        assert elsewhere.stored == [b"m1", b"m2", b"m3", b"m4"]
        for _ in range(3):
            leader.commit()
            await let_pass(leader, 1)
        assert len(elsewhere.calls) == 1
        pending = list(leader.machine.rows.pending.keys())
        assert [key.ref for key in pending] == [names[0]]
        payloads[bad] = intact
        leader.commit()
        await let_pass(leader, 1)
        assert elsewhere.stored[-1] == b"m0"
        leader.commit()
    assert leader.count("forwarded") == 5
    assert len(elsewhere.stored) == 5


async def test_a_message_that_is_not_read_again_goes_to_no_third_raft_group() -> None:
    """It may have arrived where it was sent before: this is known on, whatever the disk does."""
    elsewhere = Elsewhere()
    leader = LeaderUnderTest(PendingOptions(turn_interval_ms=0, retry_ms=1_000), elsewhere)
    async with running(leader):
        await put_to_the_test(leader, elsewhere, arrives=True)
        payloads = leader.log.payloads
        (bad,) = (index for index, payload in payloads.items() if b"later" in payload)
        intact = payloads[bad]
        payloads[bad] = intact.replace(b"later", b"lates")
        await let_pass(leader, 1)
        leader.commit()
        assert leader.timers.forwards_unanswered == 1
        payloads[bad] = intact
        elsewhere.is_sealed, elsewhere.owners = True, {2: ELSEWHERE + 1}
        await let_pass(leader, 1)
        leader.commit()
    assert [raft_group for raft_group, *_ in elsewhere.calls] == [ELSEWHERE, ELSEWHERE]
    assert elsewhere.stored == [b"later"]
    assert leader.next_offsets() == {}


async def test_forwards_are_split_to_the_size_of_a_batch() -> None:
    """Many messages of one queue go out in several appends."""
    elsewhere = Elsewhere()
    leader = LeaderUnderTest(QUICK, elsewhere)
    async with running(leader):
        bodies = [b"%d" % number for number in range(300)]
        leader.submit(bodies, leader.now_ms() + 1_000, PartKind.DELAYED, queue=1)
        leader.commit()
        seal_all(leader)
        await let_pass(leader, 1)
        await begin(leader)
        assert [len(call[2]) for call in elsewhere.calls] == [256, 44]
        leader.commit()
    assert sorted(elsewhere.stored) == sorted(bodies)


async def test_what_finds_no_room_or_no_answer_is_spread_over_time() -> None:
    """Messages that wait for a lost raft group are not all written anew every second."""
    slots = RetrySlots(2)
    assert [slots.next(0, 100) for _ in range(5)] == [100, 100, 200, 200, 300]
    assert [slots.next(250, 100) for _ in range(3)] == [350, 400, 400]
    assert [slots.next(now_ms, 100) for now_ms in (900, 930, 960)] == [1_000, 1_030, 1_100]
    elsewhere = Elsewhere()
    leader = LeaderUnderTest(
        PendingOptions(turn_interval_ms=0, retry_ms=1_000, forwards_max=10), elsewhere
    )
    async with running(leader):
        bodies = [b"%d" % number for number in range(35)]
        leader.submit(bodies, leader.now_ms() + 1_000, PartKind.DELAYED)
        leader.commit()
        seal_all(leader)
        await let_pass(leader, 1)
        await begin(leader)
        due = [item.offset_or_due - leader.now_ms() for item in proposed(leader)]
        assert sorted(each for each in due if each >= 0) == [100] * 10 + [200] * 10 + [300] * 5
        leader.commit()
        for _ in range(4):
            await let_pass(leader, 0.1)
            leader.commit()
            await turns()
    assert sorted(elsewhere.stored) == sorted(bodies)
