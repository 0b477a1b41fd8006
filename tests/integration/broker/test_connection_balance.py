"""Two brokers behind one address: the second one gets its share of clients that are connected."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

import grpc
import pytest

from apache.rocketmq.v2 import definition_pb2, service_pb2, service_pb2_grpc
from strata_angelia.cluster_id import ClusterId
from strata_broker.base.identity import BrokerIdentity
from strata_broker.storage_client.channels import broker_channel
from strata_edge.choice import HOW_TO_GET_IT, has_native
from strata_edge.grpcio_edge import GrpcioEdge
from strata_edge.native_edge import NativeEdge
from strata_edge.options import EdgeOptions
from strata_edge.ports import Edge
from strata_runtime.tls import self_signed
from strata_testing import until
from strata_testing.broker import BrokerUnderTest, broker_config, broker_under_test, network_of
from strata_testing.broker.client import message, receive_request, resource
from strata_testing.broker.fake_meta import FakeMeta
from strata_testing.broker.fake_storage import FakeStorage
from tests.parts.required import absent

HOST, CLIENTS = "127.0.0.1", 12
NewEdge = Callable[[], Edge]


class RoundRobin:
    """The address of clients: passes each connection on to the next of its brokers."""

    def __init__(self) -> None:
        self.ports: list[int] = []
        self._next = count()
        self._server: asyncio.Server | None = None
        self.endpoint = ""

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, HOST, 0)
        self.endpoint = f"{HOST}:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = self.ports[next(self._next) % len(self.ports)]
        back, to_broker = await asyncio.open_connection(HOST, port)
        async with asyncio.TaskGroup() as both:
            both.create_task(_pipe(reader, to_broker))
            both.create_task(_pipe(back, writer))


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


class MovingClient:
    """Sends, waits for messages and keeps a stream of settings, as the official clients do."""

    def __init__(self, endpoint: str, number: int) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        self._channel = grpc.aio.insecure_channel(endpoint, options)
        self._stub = service_pb2_grpc.MessagingServiceStub(self._channel)
        self._metadata = (("x-mq-client-id", f"c{number}"), ("x-mq-language", "JAVA"))
        self._number = number
        self.sent = self.received = self.streams = 0
        self.failures: list[str] = []

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            async with asyncio.TaskGroup() as work:
                work.create_task(self._send())
                work.create_task(self._receive())
                work.create_task(self._keep_stream())
        except* grpc.aio.AioRpcError as failed:
            self.failures += [str(each) for each in failed.exceptions]
        finally:
            await self._channel.close()

    async def _send(self) -> None:
        for number in count(1_000 * self._number):
            request = service_pb2.SendMessageRequest(messages=[message("orders", number)])
            answer = await self._stub.SendMessage(request, metadata=self._metadata, timeout=10)
            if answer.status.code != definition_pb2.OK:
                self.failures.append(answer.status.message)
            self.sent += 1
            await asyncio.sleep(0.02)

    async def _receive(self) -> None:
        while True:
            request = receive_request("quiet", "g", polling_s=1)
            stream = self._stub.ReceiveMessage(request, metadata=self._metadata, timeout=10)
            codes = [
                one.status.code async for one in stream if one.WhichOneof("content") == "status"
            ]
            if codes != [definition_pb2.MESSAGE_NOT_FOUND]:
                self.failures.append(f"a receive ended with {codes}")
            self.received += 1

    async def _keep_stream(self) -> None:
        while True:
            settings = definition_pb2.Settings(client_type=definition_pb2.PRODUCER)
            settings.publishing.topics.append(resource("orders"))
            stream = self._stub.Telemetry(metadata=self._metadata)
            await stream.write(service_pb2.TelemetryCommand(settings=settings))
            self.streams += 1
            while await stream.read() != grpc.aio.EOF:
                pass
            if (code := await stream.code()) is not grpc.StatusCode.OK:
                self.failures.append(f"a stream ended with {code}")
            await asyncio.sleep(0.05)


@pytest.fixture(params=[GrpcioEdge, NativeEdge])
def new_edge(request: pytest.FixtureRequest, tmp_path: Path) -> NewEdge:
    """Either edge, on a free port."""
    if request.param is NativeEdge and not has_native():
        absent(f"the native edge: {HOW_TO_GET_IT}")
    certificate = self_signed(tmp_path)
    return lambda: request.param(EdgeOptions(port=0, certificate=certificate))


@pytest.fixture
async def address() -> AsyncIterator[RoundRobin]:
    """The address that both brokers advertise."""
    one = RoundRobin()
    await one.start()
    yield one
    await one.stop()


async def test_a_second_broker_gets_its_share_and_no_call_fails(
    new_edge: NewEdge, address: RoundRobin
) -> None:
    """Clients of the first broker are asked to connect again, a few at a time."""
    meta = FakeMeta()
    for topic in ("orders", "quiet"):
        meta.add_topic(topic)
    storage = FakeStorage(meta.slots)

    def broker(number: int) -> BrokerUnderTest[Edge]:
        network = replace(
            network_of(meta, storage),
            broker_channels=lambda endpoints, headers: broker_channel(
                endpoints, headers, ClusterId("c")
            ),
            cluster=ClusterId("c"),
        )
        balance = {"interval_ms": 200, "max_moves_per_s": 2}
        route = {"advertised_endpoint": address.endpoint}
        config = broker_config(balance=balance, route=route)
        identity = BrokerIdentity(f"broker-{number}", number, HOST)
        return broker_under_test(new_edge(), network, config=config, identity=identity)

    async with AsyncExitStack() as running:
        first = await running.enter_async_context(broker(1))
        address.ports.append(first.app.port)
        clients = [MovingClient(address.endpoint, number) for number in range(CLIENTS)]
        work = [asyncio.ensure_future(client.run()) for client in clients]
        try:
            await until(lambda: first.edge.connections() == CLIENTS, limit_s=20)
            second = await running.enter_async_context(broker(2))
            address.ports.append(second.app.port)
            await until(lambda: (second.edge.connections() or 0) >= CLIENTS // 3, limit_s=40)
            await until(lambda: len(second.app.sessions.alive()) >= CLIENTS // 3, limit_s=20)
            sent = [client.sent for client in clients]
            await until(
                lambda: all(c.sent > before for c, before in zip(clients, sent, strict=True)),
                limit_s=20,
            )
            assert [client.failures for client in clients] == [[]] * CLIENTS
            assert not any(each.done() for each in work)
            await until(lambda: all(client.received for client in clients), limit_s=20)
            moved = sum(client.streams - 1 for client in clients)
            assert moved >= CLIENTS // 3
            assert b"strata_broker_moved_connections_total" in first.metrics.render()
            assert b"strata_broker_moved_connections_total 0" not in first.metrics.render()
        finally:
            for each in work:
                each.cancel()
            await asyncio.wait(work)
