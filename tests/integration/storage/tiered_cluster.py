"""A cluster of storage nodes that upload to one tier, as tests drive it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from strata.meta.v1 import meta_pb2 as meta
from strata_mq.tier_policy import LEVEL_ATTRIBUTE, LOCAL_RETENTION_ATTRIBUTE
from strata_storage.tiering.config import TierConfig
from strata_testing import until
from strata_testing.storage_node import TOPIC, small_config
from tests.integration.storage.storage_cluster import ClusterUnderTest, cluster_of

GROUP = 1


@asynccontextmanager
async def tiered_cluster(folder: Path, url: str) -> AsyncIterator[ClusterUnderTest]:
    """Run three nodes whose tier is at a URL; a topic's messages leave the log when they may."""
    tier = TierConfig(url=url, home="test", flush_age_ms=100)
    async for made in cluster_of(folder, 3, config=small_config(recent_bytes=0), tier=tier):
        attributes = {LEVEL_ATTRIBUTE: "NOT_IN_DISK", LOCAL_RETENTION_ATTRIBUTE: "1"}
        topic = meta.Topic(
            topic_id=TOPIC.topic_id,
            name="orders",
            queue_count=TOPIC.queue_count,
            retention_ms=3_600_000,
            attributes=attributes,
        )
        made.stub.write(meta.Change(topic=topic))
        yield made


def committed_keys(cluster: ClusterUnderTest, node_id: str) -> set[str]:
    metadata = cluster.members[node_id].node.engine(GROUP).machine.tier.metadata
    return {held.ref.key for held in metadata.objects()}


def is_uploaded(cluster: ClusterUnderTest) -> bool:
    """Whether the leader has nothing left to upload."""
    node_id = cluster.leader_of(GROUP)
    if node_id is None:
        return False
    machine = cluster.members[node_id].node.engine(GROUP).machine
    rows = machine.rows.queues.all()
    waits = any(machine.tier.commit_offset(t, q) != row.next_offset for t, q, row in rows)
    return not machine.tier.dispatch and not waits


async def fill(cluster: ClusterUnderTest, rounds: int, seed: int) -> list[bytes]:
    """Append to queue 1; return the messages."""
    rng = random.Random(seed)
    messages: list[bytes] = []
    for _ in range(rounds):
        more = [rng.randbytes(rng.randrange(1, 2_000)), rng.randbytes(500_000)]
        await cluster.append(GROUP, more, queue=1)
        messages += more
    return messages


async def read_all(cluster: ClusterUnderTest) -> list[bytes]:
    """Return the messages of queue 1."""
    found: list[bytes] = []
    while True:
        fetched = await cluster.fetch(GROUP, 1, len(found))
        found += [message.message for message in fetched.messages]
        if len(found) >= fetched.next_offset:
            return found


async def give_up_logs(cluster: ClusterUnderTest) -> None:
    """Let every node's log give up what the tier has."""
    await until(lambda: is_uploaded(cluster), 30)
    await asyncio.sleep(0.05)
    leader = await cluster.until_led(GROUP)
    node = cluster.members[leader].node
    await node.tiering.retain(node.engine(GROUP))
    for _ in range(2):
        await node.retain_once()
        await cluster.until_quiet(GROUP)
        for member in cluster.members.values():
            if member.member is not None:
                await member.node.retain_once()
