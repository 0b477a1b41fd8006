"""Replicas that cannot be caught up from the log alone: rows and retained entries travel."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from strata_mq.layout.rows import RowKind
from strata_multiraft import Replica
from strata_state.memory_store import MemoryStore
from strata_state.ports import StateError
from strata_storage.upkeep.checkpointer import Checkpointer
from strata_testing import until
from strata_testing.storage_node import small_config
from tests.integration.storage.kept_rows import kept_rows
from tests.integration.storage.storage_cluster import ClusterUnderTest, cluster_of

GROUP = 1
_BODY_BYTES = 100_000


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterUnderTest]:
    config = small_config(default_retention_ms=1_000)
    async for made in cluster_of(tmp_path, 3, config=config):
        yield made


async def fill(cluster: ClusterUnderTest, megabytes: int, seed: int) -> None:
    """Append large messages to all queues."""
    rng = random.Random(seed)
    for _ in range(megabytes):
        bodies = [rng.randbytes(_BODY_BYTES) for _ in range(10)]
        await cluster.append(GROUP, bodies, queue=rng.randrange(4))


async def trim(cluster: ClusterUnderTest) -> None:
    """Let messages grow old, trim them, and free the log on all nodes."""

    async def freed() -> bool:
        await cluster.append(GROUP, [b"young"], queue=1)
        leader = await cluster.until_led(GROUP)
        await cluster.members[leader].node.retain_once()
        await cluster.until_quiet(GROUP)
        running = [member for member in cluster.members.values() if member.member is not None]
        await asyncio.gather(*(member.node.retain_once() for member in running))
        return bool(cluster.members[leader].node.status().log_first_position)

    # Group time follows the clocks of all nodes and may be behind this one on a busy machine.
    await asyncio.sleep(1.1)
    await until(freed, step_s=0.2)


def replica(cluster: ClusterUnderTest, node_id: str) -> Replica:
    found = cluster.members[node_id].node.replicas()[GROUP]
    assert isinstance(found, Replica)
    return found


async def expect_young_messages(cluster: ClusterUnderTest) -> None:
    """Retained messages are read from every node, as a leader."""
    for node_id in cluster.applied(GROUP):
        cluster.stub.prefer(GROUP, node_id)
        await until(lambda node_id=node_id: cluster.leader_of(GROUP) == node_id)  # type: ignore[misc]
        fetched = await cluster.fetch(GROUP, 1)
        assert b"young" in [message.message for message in fetched.messages]


@pytest.mark.parametrize("real", [False, True])
async def test_a_new_replica_gets_rows_and_retained_entries(tmp_path: Path, real: bool) -> None:
    """The log begins after index 1 everywhere; the newcomer serves all that is retained."""
    config = small_config(default_retention_ms=1_000)
    async for cluster in cluster_of(tmp_path, 3, config=config, real=real):
        await replace_a_replica(cluster)


async def replace_a_replica(cluster: ClusterUnderTest) -> None:
    await fill(cluster, 20, 1)
    popped = await cluster.pop(GROUP, max_messages=3, invisible_ms=60_000)
    assert popped.messages
    await trim(cluster)
    leader = await cluster.until_led(GROUP)
    (new,) = await cluster.add(1)
    gone = next(name for name in cluster.applied(GROUP) if name != leader)
    cluster.stub.move_replica(GROUP, gone, new)
    writing = asyncio.ensure_future(fill(cluster, 5, 2))
    await until(lambda: GROUP not in cluster.members[gone].node.hosted(), 30)
    await writing
    assert replica(cluster, new).first_index > 1
    await cluster.check_rows_equal(GROUP)
    await expect_young_messages(cluster)


async def test_a_snapshot_gets_its_checkpoint_after_a_crash_too(
    cluster: ClusterUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Power goes between a snapshot and its checkpoint: without its rows the replica comes back."""
    await fill(cluster, 20, 1)
    await trim(cluster)
    leader = await cluster.until_led(GROUP)

    async def not_yet(*_: object) -> None:
        """Leave every checkpoint for later."""

    with monkeypatch.context() as patched:
        patched.setattr(Checkpointer, "write_due", not_yet)
        (new,) = await cluster.add(1)
        gone = next(name for name in cluster.applied(GROUP) if name != leader)
        cluster.stub.move_replica(GROUP, gone, new)
        await until(lambda: GROUP not in cluster.members[gone].node.hosted(), 30)
        await cluster.until_quiet(GROUP)
        member, replica_id = cluster.members[new], replica(cluster, new).replica_id
        assert replica(cluster, new).first_index > 1
        assert member.node._data.log.checkpoints(replica_id) == []
        await member.lose_power()
    await cluster.start(new)
    await cluster.append(GROUP, [b"later"], queue=1)
    await until(lambda: member.node._data.log.checkpoints(replica_id) != [])
    await cluster.until_quiet(GROUP)
    await member.stop()
    member.store = MemoryStore()
    await cluster.start(new)
    await cluster.until_quiet(GROUP)
    assert kept_rows(cluster.rows(new, GROUP)) == kept_rows(cluster.rows(leader, GROUP))
    assert (replica(cluster, new).replica_id, replica(cluster, new).read_only) == (replica_id, "")
    await expect_young_messages(cluster)


async def test_a_follower_that_was_away_for_too_long_gets_a_snapshot(
    cluster: ClusterUnderTest,
) -> None:
    """The other replicas' logs lack what it missed; its own old rows are replaced."""
    await fill(cluster, 2, 3)
    leader = await cluster.until_led(GROUP)
    away = next(name for name in cluster.members if name != leader)
    await cluster.members[away].lose_power()
    await fill(cluster, 20, 4)
    await trim(cluster)
    await cluster.start(away)
    await cluster.check_rows_equal(GROUP)
    assert replica(cluster, away).first_index > 1
    await expect_young_messages(cluster)


async def test_a_snapshot_waits_for_a_disk_that_is_full(
    cluster: ClusterUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows cannot be flushed for a while: the node lives, and takes the snapshot in later."""
    await fill(cluster, 2, 10)
    leader = await cluster.until_led(GROUP)
    away = next(name for name in cluster.members if name != leader)
    await cluster.members[away].lose_power()
    await fill(cluster, 20, 11)
    await trim(cluster)
    refused: list[bool] = []

    def refuse() -> None:
        refused.append(replica(cluster, away).installing)
        raise StateError("No space left on device")

    with monkeypatch.context() as full:
        full.setattr(cluster.members[away].store, "flush", refuse)
        await cluster.start(away)
        await until(lambda: refused.count(True) > 1)
        assert not cluster.members[away].fatal
    await cluster.check_rows_equal(GROUP)
    assert replica(cluster, away).first_index > 1
    await expect_young_messages(cluster)


async def test_rows_that_came_by_a_snapshot_are_rebuilt_from_their_checkpoint(
    cluster: ClusterUnderTest,
) -> None:
    """One is written soon after the install: the log alone begins too late."""
    await fill(cluster, 2, 8)
    leader = await cluster.until_led(GROUP)
    away = next(name for name in cluster.members if name != leader)
    await cluster.members[away].lose_power()
    await fill(cluster, 20, 9)
    await trim(cluster)
    await cluster.start(away)
    await cluster.until_quiet(GROUP)
    checkpoints = cluster.members[away].node._keeping.checkpointer
    replica_id = replica(cluster, away).replica_id
    await until(lambda: checkpoints.indexes.get(replica_id, 0) > 0)
    await cluster.members[away].stop()
    cluster.members[away].store = MemoryStore()
    await cluster.start(away)
    await cluster.until_quiet(GROUP)
    # Ids and keys of messages that were trimmed meanwhile come back to none.
    kept = kept_rows(cluster.rows(leader, GROUP))
    assert kept_rows(cluster.rows(away, GROUP)) == kept
    assert RowKind.ID in {row[0][4] for row in kept}
    await expect_young_messages(cluster)


@pytest.mark.parametrize("seed", range(3))
async def test_a_crash_in_the_middle_of_an_install_is_survived(
    cluster: ClusterUnderTest, seed: int
) -> None:
    """Whenever the power fails, the replica begins again and ends with the same rows."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    await fill(cluster, 2, 5)
    leader = await cluster.until_led(GROUP)
    away = next(name for name in cluster.members if name != leader)
    await cluster.members[away].lose_power()
    await fill(cluster, 20, 6)
    await trim(cluster)
    await fill(cluster, 12, 7)
    for _ in range(4):
        await cluster.start(away)
        await asyncio.sleep(rng.uniform(0.0, 0.5))
        await cluster.members[away].lose_power()
    await cluster.start(away)
    await cluster.check_rows_equal(GROUP)
    assert not replica(cluster, away).read_only
    await expect_young_messages(cluster)
