"""Operations of operators during faults: restarts, members, leaders, queues, slots.

A drill is a coroutine over a cluster. Failed calls are ignored: a request of an operator during a
fault may be refused. Afterwards no request may be left half done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import google_crc32c
from google.protobuf.message import Message

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_mq.slots import slot_base
from strata_sim.client import LOST, Refused, SimClient
from strata_sim.cluster import SimCluster

Drill = Callable[[SimCluster], Awaitable[None]]

_GRACE_S = 3.0
_MAX_QUEUES = 16


async def rolling_restart(cluster: SimCluster) -> None:
    """Stop and start every process of a tier, one after another."""
    kind = cluster.chance.choice(("nameserver", "storage", "broker"))
    for host in [host for host in cluster.hosts if host.kind == kind and host.serving]:
        if not host.serving or host.machine.paused:
            continue
        await host.stop(_GRACE_S)
        if not host.machine.runs and not host.wanted:
            host.start()
        await asyncio.sleep(cluster.chance.uniform(0.5, 2.0))


async def leader_transfers(cluster: SimCluster) -> None:
    """Hand leaderships of raft groups over."""
    client = cluster.client()
    for raft_group in await _raft_groups(client):
        request = admin_pb2.TransferLeaderRequest(raft_group=raft_group)
        await _ask(cluster, client, "TransferLeader", request)
        await asyncio.sleep(cluster.chance.uniform(0, 1.0))


async def queue_moves(cluster: SimCluster) -> None:
    """Move some queues of both topics to other raft groups."""
    client = cluster.client()
    raft_groups = await _raft_groups(client)
    for topic in ("orders", "events"):
        for _ in range(cluster.chance.randint(0, 2)):
            if raft_groups:
                queue = cluster.chance.randrange(4)
                request = admin_pb2.MoveQueueRequest(
                    topic=topic,
                    queue=queue,
                    to_raft_group=cluster.chance.choice(raft_groups),
                )
                await _ask(cluster, client, "MoveQueue", request)
                await asyncio.sleep(cluster.chance.uniform(0, 1.0))


async def slot_moves(cluster: SimCluster) -> None:
    """Move slots of both topics' queues to other raft groups."""
    client = cluster.client()
    raft_groups = await _raft_groups(client)
    for topic in ("orders", "events"):
        if raft_groups:
            request = admin_pb2.MoveSlotsRequest(
                first_slot=slot_base("", topic, google_crc32c.value),
                slot_count=cluster.chance.randint(1, 4),
                to_raft_group=cluster.chance.choice(raft_groups),
            )
            await _ask(cluster, client, "MoveSlots", request)
            await asyncio.sleep(cluster.chance.uniform(0, 2.0))


async def topic_growth(cluster: SimCluster) -> None:
    """Give a topic twice as many queues."""
    client = cluster.client()
    name = cluster.chance.choice(("orders", "events"))
    try:
        data = await client.admin("GetTopic", admin_pb2.GetTopicRequest(name=name))
    except (Refused, *LOST):
        return
    queue_count = 2 * admin_pb2.GetTopicResponse.FromString(data).topic.queue_count
    if queue_count <= _MAX_QUEUES:
        cluster.grown_topics[name] += 1
        topic = meta_pb2.Topic(name=name, queue_count=queue_count)
        request = admin_pb2.UpdateTopicRequest(topic=topic, update_mask=["queue_count"])
        await _ask(cluster, client, "UpdateTopic", request)


async def member_changes(cluster: SimCluster) -> None:
    """Let a spare storage node join, drain another one for a while, take it back."""
    spare = next((host for host in cluster.storage if not host.machine.lives), None)
    if spare is not None:
        spare.start()
        await asyncio.sleep(cluster.chance.uniform(1.0, 4.0))
    client = cluster.client()
    host = cluster.chance.choice([host for host in cluster.storage if host.machine.lives])
    for draining in (True, False):
        request = admin_pb2.DrainNodeRequest(node_id=host.node_id, draining=draining)
        await _ask(cluster, client, "DrainNode", request)
        await asyncio.sleep(cluster.chance.uniform(2.0, 6.0))


ALL: tuple[Drill, ...] = (
    rolling_restart,
    leader_transfers,
    queue_moves,
    slot_moves,
    topic_growth,
    member_changes,
)


async def run_all(cluster: SimCluster, until_s: float) -> None:
    """Do one drill after another, in any order, until a time."""
    while True:
        await asyncio.sleep(cluster.chance.uniform(1.0, 4.0))
        if cluster.now_s >= until_s:
            return
        drill = cluster.chance.choice(ALL)
        cluster.trace.note(f"drill: {drill.__name__}")
        await drill(cluster)


async def _raft_groups(client: SimClient) -> list[int]:
    try:
        data = await client.admin("GetCluster", admin_pb2.GetClusterRequest())
    except (Refused, *LOST):
        return []
    response = admin_pb2.GetClusterResponse.FromString(data)
    return [health.raft_group for health in response.raft_groups]


async def _ask(cluster: SimCluster, client: SimClient, rpc: str, request: Message) -> None:
    words = str(request).replace("\n", " ").strip()
    try:
        await client.admin(rpc, request)
    except (Refused, *LOST) as failure:
        cluster.trace.note(f"{rpc} {words}: {failure!r}")
    else:
        cluster.trace.note(f"{rpc} {words}: done")
        cluster.operations[rpc] += 1
