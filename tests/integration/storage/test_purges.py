"""Purge: an operator deletes the messages of a topic; it takes turns with retention (rule 10)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from strata.storage.v1 import storage_pb2 as pb
from strata_storage.upkeep.retention import FixedRetention
from strata_testing import ManualClock
from strata_testing.storage_node import (
    CONTEXT,
    GROUP,
    TOPIC,
    NodeUnderTest,
    node_under_test,
    pop_request,
)

HOUR_MS = 3_600_000


async def purge(node: NodeUnderTest, starts: dict[int, int]) -> pb.PurgeResponse:
    """Let queues of the topic begin at offsets."""
    request = pb.PurgeRequest(
        raft_group=GROUP,
        topic=TOPIC,
        starts=[pb.QueueStart(queue=queue, offset=offset) for queue, offset in starts.items()],
    )
    response = await node.rpc.purge(request, CONTEXT)
    assert not response.HasField("refusal"), response.refusal
    return response


async def offsets(node: NodeUnderTest) -> dict[int, tuple[int, int]]:
    """Return where the queues of the topic begin and end."""
    request = pb.GetOffsetsRequest(raft_group=GROUP, topic=TOPIC)
    queues = (await node.rpc.get_offsets(request, CONTEXT)).queues
    return {queue.queue: (queue.min_offset, queue.next_offset) for queue in queues}


async def test_messages_below_the_offsets_are_gone(tmp_path: Path) -> None:
    """Others stay, a repeat changes nothing, and all of it outlives a restart."""
    async with node_under_test(tmp_path) as node:
        await node.append([b"a", b"b", b"c"])
        await node.append([b"d", b"e"], queue=1)
        assert (await purge(node, {0: 2, 1: 99})).deleted_messages == 4
        assert (await purge(node, {0: 1, 1: 2})).deleted_messages == 0
        assert await offsets(node) == {0: (2, 3), 1: (2, 2), 2: (0, 0), 3: (0, 0)}
        fetch = pb.FetchRequest(
            raft_group=GROUP, topic_id=TOPIC.topic_id, queue=0, offset=0, max_messages=9
        )
        fetched = await node.rpc.fetch(fetch, CONTEXT)
        assert (fetched.min_offset, [one.message for one in fetched.messages]) == (2, [b"c"])
        await node.append([b"f"], queue=1)
    async with node_under_test(tmp_path) as node:
        assert await offsets(node) == {0: (2, 3), 1: (2, 3), 2: (0, 0), 3: (0, 0)}


async def test_consumers_go_on_behind_what_was_deleted(tmp_path: Path) -> None:
    """Leases on deleted messages end, and the next message is the next to be delivered."""
    async with node_under_test(tmp_path) as node:
        await node.append([b"a", b"b", b"c"])
        request = pop_request(attempt=1)
        request.max_messages = 1
        (first,) = (await node.rpc.pop(request, CONTEXT)).messages
        assert first.message == b"a"
        await purge(node, {0: 3})
        await node.append([b"d"])
        later = pop_request(attempt=2)
        later.max_messages = 9
        messages = (await node.rpc.pop(later, CONTEXT)).messages
        assert [one.message for one in messages] == [b"d"]


async def test_retention_and_purges_never_let_a_queue_begin_earlier(tmp_path: Path) -> None:
    """Retention decides, a purge comes meanwhile: the later of the two begins stays."""
    clock = ManualClock()
    retention = FixedRetention(HOUR_MS)
    async with node_under_test(tmp_path, clock=clock, retention=retention) as node:
        await node.append([b"old"])
        clock.advance(2 * HOUR_MS / 1_000)
        await node.append([b"new"])
        await asyncio.gather(
            node.app.node.retain_once(), purge(node, {0: 2}), node.app.node.retain_once()
        )
        assert (await offsets(node))[0] == (2, 2)
        await node.app.node.retain_once()
        assert (await offsets(node))[0] == (2, 2)


async def test_a_queue_that_is_elsewhere_is_not_purged(tmp_path: Path) -> None:
    """The caller learns that it asked the wrong raft group, and nothing is deleted."""
    async with node_under_test(tmp_path, raft_groups=(1, 2)) as node:
        owned = set(await offsets(node))
        (elsewhere, *_) = sorted(set(range(4)) - owned)
        starts = [pb.QueueStart(queue=elsewhere, offset=1)]
        request = pb.PurgeRequest(raft_group=GROUP, topic=TOPIC, starts=starts)
        refusal = (await node.rpc.purge(request, CONTEXT)).refusal
        assert refusal.outcome == pb.OUTCOME_WRONG_GROUP


@pytest.mark.parametrize("turns", [1, 20])
async def test_appends_meanwhile_stay(tmp_path: Path, turns: int) -> None:
    """A purge names offsets: what is stored behind them is not touched."""
    async with node_under_test(tmp_path) as node:
        for turn in range(turns):
            await node.append([b"before"])
            end = (await offsets(node))[0][1]
            await asyncio.gather(node.append([b"after"]), purge(node, {0: end}))
            assert (await offsets(node))[0] == (end, end + 1), turn
