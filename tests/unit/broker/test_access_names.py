"""Names that a caller chooses: whatever their length, they cost a broker no memory."""

from __future__ import annotations

from typing import Any

import pytest

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.admin.v1 import admin_pb2
from strata_broker.access import principals
from strata_broker.access.wrong_signatures import WrongSignatures
from strata_broker.app import BrokerApp
from strata_broker.base.config import BrokerConfig
from strata_edge.ports import CallError
from strata_mq.access import Action, ResourceKind
from strata_testing import ManualClock
from strata_testing.broker import broker_config
from strata_testing.broker.client import Client, message
from strata_testing.broker.fake_edge import ADMIN, FakeEdge
from strata_testing.broker.fake_meta import FakeMeta
from strata_testing.broker.keys import cluster_key_row, policy_row, signed, user_row

LONG = "x" * 100_000
HEADERS = {"x-mq-client-id": "c", **signed("ann")}


@pytest.fixture
def config() -> BrokerConfig:
    return broker_config(access_control={"mode": "on", "time_zones": ["UTC"]})


@pytest.fixture
def meta() -> FakeMeta:
    """`ann` may do next to nothing."""
    fake = FakeMeta()
    fake.put(cluster_key_row(), user_row("ann"), policy_row(1, "ann", "topic:orders", "pub"))
    return fake


async def test_a_refusal_is_short_and_no_long_name_is_remembered(
    edge: FakeEdge, app: BrokerApp
) -> None:
    """By the services of operators, and by those of clients."""
    for request in (
        admin_pb2.GetTopicRequest(name=LONG),
        admin_pb2.GetTopicRequest(namespace=LONG, name="orders"),
    ):
        with pytest.raises(CallError) as told:
            await edge.call(ADMIN + "GetTopic", request, admin_pb2.GetTopicResponse, HEADERS)
        assert told.value.status == "PERMISSION_DENIED"
        assert "User:ann has no permission to access Topic:" in told.value.reason
        assert len(told.value.reason) < 1_500
    client = Client(edge)
    client.metadata = HEADERS
    sent: Any = await client.send(message(LONG, 1))
    assert sent.status.code == definition_pb2.FORBIDDEN
    assert len(sent.status.message) < 1_500
    route = service_pb2.QueryRouteRequest(topic=definition_pb2.Resource(name=LONG))
    answer = await edge.call(
        "/apache.rocketmq.v2.MessagingService/QueryRoute",
        route,
        service_pb2.QueryRouteResponse,
        HEADERS,
    )
    assert answer.status.code == definition_pb2.FORBIDDEN
    for principal in app.access._principals.values():
        remembered = [name for _, name, _ in principal._decisions]
        assert all(len(name) < 1_500 for pair in remembered for name in pair)


def test_what_a_send_takes_is_not_remembered_for_long_names() -> None:
    """The right is the same."""
    before = principals._short_send_right.cache_info().currsize
    kind, name, action = principals.send_right(("", f"%RETRY%{LONG}"))
    assert (kind, name, action) == ("group", ("", LONG), "sub")
    assert principals._short_send_right.cache_info().currsize == before
    assert principals.send_right(("", "orders")) == ("topic", ("", "orders"), "pub")


def test_wrong_signatures_of_a_network_are_those_of_one_address() -> None:
    """A caller with one address of IPv6 has as many as it likes."""
    wrong = WrongSignatures(3, 10.0, ManualClock(), max_entries=50)
    for host in ("2001:db8::1", "2001:db8::2", "2001:db8:0:0:ffff::3"):
        assert not wrong.is_blocked(host, "ann")
        wrong.add(host, "ann")
    assert wrong.is_blocked("2001:db8::4", "ann")
    assert not wrong.is_blocked("2001:db8:0:1::1", "ann")
    assert not wrong.is_blocked("2001:db8::4", "bob")


@pytest.mark.parametrize(
    "peer",
    ["[2001:db8::7]:1", "2001:db8::7:1", "%5B2001:db8::7%5D:1", "%5B2001:db8::7%25eth0%5D:1"],
)
async def test_a_policy_with_sources_knows_every_form_of_an_address(
    peer: str, app: BrokerApp, meta: FakeMeta
) -> None:
    """A network has the rights of its policies, however a port writes addresses of callers."""
    network = ("2001:db8::/32",)
    meta.put(policy_row(2, "ann", "topic:orders", "pub", allow=False, sources=network))
    meta.put(policy_row(3, "ann", "topic:inside", "pub", sources=network))
    assert await app.view.wait_for_revision(meta.revision, 60)
    principal = app.access.principal_of(HEADERS, peer)
    assert not principal.may(ResourceKind.TOPIC, ("", "orders"), Action.PUB)
    assert principal.may(ResourceKind.TOPIC, ("", "inside"), Action.PUB)
    elsewhere = app.access.principal_of(HEADERS, "%5B2001:db9::7%5D:1")
    assert elsewhere.may(ResourceKind.TOPIC, ("", "orders"), Action.PUB)
    assert not elsewhere.may(ResourceKind.TOPIC, ("", "inside"), Action.PUB)
