"""One flipped bit on one of three nodes: found, never served, repaired by another replica."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from strata.storage.v1 import storage_pb2 as pb
from strata_testing import until
from strata_testing.storage_node import TOPIC, small_config
from tests.integration.storage.storage_cluster import ClusterUnderTest, cluster_of

GROUP = 1
BODIES = [b"first" * 50, b"poison" * 50, b"third" * 50]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterUnderTest]:
    config = small_config(recent_bytes=0, scrub_bytes_per_s=0)
    async for made in cluster_of(tmp_path, 3, config=config):
        yield made


def flip(cluster: ClusterUnderTest, node_id: str) -> None:
    """Flip a bit in the stored bytes of the second message."""
    disk = cluster.members[node_id].disk
    for name in disk.names():
        data = disk.open(name, create=False).read(0, 8 * 1024 * 1024)
        if b"poison" in data:
            disk.flip(name, data.index(b"poison") + 3)
            return
    raise AssertionError("the message is in no segment")


async def expect_all(cluster: ClusterUnderTest) -> None:
    fetched = await cluster.fetch(GROUP, 0)
    assert [message.message for message in fetched.messages] == BODIES


async def replaced(cluster: ClusterUnderTest, node_id: str) -> None:
    """Do as the nameserver does when a heartbeat names a damaged replica."""
    damaged = cluster.members[node_id].node.replicas()[GROUP].replica_id
    await until(
        lambda: any(damaged in beat.damaged_replica_ids for beat in cluster.stub.heartbeats)
    )
    cluster.stub.move_replica(GROUP, node_id, node_id)
    row = cluster.stub.groups[GROUP]
    await until(lambda: not row.leaving and len(row.membership.voters) == 3, 30)
    assert damaged not in row.membership.voters


@pytest.mark.parametrize("found_by", ["scrub", "read"])
async def test_a_damaged_leader_gives_up_and_is_replaced(
    cluster: ClusterUnderTest, found_by: str
) -> None:
    """The others have the message; the damaged replica says what is wrong, until it is replaced."""
    for body in BODIES:
        await cluster.append(GROUP, [body])
    leader = await cluster.until_led(GROUP)
    await cluster.until_quiet(GROUP)
    flip(cluster, leader)
    damage = cluster.members[leader].node.damage
    if found_by == "read":
        request = pb.FetchRequest(raft_group=GROUP, topic_id=7, queue=0, offset=1, max_messages=1)
        response = await cluster._channel(leader).call(
            "/strata.storage.v1.StorageService/Fetch", request, pb.FetchResponse
        )
        assert response.refusal.outcome == pb.OUTCOME_CORRUPT
        await damage.scan(0)
    else:
        await damage.scan(64 * 1024 * 1024)

    def is_read_only() -> bool:
        (status,) = cluster.members[leader].node.status().replicas
        return status.state == pb.REPLICA_STATE_READ_ONLY and "damaged" in status.reason

    # The node looks by itself, too, and may have taken this look over.
    await until(is_read_only)
    await until(lambda: cluster.leader_of(GROUP) not in (None, leader))
    asked = pb.GetOffsetsRequest(raft_group=GROUP, topic=TOPIC)
    offsets = await cluster._channel(leader).call(
        "/strata.storage.v1.StorageService/GetOffsets", asked, pb.GetOffsetsResponse
    )
    assert offsets.refusal.outcome == pb.OUTCOME_NOT_LEADER, "others know more by now"
    await expect_all(cluster)
    await cluster.append(GROUP, [b"later"], queue=1)
    await replaced(cluster, leader)
    await cluster.check_rows_equal(GROUP)
    cluster.stub.prefer(GROUP, leader)
    await until(lambda: cluster.leader_of(GROUP) == leader)
    await expect_all(cluster)


async def test_a_damage_found_at_start_is_replaced(cluster: ClusterUnderTest) -> None:
    """Recovery finds it before the replica could vote."""
    for body in BODIES:
        await cluster.append(GROUP, [body])
    await cluster.until_quiet(GROUP)
    leader = await cluster.until_led(GROUP)
    victim = next(name for name in cluster.members if name != leader)
    await cluster.members[victim].stop()
    flip(cluster, victim)
    await cluster.start(victim)
    (status,) = cluster.members[victim].node.status().replicas
    assert status.state == pb.REPLICA_STATE_READ_ONLY
    await replaced(cluster, victim)
    await cluster.check_rows_equal(GROUP)
    await expect_all(cluster)
