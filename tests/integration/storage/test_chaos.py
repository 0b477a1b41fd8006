"""Members lose power, come back, hand over; replicas move; again and again, under load."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest

from strata.storage.v1 import storage_pb2 as pb
from strata_testing.storage_node import small_config
from tests.integration.storage.storage_cluster import ClusterUnderTest, cluster_of

GROUPS = (1, 2)
QUEUES = 4
ROUNDS = 8
SEEDS = range(int(os.environ.get("STRATA_TEST_ROUNDS", "2")))


class Client:
    """Sends and consumes; knows what was promised."""

    def __init__(self, cluster: ClusterUnderTest, rng: random.Random) -> None:
        self.cluster = cluster
        self.rng = rng
        self.appended: dict[int, dict[tuple[int, int], bytes]] = {group: {} for group in GROUPS}
        self.acked: dict[int, set[bytes]] = {group: set() for group in GROUPS}
        self.count = 0

    async def run(self, raft_group: int, until: asyncio.Event) -> None:
        while not until.is_set():
            await self._append(raft_group)
            if self.rng.random() < 0.5:
                await self._consume(raft_group)

    async def _append(self, raft_group: int) -> None:
        self.count += 1
        bodies = [
            b"%d-%d-%d" % (raft_group, self.count, at) for at in range(self.rng.randint(1, 5))
        ]
        result = await self.cluster.append(raft_group, bodies, queue=-1)
        assert not result.HasField("refusal"), result.refusal
        part = result.parts[0]
        assert part.outcome == pb.OUTCOME_OK
        assert not part.duplicates
        for at, body in enumerate(bodies):
            place = part.queue, part.base_offset + at
            assert place not in self.appended[raft_group], "an offset is given twice"
            self.appended[raft_group][place] = body

    async def _consume(self, raft_group: int) -> None:
        popped = await self.cluster.pop(raft_group, max_messages=8, invisible_ms=500)
        bodies = [message.message for message in popped.messages]
        assert not self.acked[raft_group] & set(bodies), "an acked message came back"
        if bodies:
            outcomes = await self.cluster.ack(raft_group, list(popped.messages))
            done = zip(bodies, outcomes, strict=True)
            self.acked[raft_group].update(
                body for body, outcome in done if outcome == pb.OUTCOME_OK
            )

    async def check(self, raft_group: int) -> None:
        found: dict[tuple[int, int], bytes] = {}
        for queue in range(QUEUES):
            fetched = await self.cluster.fetch(raft_group, queue)
            if fetched.refusal.outcome:
                continue
            offset = 0
            while offset < fetched.next_offset:
                fetched = await self.cluster.fetch(raft_group, queue, offset)
                for message in fetched.messages:
                    assert message.offset == offset, "a hole in the offsets"
                    found[queue, offset] = message.message
                    offset += 1
        assert self.appended[raft_group].items() <= found.items(), "an answered append is lost"
        assert len(set(found.values())) == len(found), "a message is stored twice"
        await self.cluster.check_rows_equal(raft_group)


async def trouble(cluster: ClusterUnderTest, rng: random.Random) -> None:
    """Do one bad thing, and see it through."""
    await asyncio.sleep(rng.uniform(0.05, 0.4))
    victim = rng.choice(list(cluster.members))
    kind = rng.choice(["power", "power", "restart", "transfer", "move", "move"])
    print(kind, victim)
    if kind == "transfer":
        group = rng.choice(GROUPS)
        request = pb.TransferLeadershipRequest(raft_group=group)
        await cluster.call(group, "TransferLeadership", request, pb.TransferLeadershipResponse)
        return
    if kind == "move":
        move(cluster, rng)
        return
    if kind == "power":
        await cluster.members[victim].lose_power()
    else:
        await cluster.members[victim].stop()
    await asyncio.sleep(rng.uniform(0.0, 1.5))
    await cluster.start(victim)


def move(cluster: ClusterUnderTest, rng: random.Random) -> None:
    """Want a replica on a node that has none, as a nameserver does: when the last move is done."""
    row = cluster.stub.groups[rng.choice(GROUPS)]
    wanted = {replica.replica_id for replica in row.replicas}
    if row.membership.voters and wanted != set(row.membership.voters):
        return
    nodes = [replica.node_id for replica in row.replicas]
    spare = rng.choice([name for name in cluster.members if name not in nodes])
    cluster.stub.move_replica(row.raft_group, rng.choice(nodes), spare)


@pytest.mark.parametrize("seed", SEEDS)
async def test_nothing_promised_is_broken_whatever_happens(tmp_path: Path, seed: int) -> None:
    """Answered appends are there once at their offsets, acked messages stay away, rows agree."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    async for cluster in cluster_of(tmp_path, 3, groups=2, config=small_config()):
        await cluster.add(1)
        client, done = Client(cluster, rng), asyncio.Event()
        load = [asyncio.ensure_future(client.run(group, done)) for group in GROUPS]
        for _ in range(ROUNDS):
            await trouble(cluster, rng)
            if any(task.done() for task in load):
                break
        done.set()
        await asyncio.gather(*load)
        for group in GROUPS:
            await client.check(group)
