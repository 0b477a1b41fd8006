"""A nameserver over real files: log, RocksDB, in-process transport; restarts and power loss."""

from __future__ import annotations

import asyncio
import itertools
import random
import shutil
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest
from google.protobuf.message import Message

from strata.meta.v1 import meta_pb2
from strata_angelia.inproc import InprocNetwork
from strata_angelia.ports import AngeliaError, Channel
from strata_nameserver.base.config import NameserverConfig
from strata_nameserver.policies.slowness import SlowNodes
from strata_nameserver.process.app import NameserverApp, NameserverIdentity, NameserverStores
from strata_runtime.clock import SystemClock
from strata_runtime.metrics import Metrics
from strata_runtime.runtime import Runtime
from strata_state.metadata import MetadataStore
from strata_state.metadata_rocksdb import RocksDbMetadataStore
from strata_testing import until
from strata_testing.simulated_disk import SimulatedDisk
from tests.limits import within

Response = TypeVar("Response", bound=Message)

IDENTITY = NameserverIdentity("nameserver-1", 77, frozenset({77}))
STORAGE = meta_pb2.Node(node_id="storage-1", kind=meta_pb2.NODE_KIND_STORAGE)


class Nameserver:
    """A client of a running nameserver."""

    def __init__(self, channel: Channel, app: NameserverApp) -> None:
        self.channel = channel
        self.app = app

    async def call(self, rpc: str, request: Message, response_type: type[Response]) -> Response:
        return await self.channel.call(f"/strata.meta.v1.MetaService/{rpc}", request, response_type)

    async def create_topic(self, name: str, **fields: object) -> meta_pb2.CreateTopicResponse:
        topic = meta_pb2.Topic(name=name, **fields)  # type: ignore[arg-type]
        return await self.call(
            "CreateTopic",
            meta_pb2.CreateTopicRequest(topic=topic),
            meta_pb2.CreateTopicResponse,
        )

    async def register(self, node: meta_pb2.Node) -> meta_pb2.RegisterNodeResponse:
        return await self.call(
            "RegisterNode",
            meta_pb2.RegisterNodeRequest(node=node),
            meta_pb2.RegisterNodeResponse,
        )

    async def snapshot(self) -> meta_pb2.GetSnapshotResponse:
        return await self.call(
            "GetSnapshot", meta_pb2.GetSnapshotRequest(), meta_pb2.GetSnapshotResponse
        )


@asynccontextmanager
async def running(
    folder: Path,
    config: NameserverConfig | None = None,
    disk: SimulatedDisk | None = None,
    rows: MetadataStore | None = None,
) -> AsyncIterator[Nameserver]:
    network = InprocNetwork()
    failures: list[str] = []
    app = NameserverApp(
        (config or NameserverConfig()).alone(),
        IDENTITY,
        folder,
        server=network.server("nameserver"),
        runtime=Runtime(
            SystemClock(),
            random.random,
            Metrics.disabled(),
            lambda name, failure: failures.append(f"{name}: {failure!r}"),
        ),
        stores=NameserverStores(disk=disk, rows=rows),
    )
    await app.start()
    channel = network.channel("inproc:nameserver")
    try:
        yield Nameserver(channel, app)
    finally:
        await channel.close()
        await app.stop(5.0)
        assert failures == []


async def test_a_restart_keeps_everything_and_gives_no_id_twice(tmp_path: Path) -> None:
    """Rows, revision and counters are those from before; deleted ids do not come back."""
    async with running(tmp_path) as nameserver:
        hosted = (await nameserver.register(STORAGE)).replicas
        await nameserver.create_topic("kept")
        await nameserver.create_topic("gone")
        await nameserver.call(
            "DeleteTopic",
            meta_pb2.DeleteTopicRequest(name="gone"),
            meta_pb2.DeleteTopicResponse,
        )
        before = await nameserver.snapshot()
    async with running(tmp_path) as nameserver:
        after = await nameserver.snapshot()
        again = (await nameserver.register(STORAGE)).replicas
        made = await nameserver.create_topic("new")

    assert after == before
    assert again == hosted
    assert (made.topic.topic_id, made.topic.revision) == (3, before.revision + 1)


async def test_lost_rows_are_applied_again_from_the_log(tmp_path: Path) -> None:
    """The raft log is the truth: without nameserver/meta the same rows come back."""
    async with running(tmp_path) as nameserver:
        await nameserver.register(STORAGE)
        for number in range(20):
            await nameserver.create_topic(f"t{number}")
        before = await nameserver.snapshot()
    shutil.rmtree(tmp_path / "meta")
    async with running(tmp_path) as nameserver:
        assert await nameserver.snapshot() == before


async def test_refusals_cross_the_transport(tmp_path: Path) -> None:
    """A refusal is a status with outcome and reason, never a broken call."""
    async with running(tmp_path) as nameserver:
        early = await nameserver.create_topic("t")
        await nameserver.register(STORAGE)
        await nameserver.create_topic("t")
        twice = await nameserver.create_topic("t")

    assert early.status.outcome == meta_pb2.META_OUTCOME_UNAVAILABLE
    assert early.status.reason == "no storage node has registered yet"
    assert twice.status.outcome == meta_pb2.META_OUTCOME_ALREADY_EXISTS


async def test_a_change_that_no_log_entry_holds_is_refused(tmp_path: Path) -> None:
    """Nothing of it is written, and the nameserver goes on."""
    config = NameserverConfig(max_batch_bytes=4 * 1024 * 1024)
    request = meta_pb2.CreateTopicsRequest(
        topics=[
            meta_pb2.Topic(name=f"topic-{number}", attributes={"note": "x" * 4_000})
            for number in range(400)
        ]
    )
    async with running(tmp_path, config) as nameserver:
        await nameserver.register(STORAGE)
        refused = await nameserver.call("CreateTopics", request, meta_pb2.CreateTopicsResponse)
        made = await nameserver.create_topic("topic-0")

    assert refused.status.outcome == meta_pb2.META_OUTCOME_LIMIT_REACHED
    assert "the change is too large: it writes 400 rows" in refused.status.reason
    assert made.topic.topic_id == 1


async def test_a_watch_follows_and_ends_with_the_server(tmp_path: Path) -> None:
    """Snapshot first, then changes in order of revision, then the end of the stream."""
    async with running(tmp_path) as nameserver:
        await nameserver.register(STORAGE)
        stream = nameserver.channel.stream(
            "/strata.meta.v1.MetaService/Watch", meta_pb2.WatchRequest(), meta_pb2.WatchResponse
        )
        first = await anext(stream)
        for number in range(5):
            made = await nameserver.create_topic(f"t{number}")
        seen = [first.revision]
        async for response in stream:
            seen.append(response.revision)
            if response.revision == made.topic.revision:
                break
    with pytest.raises((AngeliaError, StopAsyncIteration)):
        await anext(stream)

    assert first.snapshot
    assert seen == sorted(set(seen))


async def test_old_log_segments_are_freed(tmp_path: Path) -> None:
    """Entries that the rows hold durably leave the log; a restart finds all in the rows."""
    config = NameserverConfig(
        log_segment_bytes=1024 * 1024, sync_interval_ms=20, max_attributes_bytes=65_536
    )
    padding = {"padding": "x" * 60_000}

    def segments() -> list[str]:
        return sorted(file.name for file in (tmp_path / "log").glob("*.log"))

    async with running(tmp_path, config) as nameserver:
        await nameserver.register(STORAGE)
        for number in range(60):
            made = await nameserver.create_topic(f"t{number}", attributes=padding)
            assert made.status.outcome == meta_pb2.META_OUTCOME_OK
        await until(lambda: len(segments()) <= 3)
        before = await nameserver.snapshot()
    async with running(tmp_path, config) as nameserver:
        assert await nameserver.snapshot() == before
        made = await nameserver.create_topic("after")

    assert made.topic.topic_id == 61
    assert segments()[0] != "00000000000000000000.log"


class SlowRows(RocksDbMetadataStore):
    """Rows of which a sync takes as long as the test wants, once it says so."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.may_end, self.is_held = threading.Event(), threading.Event()
        self.may_end.set()
        self.ended: list[str] = []

    def sync(self) -> None:
        if not self.may_end.is_set():
            self.is_held.set()
            assert self.may_end.wait(30)
        super().sync()
        self.ended.append("sync")

    def close(self) -> None:
        super().close()
        self.ended.append("close")


async def test_a_stop_waits_for_the_sync_that_runs(tmp_path: Path) -> None:
    """RocksDB cannot be closed in the middle of a sync: the folder would stay locked."""
    rows = SlowRows(tmp_path / "meta")
    async with running(tmp_path, NameserverConfig(sync_interval_ms=10), rows=rows) as nameserver:
        await nameserver.register(STORAGE)
        rows.may_end.clear()
        numbers = itertools.count()

        async def is_held() -> bool:
            # A sync that had begun before may hold the newest change, too: no other sync follows.
            made = await nameserver.create_topic(f"made-{next(numbers)}")
            assert made.status.outcome == meta_pb2.META_OUTCOME_OK
            return rows.is_held.is_set()

        await until(is_held, step_s=0.02)
        stopping = asyncio.ensure_future(nameserver.app.stop(5.0))
        await asyncio.sleep(0.3)
        assert not stopping.done()
        rows.may_end.set()
        await stopping
    assert rows.ended[-2:] == ["sync", "close"]
    RocksDbMetadataStore(tmp_path / "meta").close()


async def test_a_full_disk_refuses_changes_and_serves_reads(tmp_path: Path) -> None:
    """Before a row finds no room; with room again changes are taken, and all is as it was."""
    mib = 1024 * 1024
    disk = SimulatedDisk(capacity_bytes=64 * mib)
    config = NameserverConfig(log_segment_bytes=mib, refuse_changes_free_bytes=8 * mib)
    async with running(tmp_path, config, disk) as nameserver:
        await nameserver.register(STORAGE)
        assert nameserver.app.health().problems == ()
        stranger = disk.open("stranger", create=True)
        stranger.allocate(disk.space().free_bytes - 7 * mib)
        await until(lambda: bool(nameserver.app.health().problems))
        [problem] = nameserver.app.health().problems
        assert (problem.kind, problem.name, problem.state) == ("disk", "nameserver", "STOP")
        assert nameserver.app.health().serves
        refused = await nameserver.create_topic("refused")
        assert refused.status.outcome == meta_pb2.META_OUTCOME_UNAVAILABLE
        assert "disk is full" in refused.status.reason
        revision = (await nameserver.snapshot()).revision
        disk.delete("stranger")
        await until(lambda: not nameserver.app.health().problems)
        made = await nameserver.create_topic("taken")
        assert made.status.outcome == meta_pb2.META_OUTCOME_OK
        assert made.topic.revision == revision + 1


async def test_ten_thousand_topics(tmp_path: Path) -> None:
    """10,000 topics, made with 16 calls in flight, are all there."""
    async with running(tmp_path) as nameserver:
        await nameserver.register(STORAGE)
        names = iter([f"topic-{number}" for number in range(10_000)])

        async def create() -> None:
            for name in names:
                response = await nameserver.create_topic(name)
                assert response.status.outcome == meta_pb2.META_OUTCOME_OK

        started = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for _ in range(16):
                group.create_task(create())
        took_s = time.monotonic() - started
        rows = (await nameserver.snapshot()).rows

    within("10,000 topics", took_s, 20)
    assert sum(row.HasField("topic") for row in rows) == 10_000


async def test_what_was_learned_of_a_node_outlives_its_registration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow network makes a node register again; only another boot of it is another node."""
    forgotten: list[str] = []
    monkeypatch.setattr(SlowNodes, "forget", lambda self, node_id: forgotten.append(node_id))
    async with running(tmp_path) as nameserver:
        for boot_id, expected in ((1, 1), (1, 1), (2, 2)):
            node = meta_pb2.Node(
                node_id=STORAGE.node_id, kind=meta_pb2.NODE_KIND_STORAGE, boot_id=boot_id
            )
            registered = await nameserver.register(node)
            assert registered.status.outcome == meta_pb2.META_OUTCOME_OK
            assert forgotten.count(STORAGE.node_id) == expected
