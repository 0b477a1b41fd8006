"""Connections to storage nodes, and the streams on which those say what they lead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from google.protobuf.message import Message

from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_angelia.ports import OVERLOADED, UNAVAILABLE, AngeliaError
from strata_broker.base.storage_client_config import StorageClientSection
from strata_broker.metadata.metadata import MetadataView
from strata_broker.storage_client.channels import NodeChannels, cluster_network
from strata_broker.storage_client.leader_watch import LeaderWatch, NodeNews
from strata_broker.storage_client.leaders import LeaderMap
from strata_broker.storage_client.node_reports import NodeReports
from strata_broker.storage_client.quiet_places import QuietPlaces
from strata_runtime.clock import SystemClock
from strata_runtime.metrics import Metrics
from strata_runtime.runtime import Runtime
from strata_runtime.tasks import RequestTasks, Tasks
from strata_testing import until

Said = list[int] | storage_pb2.WatchResponse | AngeliaError
"""Led raft groups, a whole response, or the failure of the stream."""


class FakeChannel:
    """A watch stream that a test feeds."""

    def __init__(self, endpoints: Sequence[str]) -> None:
        self.endpoints = list(endpoints)
        self.said: asyncio.Queue[list[int] | storage_pb2.WatchResponse | AngeliaError] = (
            asyncio.Queue()
        )
        self.opened = 0
        self.closed = False

    async def call(
        self,
        method: str,
        request: Message,
        response_type: type[Any],
        *,
        timeout_s: float | None = None,
    ) -> Any:
        raise AngeliaError(UNAVAILABLE, "only watched")

    async def stream(
        self, method: str, request: Message, response_type: type[Any]
    ) -> AsyncIterator[Any]:
        assert method == "/strata.storage.v1.StorageService/Watch"
        assert isinstance(request, storage_pb2.WatchRequest)
        assert request.broker_boot_id == 7
        self.opened += 1
        while True:
            said = await self.said.get()
            if isinstance(said, AngeliaError):
                raise said
            if isinstance(said, list):
                said = storage_pb2.WatchResponse(led_groups=said)
            yield said

    async def close(self) -> None:
        self.closed = True


def node(node_id: str, *endpoints: str, deleted: bool = False) -> meta_pb2.Change:
    """A storage node's row."""
    row = meta_pb2.Node(
        node_id=node_id, kind=meta_pb2.NODE_KIND_STORAGE, endpoints=endpoints or [f"{node_id}:1"]
    )
    return meta_pb2.Change(node=row, deleted=deleted)


class Watched:
    """A leader watch over two nodes."""

    def __init__(self, **limits: int) -> None:
        self.made: list[FakeChannel] = []
        self.view = MetadataView()
        self.reports = NodeReports()
        row = meta_pb2.RaftGroup(raft_group=1)
        row.replicas.add(node_id="a")
        row.replicas.add(node_id="b")
        self.change(node("a"), node("b"), meta_pb2.Change(raft_group=row))
        self.requests = RequestTasks("test")
        self.tasks = Tasks("test", lambda name, failure: pytest.fail(f"{name}: {failure}"))
        config = StorageClientSection.model_validate(
            {"first_retry_ms": 1, "max_watch_retry_ms": 1} | limits
        )
        self.channels = NodeChannels(self.view, self._make)
        self.leaders = LeaderMap(self.view, config, SystemClock())
        quiet = QuietPlaces(self.leaders, config, clock=SystemClock(), metrics=Metrics.disabled())
        watch = LeaderWatch(
            7,
            self.view,
            self.channels,
            news=NodeNews(self.leaders, self.reports, quiet),
            config=config,
            runtime=Runtime(
                SystemClock(), lambda: 0.5, Metrics.disabled(), lambda name, failure: None
            ),
            tasks=self.tasks,
            requests=self.requests,
        )
        self.watch = watch
        self.tasks.spawn("watch", watch.run())

    def _make(self, endpoints: Sequence[str]) -> FakeChannel:
        self.made.append(FakeChannel(endpoints))
        return self.made[-1]

    def change(self, *changes: meta_pb2.Change) -> None:
        """Take changes in."""
        self.view.apply(meta_pb2.WatchResponse(revision=self.view.revision + 1, changes=changes))

    def channel(self, endpoint: str) -> FakeChannel:
        """The channel to an endpoint."""
        (found,) = [one for one in self.made if one.endpoints == [endpoint]]
        return found


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    """Both nodes are watched."""
    watched = Watched()
    await until(lambda: len(watched.made) == 2)
    yield watched
    await watched.tasks.stop()


async def test_every_storage_node_is_watched(watched: Watched) -> None:
    """A node's message about leaders is believed; a stream that breaks is opened again."""
    watched.channel("b:1").said.put_nowait([1])
    await until(lambda: watched.leaders.leader_of(1) == "b")
    watched.channel("b:1").said.put_nowait(AngeliaError(UNAVAILABLE, "died"))
    await until(lambda: watched.leaders.node_of(1) == "a")
    await until(lambda: watched.channel("b:1").opened == 2)


async def test_a_report_that_cannot_be_taken_in_ends_no_watch(watched: Watched) -> None:
    """The node's next report is taken in, from the same stream."""
    failed: list[BaseException] = []
    watched.requests.on_failed(lambda _, failure: failed.append(failure))

    def odd(*_: object) -> None:
        raise ZeroDivisionError

    watched.watch.on_checks(odd)
    checks = [storage_pb2.TransactionCheck(topic_id=1)]
    watched.channel("b:1").said.put_nowait(storage_pb2.WatchResponse(checks=checks))
    watched.channel("b:1").said.put_nowait([1])
    await until(lambda: watched.leaders.leader_of(1) == "b")
    assert [type(failure) for failure in failed] == [ZeroDivisionError]
    assert watched.channel("b:1").opened == 1


async def test_a_node_with_too_many_watchers_is_not_silent(watched: Watched) -> None:
    """It answers, so what is known of it stays."""
    watched.channel("b:1").said.put_nowait([1])
    await until(lambda: watched.leaders.leader_of(1) == "b")
    watched.channel("b:1").said.put_nowait(AngeliaError(OVERLOADED, "too many"))
    await until(lambda: watched.channel("b:1").opened == 2)
    assert watched.leaders.node_of(1) == "b"


async def test_nodes_come_and_go(watched: Watched) -> None:
    """A new node is watched, the channel to one that was removed is closed, and others hear it."""
    gone: list[str] = []
    watched.watch.on_gone(gone.append)
    watched.change(node("c"))
    await until(lambda: len(watched.made) == 3)
    watched.change(node("b", deleted=True))
    await until(lambda: watched.channel("b:1").closed)
    assert not watched.channel("a:1").closed
    assert gone == ["b"]
    with pytest.raises(AngeliaError) as failure:
        watched.channels.to("b")
    assert failure.value.code == UNAVAILABLE


async def test_a_node_elsewhere_gets_a_new_channel(watched: Watched) -> None:
    """Its endpoints changed: calls go to the new ones, the old channel is closed."""
    watched.change(node("b", "b:2"))
    assert watched.channels.to("b") is watched.channel("b:2")
    watched.change(node("c"))
    await until(lambda: watched.channel("b:1").closed)


async def test_watches_are_limited() -> None:
    """Further nodes are found by refusals."""
    watched = Watched(max_watches=1)
    await until(lambda: len(watched.made) == 1)
    watched.change(node("c"))
    await asyncio.sleep(0)
    await until(lambda: not watched.view.node("x"))
    assert len(watched.made) == 1
    await watched.tasks.stop()


async def test_the_endpoint_of_the_transport_is_used() -> None:
    """A storage node registers tcp first and http2 second; without it the node is unreachable."""
    network = cluster_network(("n:1",), (), StorageClientSection(storage_transport="http2"))
    with pytest.raises(AngeliaError, match="no http2 endpoint"):
        network.storage_channels(["host:10920"])
    channel = network.storage_channels(["host:10920", "host:10921"])
    await channel.close()
