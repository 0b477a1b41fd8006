"""Access control of a broker beyond the matrix: caches, lists, streams, handles, other brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from apache.rocketmq.v2 import admin_pb2 as rocketmq_admin_pb2
from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.admin.v1 import admin_pb2
from strata.kv.v1 import kv_pb2
from strata.meta.v1 import meta_pb2
from strata_broker.access.principals import AccessRefused
from strata_broker.access.wrong_signatures import ADDRESS_FACTOR, WrongSignatures
from strata_broker.app import BrokerApp
from strata_broker.base.config import BrokerConfig
from strata_edge.ports import CallError
from strata_mq.access import Action, ResourceKind
from strata_testing import ManualClock, until
from strata_testing.broker import BrokerUnderTest, broker_config
from strata_testing.broker.client import Client, message, resource
from strata_testing.broker.fake_edge import ADMIN, MESSAGING, FakeCall, FakeEdge
from strata_testing.broker.fake_meta import FakeMeta
from strata_testing.broker.keys import cluster_key_row, policy_row, signed, user_row

TELEMETRY = MESSAGING + "Telemetry"


@pytest.fixture
def config() -> BrokerConfig:
    return broker_config(
        plugins=("kv",),
        access_control={
            "mode": "on",
            # The machine's own zone may be any.
            "time_zones": ["UTC"],
            "max_wrong_signatures": 3,
            "max_signatures": 8,
            "max_principals": 4,
            "max_decisions_per_principal": 16,
        },
    )


@pytest.fixture
def meta() -> FakeMeta:
    """Topics and groups of two tenants; `ann` publishes and consumes, `tess` owns a namespace."""
    fake = FakeMeta()
    for namespace in ("", "shop"):
        for name in ("orders", "secrets"):
            fake.add_topic(name, namespace=namespace)
        for name in ("readers", "others"):
            fake.add_group(meta_pb2.ConsumerGroup(namespace=namespace, name=name))
    fake.put(
        cluster_key_row(),
        *(user_row(name) for name in ("ann", "bob", "tess")),
        user_row("root", admin=True),
        policy_row(1, "ann", "topic:orders", "pub", "sub", "get"),
        policy_row(2, "ann", "group:readers", "sub", "list"),
        policy_row(3, "tess", "namespace:shop", "all"),
        policy_row(4, "tess", "topic:shop/secrets", "list", allow=False),
        policy_row(5, "bob", "group:readers", "sub"),
    )
    return fake


def headers(user: str, client_id: str = "") -> dict[str, str]:
    """Headers of a call of a user's client."""
    return {"x-mq-client-id": client_id or f"client of {user}", **signed(user)}


class As:
    """The clients of users."""

    def __init__(self, edge: FakeEdge) -> None:
        self._edge = edge

    def __call__(self, user: str) -> Client:
        client = Client(self._edge)
        client.metadata = headers(user)
        return client


@pytest.fixture
async def as_user(edge: FakeEdge) -> As:
    return As(edge)


async def listed(edge: FakeEdge, user: str, rpc: str, request: Any, response_type: Any) -> Any:
    """Call a list of strata.admin.v1."""
    return await edge.call(ADMIN + rpc, request, response_type, headers(user))


async def test_sends_of_a_turn_are_those_of_their_user(
    edge: FakeEdge, meta: FakeMeta, app: BrokerApp
) -> None:
    """Sends with one signature are checked once, by the rows of the turn in which they come."""
    allowed, forbidden = message("orders", 1), message("secrets", 2)
    by_ann, by_bob = headers("ann"), headers("bob")

    async def codes(one: definition_pb2.Message, metadata: Mapping[str, str]) -> list[int]:
        send = "SendMessage", service_pb2.SendMessageRequest(messages=(one,))
        answers = [await call.answer for call in edge.begin_turn(send, send, metadata=metadata)]
        parsed = [service_pb2.SendMessageResponse.FromString(answer) for (answer,) in answers]
        return [answer.status.code for answer in parsed]

    for _ in range(2):
        # The first time nobody knows the signature.
        assert await codes(allowed, by_ann) == [definition_pb2.OK] * 2
        assert await codes(forbidden, by_ann) == [definition_pb2.FORBIDDEN] * 2
        assert await codes(allowed, by_bob) == [definition_pb2.FORBIDDEN] * 2
    meta.put(user_row("ann", disabled=True))
    await until(lambda: app.view.revision >= meta.revision)
    assert await codes(allowed, by_ann) == [definition_pb2.UNAUTHORIZED] * 2


async def test_lists_show_what_a_user_may_see(edge: FakeEdge) -> None:
    """Get or list shows a topic, a denial of list hides it, and a page token names nothing else."""
    shown = {}
    for user in ("ann", "bob", "tess", "root"):
        request = admin_pb2.ListTopicsRequest(page_size=1)
        names: list[tuple[str, str]] = []
        while True:
            page = await listed(edge, user, "ListTopics", request, admin_pb2.ListTopicsResponse)
            names += [(topic.namespace, topic.name) for topic in page.topics]
            assert page.next_page_token in ("", *("/".join(name) for name in names))
            request.page_token = page.next_page_token
            if not request.page_token:
                break
        shown[user] = names
    everything = [(space, name) for space in ("", "shop") for name in ("orders", "secrets")]
    assert shown == {
        "ann": [("", "orders")],
        "bob": [],
        "tess": [("shop", "orders")],
        "root": everything,
    }


async def test_consumer_groups_and_quotas_are_listed_alike(
    edge: FakeEdge, meta: FakeMeta, app: BrokerApp
) -> None:
    """Each list asks for each of its rows."""
    for namespace, topic in (("", "orders"), ("", "secrets"), ("shop", "orders"), ("shop", "")):
        quota = meta_pb2.Quota(namespace=namespace, topic=topic, messages_per_s=1)
        meta.put(meta_pb2.Change(quota=quota))
    await until(lambda: app.view.revision >= meta.revision)
    groups = await listed(
        edge,
        "ann",
        "ListConsumerGroups",
        admin_pb2.ListConsumerGroupsRequest(),
        admin_pb2.ListConsumerGroupsResponse,
    )
    assert [(one.namespace, one.name) for one in groups.consumer_groups] == [("", "readers")]
    for user, wanted in (
        ("ann", [("", "orders")]),
        ("tess", [("shop", ""), ("shop", "orders")]),
        ("bob", []),
    ):
        request, kind = admin_pb2.ListQuotasRequest(), admin_pb2.ListQuotasResponse
        quotas = await listed(edge, user, "ListQuotas", request, kind)
        assert [(one.namespace, one.topic) for one in quotas.quotas] == wanted


async def test_subscriptions_of_a_topic_are_those_of_groups_that_one_sees(
    edge: FakeEdge, as_user: As
) -> None:
    """A topic's reader does not learn who else reads it."""
    await as_user("root").receive("orders", "others")
    await as_user("ann").receive("orders", "readers")
    for user, wanted in (("ann", ["readers"]), ("root", ["others", "readers"])):
        response = await edge.call(
            "/apache.rocketmq.v2.Admin/ListSubscription",
            rocketmq_admin_pb2.ListSubscriptionRequest(topic=resource("orders")),
            rocketmq_admin_pb2.ListSubscriptionResponse,
            headers(user),
        )
        assert sorted(one.group.name for one in response.subscription_info) == wanted


async def test_a_change_of_policies_counts_for_the_next_call(
    as_user: As, meta: FakeMeta, app: BrokerApp
) -> None:
    """Cached signatures and decisions do not outlive the rows that they came from."""
    ann = as_user("ann")
    assert (await ann.send(message("orders", 1))).status.code == definition_pb2.OK
    for change, code in (
        (policy_row(9, "ann", "topic:*", "pub", allow=False), definition_pb2.FORBIDDEN),
        (meta_pb2.Change(policy=meta_pb2.Policy(policy_id=9), deleted=True), definition_pb2.OK),
        (user_row("ann", disabled=True), definition_pb2.UNAUTHORIZED),
        (user_row("ann"), definition_pb2.OK),
        (user_row("ann", secret_key="another-one"), definition_pb2.UNAUTHORIZED),
    ):
        meta.put(change)
        await until(lambda: app.view.revision >= meta.revision)
        assert (await ann.send(message("orders", 2))).status.code == code


async def test_a_policy_may_ask_where_a_caller_is(
    edge: FakeEdge, meta: FakeMeta, app: BrokerApp
) -> None:
    """The same signature from another address is another decision."""
    meta.put(policy_row(9, "bob", "topic:orders", "pub", sources=["10.0.0.0/8"]))
    await until(lambda: app.view.revision >= meta.revision)
    request = service_pb2.SendMessageRequest(messages=[message("orders", 1)])
    sign = headers("bob")
    codes = []
    for peer in ("10.1.2.3:4", "11.1.2.3:4", "[::ffff:10.0.0.1]:4"):
        call = FakeCall("SendMessage", request.SerializeToString(), sign)
        call.peer = peer
        assert edge.hot is not None
        edge.hot.handle([call])
        answer = service_pb2.SendMessageResponse.FromString((await call.answer)[0])
        codes.append(answer.status.code)
    assert codes == [definition_pb2.OK, definition_pb2.FORBIDDEN, definition_pb2.OK]


async def test_wrong_signatures_are_slowed_down(as_user: As, app: BrokerApp) -> None:
    """After some of them the right key is not looked at either; other users go on."""
    guesser = as_user("ann")
    for number in range(3):
        guesser.metadata = headers("ann") | signed("ann", f"guess {number}")
        answer = await guesser.send(message("orders", 1))
        assert answer.status.message == "check signature failed."
    answer = await as_user("ann").send(message("orders", 1))
    assert answer.status.code == definition_pb2.UNAUTHORIZED
    assert "Too many wrong signatures" in answer.status.message
    answer = await as_user("root").send(message("orders", 1))
    assert answer.status.code == definition_pb2.OK
    app._metrics.read_gauges()
    shown = app._metrics.render().decode()
    assert 'strata_broker_unauthorized_total{reason="wrong signature"} 3' in shown


def test_wrong_signatures_are_counted_for_a_while() -> None:
    """Per access key and per address, within a window, in a bounded table."""
    clock = ManualClock()
    wrong = WrongSignatures(2, 10.0, clock, max_entries=50)
    wrong.add("a", "ann")
    assert not wrong.is_blocked("a", "ann")
    wrong.add("a", "ann")
    assert wrong.is_blocked("a", "ann")
    assert not wrong.is_blocked("a", "bob")
    assert not wrong.is_blocked("b", "ann")
    for number in range(2 * ADDRESS_FACTOR):
        wrong.add("a", f"user-{number}")
    assert wrong.is_blocked("a", "bob")
    clock.advance(10.0)
    assert not wrong.is_blocked("a", "ann")
    assert not wrong.is_blocked("a", "bob")
    for number in range(1_000):
        wrong.add(f"address-{number}", "ann")
    assert len(wrong) <= 50


async def test_caches_are_bounded(app: BrokerApp) -> None:
    """Each connection is a signature, each address a principal, each name a decision."""
    access, sign = app.access, headers("ann")
    for number in range(12):
        principal = access.principal_of(sign, f"10.0.0.{number}:1")
        for topic in range(40):
            principal.may(ResourceKind.TOPIC, ("", f"t{topic}"), Action.PUB)
        assert len(principal._decisions) <= 16
    assert len(access._signed) <= 8
    assert len(access._principals) <= 4


class Stream:
    """A telemetry stream."""

    def __init__(self, edge: FakeEdge, metadata: Mapping[str, str]) -> None:
        self._sent: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._answers = edge.open_stream(TELEMETRY, self._requests(), metadata)

    async def _requests(self) -> AsyncIterator[bytes]:
        while (frame := await self._sent.get()) is not None:
            yield frame

    async def say(self, settings: definition_pb2.Settings) -> service_pb2.TelemetryCommand:
        """Send settings and return the answer."""
        self._sent.put_nowait(service_pb2.TelemetryCommand(settings=settings).SerializeToString())
        return await self.next()

    async def next(self) -> service_pb2.TelemetryCommand:
        return service_pb2.TelemetryCommand.FromString(await anext(self._answers))

    async def ended(self) -> None:
        """Wait for the end of the stream."""
        with pytest.raises(StopAsyncIteration):
            await anext(self._answers)


def publishing(topic: str) -> definition_pb2.Settings:
    """A producer's settings."""
    settings = definition_pb2.Settings(client_type=definition_pb2.PRODUCER)
    settings.publishing.topics.add().CopyFrom(resource(topic))
    return settings


def subscribing(group: str, topic: str) -> definition_pb2.Settings:
    """A consumer's settings."""
    settings = definition_pb2.Settings(client_type=definition_pb2.SIMPLE_CONSUMER)
    settings.subscription.group.CopyFrom(resource(group))
    entry = settings.subscription.subscriptions.add(topic=resource(topic))
    entry.expression.expression = "*"
    return settings


async def test_refused_settings_end_their_stream_after_the_refusal(edge: FakeEdge) -> None:
    """As RocketMQ's proxy does: a status, then the end."""
    stream = Stream(edge, headers("ann"))
    assert (await stream.say(publishing("orders"))).status.code == definition_pb2.OK
    refused = await stream.say(publishing("secrets"))
    assert refused.status.code == definition_pb2.FORBIDDEN
    assert "Topic:secrets" in refused.status.message
    await stream.ended()


async def test_a_stream_sends_nothing_more_once_its_user_may_not(
    edge: FakeEdge, meta: FakeMeta, app: BrokerApp
) -> None:
    """A consumer's settings change; it may not know them any more."""
    stream = Stream(edge, headers("ann"))
    said = await stream.say(subscribing("readers", "orders"))
    assert said.status.code == definition_pb2.OK
    meta.put(policy_row(9, "ann", "group:readers", "sub", allow=False))
    group = meta_pb2.ConsumerGroup(name="readers", fifo=True)
    row = app.view.consumer_group("", "readers")
    assert row is not None
    group.MergeFrom(row)
    group.fifo = not row.fifo
    meta.put(meta_pb2.Change(consumer_group=group))
    assert (await stream.next()).status.code == definition_pb2.FORBIDDEN
    await stream.ended()


async def test_a_client_belongs_to_its_user(edge: FakeEdge, app: BrokerApp) -> None:
    """Nobody speaks for other people's clients, nor ends them."""
    stream = Stream(edge, headers("ann"))
    await stream.say(subscribing("readers", "orders"))
    client = app.sessions.find("client of ann")
    assert client is not None
    assert client.user == "ann"
    theirs = headers("tess", "client of ann")
    stolen = await Stream(edge, theirs).say(publishing("orders"))
    assert stolen.status.code == definition_pb2.FORBIDDEN
    for rpc, request, response_type in (
        ("Heartbeat", service_pb2.HeartbeatRequest(), service_pb2.HeartbeatResponse),
        (
            "NotifyClientTermination",
            service_pb2.NotifyClientTerminationRequest(),
            service_pb2.NotifyClientTerminationResponse,
        ),
    ):
        answer: Any = await edge.call(MESSAGING + rpc, request, response_type, theirs)
        assert answer.status.code == definition_pb2.FORBIDDEN, rpc
        assert answer.status.message == "client client of ann belongs to another user"
    assert not client.is_gone
    # A user that may consume with its consumer group may end its members, too.
    mates = headers("bob", "client of ann")
    answer = await edge.call(
        MESSAGING + "NotifyClientTermination",
        service_pb2.NotifyClientTerminationRequest(),
        service_pb2.NotifyClientTerminationResponse,
        mates,
    )
    assert answer.status.code == definition_pb2.OK
    assert client.is_gone


async def test_a_handle_of_nobody_is_invalid(as_user: As, app: BrokerApp) -> None:
    """A receipt handle that somebody computed acks nothing, one that was given does."""
    ann = as_user("ann")
    await ann.send(message("orders", 1))
    (got,) = await ann.receive_all("orders", "readers")
    given = got.system_properties.receipt_handle
    forged = given[:40] + ("A" if given[40] != "A" else "B") + given[41:]
    for handle, code in (
        (forged, definition_pb2.INVALID_RECEIPT_HANDLE),
        (given, definition_pb2.OK),
    ):
        answer = await ann.ack("orders", "readers", handle)
        assert answer.status.code == code
    assert app.handles.keys().signing_key_id == 1


async def test_writes_to_tables_by_messages_take_the_tables_right(
    as_user: As, meta: FakeMeta, app: BrokerApp
) -> None:
    """The topic of such a message names a table: a topic's right is no right on it."""
    write = message("orders", 1)
    write.user_properties["kv_opType"], write.user_properties["key"] = "PUT", "k"
    answer = await as_user("ann").send(write)
    assert answer.status.code == definition_pb2.FORBIDDEN
    assert "Table:orders" in answer.status.message


async def test_tables_are_listed_by_their_rights(
    edge: FakeEdge, meta: FakeMeta, app: BrokerApp
) -> None:
    """A tenant sees the tables of its namespace, others none."""
    for name in ("prices", "stock"):
        meta.add_topic(f"%KV%{name}", namespace="shop", queue_count=1)
    await until(lambda: app.view.revision >= meta.revision)
    for user, wanted in (("tess", ["prices", "stock"]), ("ann", [])):
        response = await edge.call(
            "/strata.kv.v1.KvService/ListTables",
            kv_pb2.ListTablesRequest(namespace="shop"),
            kv_pb2.ListTablesResponse,
            headers(user),
        )
        assert sorted(table.name for table in response.tables) == wanted


async def test_who_only_reads_tables_creates_none_by_watching(
    edge: FakeEdge, meta: FakeMeta, app: BrokerApp
) -> None:
    """A watch of a table that is not there creates it for those who may write it."""
    meta.put(policy_row(6, "ann", "table:prices", "get"))
    meta.put(policy_row(7, "bob", "table:prices", "get", "update"))
    await until(lambda: app.view.revision >= meta.revision)
    request = kv_pb2.WatchRequest(table=kv_pb2.TableName(name="prices")).SerializeToString()
    serve = edge.server_streams["/strata.kv.v1.KvService/Watch"]

    async def watch(user: str) -> None:
        async with aclosing(serve(request, FakeCall("", b"", headers(user)))) as changes:  # type: ignore[type-var]
            await anext(changes)

    with pytest.raises(CallError) as refused:
        await watch("ann")
    assert (refused.value.status, app.view.topic("", "%KV%prices")) == ("NOT_FOUND", None)
    watching = asyncio.ensure_future(watch("bob"))
    await until(lambda: app.view.topic("", "%KV%prices") or watching.done())
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching
    assert meta.calls.count("CreateTopic") == 1


async def test_dead_letters_are_their_consumer_groups(
    edge: FakeEdge, broker: BrokerUnderTest[FakeEdge]
) -> None:
    """`topic:*` says nothing about dead letters."""
    principal = broker.app.access.principal_of(headers("ann"), "127.0.0.1:1")
    assert principal.may(ResourceKind.TOPIC, ("", "orders"), Action.SUB)
    request = admin_pb2.FindMessagesRequest(topic="%DLQ%others", message_id="x")
    with pytest.raises(CallError) as refused:
        await listed(edge, "ann", "FindMessages", request, admin_pb2.FindMessagesResponse)
    assert refused.value.status == "PERMISSION_DENIED"
    assert "Group:others" in refused.value.reason


async def test_without_metadata_nobody_is_let_in(app: BrokerApp) -> None:
    """A broker that never reached a nameserver knows no user, and says so."""
    app.view._ready = False
    app.access._version = -1
    with pytest.raises(AccessRefused) as refused:
        app.access.principal_of(headers("ann"), "127.0.0.1:1")
    assert "has not reached a nameserver" in refused.value.text
    app.view._ready = True


async def test_a_long_cached_signature_ends_with_its_date(app: BrokerApp) -> None:
    """The window is looked at when a signature is new; what is remembered ends with it."""
    old = datetime.now(UTC) - timedelta(minutes=14, seconds=59)
    sign = headers("ann") | signed("ann", date=old)
    app.access.principal_of(sign, "127.0.0.1:1")
    (kept,) = app.access._signed.values()
    left_ms = kept.until_ms - datetime.now(UTC).timestamp() * 1000
    assert left_ms <= 2_000


@pytest.mark.parametrize("hours", [2, 5, 9])
async def test_a_copied_header_is_good_for_minutes(as_user: As, app: BrokerApp, hours: int) -> None:
    """A header of hours ago lets nobody in, and the refusal says what a client may lack."""
    ann = as_user("ann")
    old = datetime.now(UTC) - timedelta(hours=hours)
    ann.metadata = headers("ann") | signed("ann", date=old)
    answer = await ann.send(message("orders", 1))
    assert answer.status.code == definition_pb2.UNAUTHORIZED
    assert "access_control.time_zones" in answer.status.message
    assert "access_control.max_clock_skew_ms" in answer.status.message
