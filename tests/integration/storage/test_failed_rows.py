"""A row store that fails to read: what cannot be done is tried again, the process goes on."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.layout.rows import RowKind, cq_prefix, queue_key
from strata_mq.leases.queue_leases import Lease
from strata_state.memory_store import MemoryCursor, MemoryStore
from strata_state.ports import Row, StateError
from strata_state.rows import ConsumerKey, GroupRows
from strata_storage.upkeep.retention import FixedRetention
from strata_testing import ManualClock
from strata_testing.storage_node import (
    CONTEXT,
    DEAD_LETTER_TOPIC_ID,
    GROUP,
    TOPIC,
    NodeUnderTest,
    batch_of,
    lease_of,
    node_under_test,
    pop_request,
)


class FailingStore(MemoryStore):
    """Rows of some kinds cannot be read for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.broken: set[int] = set()
        # Rows of single queues: beginnings of their keys.
        self.broken_queues: tuple[bytes, ...] = ()
        self.refused = 0

    def _check(self, key: bytes) -> None:
        if (len(key) > 4 and key[4] in self.broken) or key.startswith(self.broken_queues):
            self.refused += 1
            raise StateError("input/output error")

    def get(self, key: bytes) -> bytes | None:
        self._check(key)
        return super().get(key)

    def scan(self, begin: bytes, end: bytes) -> Iterator[Row]:
        self._check(begin)
        return super().scan(begin, end)

    def cursor(self, begin: bytes, end: bytes) -> MemoryCursor:
        self._check(begin)
        return super().cursor(begin, end)

    def last_before(self, lower: bytes, key: bytes) -> Row | None:
        self._check(key)
        return super().last_before(lower, key)


async def turn(node: NodeUnderTest) -> None:
    """Have a turn of all that time demands."""
    (engine,) = node.app.node.engines()
    await node.app.node.expire_once(engine, engine.leading())
    await node.app.node.retain_once()


@pytest.mark.parametrize(
    "kind", [RowKind.HEAD, RowKind.LEASE, RowKind.CQ, RowKind.QUEUE, RowKind.PIN, RowKind.ID]
)
async def test_leases_run_out_when_rows_can_be_read_again(tmp_path: Path, kind: RowKind) -> None:
    """Meanwhile calls are refused, and nothing ends; the last attempt ends in a dead letter."""
    store, clock = FailingStore(), ManualClock()
    retention = FixedRetention(10_000_000)
    async with node_under_test(tmp_path, store=store, clock=clock, retention=retention) as node:
        await node.append([b"again"], queue=1)
        await node.append([b"last"], queue=2)
        await node.pop(queue=1)
        await node.pop(queue=2, max_attempts=1)
        (engine,) = node.app.node.engines()
        sets = engine.leading().sets
        for lease_set in sets.loaded():
            # They are read again when they are due.
            sets.reload(lease_set)
        engine.machine.consume_queues.forget()
        engine.machine.queues.forget()
        store.broken = {kind}
        clock.advance(31)
        for _ in range(3):
            await turn(node)
            clock.advance(2)
        store.broken = set()

        async def dead_letter() -> list[bytes]:
            clock.advance(61)
            await turn(node)
            fetch = pb.FetchRequest(
                raft_group=GROUP, topic_id=DEAD_LETTER_TOPIC_ID, queue=GROUP, max_messages=9
            )
            return [each.message for each in (await node.rpc.fetch(fetch, CONTEXT)).messages]

        found: list[bytes] = []
        for _ in range(5):
            found = found or await dead_letter()
        assert found == [b"last"]
        again = await node.rpc.pop(pop_request(queue=1), CONTEXT)
        assert [each.message for each in again.messages] == [b"again"]
        assert list((await node.ack(lease_of(again.messages[0]))).outcomes) == [pb.OUTCOME_OK]
        assert not node.fatal


@pytest.mark.parametrize("rows_of", [cq_prefix, queue_key], ids=["CQ", "QUEUE"])
async def test_what_a_pop_took_before_it_failed_to_read_is_delivered(
    tmp_path: Path, rows_of: Callable[[int, int, int], bytes]
) -> None:
    """The leases of the first queue are given although rows of the second one cannot be read."""
    store, clock = FailingStore(), ManualClock()
    async with node_under_test(tmp_path, store=store, clock=clock) as node:
        for queue in (1, 2):
            await node.append([b"%d" % queue], queue=queue)
        (engine,) = node.app.node.engines()
        engine.machine.consume_queues.forget()
        engine.machine.queues.forget()
        store.broken_queues = (rows_of(GROUP, TOPIC.topic_id, 2),)
        popped = await node.rpc.pop(pop_request(queue=-1, max_messages=9), CONTEXT)
        assert [each.message for each in popped.messages] == [b"1"], popped.refusal
        assert store.refused
        assert list((await node.ack(lease_of(popped.messages[0]))).outcomes) == [pb.OUTCOME_OK]
        store.broken_queues = ()
        rest = await node.rpc.pop(pop_request(queue=-1, max_messages=9), CONTEXT)
        assert [each.message for each in rest.messages] == [b"2"]


async def test_what_a_fifo_pop_blocked_before_it_failed_to_read_is_written(
    tmp_path: Path,
) -> None:
    """A queue that gives nothing hides a message behind its group; the log must say so, too.

    Without that, the next head in the log would pass the message by, and the next leader would
    take it for consumed.
    """
    store, clock = FailingStore(), ManualClock()
    async with node_under_test(tmp_path, store=store, clock=clock) as node:
        await node.append([b"a", b"b"], queue=1, message_groups=["g", "g"])
        await node.append([b"z"], queue=2, message_groups=["z"])
        first = await node.pop(queue=1, fifo=True, max_messages=1)
        assert [each.message for each in first.messages] == [b"a"]
        (engine,) = node.app.node.engines()
        engine.machine.consume_queues.forget()
        engine.machine.queues.forget()
        # This row is in memory again.
        assert engine.machine.queues.get(TOPIC.topic_id, 1) is not None
        store.broken_queues = (cq_prefix(GROUP, TOPIC.topic_id, 2),)
        nothing = await node.rpc.pop(pop_request(queue=-1, fifo=True, max_messages=9), CONTEXT)
        assert not nothing.messages
        assert nothing.unfinished
        assert store.refused
        store.broken_queues = ()
        await node.append([b"c"], queue=1, message_groups=["other"])
        other = await node.pop(queue=1, fifo=True)
        assert [each.message for each in other.messages] == [b"c"]
        sets = engine.leading().sets
        for lease_set in sets.loaded():
            # As a new leader reads them.
            sets.reload(lease_set)
        await node.ack(lease_of(first.messages[0]), lease_of(other.messages[0]))
        behind = await node.pop(queue=1, fifo=True)
        assert [each.message for each in behind.messages] == [b"b"]


async def test_a_pop_that_cannot_find_what_it_took_is_no_attempt(tmp_path: Path) -> None:
    """The lease of a message whose place cannot be read ends at once, as if it had not been."""
    store, clock = FailingStore(), ManualClock()
    async with node_under_test(tmp_path, store=store, clock=clock) as node:
        await node.append([b"a"], queue=1)
        first = await node.pop(queue=1)
        assert [each.attempt_count for each in first.messages] == [1]
        clock.advance(31)
        (engine,) = node.app.node.engines()
        engine.machine.consume_queues.forget()
        store.broken_queues = (cq_prefix(GROUP, TOPIC.topic_id, 1),)
        with pytest.raises(StateError):
            await node.rpc.pop(pop_request(queue=1), CONTEXT)
        assert store.refused
        store.broken_queues = ()
        again = await node.pop(queue=1)
        assert [(each.message, each.attempt_count) for each in again.messages] == [(b"a", 2)]


async def test_a_removed_replica_is_gone_though_its_rows_cannot_be_dropped(
    tmp_path: Path,
) -> None:
    """They go with the first turn of retention that can; the process goes on."""
    store = FailingStore()
    async with node_under_test(tmp_path, store=store) as node:
        await node.append([b"a"], queue=1)
        store.broken = {RowKind.LOCAL}
        await node.app.node.remove(GROUP)
        assert not node.app.node.hosted()
        await node.app.node.retain_once()
        assert store.refused > 1
        store.broken = set()
        assert list(GroupRows(store, GROUP).all())
        await node.app.node.retain_once()
        assert not list(GroupRows(store, GROUP).all())


async def test_a_raft_group_whose_rows_fail_keeps_no_other_one_from_its_answer(
    tmp_path: Path,
) -> None:
    """One call carries appends, and acks, of many raft groups: each is answered (rule 33)."""
    store = FailingStore()
    async with node_under_test(tmp_path, store=store, raft_groups=(1, 2)) as node:
        # Any queue of theirs.
        first, second = await append_to_both(node, 1, b"a")
        assert {first.parts[0].outcome, second.parts[0].outcome} == {pb.OUTCOME_OK}
        requests = [pop_request(queue=-1, raft_group=raft_group) for raft_group in (1, 2)]
        popped = [await node.rpc.pop(request, CONTEXT) for request in requests]
        assert [len(each.messages) for each in popped] == [1, 1]
        for engine in node.app.node.engines():
            engine.machine.queues.forget()
            for lease_set in engine.leading().sets.loaded():
                engine.leading().sets.reload(lease_set)
        store.broken_queues = (struct.pack(">I", 2),)
        first, second = await append_to_both(node, 2, b"b")
        assert first.parts[0].outcome == pb.OUTCOME_OK
        assert second.refusal.outcome == pb.OUTCOME_OVERLOADED
        assert "cannot be read" in second.refusal.reason
        acks = pb.AckRequest(
            groups=[
                pb.GroupLeases(raft_group=number, leases=[lease_of(each.messages[0])])
                for number, each in enumerate(popped, 1)
            ]
        )
        answer = (await node.rpc.ack(acks, CONTEXT)).groups
        assert list(answer[0].outcomes) == [pb.OUTCOME_OK]
        assert answer[1].refusal.outcome == pb.OUTCOME_OVERLOADED
        store.broken_queues = ()
        # A refused batch is repeated as it was, and nothing of it was stored.
        _, again = await append_to_both(node, 2, b"b")
        assert again.parts[0].outcome == pb.OUTCOME_OK
        assert not again.parts[0].duplicates
        answer = (await node.rpc.ack(acks, CONTEXT)).groups
        assert list(answer[1].outcomes) == [pb.OUTCOME_OK]


async def append_to_both(node: NodeUnderTest, sequence: int, body: bytes) -> list[pb.GroupResult]:
    """Append a message to each of two raft groups in one call."""
    batches = [
        pb.GroupBatch(raft_group=raft_group, sequence=sequence, batch=batch_of([body], queue=-1))
        for raft_group in (1, 2)
    ]
    request = pb.AppendRequest(broker_boot_id=9, batches=batches)
    return list((await node.rpc.append(request, CONTEXT)).results)


async def test_a_reset_that_cannot_read_all_changes_nothing(tmp_path: Path) -> None:
    """A lease of a queue that could be read holds on: memory says what the log says."""
    store, clock = FailingStore(), ManualClock()
    async with node_under_test(tmp_path, store=store, clock=clock) as node:
        for queue in (1, 2):
            await node.append([b"%d" % queue], queue=queue)
        popped = await node.pop(queue=1)
        (engine,) = node.app.node.engines()
        engine.machine.consume_queues.forget()
        store.broken_queues = (cq_prefix(GROUP, TOPIC.topic_id, 2),)
        reset = pb.ResetConsumerRequest(
            raft_group=GROUP, consumer_group_id=5, topic=TOPIC, queues=(1, 2), time_ms=1
        )
        with pytest.raises(StateError):
            await node.rpc.reset_consumer(reset, CONTEXT)
        assert store.refused
        assert list((await node.ack(lease_of(popped.messages[0]))).outcomes) == [pb.OUTCOME_OK]


async def test_a_new_leader_whose_rows_cannot_be_read_goes_on_when_they_can(
    tmp_path: Path,
) -> None:
    """It sees all leases then: one that an earlier leader gave runs out."""
    store, clock = FailingStore(), ManualClock()
    async with node_under_test(tmp_path, store=store, clock=clock) as node:
        await node.append([b"a"], queue=0)
        await node.pop(queue=0)
        (engine,) = node.app.node.engines()
        leader = engine.leading()
        store.broken = {RowKind.LEASE}
        leader._unseen = failing_rows()
        with pytest.raises(StateError):
            leader.see_leases(10)
        store.broken = set()
        assert leader.see_leases(10)
        assert leader.sets.next_deadline_ms() is not None


def failing_rows() -> Iterator[tuple[ConsumerKey, Lease]]:
    """Return rows whose reading fails."""
    raise StateError("input/output error")
    yield
