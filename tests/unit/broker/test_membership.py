"""A broker among the others: where its metadata come from, how it comes and goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from google.protobuf.message import Message

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.meta.v1 import meta_pb2
from strata_angelia.ports import UNAVAILABLE, AngeliaError
from strata_broker.app import BrokerApp, BrokerStartError
from strata_broker.base.config import BrokerConfig
from strata_broker.base.identity import BrokerIdentity
from strata_broker.storage_client.channels import BrokerNetwork
from strata_testing import until
from strata_testing.broker import BrokerUnderTest, broker_config, broker_under_test
from strata_testing.broker.client import Client, message, resource
from strata_testing.broker.fake_edge import MESSAGING, FakeEdge
from strata_testing.broker.fake_meta import FakeMeta
from strata_testing.broker.fake_storage import FakeStorage


@pytest.fixture
def config() -> BrokerConfig:
    """Times of moments."""
    metadata = {
        "call_timeout_ms": 40,
        "try_timeout_ms": 20,
        "fallback_after_ms": 5,
        "start_timeout_ms": 300,
        "heartbeat_ms": 1,
    }
    return broker_config(metadata=metadata)


def broker(
    config: BrokerConfig,
    edge: FakeEdge,
    storage: FakeStorage,
    sources: dict[str, FakeMeta],
    *,
    seeds: tuple[str, ...] = (),
    node_id: str = "broker-a",
    host: str = "10.0.0.1",
) -> BrokerUnderTest[FakeEdge]:
    """A broker whose nameservers are those sources that are no seeds."""
    network = BrokerNetwork(
        [name for name in sources if name not in seeds],
        lambda endpoint: sources[endpoint],
        lambda endpoints: storage,
        seeds,
    )
    identity = BrokerIdentity(node_id, 7, host, "rack-1")
    return broker_under_test(edge, network, config=config, identity=identity, random=lambda: 0.0)


class Copy(FakeMeta):
    """A storage node's copy of the metadata: it answers reads only."""

    async def call(self, method: str, *arguments: object, **options: object) -> object:
        self.calls.append(method.rpartition("/")[2])
        raise AngeliaError(UNAVAILABLE, "read only")


async def test_a_broker_serves_with_no_nameserver_and_joins_when_one_returns(
    config: BrokerConfig, storage: FakeStorage, meta: FakeMeta
) -> None:
    """A storage node's copy of the metadata is enough to start (rule 16)."""
    seed = Copy()
    seed.add_topic("orders")
    meta.down = True
    edge = FakeEdge()
    made = broker(config, edge, storage, {"n1": meta, "s1": seed}, seeds=("s1",))
    await made.start()
    response = await Client(edge).send(message("orders", 1))
    assert response.status.code == definition_pb2.OK
    assert "broker-a" not in meta.nodes
    meta.down = False
    await until(lambda: "broker-a" in meta.nodes)
    (node,) = [change.node for change in meta.rows if change.node.node_id == "broker-a"]
    assert (node.rack, node.advertised_endpoint) == ("rack-1", "10.0.0.1:18081")
    await made.stop(0.1)


async def test_without_any_metadata_the_start_fails(
    config: BrokerConfig, storage: FakeStorage, meta: FakeMeta
) -> None:
    """The text says what was waited for; nothing is left running."""
    meta.down = True
    edge = FakeEdge()
    made = broker(config, edge, storage, {"n1": meta})
    with pytest.raises(BrokerStartError, match="no metadata"):
        await made.start()
    assert not edge.running
    assert not made.app.tasks.names


class InParts(FakeMeta):
    """A nameserver whose snapshot comes row by row, for longer than a start may wait.

    Attributes:
        pause_s: between two parts.
        parts: how many there are before the rows.
    """

    pause_s = 0.02
    parts = 40

    async def stream(
        self, method: str, request: Message, response_type: type[Any]
    ) -> AsyncIterator[Any]:
        if isinstance(request, meta_pb2.WatchRequest) and not request.from_revision:
            for number in range(self.parts):
                part = meta_pb2.WatchResponse(
                    snapshot=not number, snapshot_revision=self.revision, is_fresh=True
                )
                yield part
                await asyncio.sleep(self.pause_s)
        async for response in super().stream(method, request, response_type):
            yield response


async def test_a_snapshot_may_take_longer_than_a_part_of_it(
    config: BrokerConfig, storage: FakeStorage
) -> None:
    """A start goes on while parts come, and fails when none comes for as long as it waits."""
    meta = InParts()
    meta.add_topic("orders")
    made = broker(config, FakeEdge(), storage, {"n1": meta})
    await made.start()
    assert made.app.view.topic("", "orders") is not None
    await made.stop(0.1)
    meta.pause_s = 3_600.0
    made = broker(config, FakeEdge(), storage, {"n1": meta})
    with pytest.raises(BrokerStartError, match="no metadata"):
        await made.start()


async def test_any_of_several_nameservers_is_enough(
    config: BrokerConfig, storage: FakeStorage, meta: FakeMeta
) -> None:
    """Two of three are down; calls go to the third."""
    down = FakeMeta()
    down.down = True
    made = broker(config, FakeEdge(), storage, {"n1": down, "n2": down, "n3": meta})
    await made.start()
    assert "broker-a" in meta.nodes
    await made.stop(0.1)


async def test_a_broker_that_was_forgotten_registers_again(
    config: BrokerConfig, storage: FakeStorage, meta: FakeMeta
) -> None:
    """A heartbeat that is answered NOT_FOUND is followed by a registration."""
    made = broker(config, FakeEdge(), storage, {"n1": meta})
    await made.start()
    await until(lambda: "Heartbeat" in meta.calls)
    meta.nodes.clear()
    await until(lambda: "broker-a" in meta.nodes)
    assert meta.calls.count("RegisterNode") == 2
    await made.stop(0.1)


async def test_a_broker_that_stops_leaves_the_routes_of_the_others(
    config: BrokerConfig, storage: FakeStorage, meta: FakeMeta
) -> None:
    """It takes itself off before its clients are let go."""
    edges = FakeEdge(), FakeEdge()
    first = broker(config, edges[0], storage, {"n1": meta})
    second = broker(config, edges[1], storage, {"n1": meta}, node_id="broker-b", host="10.0.0.2")
    await first.start()
    await second.start()
    await until(lambda: len(first.app.view.nodes(meta_pb2.NODE_KIND_BROKER)) == 2)
    await first.stop(0.1)
    await until(lambda: len(second.app.view.nodes(meta_pb2.NODE_KIND_BROKER)) == 1)
    assert await hosts(edges[1]) == {"10.0.0.2"}
    await second.stop(0.1)
    assert not meta.nodes


async def test_a_broker_leaves_as_soon_as_a_nameserver_leads_again(
    config: BrokerConfig, storage: FakeStorage, meta: FakeMeta
) -> None:
    """An upgrade replaces both at once; who is left behind is a node that is down, for an hour."""
    short = config.metadata.model_copy(update={"deregister_timeout_ms": 20})
    changed = config.model_copy(update={"metadata": short})
    edge = FakeEdge()
    made = broker(changed, edge, storage, {"n1": meta})
    await made.start()
    assert meta.nodes
    meta.down = True
    stopping = asyncio.ensure_future(made.stop(10.0))
    # The first try has failed: clients are let go.
    await until(lambda: edge.draining)
    meta.down = False
    edge.drained.set()
    await stopping
    assert not meta.nodes


async def test_a_broker_behind_a_virtual_address_is_known_by_its_own(
    config: BrokerConfig, meta: FakeMeta, storage: FakeStorage
) -> None:
    """Routes name the virtual address; operators name one broker of many."""
    route = config.route.model_copy(update={"advertised_endpoint": "brokers.example:8081"})
    edge = FakeEdge()
    made = broker(config.model_copy(update={"route": route}), edge, storage, {"n1": meta})
    await made.start()
    await until(lambda: made.app.view.node("broker-a"))
    node = made.app.view.node("broker-a")
    assert node is not None
    assert list(node.endpoints) == ["10.0.0.1:18081"]
    assert node.advertised_endpoint == made.app.endpoint == "brokers.example:8081"
    assert await hosts(edge) == {"brokers.example"}
    await made.stop(0.1)


async def hosts(edge: FakeEdge) -> set[str]:
    """The hosts that a route names."""
    response = await edge.call(
        MESSAGING + "QueryRoute",
        service_pb2.QueryRouteRequest(topic=resource("orders")),
        service_pb2.QueryRouteResponse,
    )
    return {
        address.host
        for queue in response.message_queues
        for address in queue.broker.endpoints.addresses
    }


async def test_down_and_draining_brokers_are_in_no_route_unless_all_are(
    app: BrokerApp, edge: FakeEdge, meta: FakeMeta
) -> None:
    """SUSPECT ones stay: clients rebuild what they have with every change."""

    async def set_states(*states: meta_pb2.NodeState.ValueType, draining: bool = False) -> None:
        for number, state in enumerate(states):
            node = meta_pb2.Node(
                node_id=f"b{number}",
                kind=meta_pb2.NODE_KIND_BROKER,
                advertised_endpoint=f"broker-{number}:8081",
                state=state,
                draining=draining and number == 0,
            )
            meta.put(meta_pb2.Change(node=node))
        assert await app.view.wait_for_revision(meta.revision, 60)

    gone = meta_pb2.Node(node_id="broker-a")
    meta.put(meta_pb2.Change(node=gone, deleted=True))
    up, suspect, down = (
        meta_pb2.NODE_STATE_UP,
        meta_pb2.NODE_STATE_SUSPECT,
        meta_pb2.NODE_STATE_DOWN,
    )
    await set_states(down, up)
    assert await hosts(edge) == {"broker-1"}
    await set_states(down, suspect)
    assert await hosts(edge) == {"broker-1"}
    await set_states(up, up, draining=True)
    assert await hosts(edge) == {"broker-1"}
    await set_states(down, down)
    assert await hosts(edge) <= {"broker-0", "broker-1"}


async def test_a_route_names_the_same_brokers_everywhere(
    config: BrokerConfig, storage: FakeStorage, meta: FakeMeta
) -> None:
    """Equal metadata give byte-equal routes on every broker."""
    edges = FakeEdge(), FakeEdge()
    brokers = [
        broker(config, edge, storage, {"n1": meta}, node_id=f"b{n}", host=f"10.0.0.{n}")
        for n, edge in enumerate(edges)
    ]
    for made in brokers:
        await made.start()
    for made in brokers:
        assert await made.app.view.wait_for_revision(meta.revision, 60)
    request = service_pb2.QueryRouteRequest(topic=resource("orders"))
    routes = await asyncio.gather(
        *(
            edge.call(MESSAGING + "QueryRoute", request, service_pb2.QueryRouteResponse)
            for edge in edges
        )
    )
    assert routes[0] == routes[1]
    for made in brokers:
        await made.stop(0.1)


async def test_a_route_names_the_address_of_workers_once(
    app: BrokerApp, edge: FakeEdge, meta: FakeMeta
) -> None:
    """As long as one worker of a machine is up, routes stay what they are, byte for byte."""

    async def route(*states: meta_pb2.NodeState.ValueType) -> service_pb2.QueryRouteResponse:
        for number, state in enumerate(states):
            node = meta_pb2.Node(
                node_id=f"worker-{number}",
                kind=meta_pb2.NODE_KIND_BROKER,
                endpoints=[f"machine:{9_000 + number}"],
                advertised_endpoint="machine:8081",
                machine="machine",
                state=state,
            )
            meta.put(meta_pb2.Change(node=node))
        assert await app.view.wait_for_revision(meta.revision, 60)
        request = service_pb2.QueryRouteRequest(topic=resource("orders"))
        return await edge.call(MESSAGING + "QueryRoute", request, service_pb2.QueryRouteResponse)

    meta.put(meta_pb2.Change(node=meta_pb2.Node(node_id="broker-a"), deleted=True))
    up, down = meta_pb2.NODE_STATE_UP, meta_pb2.NODE_STATE_DOWN
    whole = await route(up, up, up)
    for queue in whole.message_queues:
        [address] = queue.broker.endpoints.addresses
        assert (address.host, address.port) == ("machine", 8081)
    assert await route(up, down, up) == whole
    assert await route(down, down, up) == whole
