"""Telemetry streams and the settings on them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.meta.v1 import meta_pb2
from strata_broker.app import BrokerApp
from strata_broker.base.config import BrokerConfig, TelemetrySection
from strata_broker.clients import settings
from strata_broker.clients.sessions import Client
from strata_broker.clients.telemetry import TelemetryStream
from strata_broker.metadata.requests import Caller
from strata_edge.ports import CallError
from strata_testing import until
from strata_testing.broker import BrokerUnderTest, broker_config
from strata_testing.broker.client import resource
from strata_testing.broker.fake_edge import MESSAGING, FakeEdge
from strata_testing.broker.fake_meta import FakeMeta

TELEMETRY = MESSAGING + "Telemetry"


class Stream:
    """The client's side of a stream."""

    def __init__(self, edge: FakeEdge, client_id: str = "c1", language: str = "JAVA") -> None:
        self._said: asyncio.Queue[bytes | None] = asyncio.Queue()
        metadata = {"x-mq-client-id": client_id, "x-mq-language": language}
        self.answers = edge.open_stream(TELEMETRY, self._requests(), metadata)

    async def _requests(self) -> AsyncIterator[bytes]:
        while (frame := await self._said.get()) is not None:
            yield frame

    def say(self, told: definition_pb2.Settings) -> None:
        """Send settings."""
        self._said.put_nowait(service_pb2.TelemetryCommand(settings=told).SerializeToString())

    def say_bytes(self, data: bytes) -> None:
        """Send anything."""
        self._said.put_nowait(data)

    def hang_up(self) -> None:
        """Close the client's side."""
        self._said.put_nowait(None)

    async def hear(self) -> service_pb2.TelemetryCommand:
        """Return the next command."""
        return service_pb2.TelemetryCommand.FromString(await anext(self.answers))


def producer(*topics: str) -> definition_pb2.Settings:
    """A producer's settings."""
    return definition_pb2.Settings(
        client_type=definition_pb2.PRODUCER,
        publishing=definition_pb2.Publishing(topics=map(resource, topics)),
    )


def consumer(group: str, language: int = definition_pb2.JAVA) -> definition_pb2.Settings:
    """A push consumer's settings."""
    told = definition_pb2.Settings(client_type=definition_pb2.PUSH_CONSUMER)
    told.user_agent.language = language  # type: ignore[assignment]
    told.subscription.group.CopyFrom(resource(group))
    entry = told.subscription.subscriptions.add(topic=resource("orders"))
    entry.expression.type = definition_pb2.TAG
    entry.expression.expression = "*"
    return told


def subscribed(
    kind: definition_pb2.FilterType.ValueType, expression: str
) -> definition_pb2.Settings:
    settings = consumer("g")
    entry = settings.subscription.subscriptions.add(topic=definition_pb2.Resource(name="orders"))
    entry.expression.type = kind
    entry.expression.expression = expression
    return settings


async def test_a_producer_is_told_what_the_real_product_tells(edge: FakeEdge) -> None:
    """Status OK, the same branch, exponential backoff, limits."""
    stream = Stream(edge)
    stream.say(producer("orders"))
    command = await stream.hear()
    assert (command.status.code, command.status.message) == (20000, "OK")
    told = command.settings
    assert told.client_type == definition_pb2.PRODUCER
    assert [topic.name for topic in told.publishing.topics] == ["orders"]
    assert told.publishing.max_body_size == 4_194_304
    assert told.publishing.validate_message_type
    assert told.HasField("metric")
    policy = told.backoff_policy
    assert policy.max_attempts == 3
    assert policy.exponential_backoff.initial.ToMilliseconds() == 10
    assert policy.exponential_backoff.max.ToMilliseconds() == 1_000
    assert policy.exponential_backoff.multiplier == 2.0
    stream.hang_up()


async def test_a_consumer_is_told_its_groups_policy(edge: FakeEdge) -> None:
    """Defaults of a group that does not exist yet, as observed."""
    stream = Stream(edge)
    stream.say(consumer("g"))
    told = (await stream.hear()).settings
    subscription = told.subscription
    assert subscription.HasField("fifo")
    assert not subscription.fifo
    assert subscription.receive_batch_size == 32
    assert subscription.long_polling_timeout.seconds == 20
    assert (subscription.lite_subscription_quota, subscription.max_lite_topic_size) == (2_000, 64)
    assert told.backoff_policy.max_attempts == 17
    steps = [step.seconds for step in told.backoff_policy.customized_backoff.next]
    assert steps[:5] == [1, 5, 10, 30, 60]
    assert steps[-1] == 7_200
    assert len(steps) == 18
    stream.hang_up()


async def test_node_clients_hear_their_settings_again(edge: FakeEdge) -> None:
    """Three repeats of the same frame; other clients hear it once."""
    stream = Stream(edge, language="HTTP")
    stream.say(consumer("g", definition_pb2.NODE_JS))
    frames = [await anext(stream.answers) for _ in range(4)]
    assert len(set(frames)) == 1
    stream.hang_up()
    with pytest.raises(StopAsyncIteration):
        await anext(stream.answers)


def change_group(meta: FakeMeta, **fields: object) -> None:
    """Write a consumer group's row as the nameserver does when an operator changes it."""
    meta.put(meta_pb2.Change(consumer_group=group_with(**fields)))


async def test_a_changed_group_is_told_to_its_clients(edge: FakeEdge, meta: FakeMeta) -> None:
    """Attempts and retry policy reach every open stream of the group, in its client's shape."""
    java, python = Stream(edge, "c1"), Stream(edge, "c2", "PYTHON")
    java.say(consumer("g"))
    python.say(consumer("g", definition_pb2.PYTHON))
    await java.hear()
    await python.hear()
    change_group(meta, exponential=EXPONENTIAL)
    told = (await java.hear()).settings
    assert told.backoff_policy.max_attempts == 5
    assert told.backoff_policy.exponential_backoff.initial.ToMilliseconds() == 500
    steps = (await python.hear()).settings.backoff_policy.customized_backoff.next
    assert [step.seconds for step in steps] == [1, 1, 2, 4]
    java.hang_up()
    python.hang_up()


async def test_many_changes_are_one_push(edge: FakeEdge, meta: FakeMeta, app: BrokerApp) -> None:
    """Only the last of several changes is told, and the next one waits for its interval."""
    stream, other = Stream(edge, "c1"), Stream(edge, "c2")
    stream.say(consumer("g"))
    await stream.hear()
    for attempts in (3, 4, 6):
        change_group(meta, max_attempts=attempts)
    assert (await stream.hear()).settings.backoff_policy.max_attempts == 6
    change_group(meta, max_attempts=7)
    assert await app.view.wait_for_revision(meta.revision, 60)
    # A client's own settings are answered at once all the same, from the newest row.
    stream.say(consumer("g"))
    assert (await stream.hear()).settings.backoff_policy.max_attempts == 7
    # A stream that nothing was pushed to proves that the first is not told twice.
    other.say(producer("orders"))
    await other.hear()
    stream.hang_up()
    with pytest.raises(StopAsyncIteration):
        await stream.hear()
    other.hang_up()


async def test_settings_that_stay_the_same_are_not_pushed(edge: FakeEdge, meta: FakeMeta) -> None:
    """Neither another group nor a field that clients are not told of wakes a client."""
    stream, other = Stream(edge, "c1"), Stream(edge, "c2")
    stream.say(consumer("g"))
    other.say(consumer("h"))
    await stream.hear()
    await other.hear()
    change_group(meta, max_attempts=17)
    change_group(meta, max_attempts=17, created_at_ms=1)
    meta.put(meta_pb2.Change(consumer_group=meta_pb2.ConsumerGroup(name="h", max_attempts=2)))
    # One round looks at all three changes: when the other client was told, this one was not.
    assert (await other.hear()).settings.backoff_policy.max_attempts == 2
    stream.hang_up()
    with pytest.raises(StopAsyncIteration):
        await stream.hear()
    other.hang_up()


async def test_a_bare_stream_is_told_changes_too(edge: FakeEdge, meta: FakeMeta) -> None:
    """Settings from an earlier stream count; changes that the client missed in between are told."""
    first = Stream(edge, "c1")
    first.say(consumer("g"))
    await first.hear()
    first.hang_up()
    with pytest.raises(StopAsyncIteration):
        await first.hear()
    change_group(meta, max_attempts=3)
    bare = Stream(edge, "c1")
    assert (await bare.hear()).settings.backoff_policy.max_attempts == 3
    bare.hang_up()


class Unwalked(set[TelemetryStream]):
    """Streams that nobody may go through."""

    def __iter__(self) -> Iterator[TelemetryStream]:
        raise AssertionError("all streams were looked at")


async def test_the_stream_of_a_client_is_looked_up(
    app: BrokerApp, edge: FakeEdge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that opened another stream has the new one, and the old one if the new one ends."""
    telemetry = app._telemetry
    streams: list[Stream] = []
    opened: list[TelemetryStream] = []
    for client_id in ("c1", "c2", "c1"):
        streams.append(Stream(edge, client_id))
        streams[-1].say(producer("orders"))
        await streams[-1].hear()
        opened += telemetry._open - set(opened)

    def found() -> list[int]:
        with monkeypatch.context() as patches:
            patches.setattr(telemetry, "_open", Unwalked(telemetry._open))
            all_found = [telemetry.stream_of(client_id) for client_id in ("c1", "c2", "c3")]
        return [-1 if one is None else opened.index(one) for one in all_found]

    assert found() == [2, 1, -1]
    for number, left in ((2, [0, 1, -1]), (0, [-1, 1, -1]), (1, [-1, -1, -1])):
        streams[number].hang_up()
        assert await anext(streams[number].answers, None) is None
        assert found() == left


async def test_a_bare_stream_is_registered_by_client_id(app: BrokerApp, edge: FakeEdge) -> None:
    """Without any settings the client is known and alive."""
    stream = Stream(edge, client_id="bare")
    hearing = asyncio.ensure_future(anext(stream.answers, None))
    await until(lambda: len(app.sessions) == 1)
    assert len(app.sessions.live_holders()) == 1
    stream.hang_up()
    assert await hearing is None


@pytest.mark.parametrize(
    "bad",
    [
        definition_pb2.Settings(),
        producer("bad topic!"),
        consumer("bad group!"),
    ],
)
async def test_bad_settings_end_the_stream(edge: FakeEdge, bad: definition_pb2.Settings) -> None:
    """INVALID_ARGUMENT, as the real product does."""
    stream = Stream(edge)
    stream.say(bad)
    with pytest.raises(CallError) as failure:
        await stream.hear()
    assert failure.value.status == "INVALID_ARGUMENT"


@pytest.mark.parametrize(
    ("kind", "expression", "text"),
    [
        (definition_pb2.SQL, "a > 5 AND b IS NOT NULL", ""),
        (definition_pb2.TAG, "a || b", ""),
        (definition_pb2.FILTER_TYPE_UNSPECIFIED, "", ""),
        (definition_pb2.SQL, "a >", "character 4"),
        (definition_pb2.SQL, "", "is empty"),
        (definition_pb2.TAG, "||", "names no tag"),
    ],
)
async def test_filters_of_subscriptions_are_checked(
    edge: FakeEdge, kind: definition_pb2.FilterType.ValueType, expression: str, text: str
) -> None:
    """The answer holds what was said; a wrong filter shows in its status, the stream goes on."""
    stream = Stream(edge)
    said = subscribed(kind, expression)
    for _ in range(2):
        stream.say(said)
        told = await stream.hear()
        assert told.settings.subscription.subscriptions == said.subscription.subscriptions
        expected = definition_pb2.ILLEGAL_FILTER_EXPRESSION if text else definition_pb2.OK
        assert told.status.code == expected
        assert text in told.status.message


async def test_garbage_and_a_missing_client_id_end_the_stream(edge: FakeEdge) -> None:
    """Nothing else suffers."""
    stream = Stream(edge)
    stream.say_bytes(b"\xff\xff\xff")
    with pytest.raises(CallError):
        await stream.hear()
    with pytest.raises(CallError):
        await Stream(edge, client_id="").hear()
    fine = Stream(edge)
    fine.say(producer("orders"))
    assert (await fine.hear()).status.code == 20000
    fine.hang_up()


async def test_answers_to_commands_keep_the_stream_open(edge: FakeEdge) -> None:
    """A thread stack trace is only a sign of life."""
    stream = Stream(edge)
    command = service_pb2.TelemetryCommand()
    command.thread_stack_trace.nonce = "n"
    stream.say_bytes(command.SerializeToString())
    stream.say(producer("orders"))
    assert (await stream.hear()).status.code == 20000
    stream.hang_up()


async def test_a_client_that_does_not_read_loses_its_stream() -> None:
    """The frames that wait are bounded."""
    for limits in (TelemetrySection(max_frames_queued=2), TelemetrySection(max_bytes_queued=10)):
        stream = TelemetryStream(
            Caller("slow", ""), Client("slow"), limits, peer="", on_idle=lambda: None
        )
        for _ in range(3):
            stream.push(b"frame")
        with pytest.raises(CallError) as failure:
            await stream.next()
        assert failure.value.status == "RESOURCE_EXHAUSTED"


async def test_a_client_that_reads_is_sent_what_is_large() -> None:
    """One frame always goes, and what was read waits no more."""
    limits = TelemetrySection(max_bytes_queued=10)
    stream = TelemetryStream(Caller("c", ""), Client("c"), limits, peer="", on_idle=lambda: None)
    for _ in range(3):
        stream.push(b"larger than that")
        assert await stream.next() == b"larger than that"


def group_with(**fields: object) -> meta_pb2.ConsumerGroup:
    """A consumer group's row."""
    fields.setdefault("max_attempts", 5)
    return meta_pb2.ConsumerGroup(name="g", **fields)  # type: ignore[arg-type]


EXPONENTIAL = meta_pb2.ExponentialBackoff(initial_ms=500, max_ms=5_000, multiplier=2.0)
CUSTOMIZED = meta_pb2.CustomizedBackoff(next_ms=[1_000, 1_500, 30_000])


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        (group_with(exponential=EXPONENTIAL), (500, 5_000)),
        (group_with(customized=CUSTOMIZED), (1_000, 30_000)),
    ],
)
def test_node_is_told_exponential_seconds_that_mean_milliseconds(
    group: meta_pb2.ConsumerGroup, expected: tuple[int, int]
) -> None:
    """Node reads the seconds of a duration as milliseconds."""
    policy = settings.shape_for(definition_pb2.NODE_JS, settings.group_policy(group))
    backoff = policy.exponential_backoff
    assert (backoff.initial.seconds, backoff.max.seconds) == expected
    assert policy.max_attempts == 5


def test_node_producers_back_off() -> None:
    """A back-off of 10 ms for other clients is 10 s for Node, which reads it as 10 ms."""
    for language, seconds in ((definition_pb2.NODE_JS, 10), (definition_pb2.JAVA, 0)):
        told = settings.answer(producer("orders"), None, language, BrokerConfig())
        backoff = told.backoff_policy.exponential_backoff
        assert (backoff.initial.seconds, backoff.multiplier) == (seconds, 2.0)


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        (group_with(exponential=EXPONENTIAL), [1, 1, 2, 4]),
        (group_with(customized=CUSTOMIZED), [1, 2, 30]),
    ],
)
def test_python_is_told_a_list_of_whole_seconds(
    group: meta_pb2.ConsumerGroup, expected: list[int]
) -> None:
    """Python cuts fractions off, so they are rounded up."""
    policy = settings.shape_for(definition_pb2.PYTHON, settings.group_policy(group))
    assert [step.seconds for step in policy.customized_backoff.next] == expected


def test_a_fifo_group_makes_its_consumers_fifo() -> None:
    """The client's own word does not count."""
    told = settings.answer(
        consumer("g"), group_with(fifo=True), definition_pb2.JAVA, BrokerConfig()
    )
    assert told.subscription.fifo


def test_clients_are_told_where_their_metrics_go() -> None:
    """Off without a collector; with one, on and where it is."""
    told = settings.answer(producer("orders"), None, definition_pb2.JAVA, BrokerConfig())
    assert not told.metric.on
    section = TelemetrySection(client_metrics_endpoint="10.0.0.9:4317")
    config = BrokerConfig(telemetry=section)
    told = settings.answer(producer("orders"), None, definition_pb2.JAVA, config)
    assert told.metric.on
    (address,) = told.metric.endpoints.addresses
    assert (address.host, address.port) == ("10.0.0.9", 4317)
    assert told.metric.endpoints.scheme == definition_pb2.IPv4


async def test_settings_have_a_limit(edge: FakeEdge) -> None:
    """A stream that says more ends, and its client may say less on the next one."""
    said = service_pb2.TelemetryCommand()
    said.settings.publishing.topics.add(name="orders")
    said.settings.user_agent.hostname = "h" * 200_000

    async def frames() -> AsyncIterator[bytes]:
        yield said.SerializeToString()
        await asyncio.Event().wait()

    stream = edge.open_stream(MESSAGING + "Telemetry", frames())
    with pytest.raises(CallError, match="settings have at most"):
        await anext(stream)


class TestFromOneAddress:
    """Streams have a share per address."""

    @pytest.fixture
    def config(self) -> BrokerConfig:
        """Two streams."""
        return broker_config(telemetry={"max_streams_per_address": 2})

    async def test_one_stream_too_many_is_refused(self, edge: FakeEdge, app: BrokerApp) -> None:
        """Further streams are refused, whatever ids clients have; one that ends makes room."""
        opened = [
            edge.open_stream(MESSAGING + "Telemetry", silence(), {"x-mq-client-id": f"c{number}"})
            for number in range(3)
        ]
        waiting = [asyncio.ensure_future(anext(stream)) for stream in opened[:2]]
        await asyncio.sleep(0)
        with pytest.raises(CallError, match="from this address"):
            await anext(opened[2])
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        again = edge.open_stream(MESSAGING + "Telemetry", silence(), {"x-mq-client-id": "c"})
        last = asyncio.ensure_future(anext(again))
        await until(lambda: len(app.requests) == 1)
        last.cancel()
        await asyncio.gather(last, return_exceptions=True)


async def silence() -> AsyncIterator[bytes]:
    """A client that says nothing."""
    await asyncio.Event().wait()
    yield b""


async def test_streams_of_connections_that_were_sent_away_end(
    edge: FakeEdge, broker: BrokerUnderTest[FakeEdge]
) -> None:
    """Without an error, also one that is opened there a moment later; others stay."""
    telemetry = broker.app._telemetry
    leaving = Stream(edge)
    leaving.say(producer("orders"))
    await leaving.hear()
    telemetry.end_of({"10.0.0.1:1"})
    telemetry.end_of(())
    leaving.say(producer("orders"))
    await leaving.hear()
    telemetry.end_of({"127.0.0.1:5555"})
    with pytest.raises(StopAsyncIteration):
        await leaving.hear()
    late = Stream(edge, "c2")
    late.say(producer("orders"))
    assert (await late.hear()).status.code == 20000
    with pytest.raises(StopAsyncIteration):
        await late.hear()
