"""Quotas: what is refused, for whom, how much of it is this broker's, and what it costs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_broker.app import BrokerApp
from strata_broker.base.config import BrokerConfig, QuotasSection
from strata_broker.base.token_bucket import TokenBucket
from strata_broker.metadata.metadata import MetadataView, TopicRow
from strata_broker.metadata.quotas import CONNECTIONS, CONSUMER_GROUPS, TOPICS, Quotas
from strata_edge.ports import CallError
from strata_mq.requests.errors import Code, RequestError
from strata_runtime.metrics import Metrics
from strata_testing import ManualClock, until
from strata_testing.broker import broker_config
from strata_testing.broker.client import Client, message, resource
from strata_testing.broker.fake_edge import ADMIN, MESSAGING, FakeEdge
from strata_testing.broker.fake_meta import FakeMeta

KB = 1024


class Bench:
    """Quotas over a view that a test feeds."""

    def __init__(self, **defaults: int) -> None:
        self.clock = ManualClock()
        self.view = MetadataView()
        self.revision = 0
        self.config = QuotasSection.model_validate({"burst_ms": 1_000} | defaults)
        self.quotas = Quotas(self.view, self.config, self.clock, metrics=Metrics.disabled())

    def put(self, **row: Any) -> None:
        """Bring one change of the metadata."""
        self.revision += 1
        change = meta_pb2.Change(**row)
        self.view.apply(meta_pb2.WatchResponse(revision=self.revision, changes=[change]))

    def topic(self, name: str, namespace: str = "shop") -> TopicRow:
        """Make a topic."""
        self.put(
            topic=meta_pb2.Topic(
                topic_id=self.revision + 1,
                namespace=namespace,
                name=name,
                type=meta_pb2.TOPIC_TYPE_NORMAL,
                queue_count=1,
            )
        )
        row = self.view.topic(namespace, name)
        assert row is not None
        return row

    def broker(self, name: str, state: meta_pb2.NodeState.ValueType) -> None:
        """Make or change a broker's row."""
        node = meta_pb2.Node(node_id=name, kind=meta_pb2.NODE_KIND_BROKER, state=state)
        self.put(node=node)

    def passed(self, topic: TopicRow, tries: int, size_bytes: int = 1) -> int:
        """Return how many of so many requests with one message pass at this moment."""
        count = 0
        for _ in range(tries):
            try:
                self.quotas.check_send(topic)
                self.quotas.charge_send(topic, 1, size_bytes)
            except RequestError as refused:
                assert refused.code is Code.TOO_MANY_REQUESTS
            else:
                count += 1
        return count


def test_a_bucket_gives_its_rate_over_time() -> None:
    """The burst at once, then the rate; a request larger than the burst makes a debt."""
    bucket = TokenBucket(10, burst_s=2, now_s=0)
    bucket.take(45)
    assert bucket.used(0) == pytest.approx(45 / 20)
    assert not bucket.in_credit(2.59), "24.9 of the 25 tokens of debt are back"
    assert bucket.in_credit(2.61)
    assert bucket.used(1_000) == 0, "no more than the burst is gathered"
    assert bucket.in_credit(1), "a clock that goes back takes nothing away"


def test_a_changed_rate_keeps_the_share_that_is_used() -> None:
    """A limit that is raised frees nobody of a debt, one that is lowered makes none."""
    bucket = TokenBucket(10, burst_s=1, now_s=0)
    bucket.take(5)
    bucket.change_rate(1_000, 1, now_s=0)
    assert bucket.used(0) == pytest.approx(0.5)
    assert (bucket.rate_per_s, bucket.burst) == (1_000, 1_000)


def test_messages_of_a_namespace_share_its_rate() -> None:
    """All topics of a namespace together get its rate, another namespace is not touched."""
    bench = Bench()
    orders, bills, other = bench.topic("orders"), bench.topic("bills"), bench.topic("x", "y")
    assert not bench.quotas.limit_sends
    bench.put(quota=meta_pb2.Quota(namespace="shop", messages_per_s=10))
    assert bench.quotas.limit_sends
    assert bench.passed(orders, 6) + bench.passed(bills, 20) == 10
    bench.clock.advance(0.5)
    assert bench.passed(orders, 20) == 5
    assert bench.passed(other, 100) == 100


def test_bytes_and_messages_are_both_held() -> None:
    """The narrower limit decides, and a refused request is counted nowhere."""
    bench = Bench(namespace_messages_per_s=100, topic_bytes_per_s=10 * KB)
    orders, bills = bench.topic("orders"), bench.topic("bills")
    assert bench.passed(orders, 50, 4 * KB) == 3, "the third one makes the debt"
    assert bench.passed(bills, 50, 1) == 50
    assert bench.passed(bills, 100, 1) == 47, "the 47 that orders was refused were not counted"


def test_a_row_overrides_the_default_either_way() -> None:
    """More, less, or no limit at all (0) instead of the configured one; absent: the default."""
    bench = Bench(topic_messages_per_s=5)
    topics = {name: bench.topic(name) for name in ("more", "none", "other")}
    bench.put(quota=meta_pb2.Quota(namespace="shop", topic="more", messages_per_s=8))
    bench.put(quota=meta_pb2.Quota(namespace="shop", topic="none", messages_per_s=0))
    bench.put(quota=meta_pb2.Quota(namespace="shop", topic="other", bytes_per_s=KB))
    passed = {name: bench.passed(topic, 100) for name, topic in topics.items()}
    assert passed == {"more": 8, "none": 100, "other": 5}
    (messages, size) = bench.quotas.limits("shop", "other")
    assert (messages.limit, messages.is_default) == (5, True)
    assert (size.limit, size.is_default) == (KB, False)


def test_a_broker_gives_its_part() -> None:
    """The limit divided by the live brokers: those down or draining do not count."""
    bench = Bench(namespace_messages_per_s=100)
    topic = bench.topic("orders")
    for name in ("a", "b", "c", "d"):
        bench.broker(name, meta_pb2.NODE_STATE_UP)
    assert bench.passed(topic, 1_000) == 25
    bench.broker("a", meta_pb2.NODE_STATE_DOWN)
    bench.broker("b", meta_pb2.NODE_STATE_SUSPECT)
    bench.put(node=meta_pb2.Node(node_id="c", kind=meta_pb2.NODE_KIND_BROKER, draining=True))
    bench.clock.advance(1)
    assert bench.passed(topic, 1_000) == 50
    (messages, *_) = bench.quotas.limits("shop", "")
    assert (messages.limit, messages.part) == (100, 50.0)


def test_a_limit_that_goes_lets_everything_through() -> None:
    """Without any limit left, sends are not looked at, and nothing is remembered."""
    bench = Bench()
    bench.topic("orders")
    bench.put(quota=meta_pb2.Quota(namespace="shop", messages_per_s=1))
    assert bench.quotas.limit_sends
    bench.put(deleted=True, quota=meta_pb2.Quota(namespace="shop"))
    assert not bench.quotas.limit_sends
    bench.put(quota=meta_pb2.Quota(namespace="shop", topics=1))
    assert not bench.quotas.limit_sends, "topics are not sent"


def test_memory_is_bounded() -> None:
    """However many topics are sent to, so many are tracked; the rate of the others still holds."""
    bench = Bench(topic_messages_per_s=1, max_tracked=10)
    topics = [bench.topic(f"t{number}") for number in range(50)]
    for topic in topics:
        assert bench.passed(topic, 2) == 1
    assert len(bench.quotas._buckets) == 10


def test_the_text_says_whose_quota_it_is() -> None:
    """Namespace, topic, limit and unit are named."""
    bench = Bench(topic_bytes_per_s=7)
    topic = bench.topic("orders")
    bench.passed(topic, 1, 10)
    with pytest.raises(RequestError) as refused:
        bench.quotas.check_send(topic)
    assert refused.value.text == "the quota of topic [orders] of namespace [shop] is 7 bytes/s"


def refusal(quotas: Quotas, kind: str) -> str:
    """Create something in `shop` and return why it may not be; "": it may."""
    try:
        with quotas.creating(kind, "shop"):
            return ""
    except RequestError as refused:
        assert refused.code is Code.TOO_MANY_REQUESTS
        return refused.text


def test_what_is_being_created_counts() -> None:
    """Creations under way take room as those that are done, and give it back when they fail."""
    bench = Bench(namespace_topics=2, namespace_consumer_groups=1)
    bench.topic("orders")
    bench.put(
        topic=meta_pb2.Topic(
            namespace="shop", name="%DLQ%g", type=meta_pb2.TOPIC_TYPE_DEAD_LETTER, topic_id=90
        )
    )
    with bench.quotas.creating(TOPICS, "shop"):
        assert refusal(bench.quotas, TOPICS) == "the quota of namespace [shop] is 2 topics"
    assert not refusal(bench.quotas, TOPICS)
    bench.topic("bills")
    assert refusal(bench.quotas, TOPICS)
    bench.put(consumer_group=meta_pb2.ConsumerGroup(namespace="shop", name="g"))
    bench.put(consumer_group=meta_pb2.ConsumerGroup(namespace="shop", name="g", fifo=True))
    assert refusal(bench.quotas, CONSUMER_GROUPS).endswith("is 1 consumer groups")
    used = {limit.name: limit.used for limit in bench.quotas.limits("shop", "")}
    assert (used[TOPICS], used[CONSUMER_GROUPS], used[CONNECTIONS]) == (2, 1, 0)
    bench.put(deleted=True, consumer_group=meta_pb2.ConsumerGroup(namespace="shop", name="g"))
    assert not refusal(bench.quotas, CONSUMER_GROUPS)


QUOTA_CONFIG = broker_config(
    quotas={"namespace_connections": 2, "namespace_consumer_groups": 1, "burst_ms": 1},
    metadata={"auto_create_topic": True},
)


class TestThroughABroker:
    """The same as clients and operators meet it."""

    @pytest.fixture
    def config(self) -> BrokerConfig:
        """Few connections and consumer groups."""
        return QUOTA_CONFIG

    async def test_a_send_over_the_quota(
        self, app: BrokerApp, client: Client, meta: FakeMeta
    ) -> None:
        """TOO_MANY_REQUESTS with the reason, in the request's status and in each entry's."""
        meta.put(meta_pb2.Change(quota=meta_pb2.Quota(topic="orders", messages_per_s=1)))
        assert await app.view.wait_for_revision(meta.revision, 60)
        first = await client.send(message("orders", 1), message("orders", 2))
        second = await client.send(message("orders", 3), message("orders", 4))
        text = "the quota of topic [orders] of the default namespace is 1 messages/s"
        assert first.status.code == definition_pb2.OK
        assert [entry.status.message for entry in second.entries] == [text] * 2
        assert {entry.status.code for entry in second.entries} == {definition_pb2.TOO_MANY_REQUESTS}
        assert second.status == second.entries[0].status
        assert (await client.send(message("fifo", 5, message_group="a"))).status.code == 20000

    async def test_a_refused_send_costs_nothing_of_the_quota(
        self, app: BrokerApp, client: Client, meta: FakeMeta
    ) -> None:
        """An error of a message is found before the message is counted."""
        meta.put(meta_pb2.Change(quota=meta_pb2.Quota(topic="orders", messages_per_s=1)))
        assert await app.view.wait_for_revision(meta.revision, 60)
        for number in range(5):
            wrong = await client.send(message("orders", number, body=b""))
            assert wrong.status.code == definition_pb2.MESSAGE_BODY_EMPTY
        assert (await client.send(message("orders", 9))).status.code == definition_pb2.OK

    async def test_one_consumer_group_too_many(self, client: Client) -> None:
        """The receive that would make it is refused; the first one goes on."""
        assert (await client.receive("orders", "first"))[0].code == definition_pb2.MESSAGE_NOT_FOUND
        status, _ = await client.receive("orders", "second")
        assert status.code == definition_pb2.TOO_MANY_REQUESTS
        assert status.message == "the quota of the default namespace is 1 consumer groups"
        assert (await client.receive("orders", "first"))[0].code == definition_pb2.MESSAGE_NOT_FOUND

    async def test_one_topic_too_many(self, app: BrokerApp, client: Client, meta: FakeMeta) -> None:
        """Neither a client's first use nor an operator makes it."""
        meta.put(meta_pb2.Change(quota=meta_pb2.Quota(topics=3)))
        assert await app.view.wait_for_revision(meta.revision, 60)
        assert (await client.send(message("third", 1))).status.code == definition_pb2.OK
        refused = await client.send(message("fourth", 2))
        assert refused.status.code == definition_pb2.TOO_MANY_REQUESTS
        request = admin_pb2.CreateTopicRequest(topic=meta_pb2.Topic(name="fourth"))
        with pytest.raises(CallError) as failure:
            await client.edge.call(ADMIN + "CreateTopic", request, admin_pb2.CreateTopicResponse)
        assert failure.value.status == "RESOURCE_EXHAUSTED"
        assert failure.value.reason == "the quota of the default namespace is 3 topics"

    async def test_connections(self, app: BrokerApp, edge: FakeEdge) -> None:
        """The third stream of a namespace ends, and one that closes makes room."""
        streams = [Stream(edge, f"c{number}", "shop") for number in range(2)]
        for stream in streams:
            await stream.settings()
        third = Stream(edge, "c3", "shop")
        with pytest.raises(CallError) as failure:
            await third.settings()
        assert failure.value.status == "RESOURCE_EXHAUSTED"
        assert failure.value.reason == "the quota of namespace [shop] is 2 connections"
        await Stream(edge, "c4", "elsewhere").settings()
        await streams[0].close()
        await until(lambda: app._quotas.limits("shop", "")[-1].used == 1)
        await Stream(edge, "c5", "shop").settings()

    async def test_connections_count_where_their_settings_say(self, edge: FakeEdge) -> None:
        """A client that keeps its namespace out of the metadata is counted all the same."""
        for number in range(2):
            await Stream(edge, f"c{number}", "", named="shop").settings()
        third = Stream(edge, "c3", "", named="shop")
        with pytest.raises(CallError, match="connections"):
            await third.settings()
        await Stream(edge, "c4", "", named="").settings()

    async def test_operators_see_what_holds(
        self, app: BrokerApp, edge: FakeEdge, meta: FakeMeta
    ) -> None:
        """The limits in force with where they come from, and the rows that were set, in pages."""
        for namespace in ("a", "b", "c"):
            quota = meta_pb2.Quota(namespace=namespace, connections=7)
            meta.put(meta_pb2.Change(quota=quota))
        assert await app.view.wait_for_revision(meta.revision, 60)
        request = admin_pb2.GetQuotaRequest(namespace="b")
        shown = await edge.call(ADMIN + "GetQuota", request, admin_pb2.GetQuotaResponse)
        limits = {limit.name: (limit.limit, limit.is_default) for limit in shown.limits}
        assert limits == {
            "messages_per_s": (0, True),
            "bytes_per_s": (0, True),
            "topics": (0, True),
            "consumer_groups": (1, True),
            "connections": (7, False),
        }
        page = admin_pb2.ListQuotasRequest(page_size=2)
        first = await edge.call(ADMIN + "ListQuotas", page, admin_pb2.ListQuotasResponse)
        page.page_token = first.next_page_token
        second = await edge.call(ADMIN + "ListQuotas", page, admin_pb2.ListQuotasResponse)
        names = [row.namespace for row in (*first.quotas, *second.quotas)]
        assert (names, second.next_page_token) == (["a", "b", "c"], "")
        with pytest.raises(CallError) as failure:
            await edge.call(
                ADMIN + "GetQuota",
                admin_pb2.GetQuotaRequest(topic="none"),
                admin_pb2.GetQuotaResponse,
            )
        assert failure.value.status == "NOT_FOUND"


class Stream:
    """A client's settings stream."""

    def __init__(
        self, edge: FakeEdge, client_id: str, namespace: str, named: str | None = None
    ) -> None:
        self._named = namespace if named is None else named
        self._frames: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._answers = edge.open_stream(
            MESSAGING + "Telemetry",
            self._requests(),
            {"x-mq-client-id": client_id, "x-mq-namespace": namespace},
        )

    async def settings(self) -> None:
        """Send settings and wait for the answer."""
        settings = definition_pb2.Settings(client_type=definition_pb2.PRODUCER)
        settings.publishing.topics.append(resource("orders", self._named))
        frame = service_pb2.TelemetryCommand(settings=settings).SerializeToString()
        self._frames.put_nowait(frame)
        await anext(self._answers)

    async def close(self) -> None:
        """Close the client's side and read to the end."""
        self._frames.put_nowait(None)
        async for _ in self._answers:
            pass

    async def _requests(self) -> AsyncIterator[bytes]:
        while (frame := await self._frames.get()) is not None:
            yield frame
