"""A broker's calls to storage over every transport and codec that can be configured."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from apache.rocketmq.v2 import definition_pb2
from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_angelia.factory import CODEC_NAMES, TRANSPORTS, open_server
from strata_angelia.ports import CallContext, Server
from strata_broker.storage_client.channels import cluster_network
from strata_testing.broker import broker_config, broker_under_test, network_of
from strata_testing.broker.client import Client, message
from strata_testing.broker.fake_edge import FakeEdge
from strata_testing.broker.fake_meta import NODE, FakeMeta
from strata_testing.broker.fake_storage import FakeStorage

SERVICE = storage_pb2.DESCRIPTOR.services_by_name["StorageService"]


class Handler:
    """Serves what the storage in memory answers."""

    def __init__(self, storage: FakeStorage) -> None:
        self._storage = storage

    async def watch(
        self, request: storage_pb2.WatchRequest, context: CallContext
    ) -> AsyncIterator[storage_pb2.WatchResponse]:
        async for response in self._storage.stream(
            f"/{SERVICE.full_name}/Watch", request, storage_pb2.WatchResponse
        ):
            yield response

    def __getattr__(self, name: str) -> Callable[[Message, CallContext], Any]:
        rpc = SERVICE.methods_by_name["".join(map(str.title, name.split("_")))]

        async def serve(request: Message, context: CallContext) -> Any:
            return await self._storage.call(
                f"/{SERVICE.full_name}/{rpc.name}",
                request,
                GetMessageClass(rpc.output_type),
                timeout_s=context.timeout_s,
            )

        return serve


@pytest.fixture
async def storage() -> AsyncIterator[FakeStorage]:
    """The storage node's state."""
    yield FakeStorage(FakeMeta().slots)


@pytest.fixture
async def endpoints(storage: FakeStorage) -> AsyncIterator[list[str]]:
    """Where the storage node is served: tcp first, http2 second."""
    servers: list[Server] = [open_server("127.0.0.1", 0, transport) for transport in TRANSPORTS]
    started = []
    for server in servers:
        server.register(SERVICE, Handler(storage))
        started.append(await server.start())
    yield started
    for server in servers:
        await server.stop(0.5)


@pytest.mark.parametrize("codec", CODEC_NAMES)
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_messages_go_through(
    storage: FakeStorage, endpoints: list[str], transport: str, codec: str
) -> None:
    """Send, receive and ack, with the bytes of the message unharmed."""
    meta = FakeMeta()
    meta.add_topic("orders")
    node = meta_pb2.Node(node_id=NODE, kind=meta_pb2.NODE_KIND_STORAGE, endpoints=endpoints)
    meta.put(meta_pb2.Change(node=node))
    config = broker_config(storage_client={"storage_transport": transport, "storage_codec": codec})
    real = cluster_network(("nameserver",), (), config.storage_client)
    network = network_of(meta, real.storage_channels)
    async with broker_under_test(FakeEdge(), network, config=config) as broker:
        client = Client(broker.edge)
        body = bytes(range(256))
        sent = await client.send(message("orders", 1, body=body))
        assert sent.status.code == definition_pb2.OK, sent.status.message
        (got,) = await client.receive_all("orders", "g")
        assert got.body == body
        acked = await client.ack("orders", "g", got.system_properties.receipt_handle)
        assert acked.status.code == definition_pb2.OK
        assert not storage.leases
