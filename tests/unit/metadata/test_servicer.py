"""A copy of the metadata is served read-only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from strata.meta.v1 import meta_pb2
from strata_angelia.inproc import InprocNetwork
from strata_metadata import (
    META_SERVICE,
    CachedMetaServicer,
    MetadataCache,
    WatchOptions,
)
from strata_runtime.metrics import Metrics
from strata_testing.metadata_store import MemoryMetadataStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from strata_angelia.ports import Channel

from tests.unit.metadata.conftest import topic

PREFIX = "/strata.meta.v1.MetaService/"


@pytest.fixture
def cache() -> MetadataCache:
    return MetadataCache(MemoryMetadataStore(), WatchOptions(), Metrics.disabled())


@pytest.fixture
async def channel(network: InprocNetwork, cache: MetadataCache) -> AsyncIterator[Channel]:
    server = network.server("copy")
    server.register(META_SERVICE, CachedMetaServicer(cache))
    await server.start()
    channel = network.channel("inproc:copy")
    yield channel
    await channel.close()
    await server.stop(0)


async def snapshot(channel: Channel) -> meta_pb2.GetSnapshotResponse:
    return await channel.call(
        PREFIX + "GetSnapshot", meta_pb2.GetSnapshotRequest(), meta_pb2.GetSnapshotResponse
    )


async def test_reads_are_served(channel: Channel, cache: MetadataCache) -> None:
    """Nothing before anything is known, then all rows."""
    assert (await snapshot(channel)).status.outcome == meta_pb2.META_OUTCOME_UNAVAILABLE
    cache.apply(meta_pb2.WatchResponse(revision=4, changes=[topic("t")]))
    response = await snapshot(channel)

    assert (response.revision, list(response.rows)) == (4, [topic("t")])


async def test_more_rows_than_one_answer_may_have_are_refused(network: InprocNetwork) -> None:
    """An answer of a million rows would stop the process; the stream has them in pieces."""
    cache = MetadataCache(MemoryMetadataStore(), WatchOptions(snapshot_rows=2), Metrics.disabled())
    server = network.server("large copy")
    server.register(META_SERVICE, CachedMetaServicer(cache))
    await server.start()
    channel = network.channel("inproc:large copy")
    cache.apply(meta_pb2.WatchResponse(revision=2, changes=[topic("a"), topic("b")]))
    assert len((await snapshot(channel)).rows) == 2
    cache.apply(meta_pb2.WatchResponse(revision=3, changes=[topic("c")]))
    response = await snapshot(channel)
    assert response.status.outcome == meta_pb2.META_OUTCOME_LIMIT_REACHED
    assert "max_snapshot_rows" in response.status.reason
    assert not response.rows
    await channel.close()
    await server.stop(0)


async def test_every_other_call_says_where_to_go(channel: Channel) -> None:
    """UNAVAILABLE with a reason, for each RPC of the service but the three that read."""
    reads = ("GetIdentity", "GetSnapshot", "Watch")
    rpcs = [rpc.name for rpc in META_SERVICE.methods if rpc.name not in reads]
    assert "CreateTopic" in rpcs and "Heartbeat" in rpcs
    for name in rpcs:
        request = getattr(meta_pb2, f"{name}Request")()
        response = await channel.call(PREFIX + name, request, getattr(meta_pb2, f"{name}Response"))
        assert response.status.outcome == meta_pb2.META_OUTCOME_UNAVAILABLE, name
        assert "nameserver" in response.status.reason
