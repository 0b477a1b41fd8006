"""QueryRoute and QueryAssignment."""

from __future__ import annotations

import pytest

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.meta.v1 import meta_pb2
from strata_broker.app import BrokerApp
from strata_broker.clients.route import endpoints_message
from strata_testing.broker.client import resource
from strata_testing.broker.fake_edge import MESSAGING, FakeEdge
from strata_testing.broker.fake_meta import FakeMeta


async def query(edge: FakeEdge, topic: str) -> service_pb2.QueryRouteResponse:
    """Ask for a route."""
    return await edge.call(
        MESSAGING + "QueryRoute",
        service_pb2.QueryRouteRequest(topic=resource(topic)),
        service_pb2.QueryRouteResponse,
    )


async def assignments(
    edge: FakeEdge, topic: str, group: str
) -> service_pb2.QueryAssignmentResponse:
    """Ask for assignments."""
    return await edge.call(
        MESSAGING + "QueryAssignment",
        service_pb2.QueryAssignmentRequest(topic=resource(topic), group=resource(group)),
        service_pb2.QueryAssignmentResponse,
    )


async def test_a_route_lists_every_broker_name_with_ids_from_zero(edge: FakeEdge) -> None:
    """Two raft groups with two queues each: ids 0 and 1 under two names, in a stable order."""
    response = await query(edge, "orders")
    assert (response.status.code, response.status.message) == (definition_pb2.OK, "OK")
    assert [(queue.broker.name, queue.id) for queue in response.message_queues] == [
        ("strata-1", 0),
        ("strata-1", 1),
        ("strata-2", 0),
        ("strata-2", 1),
    ]
    assert response == await query(edge, "orders")


async def test_every_queue_of_a_route_has_what_clients_insist_on(edge: FakeEdge) -> None:
    """Permission, broker id 0, one address with explicit scheme, accepted types, the topic."""
    for queue in (await query(edge, "orders")).message_queues:
        assert queue.topic == resource("orders")
        assert queue.permission == definition_pb2.READ_WRITE
        assert queue.broker.id == 0
        assert queue.broker.endpoints == definition_pb2.Endpoints(
            scheme=definition_pb2.IPv4,
            addresses=[definition_pb2.Address(host="127.0.0.1", port=18081)],
        )
        assert list(queue.accept_message_types) == [definition_pb2.NORMAL]


async def test_a_mixed_topic_accepts_four_types(
    app: BrokerApp, edge: FakeEdge, meta: FakeMeta
) -> None:
    """NORMAL, FIFO, DELAY, TRANSACTION, never UNSPECIFIED."""
    meta.add_topic("mixed", meta_pb2.TOPIC_TYPE_MIXED)
    assert await app.view.wait_for_revision(meta.revision, 60)
    queue = (await query(edge, "mixed")).message_queues[0]
    assert list(queue.accept_message_types) == [
        definition_pb2.NORMAL,
        definition_pb2.FIFO,
        definition_pb2.DELAY,
        definition_pb2.TRANSACTION,
    ]


async def test_unknown_and_illegal_topics(edge: FakeEdge) -> None:
    """40402 with the text clients match, ILLEGAL_TOPIC with the real one."""
    response = await query(edge, "nowhere")
    assert response.status.code == definition_pb2.TOPIC_NOT_FOUND
    assert response.status.message == (
        "CODE: 17  DESC: No topic route info in name server for the topic: nowhere"
    )
    assert (await query(edge, "bad topic!")).status.code == definition_pb2.ILLEGAL_TOPIC
    assert (await query(edge, "TBW102")).status.code == definition_pb2.ILLEGAL_TOPIC


async def test_a_plain_group_is_assigned_any_queue_per_broker_name(edge: FakeEdge) -> None:
    """One assignment with id -1 per name, no accepted types."""
    response = await assignments(edge, "orders", "g")
    queues = [one.message_queue for one in response.assignments]
    assert [(queue.broker.name, queue.id) for queue in queues] == [
        ("strata-1", -1),
        ("strata-2", -1),
    ]
    assert all(queue.permission == definition_pb2.READ_WRITE for queue in queues)
    assert all(not queue.accept_message_types for queue in queues)


async def test_a_fifo_group_is_assigned_the_queues_of_the_route(
    app: BrokerApp, edge: FakeEdge, meta: FakeMeta
) -> None:
    """Real ids, the same as the route's."""
    meta.add_group(meta_pb2.ConsumerGroup(name="ordered", fifo=True))
    assert await app.view.wait_for_revision(meta.revision, 60)
    response = await assignments(edge, "orders", "ordered")
    assert [one.message_queue.id for one in response.assignments] == [0, 1, 0, 1]


async def test_several_brokers_share_the_raft_groups(
    app: BrokerApp, edge: FakeEdge, meta: FakeMeta
) -> None:
    """Each broker name has one address, a registered one, the same in every answer."""
    for number in range(20):
        node = meta_pb2.Node(
            node_id=f"b{number}",
            kind=meta_pb2.NODE_KIND_BROKER,
            advertised_endpoint=f"broker-{number}:8081",
        )
        meta.put(meta_pb2.Change(node=node))
    assert await app.view.wait_for_revision(meta.revision, 60)
    response = await query(edge, "orders")
    by_name: dict[str, set[str]] = {}
    for queue in response.message_queues:
        (address,) = queue.broker.endpoints.addresses
        by_name.setdefault(queue.broker.name, set()).add(address.host)
    assert all(len(hosts) == 1 for hosts in by_name.values())


@pytest.mark.parametrize(
    ("endpoint", "scheme", "host"),
    [
        ("10.0.0.1:80", definition_pb2.IPv4, "10.0.0.1"),
        ("[::1]:80", definition_pb2.IPv6, "::1"),
        ("mq.example:80", definition_pb2.DOMAIN_NAME, "mq.example"),
    ],
)
def test_the_scheme_is_explicit(
    endpoint: str, scheme: definition_pb2.AddressScheme.ValueType, host: str
) -> None:
    """With scheme 0 Python clients have an empty target."""
    assert endpoints_message(endpoint) == definition_pb2.Endpoints(
        scheme=scheme, addresses=[definition_pb2.Address(host=host, port=80)]
    )
