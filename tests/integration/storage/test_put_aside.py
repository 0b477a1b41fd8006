"""A removed replica stands aside, and comes back with every byte and offset (rule 32)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from strata.meta.v1 import meta_pb2 as meta
from strata_storage.base.errors import ReplicaEnded
from strata_storage.base.removed_replicas import RemovedReplica, RemovedReplicaError
from strata_storage.upkeep.restore_replica import removed_replicas, restore_replica
from strata_testing import ManualClock, until
from tests.integration.storage.storage_cluster import ClusterUnderTest, cluster_of

GROUP = 1
QUEUES = 4
DAY_MS = 86_400_000


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterUnderTest]:
    async for made in cluster_of(tmp_path, 1, real=True):
        yield made


def storage_of(cluster: ClusterUnderTest) -> Path:
    return cluster.members["storage-1"]._folder


async def fill(cluster: ClusterUnderTest, messages: int) -> None:
    """Store messages of some queues; some are leased, some acked."""
    rng = random.Random(4)
    for number in range(messages):
        bodies = [b"%d-%d" % (number, at) + rng.randbytes(20_000) for at in range(4)]
        await cluster.append(GROUP, bodies, queue=rng.randrange(QUEUES))
        popped = await cluster.pop(GROUP, max_messages=3, max_attempts=2)
        if number % 2 and popped.messages:
            await cluster.ack(GROUP, popped.messages[:1])


async def contents(cluster: ClusterUnderTest) -> list[list[tuple[int, bytes]]]:
    """Return offset and bytes of every message, by queue."""
    return [
        [
            (message.offset, message.message)
            for message in (await cluster.fetch(GROUP, queue)).messages
        ]
        for queue in range(QUEUES)
    ]


async def remove(cluster: ClusterUnderTest) -> meta.RaftGroup:
    """Let the nameserver want the only replica elsewhere; return the row from before."""
    before = meta.RaftGroup()
    before.CopyFrom(cluster.stub.groups[GROUP])
    row = cluster.stub.groups[GROUP]
    del row.replicas[:]
    row.replicas.append(cluster.stub.replica("storage-9"))
    cluster.stub.write(meta.Change(raft_group=row))
    node = cluster.members["storage-1"].node
    await until(lambda: GROUP not in node.hosted())
    return before


async def want_again(cluster: ClusterUnderTest, before: meta.RaftGroup) -> None:
    row = cluster.stub.groups[GROUP]
    row.CopyFrom(before)
    cluster.stub.write(meta.Change(raft_group=row))
    await cluster.start("storage-1")
    await cluster.until_led(GROUP)


def options(cluster: ClusterUnderTest):  # type: ignore[no-untyped-def]  # noqa: ANN201
    return cluster.config.log_options()


async def removed_and_back(cluster: ClusterUnderTest) -> RemovedReplica:
    """Let a filled replica go, restore it, start its node again, and return what it was."""
    await fill(cluster, 2)
    await remove(cluster)
    (replica,) = removed_replicas(storage_of(cluster))
    await cluster.members["storage-1"].stop()
    await asyncio.to_thread(
        restore_replica, storage_of(cluster), replica.replica_id, "", options(cluster)
    )
    await cluster.start("storage-1")
    return replica


async def test_a_removed_replica_comes_back(cluster: ClusterUnderTest) -> None:
    """After the log gave its segments up: messages, offsets, leases, under the same id."""
    await fill(cluster, 60)
    before = await contents(cluster)
    rows = cluster.rows("storage-1", GROUP)
    row = await remove(cluster)
    node = cluster.members["storage-1"].node
    (replica,) = removed_replicas(storage_of(cluster))
    assert (replica.replica_id, replica.raft_group) == (row.replicas[0].replica_id, GROUP)
    assert replica.revision == cluster.stub.groups[GROUP].revision
    await node.retain_once()
    assert len(node._data.log.segments()) == 1, "the log keeps nothing of it"
    await cluster.members["storage-1"].stop()

    restored = await asyncio.to_thread(
        restore_replica, storage_of(cluster), replica.replica_id, "", options(cluster)
    )
    assert restored.entries == replica.last_index - replica.first_index + 1
    assert removed_replicas(storage_of(cluster)) == []
    await want_again(cluster, row)
    assert await contents(cluster) == before
    again = cluster.rows("storage-1", GROUP)
    # The no-op of the new term changes how far it is, and nothing else.
    assert len(again) == len(rows)
    assert cluster.members["storage-1"].node.hosted()[GROUP].replica_id == replica.replica_id
    await fill(cluster, 2)


async def test_a_wanted_replica_that_was_removed_is_refused_with_the_way_back(
    cluster: ClusterUnderTest,
) -> None:
    """It is not hosted with an empty log; heartbeat and health tell that it is not there."""
    await fill(cluster, 2)
    row = await remove(cluster)
    await cluster.members["storage-1"].stop()
    wanted = cluster.stub.groups[GROUP]
    wanted.CopyFrom(row)
    cluster.stub.write(meta.Change(raft_group=wanted))
    await cluster.start("storage-1")
    replica_id = row.replicas[0].replica_id
    await until(
        lambda: any(
            replica_id in heartbeat.damaged_replica_ids for heartbeat in cluster.stub.heartbeats
        )
    )
    assert cluster.members["storage-1"].node.hosted() == {}
    member = cluster.members["storage-1"].member
    assert member is not None
    health = member.health()
    assert not health.is_ready
    assert [
        each.detail.startswith(f"replica {replica_id} cannot be hosted")
        for each in health.problems
        if (each.name, each.state) == (f"{GROUP}", "NOT_HOSTED")
    ] == [True]
    with pytest.raises(ReplicaEnded, match=f"restore-replica {replica_id} takes it back"):
        cluster.members["storage-1"].node._removals.check(GROUP, replica_id)


async def test_a_replica_that_nobody_wants_stays_once_it_is_back(
    cluster: ClusterUnderTest,
) -> None:
    """The row that let it go does not remove it again, a later one does."""
    replica = await removed_and_back(cluster)
    log = cluster.members["storage-1"].node._data.log
    await asyncio.sleep(0.3)
    assert log.replicas()[replica.replica_id].last_index == replica.last_index
    cluster.stub.write(meta.Change(raft_group=cluster.stub.groups[GROUP]))
    await until(lambda: log.replicas()[replica.replica_id].removed)
    assert [each.replica_id for each in removed_replicas(storage_of(cluster))] == [
        replica.replica_id
    ]


async def test_a_replica_that_is_back_stays_however_old_its_note_is(
    cluster: ClusterUnderTest,
) -> None:
    """The row that let it go is still the newest at a start long after; only its end forgets it."""
    replica = await removed_and_back(cluster)
    node = cluster.members["storage-1"].node
    node._removals._clock = ManualClock(0.0, wall_offset_ms=replica.removed_at_ms + 30 * DAY_MS)
    await node.retain_once()
    assert node.taken_back() == {replica.replica_id: replica.revision}
    await cluster.members["storage-1"].stop()
    await cluster.start("storage-1")
    node = cluster.members["storage-1"].node
    log = node._data.log
    # From the copy of the metadata, with the row that let it go.
    member = cluster.members["storage-1"].member
    assert member is not None
    assert member._running is not None
    await member._running.hosting.settle()
    assert log.replicas()[replica.replica_id].last_index == replica.last_index
    cluster.stub.write(meta.Change(raft_group=cluster.stub.groups[GROUP]))
    await until(lambda: log.replicas()[replica.replica_id].removed)
    assert node.taken_back() == {}
    (again,) = removed_replicas(storage_of(cluster))
    assert again.revision > replica.revision


async def test_what_cannot_be_taken_back_is_said(cluster: ClusterUnderTest) -> None:
    """An unknown id, and the replica of another cluster: errors, and the log is as it was."""
    await fill(cluster, 2)
    await remove(cluster)
    (replica,) = removed_replicas(storage_of(cluster))
    await cluster.members["storage-1"].stop()
    for replica_id, cluster_id, reason in (
        (999, "", "No such file"),
        (replica.replica_id, "other", "is of cluster none, the folder of other"),
    ):
        with pytest.raises(RemovedReplicaError, match=reason):
            restore_replica(storage_of(cluster), replica_id, cluster_id, options(cluster))
    assert removed_replicas(storage_of(cluster)) == [replica]
