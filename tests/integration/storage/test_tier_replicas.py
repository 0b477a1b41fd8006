"""Replicas that come without a log: what only the tier has is served by them, too."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from strata_testing import until
from tests.integration.storage.storage_cluster import ClusterUnderTest
from tests.integration.storage.tiered_cluster import (
    GROUP,
    fill,
    give_up_logs,
    is_uploaded,
    read_all,
    tiered_cluster,
)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterUnderTest]:
    async with tiered_cluster(tmp_path, f"posix://{tmp_path}/tier") as running:
        yield running


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
    await until(lambda: cluster.leader_of(GROUP) == new)
    assert await read_all(cluster) == messages
    more = await fill(cluster, 3, 2)
    await until(lambda: is_uploaded(cluster), 30)
    assert await read_all(cluster) == messages + more
    await cluster.check_rows_equal(GROUP)
