"""Two brokers and the clients of each: any broker tells of all, and finds who can be commanded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

import pytest

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.admin.v1 import admin_pb2
from strata.broker.v1 import peer_pb2
from strata.meta.v1 import meta_pb2
from strata_broker.app import BrokerApp
from strata_broker.base.identity import BrokerIdentity
from strata_broker.clients.peers import SERVICE, require_ok
from strata_mq.requests.errors import Code, RequestError
from strata_remoting import RequestCode, ResponseCode
from strata_testing import until
from strata_testing.broker import broker_config, broker_under_test, network_of
from strata_testing.broker.client import Client, resource
from strata_testing.broker.fake_edge import ADMIN, MESSAGING, EdgeChannel, FakeCall, FakeEdge
from strata_testing.broker.fake_meta import FakeMeta
from strata_testing.broker.fake_storage import FakeStorage
from strata_testing.broker.keys import cluster_key_row, policy_row, secret_of, signed, user_row
from strata_testing.remoting_client import RemotingClient, send_fields
from tests.unit.broker.two_brokers import two_brokers

CONFIG = broker_config(peer={"command_timeout_ms": 50})


@dataclass
class Pair:
    """Both brokers' edges, by endpoint."""

    edges: dict[str, FakeEdge]
    apps: Sequence[BrokerApp]

    @property
    def first(self) -> FakeEdge:
        return self.edges["127.0.0.1:18081"]

    @property
    def second(self) -> FakeEdge:
        return self.edges["127.0.0.2:18081"]


@pytest.fixture
async def pair(meta: FakeMeta, storage: FakeStorage) -> AsyncIterator[Pair]:
    """Two brokers that know each other."""
    async with two_brokers(meta, storage, CONFIG) as (edges, apps):
        yield Pair(edges, apps)


async def members(edge: FakeEdge) -> list[str]:
    """Return the members of group `g` by one broker's word."""
    shown = await edge.call(
        ADMIN + "GetConsumerGroup",
        admin_pb2.GetConsumerGroupRequest(name="g"),
        admin_pb2.GetConsumerGroupResponse,
    )
    return [member.client_id for member in shown.members]


async def consume(edge: FakeEdge, client_id: str) -> None:
    """Receive once as a client of group `g`."""
    client = Client(edge)
    client.metadata = {"x-mq-client-id": client_id}
    await client.receive("orders", "g", polling_s=0)


async def test_members_of_all_brokers_are_shown_by_each(pair: Pair) -> None:
    """A client of two brokers is one member."""
    await consume(pair.first, "a")
    await consume(pair.second, "b")
    await consume(pair.first, "both")
    await consume(pair.second, "both")
    assert await members(pair.first) == await members(pair.second) == ["a", "b", "both"]


async def test_brokers_with_access_control_know_each_other(
    meta: FakeMeta, storage: FakeStorage
) -> None:
    """They sign with the cluster's key: an admin sees the clients of all of them."""
    meta.put(cluster_key_row(), user_row("root", admin=True))
    edges = {f"127.0.0.{number}:18081": FakeEdge() for number in (1, 2)}
    async with AsyncExitStack() as running:
        for number, edge in enumerate(edges.values(), 1):
            network = replace(
                network_of(meta, storage),
                broker_channels=lambda endpoints, headers: EdgeChannel(
                    edges, endpoints[0], headers
                ),
            )
            broker = broker_under_test(
                edge,
                network,
                config=broker_config(access_control={"mode": "on"}),
                identity=BrokerIdentity(f"broker-{number}", number, f"127.0.0.{number}"),
            )
            await running.enter_async_context(broker)
            client = Client(edge)
            client.metadata = {"x-mq-client-id": f"client-{number}", **signed("root")}
            await client.receive("orders", "g", polling_s=0)
        await until(lambda: len(broker.app.view.nodes(meta_pb2.NODE_KIND_BROKER)) == 2)
        shown = await edge.call(
            ADMIN + "GetConsumerGroup",
            admin_pb2.GetConsumerGroupRequest(name="g"),
            admin_pb2.GetConsumerGroupResponse,
            {"x-mq-client-id": "cli", **signed("root")},
        )
    assert [member.client_id for member in shown.members] == ["client-1", "client-2"]


async def test_replies_reach_no_other_user_than_the_one_that_asked(
    meta: FakeMeta, storage: FakeStorage
) -> None:
    """Another user has taken the client's id at a broker that the client is not connected to."""
    topic = "DefaultCluster_REPLY_TOPIC"
    users = ("ann", "bob", "eve")
    meta.put(cluster_key_row(), *(user_row(name) for name in users))
    meta.put(policy_row(1, "eve", f"topic:{topic}", "pub"))
    edges = {f"127.0.0.{number}:18081": FakeEdge() for number in (1, 2)}
    network = replace(
        network_of(meta, storage),
        broker_channels=lambda endpoints, headers: EdgeChannel(edges, endpoints[0], headers),
    )
    fields = send_fields(topic, REPLY_TO_CLIENT="asker", CORRELATION_ID="1")
    async with AsyncExitStack() as running:
        apps = []
        for number, edge in enumerate(edges.values(), 1):
            broker = broker_under_test(
                edge,
                network,
                config=broker_config(access_control={"mode": "on"}, remoting={"port": 0}),
                identity=BrokerIdentity(f"broker-{number}", number, f"127.0.0.{number}"),
            )
            await running.enter_async_context(broker)
            apps.append(broker.app)
        kind = meta_pb2.NODE_KIND_BROKER
        await until(lambda: all(len(app.view.nodes(kind)) == 2 for app in apps))

        def of(app: BrokerApp, user: str) -> RemotingClient:
            return RemotingClient(app.shown()["nameserver"], keys=(user, secret_of(user)))

        asker = await running.enter_async_context(of(apps[0], "ann"))
        await asker.heartbeat("asker", "", {}, producers=["p"])
        async with of(apps[1], "bob") as thief:
            await thief.heartbeat("asker", "", {}, producers=["p"])
            for app in apps:
                async with of(app, "eve") as consumer:
                    refused = await consumer.ask(RequestCode.SEND_REPLY_MESSAGE_V2, fields, b"x")
                assert refused.code == ResponseCode.SYSTEM_ERROR
                assert "client asker belongs to several users" in refused.remark
            assert (asker.told, thief.told) == ([], [])
        consumer = await running.enter_async_context(of(apps[1], "eve"))

        async def is_taken() -> bool:
            answer = await consumer.ask(RequestCode.SEND_REPLY_MESSAGE_V2, fields, b"pong")
            return answer.code == ResponseCode.SUCCESS

        await until(is_taken)
        assert [one.body for one in asker.told] == [b"pong"]


async def test_a_broker_that_does_not_answer_is_passed_over(pair: Pair) -> None:
    """The others' clients are shown all the same."""
    await consume(pair.first, "a")
    await consume(pair.second, "b")
    pair.second.running = False
    assert await members(pair.first) == ["a"]


async def test_a_command_without_answer_ends_with_a_timeout(pair: Pair) -> None:
    """REQUEST_TIMEOUT from the broker that holds the client, through another one."""
    settings = definition_pb2.Settings(client_type=definition_pb2.PRODUCER)
    settings.publishing.topics.append(resource("orders"))
    command = service_pb2.TelemetryCommand(settings=settings).SerializeToString()

    async def says() -> AsyncIterator[bytes]:
        yield command
        await asyncio.Event().wait()

    call = FakeCall("Telemetry", b"", {"x-mq-client-id": "silent"})
    stream = pair.second.streams[MESSAGING + "Telemetry"](says(), call)
    await anext(stream)
    asked = peer_pb2.CommandClientRequest(
        client_id="silent", command=peer_pb2.CLIENT_COMMAND_PRINT_THREAD_STACK_TRACE
    )
    direct = await pair.second.call(
        f"/{SERVICE}/CommandClient", asked, peer_pb2.CommandClientResponse
    )
    assert direct.status.code == definition_pb2.REQUEST_TIMEOUT
    frame = service_pb2.TelemetryCommand.FromString(await anext(stream))
    assert frame.print_thread_stack_trace_command.nonce
    with pytest.raises(RequestError) as failure:
        require_ok(direct)
    assert failure.value.code is Code.REQUEST_TIMEOUT
    await stream.aclose()  # type: ignore[attr-defined]


async def test_a_client_without_stream_cannot_be_commanded(pair: Pair) -> None:
    """NOT_FOUND, also for one that only receives."""
    await consume(pair.first, "a")
    asked = peer_pb2.CommandClientRequest(
        client_id="a", command=peer_pb2.CLIENT_COMMAND_VERIFY_MESSAGE
    )
    response = await pair.first.call(
        f"/{SERVICE}/CommandClient", asked, peer_pb2.CommandClientResponse
    )
    assert response.status.code == definition_pb2.NOT_FOUND


async def test_clients_are_narrowed_down(pair: Pair) -> None:
    """By namespace, group, topic and id."""
    await consume(pair.first, "a")
    for wanted, expected in (
        (peer_pb2.ListClientsRequest(), ["a"]),
        (peer_pb2.ListClientsRequest(client_id="a", topic="orders"), ["a"]),
        (peer_pb2.ListClientsRequest(consumer_group="other"), []),
        (peer_pb2.ListClientsRequest(namespace="other"), []),
        (peer_pb2.ListClientsRequest(topic="fifo"), []),
    ):
        response = await pair.first.call(
            f"/{SERVICE}/ListClients", wanted, peer_pb2.ListClientsResponse
        )
        assert [client.client_id for client in response.clients] == expected, wanted
