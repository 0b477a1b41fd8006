"""Rule 32: processes of different clusters do not talk, whatever transport they use."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from google.protobuf.descriptor import ServiceDescriptor
from structlog.testing import capture_logs

from strata.meta.v1 import meta_pb2
from strata_angelia.cluster_id import ClusterId, WrongCluster
from strata_angelia.factory import TRANSPORTS, open_channel, open_server
from strata_angelia.ports import WRONG_CLUSTER, AngeliaError, CallContext

SERVICE: ServiceDescriptor = meta_pb2.DESCRIPTOR.services_by_name["PeerService"]
HELLO = "/strata.meta.v1.PeerService/Hello"


class Greeter:
    """Says back what it hears, and counts."""

    def __init__(self) -> None:
        self.heard = 0

    async def hello(
        self, request: meta_pb2.HelloRequest, context: CallContext
    ) -> meta_pb2.HelloResponse:
        self.heard += 1
        return meta_pb2.HelloResponse()


class Side:
    """A server of a cluster, and calls to it from a process of another."""

    def __init__(self, transport: str, cluster: ClusterId) -> None:
        self.greeter = Greeter()
        self._transport = transport
        self.server = open_server("127.0.0.1", 0, transport, cluster=cluster)
        self.server.register(SERVICE, self.greeter)
        self.endpoint = ""

    async def call_from(self, cluster: ClusterId | None) -> None:
        channel = open_channel(self.endpoint, self._transport, cluster=cluster)
        try:
            await channel.call(
                HELLO, meta_pb2.HelloRequest(), meta_pb2.HelloResponse, timeout_s=10.0
            )
        finally:
            await channel.close()


@pytest.fixture(params=TRANSPORTS)
async def side(request: pytest.FixtureRequest) -> AsyncIterator[Side]:
    side = Side(request.param, ClusterId("c1"))
    side.endpoint = await side.server.start()
    yield side
    await side.server.stop(0)


async def test_processes_of_one_cluster_talk(side: Side) -> None:
    """The same id passes, and so does a process that belongs to none yet."""
    await side.call_from(ClusterId("c1"))
    await side.call_from(ClusterId())
    await side.call_from(None)
    assert side.greeter.heard == 3


async def test_a_process_of_another_cluster_is_refused(side: Side) -> None:
    """No handler hears it; the caller is told both clusters, in one line."""
    with pytest.raises(AngeliaError) as refused:
        await side.call_from(ClusterId("c2"))
    assert refused.value.code == WRONG_CLUSTER
    assert refused.value.reason == (f"{side.endpoint} belongs to cluster c1, this process to c2")
    assert side.greeter.heard == 0


async def test_a_process_that_joins_is_compared_from_then_on(side: Side) -> None:
    """A cluster id that a process learns holds for connections that it makes afterwards."""
    cluster = ClusterId()
    await side.call_from(cluster)
    cluster.learn("c2")
    with pytest.raises(AngeliaError, match="this process to c2"):
        await side.call_from(cluster)
    assert side.greeter.heard == 1


def test_a_cluster_is_learned_once() -> None:
    """A process never changes its cluster."""
    cluster = ClusterId()
    cluster.learn("")
    cluster.learn("c1")
    cluster.learn("c1")
    with pytest.raises(WrongCluster, match="to cluster c1, not c2"):
        cluster.learn("c2")
    assert cluster.value == "c1"


def test_a_foreign_process_that_calls_all_the_time_is_a_line_a_minute() -> None:
    """It is refused every time."""
    now_s = 0.0
    cluster = ClusterId("c1", lambda: now_s)
    with capture_logs() as lines:
        for _ in range(240):
            with pytest.raises(AngeliaError):
                cluster.check("c2", "127.0.0.1:1")
            now_s += 0.5
    assert [line["cluster"] for line in lines] == ["c2", "c2"]
