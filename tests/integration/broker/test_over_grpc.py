"""A broker behind the real edge, called with grpcio's own client; the cluster is in memory."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from functools import partial

import grpc
import pytest

from apache.rocketmq.v2 import definition_pb2, service_pb2, service_pb2_grpc
from strata.admin.v1 import admin_pb2, admin_pb2_grpc
from strata.meta.v1 import meta_pb2
from strata_broker.app import BrokerApp
from strata_broker.base.identity import BrokerIdentity
from strata_edge.choice import HOW_TO_GET_IT, has_native
from strata_edge.grpcio_edge import GrpcioEdge
from strata_edge.native_edge import NativeEdge
from strata_edge.options import EdgeOptions
from strata_edge.ports import Edge
from strata_testing import until
from strata_testing.broker import broker_under_test, network_of
from strata_testing.broker.client import message, receive_request, resource
from strata_testing.broker.fake_meta import FakeMeta
from strata_testing.broker.fake_storage import FakeStorage
from tests.parts.required import absent

NewEdge = Callable[[], Edge]
METADATA = (("x-mq-client-id", "c1"), ("x-mq-language", "JAVA"))


@pytest.fixture
async def storage() -> AsyncIterator[FakeStorage]:
    """The storage node of the broker under test."""
    yield FakeStorage(FakeMeta().slots)


@pytest.fixture(params=[GrpcioEdge, NativeEdge])
def new_edge(request: pytest.FixtureRequest) -> NewEdge:
    """Either edge, on a free port, without TLS."""
    if request.param is NativeEdge and not has_native():
        absent(f"the native edge: {HOW_TO_GET_IT}")
    return partial(request.param, EdgeOptions(port=0, front=False))


@pytest.fixture
async def broker(storage: FakeStorage, new_edge: NewEdge) -> AsyncIterator[BrokerApp]:
    """A broker behind each edge."""
    meta = FakeMeta()
    meta.add_topic("orders")
    edge = new_edge()
    broker = broker_under_test(edge, network_of(meta, storage))
    await broker.start()
    yield broker.app
    await broker.stop(1)


@pytest.fixture
async def channel(broker: BrokerApp) -> AsyncIterator[grpc.aio.Channel]:
    """A client's connection."""
    async with grpc.aio.insecure_channel(broker.endpoint) as channel:
        yield channel


async def test_a_message_goes_through(channel: grpc.aio.Channel) -> None:
    """Route, send, receive, ack, as a client makes the calls."""
    stub = service_pb2_grpc.MessagingServiceStub(channel)
    route = await stub.QueryRoute(
        service_pb2.QueryRouteRequest(topic=resource("orders")), metadata=METADATA
    )
    assert len(route.message_queues) == 4
    sent = await stub.SendMessage(
        service_pb2.SendMessageRequest(messages=[message("orders", 1, body=b"over grpc")]),
        metadata=METADATA,
    )
    assert sent.status.code == definition_pb2.OK
    got = []
    for name in ("strata-1", "strata-2"):
        stream = stub.ReceiveMessage(
            receive_request("orders", "g", broker=name), metadata=METADATA, timeout=25
        )
        got += [one.message async for one in stream if one.WhichOneof("content") == "message"]
    assert [one.body for one in got] == [b"over grpc"]
    acked = await stub.AckMessage(
        service_pb2.AckMessageRequest(
            group=resource("g"),
            topic=resource("orders"),
            entries=[
                service_pb2.AckMessageEntry(receipt_handle=got[0].system_properties.receipt_handle)
            ],
        ),
        metadata=METADATA,
    )
    assert acked.status.code == definition_pb2.OK


async def test_a_cancelled_receive_ends_its_pop(
    channel: grpc.aio.Channel, storage: FakeStorage
) -> None:
    """The client went away; nothing stays parked for it."""
    storage.park = True
    stub = service_pb2_grpc.MessagingServiceStub(channel)
    stream = stub.ReceiveMessage(receive_request("orders", "g"), metadata=METADATA, timeout=25)
    waiting = asyncio.ensure_future(stream.read())
    await until(lambda: storage.parked == 1)
    stream.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await until(lambda: storage.parked == 0)


async def test_telemetry_serves_and_fails_by_grpc_status(channel: grpc.aio.Channel) -> None:
    """Settings are answered; bad ones end the stream with INVALID_ARGUMENT."""
    stub = service_pb2_grpc.MessagingServiceStub(channel)
    settings = definition_pb2.Settings(client_type=definition_pb2.PRODUCER)
    settings.publishing.topics.append(resource("orders"))
    stream = stub.Telemetry(metadata=METADATA)
    await stream.write(service_pb2.TelemetryCommand(settings=settings))
    first = await stream.read()
    assert isinstance(first, service_pb2.TelemetryCommand)
    assert first.status.code == definition_pb2.OK
    await stream.write(service_pb2.TelemetryCommand(settings=definition_pb2.Settings()))
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await stream.read()
    assert failure.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_ended_streams_leave_nothing_behind(broker: BrokerApp) -> None:
    """A stream that its client ended leaves no task behind."""
    channel = grpc.aio.insecure_channel(broker.endpoint)
    stub = service_pb2_grpc.MessagingServiceStub(channel)
    streams = [stub.Telemetry(metadata=METADATA) for _ in range(20)]
    settings = definition_pb2.Settings(client_type=definition_pb2.PRODUCER)
    settings.publishing.topics.append(resource("orders"))
    for stream in streams:
        await stream.write(service_pb2.TelemetryCommand(settings=settings))
        await stream.read()
    assert len(broker.requests) >= 20
    for stream in streams:
        stream.cancel()
    await channel.close()
    await until(lambda: not any("read telemetry" in name for name in broker.requests.names))


async def test_admin_errors_are_grpc_statuses(channel: grpc.aio.Channel) -> None:
    """NOT_FOUND with one line."""
    stub = admin_pb2_grpc.AdminServiceStub(channel)
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await stub.GetTopic(admin_pb2.GetTopicRequest(name="nowhere"))
    assert failure.value.code() == grpc.StatusCode.NOT_FOUND
    assert "nowhere" in (failure.value.details() or "")


async def test_garbage_on_the_port_disturbs_nobody(
    broker: BrokerApp, channel: grpc.aio.Channel
) -> None:
    """Random bytes and cut connections, then a normal send."""
    host, _, port = broker.endpoint.rpartition(":")
    for size in (1, 9, 24, 5_000):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + os.urandom(size))
        writer.close()
    stub = service_pb2_grpc.MessagingServiceStub(channel)
    sent = await stub.SendMessage(
        service_pb2.SendMessageRequest(messages=[message("orders", 1)]), metadata=METADATA
    )
    assert sent.status.code == definition_pb2.OK


async def test_brokers_ask_each_other_over_grpc(
    broker: BrokerApp, storage: FakeStorage, new_edge: NewEdge
) -> None:
    """A client of one broker is shown by the other, through its own public port."""
    meta = FakeMeta()
    meta.add_topic("orders")
    made = broker_under_test(
        new_edge(),
        network_of(meta, storage),
        identity=BrokerIdentity("broker-b", 8, "127.0.0.1"),
    )
    await made.start()
    other = made.app
    node = meta_pb2.Node(
        node_id="broker-a", kind=meta_pb2.NODE_KIND_BROKER, endpoints=[broker.endpoint]
    )
    meta.put(meta_pb2.Change(node=node))
    try:
        broker.sessions.subscribed(broker.sessions.heard("c1"), ("", "g"), ("", "orders"), "*")
        meta.add_group(meta_pb2.ConsumerGroup(name="g"))
        await until(lambda: other.view.consumer_group("", "g") and other.view.node("broker-a"))
        async with grpc.aio.insecure_channel(other.endpoint) as channel:
            shown = await admin_pb2_grpc.AdminServiceStub(channel).GetConsumerGroup(
                admin_pb2.GetConsumerGroupRequest(name="g")
            )
        assert [member.client_id for member in shown.members] == ["c1"]
    finally:
        await made.stop(1)
