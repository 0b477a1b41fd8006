"""Sources of metadata in memory, reached over Angelia's in-process transport."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from strata.meta.v1 import meta_pb2
from strata_angelia.inproc import InprocNetwork, InprocServer
from strata_angelia.ports import CallContext
from strata_metadata import (
    META_SERVICE,
    CachedMetaServicer,
    MetadataCache,
    WatchOptions,
)
from strata_metadata.rows import ROW_FORMAT
from strata_runtime.metrics import Metrics
from strata_testing.leaping_loop import LeapingLoop
from strata_testing.metadata_store import MemoryMetadataStore

WATCH = WatchOptions(recent_changes=4, response_changes=2, keepalive_ms=20)


def topic(name: str, topic_id: int = 1, retention_ms: int = 1_000) -> meta_pb2.Change:
    return meta_pb2.Change(
        topic=meta_pb2.Topic(name=name, topic_id=topic_id, retention_ms=retention_ms)
    )


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Clients time out after some ms: no source is too slow because the machine is."""
    return {"leaping": LeapingLoop}


class Source:
    """A nameserver as its clients see it: rows in a cache, calls answered as a test says."""

    def __init__(self, network: InprocNetwork, name: str) -> None:
        self.endpoint = f"inproc:{name}"
        self.cache = MetadataCache(MemoryMetadataStore(), WATCH, Metrics.disabled())
        self.leads = True
        self.watches: list[int] = []
        self.calls: list[str] = []
        # For the rows that it wrote.
        self.row_format = ROW_FORMAT
        self.status = meta_pb2.MetaStatus(outcome=meta_pb2.META_OUTCOME_OK)
        self.registration_status = meta_pb2.MetaStatus(outcome=meta_pb2.META_OUTCOME_OK)
        # The row is that of another process.
        self.is_replaced = False
        self.paused = asyncio.Event()
        self.paused.set()
        self._network = network
        self._name = name
        self._server: InprocServer | None = None

    async def start(self) -> None:
        self._server = self._network.server(self._name)
        self._server.register(META_SERVICE, _Servicer(self))
        await self._server.start()

    async def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.stop(0)

    async def go_back_to(self, revision: int, *rows: meta_pb2.Change, stamp: int = 0) -> None:
        """Start again with other rows, as after an old backup was put into the folder."""
        await self.stop()
        self.cache.close()
        self.cache = MetadataCache(MemoryMetadataStore(), WATCH, Metrics.disabled())
        self.tell(revision, *rows, stamp=stamp)
        await self.start()

    def tell(self, revision: int, *changes: meta_pb2.Change, stamp: int = 0) -> None:
        """Apply changes that lead to a revision."""
        self.cache.apply(meta_pb2.WatchResponse(revision=revision, changes=changes, stamp=stamp))


class _Servicer(CachedMetaServicer):
    def __init__(self, source: Source) -> None:
        super().__init__(source.cache)
        self._source = source

    async def create_topic(
        self, request: meta_pb2.CreateTopicRequest, context: CallContext
    ) -> meta_pb2.CreateTopicResponse:
        self._source.calls.append(request.topic.name)
        await self._source.paused.wait()
        return meta_pb2.CreateTopicResponse(status=self._source.status, topic=request.topic)

    async def register_node(
        self, request: meta_pb2.RegisterNodeRequest, context: CallContext
    ) -> meta_pb2.RegisterNodeResponse:
        self._source.calls.append("register")
        return meta_pb2.RegisterNodeResponse(status=self._source.registration_status)

    async def heartbeat(
        self, request: meta_pb2.HeartbeatRequest, context: CallContext
    ) -> meta_pb2.HeartbeatResponse:
        self._source.calls.append("full" if request.full else "delta")
        await self._source.paused.wait()
        outdated = self._source.row_format < request.row_format
        return meta_pb2.HeartbeatResponse(
            status=self._source.status,
            want_full=self._source.is_replaced,
            want_registration=outdated or self._source.is_replaced,
        )

    async def watch(
        self, request: meta_pb2.WatchRequest, context: CallContext
    ) -> AsyncIterator[meta_pb2.WatchResponse]:
        self._source.watches.append(request.from_revision)
        await self._source.paused.wait()
        async for response in super().watch(request, context):
            response.is_fresh = self._source.leads
            yield response


@pytest.fixture
def network() -> InprocNetwork:
    return InprocNetwork()


@pytest.fixture
async def sources(network: InprocNetwork) -> AsyncIterator[list[Source]]:
    """Three sources that run."""
    made = [Source(network, name) for name in ("a", "b", "c")]
    for source in made:
        await source.start()
    yield made
    for source in made:
        source.cache.close()
        await source.stop()
