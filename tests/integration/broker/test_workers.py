"""Two workers of one machine: each takes the calls of the other on an address of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from apache.rocketmq.v2 import definition_pb2
from strata.admin.v1 import admin_pb2
from strata.broker.v1 import peer_pb2
from strata.meta.v1 import meta_pb2
from strata_angelia.cluster_id import ClusterId
from strata_angelia.factory import open_channel, open_server
from strata_angelia.ports import AngeliaError
from strata_broker.app import BrokerApp
from strata_broker.base.identity import BrokerIdentity
from strata_broker.clients.peers import SERVICE
from strata_broker.storage_client.channels import broker_channel
from strata_edge.grpcio_edge import GrpcioEdge
from strata_edge.options import EdgeOptions
from strata_runtime.metrics import Metrics
from strata_testing import until
from strata_testing.broker import broker_config, broker_under_test, network_of
from strata_testing.broker.client import Client
from strata_testing.broker.fake_edge import ADMIN, FakeEdge
from strata_testing.broker.fake_meta import FakeMeta
from strata_testing.broker.fake_storage import FakeStorage

HOST, BROKER = "127.0.0.1", meta_pb2.NODE_KIND_BROKER
Workers = Sequence[tuple[FakeEdge, BrokerApp]]


@pytest.fixture
async def workers() -> AsyncIterator[Workers]:
    """Two brokers that advertise one address and know each other."""
    meta = FakeMeta()
    meta.add_topic("orders")
    storage = FakeStorage(meta.slots)
    brokers = []
    for number in (1, 2):
        network = replace(
            network_of(meta, storage),
            broker_channels=lambda endpoints, headers: broker_channel(
                endpoints, headers, ClusterId("c")
            ),
            peer_edge=GrpcioEdge(EdgeOptions(port=0, front=False), Metrics.disabled()),
            cluster=ClusterId("c"),
        )
        identity = BrokerIdentity(f"broker-{number}", number, HOST, machine="m")
        brokers.append(
            broker_under_test(FakeEdge(), network, config=broker_config(), identity=identity)
        )
    for broker in brokers:
        await broker.start()
    await until(lambda: all(len(broker.app.view.nodes(BROKER)) == 2 for broker in brokers))
    yield [(broker.edge, broker.app) for broker in brokers]
    for broker in brokers:
        await broker.stop()


async def test_workers_share_the_address_of_clients_only(workers: Workers) -> None:
    """Each registers with an endpoint of its own and the machine that both are on."""
    nodes = workers[0][1].view.nodes(BROKER)

    assert {node.advertised_endpoint for node in nodes} == {f"{HOST}:18081"}
    assert {node.machine for node in nodes} == {"m"}
    assert len({node.endpoints[0] for node in nodes} | {f"{HOST}:18081"}) == 3


async def test_each_worker_tells_of_the_clients_of_both(workers: Workers) -> None:
    """An operator's connection may reach either; the answer is the same."""
    for number, (edge, _) in enumerate(workers):
        client = Client(edge)
        client.metadata = {"x-mq-client-id": f"client-{number}"}
        await client.receive("orders", "g", polling_s=0)
    request = admin_pb2.GetConsumerGroupRequest(name="g")
    for edge, _ in workers:
        shown = await edge.call(
            ADMIN + "GetConsumerGroup", request, admin_pb2.GetConsumerGroupResponse
        )
        assert [member.client_id for member in shown.members] == ["client-0", "client-1"]


async def test_a_command_reaches_a_client_of_the_other_worker(workers: Workers) -> None:
    """Here it has no stream: the worker that has it says so, as it does to its own callers."""
    [endpoint] = workers[1][1].view.node("broker-2").endpoints  # type: ignore[union-attr]
    channel = broker_channel([endpoint], tuple, ClusterId("c"))
    response = await channel.call(
        f"/{SERVICE}/CommandClient",
        peer_pb2.CommandClientRequest(client_id="nobody"),
        peer_pb2.CommandClientResponse,
        timeout_s=5,
    )
    await channel.close()

    assert response.status.code == definition_pb2.NOT_FOUND


async def test_a_broker_of_another_cluster_is_refused(workers: Workers) -> None:
    """The port of a worker compares clusters as the port for clients does (rule 32)."""
    [endpoint] = workers[1][1].view.node("broker-2").endpoints  # type: ignore[union-attr]
    channel = broker_channel([endpoint], tuple, ClusterId("other"))
    with pytest.raises(AngeliaError) as refused:
        await channel.call(
            f"/{SERVICE}/ListClients",
            peer_pb2.ListClientsRequest(),
            peer_pb2.ListClientsResponse,
            timeout_s=5,
        )
    await channel.close()

    assert refused.value.reason == "c"


@pytest.mark.parametrize("mode", ["optional", "required"])
async def test_the_mode_decides_which_ports_take_calls_of_brokers(mode: str) -> None:
    """While plaintext is allowed there are both ways; then only the port under certificates."""
    meta = FakeMeta()
    plain, edge = GrpcioEdge(EdgeOptions(port=0, front=False), Metrics.disabled()), FakeEdge()
    network = replace(
        network_of(meta, FakeStorage(meta.slots)),
        peer_server=open_server(HOST, 0),
        peers_on_client_port=mode == "optional",
        peer_edge=plain if mode == "optional" else None,
    )
    broker = broker_under_test(edge, network, config=broker_config())
    await broker.start()
    await until(lambda: len(broker.app.view.nodes(BROKER)) == 1)
    [node] = broker.app.view.nodes(BROKER)
    first, under_certificates = node.endpoints
    channel = open_channel(under_certificates)
    answer = await channel.call(
        f"/{SERVICE}/ListClients",
        peer_pb2.ListClientsRequest(),
        peer_pb2.ListClientsResponse,
        timeout_s=5,
    )
    await channel.close()
    await broker.stop()

    assert (f"/{SERVICE}/ListClients" in edge.unary) is (mode == "optional")
    assert first == f"{HOST}:{plain.port if mode == 'optional' else broker.app.port}"
    assert list(answer.clients) == []
