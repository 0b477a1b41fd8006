"""Tiering with several replicas: leaders change while they upload, replicas come without a log."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from strata.meta.v1 import meta_pb2 as meta
from strata_mq.tier_policy import LEVEL_ATTRIBUTE, LOCAL_RETENTION_ATTRIBUTE
from strata_storage.tiering.config import TierConfig
from strata_storage.tiering.uploader import Uploader
from strata_tier.drivers.posix import PosixStore
from strata_tier.ports import Body, ObjectInfo
from tests.integration.storage.storage_cluster import ClusterUnderTest, cluster_of
from tests.integration.storage.storage_node import TOPIC, small_config

GROUP = 1


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterUnderTest]:
    folder = tmp_path / "tier"
    tier = TierConfig(url=f"posix://{folder}", home="test", flush_age_ms=100)
    async for made in cluster_of(tmp_path, 3, config=small_config(recent_bytes=0), tier=tier):
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


def sets_in(tmp_path: Path) -> list[Path]:
    """Return the objects with messages."""
    return sorted((tmp_path / "tier").rglob("*.set"))


def uploader_of(cluster: ClusterUnderTest, node_id: str) -> Uploader:
    led = cluster.members[node_id].node.tiering._led[GROUP]
    assert isinstance(led.uploader, Uploader)
    return led.uploader


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
    await cluster.until(lambda: is_uploaded(cluster), 30)
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


async def test_a_new_replica_serves_what_only_the_tier_has(cluster: ClusterUnderTest) -> None:
    """Its rows come by a snapshot, its messages from the tier; all replicas have equal rows."""
    messages = await fill(cluster, 60, 1)
    await give_up_logs(cluster)
    leader = await cluster.until_led(GROUP)
    assert cluster.members[leader].node.status().log_first_position > 0
    (new,) = await cluster.add(1)
    gone = next(name for name in cluster.applied(GROUP) if name != leader)
    cluster.stub.move_replica(GROUP, gone, new)
    await cluster.until_quiet(GROUP)
    cluster.stub.prefer(GROUP, new)
    await cluster.until(lambda: cluster.leader_of(GROUP) == new)
    assert await read_all(cluster) == messages
    more = await fill(cluster, 3, 2)
    await cluster.until(lambda: is_uploaded(cluster), 30)
    assert await read_all(cluster) == messages + more
    await cluster.check_rows_equal(GROUP)


@pytest.mark.parametrize("is_put", [False, True])
async def test_a_new_leader_finishes_what_was_dispatched(
    cluster: ClusterUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_put: bool
) -> None:
    """The leader dies before or after the object is in the store: one object comes of it."""
    halted = asyncio.Event()
    put = PosixStore.put
    is_first = True

    async def halting(self: PosixStore, key: str, body: Body, **options: object) -> ObjectInfo:
        nonlocal is_first
        if is_first and key.endswith(".set"):
            is_first = False
            if is_put:
                await put(self, key, body)
            halted.set()
            await asyncio.Event().wait()
        return await put(self, key, body, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(PosixStore, "put", halting)
    messages = await fill(cluster, 4, 3)
    async with asyncio.timeout(60):
        await halted.wait()
    leader = await cluster.until_led(GROUP)
    await cluster.members[leader].lose_power()
    await cluster.until_led(GROUP)
    messages += await fill(cluster, 2, 4)
    await cluster.until(lambda: is_uploaded(cluster), 30)
    new_leader = await cluster.until_led(GROUP)
    names = {path.relative_to(tmp_path / "tier").as_posix() for path in sets_in(tmp_path)}
    assert names == committed_keys(cluster, new_leader)
    assert await read_all(cluster) == messages
    await cluster.start(leader)
    await cluster.check_rows_equal(GROUP)


async def test_two_leaders_upload_at_once(
    cluster: ClusterUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deposed leader that is still sending changes nothing that its successor committed."""
    going_on, halted = asyncio.Event(), asyncio.Event()
    put = PosixStore.put
    is_first = True

    async def slow(self: PosixStore, key: str, body: Body, **options: object) -> ObjectInfo:
        nonlocal is_first
        if is_first and key.endswith(".set"):
            is_first = False
            halted.set()
            await going_on.wait()
        return await put(self, key, body, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(PosixStore, "put", slow)
    messages = await fill(cluster, 4, 5)
    async with asyncio.timeout(60):
        await halted.wait()
    old = await cluster.until_led(GROUP)
    new = next(name for name in cluster.members if name != old)
    cluster.stub.prefer(GROUP, new)
    await cluster.until(lambda: cluster.leader_of(GROUP) == new)
    await cluster.until(lambda: is_uploaded(cluster), 30)
    before = committed_keys(cluster, new)
    going_on.set()
    messages += await fill(cluster, 2, 6)
    await cluster.until(lambda: is_uploaded(cluster), 30)
    assert before <= committed_keys(cluster, new)
    await give_up_logs(cluster)
    assert await read_all(cluster) == messages
    await cluster.check_rows_equal(GROUP)
