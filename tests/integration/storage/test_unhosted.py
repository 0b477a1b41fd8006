"""Replicas that the metadata wants on a node and that it cannot host: tried again, and told."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from strata_runtime.health import Health, Problem, Severity
from strata_state.ports import DamagedRowsError, StateError
from strata_testing import until
from tests.integration.storage.storage_cluster import (
    ClusterUnderTest,
    MemberUnderTest,
    cluster_of,
)

GROUP = 1
NAME = "storage-1"
NO_FILES = "state row cannot be read: IO error: Too many open files"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterUnderTest]:
    async for made in cluster_of(tmp_path, 1):
        yield made


@contextmanager
def failing(member: MemberUnderTest, failure: StateError) -> Iterator[None]:
    """Let every read of a row fail."""
    store = member.store
    real_get = store.get

    def get(key: bytes) -> bytes | None:
        raise failure

    store.get = get  # type: ignore[method-assign]
    try:
        yield
    finally:
        store.get = real_get  # type: ignore[method-assign]


def health_of(cluster: ClusterUnderTest) -> Health:
    member = cluster.members[NAME].member
    assert member is not None
    return member.health()


def not_hosted(cluster: ClusterUnderTest) -> list[Problem]:
    return [each for each in health_of(cluster).problems if each.state == "NOT_HOSTED"]


def told_damaged(cluster: ClusterUnderTest) -> set[int]:
    return {each for beat in cluster.stub.heartbeats for each in beat.damaged_replica_ids}


async def stopped_with_a_message(cluster: ClusterUnderTest) -> MemberUnderTest:
    await cluster.append(GROUP, [b"acked"], queue=0)
    member = cluster.members[NAME]
    assert await member.node.flush_once()
    await member.stop()
    return member


async def test_a_replica_whose_rows_are_not_read_at_the_start_is_hosted_when_they_are(
    cluster: ClusterUnderTest,
) -> None:
    """Rule 40: it is not named damaged meanwhile, health says what is the matter, all is there."""
    member = await stopped_with_a_message(cluster)
    replica_id = cluster.stub.groups[GROUP].replicas[0].replica_id
    with failing(member, StateError(NO_FILES)):
        await cluster.start(NAME)
        beats = len(cluster.stub.heartbeats)
        await until(lambda: len(cluster.stub.heartbeats) > beats + 1)
        health = health_of(cluster)
        assert (health.serves, health.is_ready) == (False, False)
        (problem,) = not_hosted(cluster)
        assert (problem.name, problem.severity) == (f"{GROUP}", Severity.DEGRADED)
        expected = f"replica {replica_id} is not hosted yet; it is tried again: {NO_FILES}"
        assert problem.line() == f"raft group {GROUP} NOT_HOSTED: {expected}"
        assert [
            (each.raft_group, each.reason) for each in cluster.stub.heartbeats[-1].health.stopped
        ] == [(GROUP, expected)]
    await cluster.until_led(GROUP)
    assert not_hosted(cluster) == []
    await until(lambda: health_of(cluster).is_ready)
    fetched = await cluster.fetch(GROUP, 0)
    assert [each.message for each in fetched.messages] == [b"acked"]
    assert told_damaged(cluster) == set()
    await until(lambda: not cluster.stub.heartbeats[-1].health.stopped)


async def test_a_replica_with_damaged_rows_is_refused_and_told(cluster: ClusterUnderTest) -> None:
    """Another replica id has to take its place; the node is not ready, and says which one."""
    member = await stopped_with_a_message(cluster)
    replica_id = cluster.stub.groups[GROUP].replicas[0].replica_id
    with failing(member, DamagedRowsError("block checksum mismatch")):
        await cluster.start(NAME)
        await until(lambda: replica_id in told_damaged(cluster))
    health = health_of(cluster)
    assert (health.serves, health.is_caught_up) == (False, False)
    assert [(each.name, each.detail) for each in not_hosted(cluster)] == [
        (f"{GROUP}", f"replica {replica_id} cannot be hosted: block checksum mismatch")
    ]


async def test_a_node_that_nobody_wants_anything_of_is_ready(cluster: ClusterUnderTest) -> None:
    """It hosts nothing, and lacks nothing; a new node must not wait for its first replica."""
    (name,) = await cluster.add(1)
    member = cluster.members[name].member
    assert member is not None
    assert (member.health().is_ready, member.health().problems) == (True, ())
