"""A read sees everything that was answered before it began (rule 3)."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

from strata.storage.v1 import storage_pb2 as pb
from strata_testing.storage_node import CONTEXT, GROUP, TOPIC, node_under_test
from tests.integration.storage.storage_cluster import cluster_of
from tests.stages import rounds


async def test_the_next_offset_is_never_behind_an_answered_append(tmp_path: Path) -> None:
    """Append, then ask: 10,000 times, and fewer in `make test`."""
    request = pb.GetOffsetsRequest(raft_group=GROUP, topic=TOPIC, queues=[0])
    async with node_under_test(tmp_path) as node:
        for count in range(1, rounds(test=2_000, full=10_000) + 1):
            await node.append([b"m"])
            (queue,) = (await node.rpc.get_offsets(request, CONTEXT)).queues
            assert queue.next_offset == count


async def test_no_replica_is_behind_an_answered_append_while_leaders_change(
    tmp_path: Path,
) -> None:
    """Three replicas, a new leader every 50 rounds: no node answers with an older offset."""
    request = pb.GetOffsetsRequest(raft_group=GROUP, topic=TOPIC, queues=[0])
    count_of_rounds = rounds(test=100, full=500)
    async with aclosing(cluster_of(tmp_path, 3)) as clusters:
        cluster = await anext(clusters)
        leaders = set()
        for count in range(1, count_of_rounds + 1):
            handed_over = None
            if count % 50 == 0:
                handed_over = asyncio.ensure_future(cluster.transfer(GROUP))
            await cluster.append(GROUP, [b"%d" % count], queue=0)
            at_leader = await cluster.call(GROUP, "GetOffsets", request, pb.GetOffsetsResponse)
            asked = (
                cluster.call_at(node_id, "GetOffsets", request, pb.GetOffsetsResponse)
                for node_id in cluster.members
            )
            answers = [at_leader, *await asyncio.gather(*asked)]
            offsets = [
                queue.next_offset
                for answer in answers
                if not answer.refusal.outcome
                for queue in answer.queues
            ]
            assert offsets and set(offsets) == {count}
            if handed_over is not None:
                leaders.add(await handed_over)
        assert leaders
