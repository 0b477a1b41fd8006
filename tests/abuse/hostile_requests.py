"""Requests within or just beyond what the protocol allows, made to hurt: others notice nothing.

Each block is judged by the witness (tests/abuse/witness.py): it works beside the abuse and says
whether the node lived, answered others, stayed within its memory and wrote no stack.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import grpc
import pytest

from apache.rocketmq.v2 import definition_pb2 as definition
from apache.rocketmq.v2 import service_pb2 as service
from apache.rocketmq.v2 import service_pb2_grpc
from strata_testing import until
from tests.abuse.calls import (
    SERVICE,
    abuser,
    ack_request,
    add_message,
    assert_refused,
    forged,
    outcome,
    raw,
    receive_request,
    received,
    take_one,
    varint,
    who,
)
from tests.abuse.witness import GROUP, TOPIC, prepared, witnessed
from tests.e2e.client import Client
from tests.e2e.standalone import Standalone

MIB = 1 << 20
FOREVER = 2**63 - 1
LEAST = -(2**63)
# Protobuf takes these for the seconds of a duration.
LONGEST_DURATION_S = 315_576_000_000


@pytest.fixture(scope="module")
def whole_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    yield from prepared(tmp_path_factory.mktemp("abuse") / "data")


@pytest.fixture
def node(whole_node: Standalone) -> Standalone:
    """The node; what ended it fails its own test only."""
    if not whole_node.alive:
        whole_node.kill()
        whole_node.start()
    return whole_node


@pytest.fixture
async def stub(node: Standalone) -> AsyncIterator[Any]:
    """An abuser's stub; its connection is his own."""
    async with abuser(node) as channel:
        yield service_pb2_grpc.MessagingServiceStub(channel)


# Filters -------------------------------------------------------------------------------------


def nested(levels: int, repeats: int, more: str) -> str:
    """Return parentheses within parentheses, with something behind each."""
    text = "a"
    for _ in range(levels):
        text = "(" + text + more * repeats + ")"
    return text


FILTERS = {
    "null tests": nested(12, 63, " IS NULL"),
    "few null tests": nested(60, 8, " IS NULL"),
    "equals": nested(20, 60, " = TRUE"),
    "not": nested(30, 1, "").replace("a", "NOT " * 60 + "a IS NULL", 1),
    "signs": "a = " + "-" * 2_000 + "1",
    "sums": "1 = " + "(" * 60 + "1" + " + 1)" * 60 + " + 1" * 500,
    "conditions": " AND ".join(["a IS NULL"] * 2_000),
    "open": "(" * 60_000,
    "in": "a IN (" + ", ".join(f"'{number}'" for number in range(6_000)) + ")",
    "text": "a = '" + "x" * 60_000 + "'",
}


@pytest.mark.parametrize("name", FILTERS)
async def test_filters_by_telemetry_and_receive(node: Standalone, stub: Any, name: str) -> None:
    """No expression ends the node, whichever way it comes."""
    async with witnessed(node):
        settings = service.TelemetryCommand()
        entry = settings.settings.subscription.subscriptions.add()
        entry.topic.name = TOPIC
        entry.expression.type = definition.SQL
        entry.expression.expression = FILTERS[name]
        settings.settings.subscription.group.name = GROUP
        stream = stub.Telemetry(iter([settings]), metadata=who(), timeout=5)
        with suppress(grpc.aio.AioRpcError):
            await stream.read()
        stream.cancel()

        request = receive_request("abuse-filters", poll_s=0)
        request.filter_expression.type = definition.SQL
        request.filter_expression.expression = FILTERS[name]
        codes: list[str] = []

        async def is_read() -> bool:
            # New expressions have a rate; the refusal says to try again.
            codes.append(await received(stub, request))
            return codes[-1] != "TOO_MANY_REQUESTS"

        await until(is_read)
        assert codes[-1] in ("ILLEGAL_FILTER_EXPRESSION", "MESSAGE_NOT_FOUND", "OK"), codes


@pytest.mark.timeout(300)
async def test_filters_that_cost_much(node: Standalone) -> None:
    """Filters that are legal and expensive, over messages that are large, keep nobody waiting."""
    topic = node.create_topic("costly", "--queues", "1")
    expression = " OR ".join(f"a CONTAINS '{number}x'" for number in range(1_200))
    async with Client(node.endpoint) as client:
        for _ in range(50):
            request = service.SendMessageRequest()
            for _ in range(30):
                message = add_message(request, client.new_message_id(), topic)
                message.user_properties["a"] = "y" * 15_000
            await client.stub.SendMessage(request, metadata=client.metadata, timeout=30)

    async def receive(number: int) -> None:
        async with abuser(node, number) as channel:
            stub: Any = service_pb2_grpc.MessagingServiceStub(channel)
            request = receive_request(f"costly-{number}", topic, poll_s=5)
            request.filter_expression.type = definition.SQL
            request.filter_expression.expression = expression
            await received(stub, request)

    async with witnessed(node), asyncio.TaskGroup() as tasks:
        for number in range(10):
            tasks.create_task(receive(number))


# Many small things in one request ---------------------------------------------------------------

EMPTY_ENTRIES = {
    "AckMessage": b"\x1a\0",
    "SendMessage": b"\x0a\0",
    "QueryRoute": b"\x0a\0",
    "QueryAssignment": b"\x0a\0",
    "Heartbeat": b"\x0a\0",
    "EndTransaction": b"\x0a\0",
    "ChangeInvisibleDuration": b"\x0a\0",
    "ForwardMessageToDeadLetterQueue": b"\x0a\0",
    "NotifyClientTermination": b"\x0a\0",
    "RecallMessage": b"\x0a\0",
    "UpdateOffset": b"\x0a\0",
    "GetOffset": b"\x0a\0",
    "QueryOffset": b"\x0a\0",
    "SyncLiteSubscription": b"\x22\0",
}


@pytest.mark.parametrize("method", EMPTY_ENTRIES)
async def test_empty_entries_by_the_million(node: Standalone, method: str) -> None:
    """Fifteen MiB of empty fields are refused before anybody makes objects of them."""
    data = EMPTY_ENTRIES[method] * (15 * MIB // 2)
    async with witnessed(node), abuser(node) as channel:
        ended = await raw(channel, method, data)
        if method in ("AckMessage", "SendMessage", "SyncLiteSubscription"):
            assert_refused(ended)
        assert ended not in ("UNKNOWN", "INTERNAL", "INTERNAL_SERVER_ERROR", "DEADLINE_EXCEEDED")


async def test_many_properties(node: Standalone, stub: Any) -> None:
    """A message with 300,000 properties is too large, whatever each weighs."""
    async with witnessed(node):
        request = service.SendMessageRequest()
        message = add_message(request, "01" + "0" * 32)
        for number in range(300_000):
            message.user_properties[str(number)] = ""
        assert_refused(await outcome(stub.SendMessage(request, metadata=who(), timeout=30)))


@pytest.mark.timeout(300)
async def test_texts_that_are_no_handles(node: Standalone, stub: Any) -> None:
    """200,000 texts that are no handles, again and again, leave nothing behind."""
    async with witnessed(node):
        for turn in range(4):
            request = ack_request([f"no handle {turn}-{number}" for number in range(200_000)])
            ended = await outcome(stub.AckMessage(request, metadata=who(), timeout=60))
            assert ended not in ("UNKNOWN", "INTERNAL", "INTERNAL_SERVER_ERROR")


# Client-chosen numbers -----------------------------------------------------------------------


async def test_acks_of_raft_groups_that_are_none(node: Standalone) -> None:
    """Forged handles that wait forever for nobody leave acks of others alone."""
    [delivered] = await take_one(node, "forged")
    texts = [
        text
        for number in range(2_000)
        for text in forged(delivered.handle, raft_group=2**32 - 1 - number % 1_000)
    ]
    async with witnessed(node), abuser(node) as channel:
        for _ in range(50):
            data = ack_request(texts, "forged").SerializeToString()
            call: Any = channel.unary_unary(SERVICE + "AckMessage")
            call = call(data, metadata=who(), timeout=None)
            await asyncio.sleep(0.05)
            call.cancel()


@pytest.mark.parametrize(
    "field", ["offset", "lease_number", "generation", "visible_at_ms", "queue"]
)
async def test_handles_with_extreme_numbers(node: Standalone, stub: Any, field: str) -> None:
    """A handle with any number in it is refused, or acknowledges nothing."""
    [delivered] = await take_one(node, "extremes")
    handle = delivered.handle
    most = 2**64 - 1 if field in ("offset", "visible_at_ms") else 2**32 - 1
    async with witnessed(node):
        values = (0, 1, most // 2, most // 2 + 1, most)
        texts = [(value, text) for value in values for text in forged(handle, **{field: value})]
        for value, text in texts:
            request = ack_request([text], "extremes")
            ended = await outcome(stub.AckMessage(request, metadata=who(), timeout=10))
            assert ended not in ("UNKNOWN", "INTERNAL", "INTERNAL_SERVER_ERROR"), (value, ended)
            change = service.ChangeInvisibleDurationRequest(receipt_handle=text)
            change.topic.name, change.group.name = TOPIC, "extremes"
            change.invisible_duration.seconds = LONGEST_DURATION_S
            ended = await outcome(stub.ChangeInvisibleDuration(change, metadata=who(), timeout=10))
            assert ended not in ("UNKNOWN", "INTERNAL", "INTERNAL_SERVER_ERROR"), (value, ended)


@pytest.mark.parametrize("seconds", [FOREVER, LEAST, LONGEST_DURATION_S, -1, 0])
@pytest.mark.parametrize("nanos", [0, -(2**31), 2**31 - 1])
async def test_times_without_sense(node: Standalone, stub: Any, seconds: int, nanos: int) -> None:
    """A request may name any times: the answer is in words that clients know."""
    async with witnessed(node, memory=False):
        request = receive_request("times", poll_s=0)
        request.invisible_duration.seconds = seconds
        request.invisible_duration.nanos = nanos
        assert await received(stub, request) not in ("UNKNOWN", "INTERNAL", "INTERNAL_SERVER_ERROR")
        request.invisible_duration.seconds, request.invisible_duration.nanos = 10, 0
        request.long_polling_timeout.seconds = seconds
        request.long_polling_timeout.nanos = nanos
        assert await received(stub, request, timeout_s=1) not in (
            "UNKNOWN",
            "INTERNAL",
            "INTERNAL_SERVER_ERROR",
        )
        for name in ("delivery_timestamp", "born_timestamp", "store_timestamp"):
            send = service.SendMessageRequest()
            message = add_message(send, "01" + "1" * 32)
            moment = getattr(message.system_properties, name)
            moment.seconds, moment.nanos = seconds, nanos
            if name == "delivery_timestamp":
                message.system_properties.message_type = definition.DELAY
            ended = await outcome(stub.SendMessage(send, metadata=who(), timeout=10))
            assert ended not in ("UNKNOWN", "INTERNAL", "INTERNAL_SERVER_ERROR"), name


async def test_deadlines_of_ten_thousand_years(node: Standalone) -> None:
    """A call with the longest deadline there is ends as any other."""
    methods = [
        each.name for each in service.DESCRIPTOR.services_by_name["MessagingService"].methods
    ]
    async with witnessed(node), abuser(node) as channel:
        for method in methods:
            if method in ("Telemetry", "ReceiveMessage", "PullMessage"):
                continue
            await raw(channel, method, b"", timeout_s=99_999_999 * 3_600.0)


# Strings -------------------------------------------------------------------------------------

TEXT_FIELDS = (
    "message_id",
    "born_host",
    "store_host",
    "receipt_handle",
    "trace_context",
    "message_group",
    "lite_topic",
    "tag",
)


@pytest.mark.parametrize("size_bytes", [15 * MIB, 5 * MIB])
@pytest.mark.parametrize("field", TEXT_FIELDS)
async def test_large_fields_of_a_message(
    node: Standalone, stub: Any, field: str, size_bytes: int
) -> None:
    """Every field counts; what is refused takes nobody along who was in the same batch."""
    async with witnessed(node) as seen:
        request = service.SendMessageRequest()
        message = add_message(request, "01" + "2" * 32)
        setattr(message.system_properties, field, "x" * size_bytes)
        ended = await outcome(stub.SendMessage(request, metadata=who(), timeout=30))
        if field in ("store_host", "receipt_handle"):  # what only servers set is ignored
            assert ended not in ("UNKNOWN", "INTERNAL", "INTERNAL_SERVER_ERROR"), ended
        else:
            assert_refused(ended)
    assert not seen.refused


async def test_unknown_fields(node: Standalone) -> None:
    """Fields that nobody knows are not carried along."""
    size = 15 * MIB
    unknown = b"\xfa\x3f" + varint(size) + bytes(size)
    async with witnessed(node) as seen, abuser(node) as channel:
        request = service.SendMessageRequest()
        add_message(request, "01" + "3" * 32)
        inner = request.messages[0].SerializeToString() + unknown
        data = b"\x0a" + varint(len(inner)) + inner
        assert_refused(await raw(channel, "SendMessage", data))
        for method in ("Heartbeat", "QueryRoute", "AckMessage", "EndTransaction"):
            ended = await raw(channel, method, unknown)
            assert ended not in ("UNKNOWN", "INTERNAL", "INTERNAL_SERVER_ERROR"), method
    assert not seen.refused


async def test_large_settings_are_not_kept(node: Standalone) -> None:
    """Eighty clients with settings of 8 MiB do not fill the memory."""
    async with witnessed(node), asyncio.TaskGroup() as tasks:
        ready = asyncio.Semaphore(8)

        async def connect(number: int) -> None:
            async with ready, abuser(node, number) as channel:
                stub: Any = service_pb2_grpc.MessagingServiceStub(channel)
                command = service.TelemetryCommand()
                command.settings.publishing.topics.add(name=TOPIC)
                command.settings.user_agent.hostname = "x" * (8 * MIB)
                stream = stub.Telemetry(metadata=who(f"settings@{number}@1"), timeout=10)
                with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    await stream.write(command)
                    await stream.read()
                stream.cancel()

        for number in range(80):
            tasks.create_task(connect(number))


@pytest.mark.timeout(300)
async def test_filters_of_many_clients_are_not_kept(node: Standalone) -> None:
    """Eighty clients with 64 subscriptions of 50 KB each do not fill the memory."""
    async with witnessed(node):
        for number in range(80):
            async with abuser(node, number) as channel:
                stub: Any = service_pb2_grpc.MessagingServiceStub(channel)
                command = service.TelemetryCommand()
                subscription = command.settings.subscription
                subscription.group.name = GROUP
                for each in range(64):
                    entry = subscription.subscriptions.add()
                    entry.topic.name = f"topic-{each}"
                    entry.expression.type = definition.TAG
                    entry.expression.expression = f"{number}-{each}-" + "x" * 50_000
                stream = stub.Telemetry(metadata=who(f"filters@{number}@1"), timeout=10)
                with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    await stream.write(command)
                    await stream.read()


async def test_large_client_ids(node: Standalone, stub: Any) -> None:
    """Two thousand client ids of 30 KB are not remembered."""
    async with witnessed(node):
        request = service.HeartbeatRequest(client_type=definition.PRODUCER)
        for number in range(2_000):
            headers = who(f"{number}-" + "x" * 30_000)
            ended = await outcome(stub.Heartbeat(request, metadata=headers, timeout=10))
            assert_refused(ended)


async def test_large_attempt_ids(node: Standalone, stub: Any) -> None:
    """Attempt ids of a megabyte are not remembered."""
    async with witnessed(node):
        for number in range(300):
            request = receive_request("attempts", poll_s=0)
            request.attempt_id = f"{number}-" + "x" * MIB
            code = await received(stub, request)
            assert code not in ("UNKNOWN", "INTERNAL", "INTERNAL_SERVER_ERROR"), code


@pytest.mark.timeout(300)
async def test_random_consumer_groups(node: Standalone, stub: Any) -> None:
    """Consumer groups that nobody made do not fill the metadata."""
    async with witnessed(node):
        codes = set()
        for number in range(3_000):
            codes.add(await received(stub, receive_request(f"random-{number}", poll_s=0)))
        assert not codes & {"UNKNOWN", "INTERNAL", "INTERNAL_SERVER_ERROR"}, codes
        listed = await asyncio.to_thread(node.strata, "group", "list")
        groups = listed if isinstance(listed, list) else [listed]
        assert len(groups) < 2_000


# Compression ---------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["SendMessage", "AckMessage", "QueryRoute", "Heartbeat"])
@pytest.mark.parametrize("kind", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_inflation(node: Standalone, method: str, kind: grpc.Compression) -> None:
    """A megabyte that would become a gigabyte is never inflated."""
    size = 1 << 28
    data = b"\xfa\x3f" + varint(size) + bytes(size)
    async with witnessed(node), abuser(node) as channel:
        call: Any = channel.unary_unary(SERVICE + method)
        for _ in range(4):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call(data, metadata=who(), timeout=30, compression=kind)
            assert refused.value.code() in (
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                grpc.StatusCode.UNIMPLEMENTED,
                grpc.StatusCode.UNAVAILABLE,  # the connection was ended
            )
