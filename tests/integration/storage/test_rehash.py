"""Message groups leave a queue when it is consumed, for good, whoever asks (rule 23)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from strata.storage.v1 import storage_pb2 as pb
from strata_state.memory_store import MemoryStore
from strata_testing import until
from strata_testing.simulated_disk import SimulatedDisk
from strata_testing.storage_node import (
    CONTEXT,
    GROUP,
    TOPIC,
    NodeUnderTest,
    lease_of,
    node_under_test,
)

QUEUE = 1
WIDE = pb.TopicRef(topic_id=7, slot_base=0, queue_count=8)


async def rehash(
    node: NodeUnderTest, queue: int = QUEUE, *, ended: bool = False, named: Sequence[int] = ()
) -> bool:
    """Ask as a broker does that knows that the topic has eight queues."""
    request = pb.RehashRequest(
        raft_group=GROUP, topic=WIDE, queue=queue, ended=ended, consumer_group_ids=named
    )
    response = await node.rpc.rehash(request, CONTEXT)
    assert response.refusal.outcome == pb.OUTCOME_UNSPECIFIED, response.refusal
    return response.done


async def begin_rehash(node: NodeUnderTest, *, named: Sequence[int] = ()) -> asyncio.Future[bool]:
    """Ask, and return once the queue takes nothing: the node waits for consumers."""
    asked = asyncio.ensure_future(rehash(node, named=named))
    appends = node.app.node.engine(GROUP).leading().appends
    await until(lambda: (TOPIC.topic_id, QUEUE) in appends._rehashing)
    return asked


async def send(node: NodeUnderTest, body: bytes, *, queue_count: int = 4) -> int:
    """Send a message of a message group; return the outcome."""
    result = await node.append([body], queue=QUEUE, message_groups=["a"], queue_count=queue_count)
    return result.parts[0].outcome


async def consume(node: NodeUnderTest, count: int, consumer_group_id: int = 5) -> None:
    """Pop and ack so many messages of the queue."""
    for _ in range(count):
        popped = await node.pop(
            consumer_group_id=consumer_group_id, queue=QUEUE, fifo=True, max_messages=1
        )
        (message,) = popped.messages
        assert list((await node.ack(lease_of(message, consumer_group_id))).outcomes) == [
            pb.OUTCOME_OK
        ]


async def test_an_empty_queue_is_left_at_once_and_for_good(tmp_path: Path) -> None:
    """The older count is refused from then on, also after a restart; the present one is taken."""
    async with node_under_test(tmp_path) as node:
        assert await rehash(node)
        assert await rehash(node), "who asks again is told the same"
        assert await send(node, b"old") == pb.OUTCOME_REHASHED
        assert await send(node, b"new", queue_count=8) == pb.OUTCOME_OK
        anywhere = await node.append([b"any"], queue=-1)
        assert anywhere.parts[0].outcome == pb.OUTCOME_OK
    async with node_under_test(tmp_path) as node:
        # The broker goes on counting its batches.
        node.sequence = 10
        assert await send(node, b"old") == pb.OUTCOME_REHASHED
        fetched = await node.rpc.fetch(
            pb.FetchRequest(raft_group=GROUP, topic_id=7, queue=QUEUE, max_messages=9), CONTEXT
        )
        assert [message.message for message in fetched.messages] == [b"new"]


async def test_rows_that_are_rebuilt_from_the_log_know_it(tmp_path: Path) -> None:
    """The queue's row is part of the replicated state (rule 6)."""
    disk = SimulatedDisk(3)
    async with node_under_test(tmp_path, disk=disk, store=MemoryStore()) as node:
        assert await rehash(node)
    async with node_under_test(tmp_path, disk=disk, store=MemoryStore()) as node:
        assert await send(node, b"old") == pb.OUTCOME_REHASHED


async def test_a_queue_is_not_left_before_every_consumer_group_is_done(tmp_path: Path) -> None:
    """While one is far behind nothing is held back; the last ack makes way."""
    async with node_under_test(tmp_path) as node:
        for number in range(300):
            assert await send(node, b"%d" % number) == pb.OUTCOME_OK
        await consume(node, 1, consumer_group_id=5)
        await consume(node, 300, consumer_group_id=6)
        assert not await rehash(node)
        assert await send(node, b"300") == pb.OUTCOME_OK
        await consume(node, 300, consumer_group_id=5)
        await consume(node, 1, consumer_group_id=6)
        assert await rehash(node)


async def test_a_group_that_only_reads_other_queues_counts(tmp_path: Path) -> None:
    """It consumes the topic, so it has the queue's messages before it."""
    async with node_under_test(tmp_path) as node:
        await send(node, b"a")
        await node.append([b"other"], queue=3)
        other = await node.pop(consumer_group_id=6, queue=3)
        await node.ack(lease_of(other.messages[0], 6))
        asked = await begin_rehash(node)
        node.clock.advance(1)
        assert not await asked


@pytest.mark.parametrize("in_time", [True, False])
async def test_little_that_is_left_is_waited_for(tmp_path: Path, in_time: bool) -> None:
    """Meanwhile the older count waits, and goes on when it took too long; others go through."""
    async with node_under_test(tmp_path) as node:
        await send(node, b"a")
        (leased,) = (await node.pop(queue=QUEUE, fifo=True)).messages
        asked = await begin_rehash(node)
        assert await send(node, b"b") == pb.OUTCOME_SEALED
        assert await send(node, b"c", queue_count=8) == pb.OUTCOME_OK
        assert not await rehash(node), "one at a time"
        if in_time:
            await node.ack(lease_of(leased))
        else:
            node.clock.advance(1)
        assert await asked is in_time
        expected = pb.OUTCOME_REHASHED if in_time else pb.OUTCOME_OK
        assert await send(node, b"d") == expected


async def test_an_epoch_that_has_ended_is_only_looked_at(tmp_path: Path) -> None:
    """Consumed or not, nothing is written: it takes no appends anyway."""
    async with node_under_test(tmp_path) as node:
        await send(node, b"a")
        (leased,) = (await node.pop(queue=QUEUE)).messages
        assert not await rehash(node, ended=True)
        await node.ack(lease_of(leased))
        assert await rehash(node, ended=True)
        assert await send(node, b"b") == pb.OUTCOME_OK


async def test_a_queue_that_moves_takes_its_count_with_it(tmp_path: Path) -> None:
    """The next epoch refuses the older count, too; a sealed queue is not left any more."""
    async with node_under_test(tmp_path) as node:
        assert await rehash(node)
        opened = pb.OpenRequest(
            raft_group=GROUP, topic_id=7, queue=QUEUE, epoch=2, start_offset=0, queue_count=8
        )
        assert not (await node.rpc.open(opened, CONTEXT)).refusal.outcome
        assert await send(node, b"old") == pb.OUTCOME_REHASHED
        assert await send(node, b"new", queue_count=8) == pb.OUTCOME_OK
        await node.rpc.seal(
            pb.SealRequest(raft_group=GROUP, topic_id=7, queue=2, destination_raft_group=GROUP + 1),
            CONTEXT,
        )
        request = pb.RehashRequest(raft_group=GROUP, topic=TOPIC, queue=2)
        refusal = (await node.rpc.rehash(request, CONTEXT)).refusal
        assert refusal.outcome == pb.OUTCOME_SEALED


async def test_a_consumer_group_that_never_came_here_counts_if_it_is_named(tmp_path: Path) -> None:
    """It read in another raft group; what is here is before it all the same."""
    async with node_under_test(tmp_path) as node:
        assert await send(node, b"one") == pb.OUTCOME_OK
        await consume(node, 1)
        asked = await begin_rehash(node, named=[5, 6])
        node.clock.advance(1)
        assert not await asked
        assert not await rehash(node, ended=True, named=[5, 6])
        request = pb.GetConsumersRequest(raft_group=GROUP, topic_id=7)
        response = await node.rpc.get_consumers(request, CONTEXT)
        assert list(response.consumer_group_ids) == [5]
        await consume(node, 1, consumer_group_id=6)
        assert await rehash(node, named=[5, 6])
