"""Rule 32: nothing is taken from, or told to, nameservers of another cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from strata.meta.v1 import meta_pb2
from strata_angelia.cluster_id import ClusterId
from strata_angelia.inproc import InprocNetwork
from strata_angelia.ports import CallContext
from strata_metadata.cache import MetadataCache
from strata_metadata.client import MetadataClient
from strata_metadata.follower import MetadataFollower, MetadataSources
from strata_metadata.options import (
    MetadataClientOptions,
    MetadataFollowerOptions,
    PresenceOptions,
    WatchOptions,
)
from strata_metadata.presence import NodePresence
from strata_metadata.servicer import META_SERVICE, CachedMetaServicer
from strata_metadata.view import ClusterView
from strata_runtime.metrics import Metrics
from strata_testing import until
from strata_testing.leaping_loop import LoopClock
from strata_testing.metadata_store import MemoryMetadataStore

NODE = meta_pb2.Node(node_id="storage-1", kind=meta_pb2.NODE_KIND_STORAGE, boot_id=1)
QUICK = PresenceOptions(interval_ms=5, timeout_ms=500, register_timeout_ms=500, retry_ms=5)


class Nameserver(CachedMetaServicer):
    """Serves a copy as if it led; remembers what it was told."""

    def __init__(self, cluster: str, revision: int) -> None:
        self.id = ClusterId(cluster)
        self.cache = MetadataCache(
            MemoryMetadataStore(),
            WatchOptions(keepalive_ms=20),
            Metrics.disabled(),
            cluster=self.id,
        )
        super().__init__(self.cache, self.id)
        node = meta_pb2.Node(node_id=f"of-{cluster}", kind=meta_pb2.NODE_KIND_STORAGE)
        self.cache.apply(
            meta_pb2.WatchResponse(revision=revision, changes=[meta_pb2.Change(node=node)])
        )
        self.told: list[str] = []
        self.outcome: meta_pb2.MetaOutcome.ValueType = meta_pb2.META_OUTCOME_OK

    async def register_node(
        self, request: meta_pb2.RegisterNodeRequest, context: CallContext
    ) -> meta_pb2.RegisterNodeResponse:
        self.told.append(request.cluster_id)
        return meta_pb2.RegisterNodeResponse(
            status=meta_pb2.MetaStatus(outcome=self.outcome), cluster_id=self.id.value
        )

    async def heartbeat(
        self, request: meta_pb2.HeartbeatRequest, context: CallContext
    ) -> meta_pb2.HeartbeatResponse:
        self.told.append(request.cluster_id)
        return meta_pb2.HeartbeatResponse(status=meta_pb2.MetaStatus(outcome=self.outcome))


class World:
    """Nameservers by name."""

    def __init__(self) -> None:
        self.network = InprocNetwork()
        self.servers: list[tuple[object, object]] = []

    async def add(self, cluster: str, revision: int = 1) -> Nameserver:
        nameserver = Nameserver(cluster, revision)
        server = self.network.server(cluster)
        server.register(META_SERVICE, nameserver)
        await server.start()
        self.servers.append((server, nameserver))
        return nameserver

    def follower(self, sink: ClusterView, own: ClusterId, *endpoints: str) -> MetadataFollower:
        options = MetadataFollowerOptions(first_retry_ms=1, max_retry_ms=5)
        return MetadataFollower(
            MetadataSources(endpoints, self.network.channel),
            sink,
            options=options,
            clock=LoopClock(),
            random=lambda: 0.0,
            metrics=Metrics.disabled(),
            cluster=own,
        )

    def presence(self, own: ClusterId, *endpoints: str) -> NodePresence:
        client = MetadataClient(
            endpoints,
            self.network.channel,
            MetadataClientOptions(),
            random=lambda: 0.5,
            metrics=Metrics.disabled(),
        )
        return NodePresence(client, NODE, QUICK, metrics=Metrics.disabled(), cluster=own)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    yield World()


async def test_a_stranger_is_passed_over(world: World) -> None:
    """Its rows are never seen, though it knows more and was asked first."""
    await world.add("theirs", revision=9)
    await world.add("mine", revision=3)
    view, own = ClusterView(), ClusterId("mine")
    follower = world.follower(view, own, "inproc:theirs", "inproc:mine")
    with capture_logs() as lines:
        task = asyncio.ensure_future(follower.run())
        await until(lambda: view.revision == 3)
        task.cancel()
    assert (view.cluster_id, [node.node_id for node in view.nodes()]) == ("mine", ["of-mine"])
    # One line at each end; it is the source that refuses first.
    assert [line["cluster"] for line in lines] == ["mine"]


async def test_a_copy_remembers_whose_rows_it_has(world: World) -> None:
    """After a restart it says so before anybody was reached."""
    await world.add("mine", revision=3)
    store, view = MemoryMetadataStore(), ClusterView()
    cache = MetadataCache(store, WatchOptions(), Metrics.disabled(), sinks=[view])
    task = asyncio.ensure_future(
        world.follower(cache, ClusterId("mine"), "inproc:mine").run()  # type: ignore[arg-type]
    )
    await until(lambda: cache.revision == 3)
    task.cancel()
    again = ClusterView()
    MetadataCache(store, WatchOptions(), Metrics.disabled(), sinks=[again])
    assert view.cluster_id == again.cluster_id == "mine"


async def test_a_watcher_of_another_cluster_hears_nothing(world: World) -> None:
    """The source refuses it, too."""
    await world.add("mine", revision=3)
    view = ClusterView()
    task = asyncio.ensure_future(world.follower(view, ClusterId("theirs"), "inproc:mine").run())
    await asyncio.sleep(0.05)
    task.cancel()
    assert (view.revision, view.nodes()) == (0, [])


async def test_a_node_learns_its_cluster_from_who_takes_it_in(world: World) -> None:
    """And says it with every heartbeat and registration from then on."""
    nameserver = await world.add("mine")
    own = ClusterId()
    presence = world.presence(own, "inproc:mine")
    task = asyncio.ensure_future(presence.run())
    await until(lambda: len(nameserver.told) >= 3)
    task.cancel()
    assert (own.value, nameserver.told[:3]) == ("mine", ["", "mine", "mine"])


async def test_a_node_that_a_stranger_takes_in_does_not_believe_it(world: World) -> None:
    """It asks again, is not registered, and writes one line."""
    nameserver = await world.add("theirs")
    own = ClusterId("mine")
    presence = world.presence(own, "inproc:theirs")
    with capture_logs() as lines:
        task = asyncio.ensure_future(presence.run())
        await until(lambda: len(nameserver.told) >= 5)
        task.cancel()
    assert own.value == "mine" and not presence.registered.is_set()
    assert [line["event"] for line in lines] == ["not registered"]
