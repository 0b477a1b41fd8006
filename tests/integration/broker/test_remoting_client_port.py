"""Remoting clients on the port for gRPC clients, over real edges and real storage nodes."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import grpc
import pytest

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata_broker.base.config import BrokerConfig
from strata_broker.base.identity import BrokerIdentity
from strata_broker.storage_client.channels import cluster_network
from strata_edge.choice import HOW_TO_GET_IT, has_native
from strata_edge.grpcio_edge import GrpcioEdge
from strata_edge.native_edge import NativeEdge
from strata_edge.options import EdgeOptions
from strata_remoting import RequestCode, ResponseCode, Serialization
from strata_runtime.metrics import Metrics
from strata_runtime.tls import Certificate, self_signed
from strata_testing import until
from strata_testing.broker import BrokerUnderTest, broker_under_test
from strata_testing.remoting_client import RemotingClient
from tests.integration.broker.remoting_brokers import cluster as cluster
from tests.integration.broker.remoting_brokers import pulled_from
from tests.integration.storage.storage_cluster import ClusterUnderTest
from tests.parts.required import absent

RealEdge = GrpcioEdge | NativeEdge
RealBroker = BrokerUnderTest[RealEdge]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return self_signed(tmp_path_factory.mktemp("tls"))


class Brokers:
    """Starts brokers behind edges with TLS."""

    def __init__(
        self, cluster: ClusterUnderTest, adapter: type[RealEdge], certificate: Certificate
    ) -> None:
        self._cluster = cluster
        self._adapter = adapter
        self.certificate = certificate
        self.stack = AsyncExitStack()

    async def start(self, *, edge: dict[str, Any] | None = None, **sections: Any) -> RealBroker:
        config = BrokerConfig.model_validate(
            {"receive": {"min_polling_ms": 0}, "access_control": {"mode": "off"}} | sections
        )
        options = replace(EdgeOptions(port=0, certificate=self.certificate), **(edge or {}))
        metrics = Metrics()
        network = cluster_network((self._cluster.stub.endpoint,), (), config.storage_client)
        broker = broker_under_test(
            self._adapter(options, metrics),
            network,
            config=config,
            identity=BrokerIdentity("broker-0", 50, "127.0.0.1"),
            metrics=metrics,
        )
        await self.stack.enter_async_context(broker)
        assert await broker.app.view.wait_for_revision(self._cluster.stub.cache.revision, 60)
        return broker

    def tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.certificate.certificate_file))


@pytest.fixture(params=[False, True], ids=["grpcio", "native"])
async def brokers(
    request: pytest.FixtureRequest, cluster: ClusterUnderTest, certificate: Certificate
) -> AsyncIterator[Brokers]:
    if request.param and not has_native():
        absent(f"the native edge: {HOW_TO_GET_IT}")
    made = Brokers(cluster, NativeEdge if request.param else GrpcioEdge, certificate)
    async with made.stack:
        yield made


@pytest.mark.parametrize("tls", [False, True], ids=["plaintext", "tls"])
async def test_one_port_serves_both_protocols(brokers: Brokers, *, tls: bool) -> None:
    """Messages and routes go by the port for gRPC clients; a gRPC client asks there as before."""
    broker = await brokers.start()
    address = broker.app.endpoint
    context = brokers.tls() if tls else None
    async with RemotingClient(address, Serialization.ROCKETMQ, tls=context) as client:
        route = await client.route("orders")
        assert route["brokerDatas"][0]["brokerAddrs"]["0"] == address
        for number in range(4):
            sent = await client.send("orders", b"%d" % number + bytes(200_000), number)
            assert sent.code == ResponseCode.SUCCESS
        found = await pulled_from(client, "orders")
        assert sorted(one.body[:1] for one in found) == [b"0", b"1", b"2", b"3"]
        assert broker.app.shown() == {}
    credentials = grpc.ssl_channel_credentials(brokers.certificate.certificate_file.read_bytes())
    async with grpc.aio.secure_channel(f"localhost:{broker.app.port}", credentials) as channel:
        query: Any = channel.unary_unary("/apache.rocketmq.v2.MessagingService/QueryRoute")
        request = service_pb2.QueryRouteRequest(topic=definition_pb2.Resource(name="orders"))
        data = await query(
            request.SerializeToString(), metadata=(("x-mq-client-id", "c"),), timeout=20
        )
        answer = service_pb2.QueryRouteResponse.FromString(data)
        assert answer.status.code == definition_pb2.OK, answer.status.message
    handed_over = broker.metrics.counter("strata_edge_handed_over_total")
    await until(lambda: handed_over.value() == 1)


async def test_both_ports_serve_and_routes_name_the_own_one(brokers: Brokers) -> None:
    """A broker with a port for remoting clients takes them on the port for gRPC clients too."""
    broker = await brokers.start(remoting={"port": 0})
    own = broker.app.shown()["nameserver"]
    assert own != broker.app.endpoint
    for address in (own, broker.app.endpoint):
        async with RemotingClient(address) as client:
            route = await client.route("orders")
            assert route["brokerDatas"][0]["brokerAddrs"]["0"] == own


@pytest.mark.parametrize(
    ("sections", "edge"),
    [
        pytest.param({"remoting": {"client_port": "off"}}, {}, id="off"),
        pytest.param({"route": {"advertised_endpoint": "lb.example:8081"}}, {}, id="virtual"),
        pytest.param({}, {"is_port_shared": True}, id="workers"),
    ],
)
async def test_a_port_that_takes_no_remoting_clients(
    brokers: Brokers, sections: dict[str, Any], edge: dict[str, Any]
) -> None:
    """Where the key says so, and where a route could not name this broker alone."""
    broker = await brokers.start(edge=edge, **sections)
    async with RemotingClient(f"127.0.0.1:{broker.app.port}") as client:
        client.write(bytes(100))
        await asyncio.wait_for(client.ended.wait(), 20)
    assert broker.metrics.counter("strata_edge_handed_over_total").value() == 0


async def test_one_broker_behind_a_virtual_address_may_take_them(brokers: Brokers) -> None:
    """With client_port = on, its routes name the virtual address."""
    broker = await brokers.start(
        remoting={"client_port": "on"}, route={"advertised_endpoint": "lb.example:8081"}
    )
    async with RemotingClient(f"127.0.0.1:{broker.app.port}") as client:
        route = await client.route("orders")
        assert route["brokerDatas"][0]["brokerAddrs"]["0"] == "lb.example:8081"


@pytest.mark.parametrize("tls", [False, True], ids=["plaintext", "tls"])
async def test_limits_of_remoting_hold_on_the_port_for_grpc(brokers: Brokers, *, tls: bool) -> None:
    """Connections of an address, frames that never end, and idle clients."""
    limits = {"max_connections_per_address": 1, "max_upload_ms": 300, "idle_timeout_ms": 100_000}
    broker = await brokers.start(remoting=limits)
    address, context = broker.app.endpoint, brokers.tls() if tls else None
    async with RemotingClient(address, tls=context) as first:
        assert await first.route("orders")
        async with RemotingClient(address, tls=context) as second:
            second.write(bytes(4))
            await asyncio.wait_for(second.ended.wait(), 20)
        first.write(b"\0\0\x10\0" + bytes(4))
        await asyncio.wait_for(first.ended.wait(), 20)

    async def has_room() -> bool:
        async with RemotingClient(address, tls=context) as third:
            try:
                return bool(await third.route("orders"))
            except ConnectionError:
                return False

    await until(has_room)


async def test_access_control_holds_on_the_port_for_grpc(brokers: Brokers) -> None:
    """A request without a signature is refused as on the port for remoting clients."""
    broker = await brokers.start(access_control={"mode": "on"})
    async with RemotingClient(broker.app.endpoint) as client:
        answer = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
        assert answer.code == ResponseCode.NO_PERMISSION


async def test_tls_only_of_remoting_holds_on_the_port_for_grpc(brokers: Brokers) -> None:
    """Plaintext is refused for remoting clients alone; TLS of the port is TLS."""
    files = brokers.certificate
    broker = await brokers.start(
        remoting={
            "tls_only": True,
            "certificate_file": str(files.certificate_file),
            "key_file": str(files.key_file),
        }
    )
    async with RemotingClient(broker.app.endpoint) as plain:
        with pytest.raises(ConnectionError):
            await plain.route("orders")
    async with RemotingClient(broker.app.endpoint, tls=brokers.tls()) as safe:
        assert await safe.route("orders")


async def test_a_broker_that_stops_ends_remoting_connections(brokers: Brokers) -> None:
    """Those behind TLS end with the stop and do not make it wait; no request is refused."""
    broker = await brokers.start()
    async with RemotingClient(broker.app.endpoint, tls=brokers.tls()) as client:
        sends = [asyncio.ensure_future(client.send("orders", b"x", 0)) for _ in range(10)]
        async with asyncio.timeout(20):
            await broker.stop(60)
            await client.ended.wait()
        done, _ = await asyncio.wait(sends)
        assert {one.result().code for one in done if one.exception() is None} <= {
            ResponseCode.SUCCESS
        }
