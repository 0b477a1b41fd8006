"""Connections and calls that wait, flood, break off or never read: others work on.

Judged by the witness (tests/abuse/witness.py), as requests are in hostile_requests.py.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from typing import Any

import grpc
import pytest

from apache.rocketmq.v2 import definition_pb2 as definition
from apache.rocketmq.v2 import service_pb2 as service
from apache.rocketmq.v2 import service_pb2_grpc
from tests.abuse.calls import abuser, receive_request, who
from tests.abuse.raw_http2 import (
    CANCEL,
    CONTINUATION,
    END_HEADERS,
    HEADERS,
    PING,
    RST_STREAM,
    SETTINGS,
    RawConnection,
    call_headers,
    data_frames,
    frame,
    grpc_message,
    literal,
)
from tests.abuse.witness import TOPIC, prepared, witnessed
from tests.e2e.client import Client
from tests.e2e.standalone import Standalone

MIB = 1 << 20
SERVICE = "/apache.rocketmq.v2.MessagingService/"


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


@asynccontextmanager
async def abusers(node: Standalone, count: int) -> AsyncIterator[list[Any]]:
    """Give stubs, each with a connection of its own."""
    async with AsyncExitStack() as stack:
        yield [
            service_pb2_grpc.MessagingServiceStub(
                await stack.enter_async_context(abuser(node, number))
            )
            for number in range(count)
        ]


async def any_queue(node: Standalone, topic: str) -> definition.MessageQueue:
    """Return the name of any queue of a topic."""
    async with Client(node.endpoint) as client:
        [queue] = await client.queues(topic)
        return queue


async def filled(node: Standalone, topic: str, count: int, body_bytes: int) -> None:
    """Create a topic with one queue and messages in it."""
    node.create_topic(topic, "--queues", "1")
    async with Client(node.endpoint) as client:
        for _ in range(count):
            await client.send(topic, [(client.new_message_id(), bytes(body_bytes))])


@pytest.mark.timeout(300)
async def test_parked_receives(node: Standalone) -> None:
    """9,000 parked receives take nothing from sends and acknowledgements."""
    topic = node.create_topic("parked", "--queues", "1")
    queue = await any_queue(node, topic)
    async with witnessed(node) as seen, abusers(node, 40) as stubs:
        calls = []
        for number in range(9_000):
            request = receive_request(f"parked-{number % 50}", topic, poll_s=20)
            request.message_queue.CopyFrom(queue)
            headers = who(f"parked@{number // 20}@1")
            calls.append(stubs[number % 40].ReceiveMessage(request, metadata=headers, timeout=30))
            if number % 500 == 0:
                await asyncio.sleep(0.05)
        await asyncio.sleep(5)
        answered = len(seen.answered_s)
        await asyncio.sleep(3)
        assert len(seen.answered_s) > answered + 10
        for call in calls:
            call.cancel()
    assert not seen.refused


@pytest.mark.timeout(300)
async def test_a_flood_of_receives(node: Standalone) -> None:
    """One client that receives without end is refused and slows nobody down for good."""
    queue = await any_queue(node, node.create_topic("flood", "--queues", "1"))
    async with witnessed(node), abusers(node, 1) as [stub]:
        request = receive_request("flood", "flood", poll_s=20)
        request.message_queue.CopyFrom(queue)
        calls: set[Any] = set()
        end = asyncio.get_running_loop().time() + 10
        while asyncio.get_running_loop().time() < end:
            for _ in range(200):
                call = stub.ReceiveMessage(request, metadata=who("flood@1@1"), timeout=30)
                calls.add(call)
                call.add_done_callback(calls.discard)
            await asyncio.sleep(0.05)
        for call in list(calls):
            call.cancel()


@pytest.mark.timeout(300)
async def test_receives_that_were_reset(node: Standalone) -> None:
    """Messages of receives whose client left before it read them come to others soon."""
    await filled(node, "reset", 300, 100)
    queue = await any_queue(node, "reset")
    node.create_group("reset")
    async with witnessed(node), abusers(node, 4) as stubs:
        for number in range(1_500):
            request = receive_request("reset", "reset", poll_s=5)
            request.message_queue.CopyFrom(queue)
            request.auto_renew = True
            request.ClearField("invisible_duration")
            headers = who("reset@1@1")
            call = stubs[number % 4].ReceiveMessage(request, metadata=headers, timeout=30)
            await asyncio.sleep((number % 9) / 1_000)
            call.cancel()
        got: set[str] = set()
        heartbeat = service.HeartbeatRequest(client_type=definition.PUSH_CONSUMER)
        heartbeat.group.name = "reset"
        async with Client(node.endpoint) as client, asyncio.timeout(60):
            while len(got) < 300:
                # The client that left its receives lives on: silence is not what frees them.
                await stubs[0].Heartbeat(heartbeat, metadata=who("reset@1@1"), timeout=5)
                for message in await client.receive(queue, "reset", poll_s=2):
                    got.add(message.message_id)
                    await client.ack("reset", "reset", [message])


@pytest.mark.timeout(300)
async def test_answers_nobody_reads(node: Standalone) -> None:
    """400 receives and 400 pulls that are never read hold a bounded part of the memory."""
    await filled(node, "unread", 16, MIB)
    queue = await any_queue(node, "unread")
    receive = receive_request("unread", "unread", poll_s=5)
    receive.message_queue.CopyFrom(queue)
    pull = service.PullMessageRequest(batch_size=32)
    pull.group.name = "unread"
    pull.message_queue.CopyFrom(queue)
    pull.filter_expression.type = definition.TAG
    pull.filter_expression.expression = "*"

    def flood() -> None:
        with ExitStack() as stack:
            for number in range(40):
                connection = stack.enter_context(RawConnection(node.port, window_bytes=0))
                for stream in range(1, 41, 2):
                    name, message = (
                        ("PullMessage", pull) if stream % 4 == 1 else ("ReceiveMessage", receive)
                    )
                    receive.group.name = f"unread-{number}-{stream}"
                    block = call_headers(SERVICE + name, who(f"unread@{number}@1"))
                    connection.send(
                        frame(HEADERS, END_HEADERS, stream, block)
                        + data_frames(stream, grpc_message(message.SerializeToString()), end=True)
                    )
            ended.wait(8)

    ended = threading.Event()
    async with witnessed(node):
        await asyncio.to_thread(flood)


async def test_uploads_that_never_end(node: Standalone) -> None:
    """Sixty messages of 15 MiB whose last byte does not come hold a bounded part of the memory."""
    size = 15 * MIB

    def upload() -> None:
        with ExitStack() as stack:
            for _ in range(60):
                connection = stack.enter_context(RawConnection(node.port, timeout_s=1.0))
                block = call_headers(SERVICE + "SendMessage", who("upload@1@1"))
                connection.send(frame(HEADERS, END_HEADERS, 1, block))
                connection.send(data_frames(1, grpc_message(bytes(size))[:-1], end=False))

    async with witnessed(node):
        await asyncio.to_thread(upload)


async def test_large_sends_at_once(node: Standalone) -> None:
    """Forty sends of 12 MiB at once hold a bounded part of the memory."""
    async with witnessed(node), abusers(node, 10) as stubs:
        request = service.SendMessageRequest()
        for number in range(4):
            message = request.messages.add(body=bytes(3 * MIB))
            message.topic.name = TOPIC
            message.system_properties.message_id = "01" + f"{number:032d}"
            message.system_properties.message_type = definition.NORMAL
        calls = [
            stubs[number % 10].SendMessage(request, metadata=who(f"large@{number}@1"), timeout=30)
            for number in range(40)
        ]
        for call in calls:
            with suppress(grpc.aio.AioRpcError):
                await call


@pytest.mark.timeout(300)
@pytest.mark.parametrize("turn", range(2))
async def test_rapid_resets(node: Standalone, turn: int) -> None:
    """Streams that are opened and reset by the hundred thousand cost the server nothing lasting."""
    request = grpc_message(receive_request("resets").SerializeToString())

    def reset() -> None:
        for _ in range(8):
            with RawConnection(node.port, timeout_s=2.0) as connection:
                for begin in range(1, 50_000, 200):
                    block = call_headers(SERVICE + "ReceiveMessage", who("resets@1@1"))
                    data = b"".join(
                        frame(HEADERS, END_HEADERS, stream, block)
                        + data_frames(stream, request, end=True)
                        + frame(RST_STREAM, 0, stream, CANCEL.to_bytes(4, "big"))
                        for stream in range(begin, begin + 200, 2)
                    )
                    if not connection.send(data):
                        break

    async with witnessed(node):
        await asyncio.to_thread(reset)


def header_flood(connection: RawConnection) -> None:
    """Send a header block that goes on and on."""
    more = b"".join(literal(f"x-{number}", "y" * 100) for number in range(100))
    connection.send(frame(HEADERS, 0, 1, call_headers(SERVICE + "Heartbeat")))
    for _ in range(2_000):
        if not connection.send(frame(CONTINUATION, 0, 1, more)):
            return


def many_headers(connection: RawConnection) -> None:
    """Send calls with more headers than anybody needs."""
    more = [(f"x-{number}", "y" * 1_000) for number in range(100)]
    block = call_headers(SERVICE + "Heartbeat", more)
    for stream in range(1, 2_001, 2):
        parts = [block[begin : begin + 16_000] for begin in range(0, len(block), 16_000)]
        data = frame(HEADERS, 0, stream, parts[0])
        for part in parts[1:]:
            last = END_HEADERS if part is parts[-1] else 0
            data += frame(CONTINUATION, last, stream, part)
        if not connection.send(data):
            return


def ping_flood(connection: RawConnection) -> None:
    """Send pings and settings by the hundred thousand."""
    for _ in range(500):
        pings = frame(PING, 0, 0, bytes(8)) * 200 + frame(SETTINGS, 0, 0) * 200
        if not connection.send(pings):
            return


@pytest.mark.parametrize("flood", [header_flood, many_headers, ping_flood])
async def test_floods(node: Standalone, flood: Any) -> None:
    """Floods of frames end their connection, and fill neither memory nor log."""

    def run() -> None:
        for _ in range(20):
            with RawConnection(node.port, timeout_s=2.0) as connection:
                flood(connection)

    async with witnessed(node):
        await asyncio.to_thread(run)


@pytest.mark.timeout(300)
async def test_sessions_by_the_thousand(node: Standalone) -> None:
    """Heartbeats of 20,000 made-up clients push nobody off who is there."""
    async with witnessed(node), abusers(node, 4) as stubs:
        request = service.HeartbeatRequest(client_type=definition.PUSH_CONSUMER)
        request.group.name = "sessions"
        for begin in range(0, 20_000, 200):
            calls = [
                stubs[number % 4].Heartbeat(
                    request, metadata=who(f"session@{number}@1"), timeout=20
                )
                for number in range(begin, begin + 200)
            ]
            for call in calls:
                with suppress(grpc.aio.AioRpcError):
                    await call
