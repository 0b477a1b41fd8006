"""Every RPC that changes the cluster leaves one event, and so does what a first use makes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf import message_factory

from apache.rocketmq.v2 import admin_pb2 as rocketmq_admin_pb2
from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.admin.v1 import admin_pb2, container_pb2
from strata.kv.v1 import kv_pb2
from strata.meta.v1 import meta_pb2
from strata_angelia.methods import snake_case
from strata_angelia.ports import AngeliaError
from strata_broker.access.table import all_paths
from strata_broker.app import BrokerApp
from strata_broker.base.audit import Audited, FirstUse
from strata_broker.base.config import BrokerConfig
from strata_broker.base.shares import CallShares, most_each
from strata_broker.kv.servicer import KvServicer
from strata_broker.servicers import admin_rpc, container_rpc, rocketmq_rpc
from strata_edge.ports import CallError
from strata_metadata.errors import MetaRefused
from strata_mq.requests import Code, RequestError
from strata_runtime.metrics import Metrics
from strata_testing.broker import BrokerUnderTest, broker_config
from strata_testing.broker.client import Client, message, resource
from strata_testing.broker.fake_edge import MESSAGING, FakeEdge
from strata_testing.broker.keys import signed

SERVICES = {
    service.full_name: service
    for service in (
        admin_pb2.DESCRIPTOR.services_by_name["AdminService"],
        container_pb2.DESCRIPTOR.services_by_name["ContainerService"],
        rocketmq_admin_pb2.DESCRIPTOR.services_by_name["Admin"],
        kv_pb2.DESCRIPTOR.services_by_name["KvService"],
    )
}
READING = {
    *("ListClients", "ListLiteTopics"),
    *("GetTopic", "ListTopics", "GetConsumerGroup", "ListConsumerGroups", "FindMessages"),
    *("ListQueueSpans", "ScanQueue", "TraceMessage", "ListDeadLetterTopics", "ListDeadLetters"),
    *("ListTransactions", "GetTransaction", "GetConfig", "GetCluster", "GetHealth"),
    *("GetRaftGroup", "GetQueue", "ListSlots", "GetQuota", "ListQuotas", "GetPlacement"),
    *("GetTier", "PlanTierSweep", "GetUser", "ListUsers", "ListPolicies", "TestPolicy"),
    *("DescribeTopicStatus", "ListSubscription", "DescribeSubscription", "QueryMessage"),
    *("DescribeGroupAccumulation", "ListConsumerConnection", "QueryTimeSpan", "GetTopicRoute"),
    *("PrintThreadStackTrace", "VerifyMessage", "GetConsumerRunningInfo", "GetProxyRuntimeStats"),
    *("Get", "List", "Watch", "Export", "GetTable", "ListTables"),
    *("ListMembers", "GetMemberConfig"),
}
"""They change nothing that outlives them."""
CONTENT = {"Put", "Delete", "CompareAndSet", "Batch"}
"""They write what is in tables, as sends write messages: the table's watch tells of them."""
PATHS = sorted(path for path in all_paths() if path.split("/")[1] in SERVICES)


class Trail:
    """An audit trail."""

    def __init__(self) -> None:
        self.changes: list[tuple[Audited, str, str]] = []
        self.unclear: list[tuple[Audited, str, str]] = []

    def changed(self, who: Audited, rpc: str, request: str) -> None:
        self.changes.append((who, rpc, request))

    def unclear_change(self, who: Audited, rpc: str, request: str) -> None:
        self.unclear.append((who, rpc, request))

    def refused(self, who: Audited, rpc: str, resource: str, reason: str) -> None:
        raise AssertionError(f"{rpc} was refused")

    def signed_in(self, who: Audited) -> None:
        """Nobody asks."""


class Methods:
    """Handlers by path."""

    def __init__(self) -> None:
        self.unary: dict[str, Any] = {}

    def add_unary(self, path: str, handler: Any) -> None:
        self.unary[path] = handler

    def add_server_stream(self, path: str, handler: Any) -> None:
        """Streams change nothing."""

    def add_stream(self, path: str, handler: Any) -> None:
        """None is served here."""


class KvServicerOfNothing(KvServicer):
    """Answers every call of tables with an empty response."""

    def __init__(self, trail: Trail) -> None:
        self._audit = trail
        self._calls = SimpleNamespace(  # type: ignore[assignment]
            config=broker_config(), clock=SimpleNamespace(monotonic_s=lambda: 0.0)
        )
        self._config = broker_config().kv
        self._shares = CallShares("calls of tables", most_each(1, 1), metrics=Metrics.disabled())


def _answering(response_type: Any) -> Any:
    async def answer(*_: object) -> Any:
        return response_type()

    return answer


def _served(trail: Trail, answering: Any = _answering) -> Methods:
    """Return the RPCs of the three services, carried out by nobody."""
    methods = Methods()
    for name, service in SERVICES.items():
        handler: Any = SimpleNamespace()
        if name.endswith("KvService"):
            handler = KvServicerOfNothing(trail)
        for rpc in service.methods:
            if not rpc.server_streaming:
                response = message_factory.GetMessageClass(rpc.output_type)
                setattr(handler, snake_case(rpc.name), answering(response))
        if name.endswith("KvService"):
            handler.register(methods)
        elif name.endswith("AdminService"):
            admin_rpc.serve(methods, handler, trail=trail)
        elif name.endswith("ContainerService"):
            container_rpc.serve(methods, handler, trail=trail)
        else:
            rocketmq_rpc.serve(methods, handler, trail=trail)
    return methods


@pytest.mark.parametrize("path", PATHS)
async def test_a_change_is_one_event_and_a_look_is_none(path: str) -> None:
    """An RPC that somebody adds changes something, unless this test says that it does not."""
    trail = Trail()
    info = SimpleNamespace(
        metadata={"x-mq-client-id": "c", **signed("mallory")},
        peer="10.0.0.1:2",
        time_left_s=lambda: 1.0,
    )
    rpc = path.rpartition("/")[2]
    handler = _served(trail).unary.get(path)
    if handler is None:
        assert rpc in READING
        return
    await handler(b"", info)
    told = [(who, name) for who, name, _ in trail.changes]
    # Access is not controlled here: the name in the header was verified by nobody.
    changed = [(Audited("", "10.0.0.1:2", "c"), rpc)]
    assert told == ([] if rpc in READING | CONTENT else changed)


_MAYBE_DONE = (
    AngeliaError("deadline_exceeded", "no nameserver answers"),
    MetaRefused(meta_pb2.META_OUTCOME_UNAVAILABLE, "no leader any more"),
    RequestError(Code.PROXY_TIMEOUT, "storage does not answer"),
    asyncio.CancelledError(),
    ZeroDivisionError("a mistake"),
)
_REFUSED = (
    MetaRefused(meta_pb2.META_OUTCOME_ALREADY_EXISTS, "there is one"),
    MetaRefused(meta_pb2.META_OUTCOME_CONFLICT, "it is the last admin"),
    RequestError(Code.ILLEGAL_TOPIC, "no name"),
    RequestError(Code.TOPIC_NOT_FOUND, "no topic"),
)


def _failing(failure: BaseException) -> Any:
    async def answer(*_: object) -> Any:
        raise failure

    return lambda _: answer


@pytest.mark.parametrize("path", [path for path in PATHS if path.rpartition("/")[2] not in READING])
async def test_a_change_whose_end_nobody_knows_is_an_event(path: str) -> None:
    """A caller that goes away, or a lost answer, keeps no change out of the audit trail."""
    rpc = path.rpartition("/")[2]
    info = SimpleNamespace(
        metadata={"x-mq-client-id": "c"}, peer="10.0.0.1:2", time_left_s=lambda: 1.0
    )
    who = Audited("", "10.0.0.1:2", "c")
    for failure in (*_MAYBE_DONE, *_REFUSED):
        if rpc == "ChangeLogLevel" and isinstance(failure, RequestError):
            # Its response has no status: it refuses nothing.
            continue
        trail = Trail()
        handler = _served(trail, _failing(failure)).unary[path]
        with suppress(CallError, type(failure)):
            await handler(b"", info)
        is_told = failure in _MAYBE_DONE and rpc not in CONTENT
        assert trail.unclear == ([(who, rpc, "")] if is_told else []), failure
        assert trail.changes == [], failure


@pytest.mark.parametrize(
    ("path", "is_told"),
    [
        ("/strata.admin.v1.AdminService/PurgeTopic", True),
        ("/strata.admin.v1.AdminService/ResetConsumerGroup", True),
        ("/strata.admin.v1.AdminService/RedriveDeadLetters", True),
        ("/strata.admin.v1.AdminService/TransferLeader", True),
        ("/apache.rocketmq.v2.Admin/ResetGroupOffset", True),
        ("/apache.rocketmq.v2.Admin/DeleteSubscription", True),
        ("/strata.admin.v1.AdminService/CreateTopic", False),
        ("/strata.admin.v1.AdminService/DeleteTopic", False),
    ],
)
async def test_a_refusal_after_some_steps_is_an_event(path: str, is_told: bool) -> None:
    """The first raft groups, queues or letters may have been changed before another one refused."""
    info = SimpleNamespace(metadata={}, peer="10.0.0.1:2", time_left_s=lambda: 1.0)
    for code in (Code.TOO_MANY_REQUESTS, Code.PRECONDITION_FAILED):
        trail = Trail()
        handler = _served(trail, _failing(RequestError(code, "later"))).unary[path]
        with suppress(CallError):
            await handler(b"", info)
        assert (len(trail.unclear), len(trail.changes)) == (int(is_told), 0)


async def test_no_event_has_a_secret_of_a_configuration() -> None:
    """A key of a configuration is the key of a map."""
    values = {"tier.secret_key": "hidden", "tier.session_token": "hidden", "tier.url": "s3://b"}
    asked = container_pb2.UpdateMemberConfigRequest(name="m", values=values)

    trail = Trail()
    info = SimpleNamespace(metadata={}, peer="10.0.0.1:2", time_left_s=lambda: 1.0)
    path = "/strata.admin.v1.ContainerService/UpdateMemberConfig"
    with pytest.raises(asyncio.CancelledError):
        await _served(trail, _failing(asyncio.CancelledError())).unary[path](
            asked.SerializeToString(), info
        )
    [(_, _, request)] = trail.unclear
    assert "s3://b" in request
    assert "hidden" not in request


# First use --------------------------------------------------------------------------------------


@pytest.fixture
def config() -> BrokerConfig:
    metadata = {"auto_create_topic": True}
    return broker_config(plugins=("kv",), metadata=metadata)


@pytest.fixture
async def trail(broker: BrokerUnderTest[FakeEdge]) -> AsyncIterator[list[dict[str, Any]]]:
    """Events of changes."""
    events: list[dict[str, Any]] = []
    broker.app.audit.add(SimpleNamespace(write=lambda event: events.append(dict(event))))
    yield events


def _told(events: list[dict[str, Any]]) -> list[tuple[str, str, str, str]]:
    return [
        (event["rpc"], event["request"], event["client_id"], event["user"])
        for event in events
        if event["event"] == "changed"
    ]


async def test_what_a_first_use_makes_is_an_event(
    client: Client, edge: FakeEdge, trail: list[dict[str, Any]]
) -> None:
    """A topic by a send and by a look at its route, a consumer group by a receive: once each."""
    for _ in range(2):
        assert (await client.send(message("sent", 1))).status.code == definition_pb2.OK
        route = service_pb2.QueryRouteRequest(topic=resource("routed"))
        await edge.call(MESSAGING + "QueryRoute", route, service_pb2.QueryRouteResponse)
        await client.receive("orders", "readers")
    told = _told(trail)
    assert [(rpc, request) for rpc, request, _, _ in told] == [
        ("SendMessage", "created the topic sent on first use"),
        ("QueryRoute", "created the topic routed on first use"),
        ("ReceiveMessage", "created the consumer group readers on first use"),
    ]
    assert all(client_id and not user for _, _, client_id, user in told)
    assert all(event["peer"] for event in trail)


async def test_what_the_broker_makes_for_itself_is_an_event(
    app: BrokerApp, trail: list[dict[str, Any]]
) -> None:
    await app._provisioner.system_group("", "strata-redrive")
    assert _told(trail) == [
        (FirstUse().rpc, "created the consumer group strata-redrive on first use", "", "")
    ]
