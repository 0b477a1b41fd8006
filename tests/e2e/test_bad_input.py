"""Bad input of every kind, while a good client keeps being served and memory stays bounded.

STRATA_TEST_SEED replays the random parts of a run.
"""

import asyncio
import os
import random
import resource
import socket
import struct
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import grpc
import pytest

from apache.rocketmq.v2 import definition_pb2 as definition
from apache.rocketmq.v2 import service_pb2 as service
from tests.e2e.client import Client
from tests.e2e.process import resident_bytes
from tests.e2e.standalone import HOST, Standalone
from tests.limits import within

TOPIC = "bad-input"
RESIDENT_LIMIT_BYTES = 600_000_000
LONGEST_GAP_S = 5.0
IDLE_CONNECTIONS = 10_000
SPARE_DESCRIPTORS = 500
CALL_TIMEOUT_S = 15.0
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SERVICE = "/apache.rocketmq.v2.MessagingService/"
METHODS = service.DESCRIPTOR.services_by_name["MessagingService"].methods
CLIENT_ID = (("x-mq-client-id", "fuzz@1@1"),)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A node that may hold as many connections as this machine allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    standalone = Standalone(tmp_path_factory.mktemp("bad-input") / "data")
    standalone.start()
    standalone.create_topic(TOPIC, "--queues", "4")
    yield standalone
    standalone.close()


@pytest.fixture
def chance() -> random.Random:
    """Randomness whose seed is printed."""
    seed = int(os.environ.get("STRATA_TEST_SEED", random.randrange(2**32)))
    print(f"STRATA_TEST_SEED={seed}")
    return random.Random(seed)


@dataclass
class Service:
    """How a good client was served meanwhile."""

    answered: list[float] = field(default_factory=list)
    peak_resident_bytes: int = 0
    _next: asyncio.Event = field(default_factory=asyncio.Event)

    def answer(self) -> None:
        """Note that a send was answered."""
        self.answered.append(time.monotonic())
        self._next.set()
        self._next = asyncio.Event()

    async def once_more(self) -> None:
        """Wait until the next send is answered."""
        async with asyncio.timeout(CALL_TIMEOUT_S):
            await self._next.wait()


@asynccontextmanager
async def good_client(node: Standalone) -> AsyncIterator[Service]:
    """Send all the while from a connection of its own; judge when the block ends.

    The first failed send ends the block with its error.
    """
    served = Service()

    async def serve() -> None:
        async with Client(node.endpoint) as client:
            while True:
                await client.send(TOPIC, [(client.new_message_id(), b"good")])
                served.answer()
                resident = await asyncio.to_thread(resident_bytes, node.pid)
                served.peak_resident_bytes = max(served.peak_resident_bytes, resident)
                await asyncio.sleep(0.02)

    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(serve())
        await served.once_more()
        yield served
        await served.once_more()
        serving.cancel()

    assert node.alive
    longest_s = max(after - before for before, after in pairwise(served.answered))
    within("longest time without an answer", longest_s, LONGEST_GAP_S)
    assert served.peak_resident_bytes < RESIDENT_LIMIT_BYTES


def connect(node: Standalone) -> socket.socket:
    """Return a new connection to the node."""
    return socket.create_connection((HOST, node.port), timeout=10)


def frame(kind: int, flags: int, stream: int, payload: bytes, length: int | None = None) -> bytes:
    """Return an HTTP/2 frame whose length field may lie."""
    size = len(payload) if length is None else length
    return struct.pack(">I", size)[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def garbage(chance: random.Random) -> bytes:
    """Return the bytes of a connection that no client would send."""
    noise = chance.randbytes(chance.randrange(1, 4_000))
    return chance.choice(
        [
            noise,
            b"\x16\x03\x01" + noise,  # looks like TLS
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            PREFACE,
            PREFACE[: chance.randrange(1, len(PREFACE))],
            PREFACE + noise,
            PREFACE + frame(4, 0, 0, b"") + frame(0, 0, 1, b"x", length=2**24 - 1),
            PREFACE + frame(4, 0, 0, b"") + frame(1, 4, 1, noise),
            PREFACE + frame(4, 0, 0, b"\0\4" + struct.pack(">I", 2**31)),
            PREFACE + frame(4, 0, 0, b"") + frame(8, 0, 0, struct.pack(">I", 0)) * 500,
        ]
    )


def abuse(node: Standalone, data: bytes, reset: bool) -> None:
    """Send bytes on a new connection and leave it, by a reset or in order."""
    with connect(node) as connection:
        if reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with suppress(OSError):
            connection.sendall(data)


async def test_garbage_on_the_port(node: Standalone, chance: random.Random) -> None:
    """Connections that speak nothing known, or break off anywhere, disturb nobody."""
    async with good_client(node):
        for _ in range(400):
            await asyncio.to_thread(abuse, node, garbage(chance), chance.random() < 0.5)


def valid_request(method: str) -> Any:
    """Return a request message with something in the fields that matter."""
    request: Any = getattr(service, METHODS[_index(method)].input_type.name)()
    match request:
        case service.SendMessageRequest():
            message = request.messages.add(body=b"fuzz")
            message.topic.name = TOPIC
            message.system_properties.message_id = "01" + "0" * 32
            message.user_properties["name"] = "value"
        case service.ReceiveMessageRequest():
            request.group.name = "fuzz"
            request.message_queue.topic.name = TOPIC
            request.batch_size = 1
            request.invisible_duration.seconds = 10
            request.long_polling_timeout.seconds = 1
        case service.AckMessageRequest():
            request.group.name = "fuzz"
            request.topic.name = TOPIC
            request.entries.add(message_id="0", receipt_handle="not a handle")
        case service.TelemetryCommand():
            request.settings.publishing.topics.add(name=TOPIC)
        case _:
            for name in ("topic", "group"):
                if name in request.DESCRIPTOR.fields_by_name:
                    getattr(request, name).name = TOPIC
    return request


def _index(method: str) -> int:
    return [each.name for each in METHODS].index(method)


def spoiled(method: str, chance: random.Random) -> bytes:
    """Return the bytes of a request with something wrong in them."""
    data = bytearray(valid_request(method).SerializeToString())
    match chance.randrange(6):
        case 0:
            return chance.randbytes(chance.randrange(200))
        case 1:  # a length far beyond the end
            return bytes(data) + b"\x0a\xff\xff\xff\xff\x07"
        case 2:  # known fields with other wire types
            return b"".join(
                bytes([number << 3 | kind, 1]) for number in (1, 2, 3) for kind in (0, 5)
            )
        case 3:  # nested as deep as it goes
            for _ in range(200):
                data = bytearray(b"\x0a" + _varint(len(data)) + data)
            return bytes(data)
        case 4:
            return bytes(data[: chance.randrange(len(data) + 1)])
        case _:
            for _ in range(chance.randrange(1, 8)):
                if data:
                    data[chance.randrange(len(data))] = chance.randrange(256)
            return bytes(data)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


async def call_raw(
    channel: grpc.aio.Channel,
    method: str,
    data: bytes,
    metadata: tuple[tuple[str, str], ...] = CLIENT_ID,
) -> list[bytes]:
    """Call a method with these bytes as its request; return the parts of the answer."""
    descriptor = METHODS[_index(method)]
    path = SERVICE + method
    call: Any
    if descriptor.client_streaming:
        call = channel.stream_stream(path)
        return [part async for part in call(iter([data]), metadata=metadata, timeout=2)]
    if descriptor.server_streaming:
        call = channel.unary_stream(path)
        return [part async for part in call(data, metadata=metadata, timeout=CALL_TIMEOUT_S)]
    call = channel.unary_unary(path)
    return [await call(data, metadata=metadata, timeout=CALL_TIMEOUT_S)]


async def test_spoiled_requests(node: Standalone, chance: random.Random) -> None:
    """Every method answers a spoiled request, with an error or not, within its time."""
    async with good_client(node), grpc.aio.insecure_channel(node.endpoint) as channel:
        for method in METHODS:
            for _ in range(40):
                data = spoiled(method.name, chance)
                try:
                    await call_raw(channel, method.name, data)
                except grpc.aio.AioRpcError as error:
                    timed_out = error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
                    # A telemetry stream stays open by design; nothing else may hang.
                    assert method.name == "Telemetry" or not timed_out, (method.name, data)


UNARY_STATUS_METHODS = ("QueryRoute", "SendMessage", "QueryAssignment", "AckMessage", "Heartbeat")


@pytest.mark.parametrize("method", UNARY_STATUS_METHODS)
async def test_missing_client_id(node: Standalone, method: str) -> None:
    """A call without a client id is answered with CLIENT_ID_REQUIRED."""
    async with good_client(node), grpc.aio.insecure_channel(node.endpoint) as channel:
        request = valid_request(method).SerializeToString()
        [answer] = await call_raw(channel, method, request, metadata=())
        response = getattr(service, METHODS[_index(method)].output_type.name).FromString(answer)
        assert response.status.code == definition.CLIENT_ID_REQUIRED


async def test_huge_requests(node: Standalone) -> None:
    """Requests far over every limit are refused, several at once."""
    data = (
        valid_request("SendMessage").SerializeToString() + b"\x0a" + _varint(2**26) + bytes(2**26)
    )

    async def refused() -> None:
        async with grpc.aio.insecure_channel(
            node.endpoint, options=[("grpc.max_send_message_length", -1)]
        ) as channel:
            with suppress(grpc.aio.AioRpcError):
                [answer] = await call_raw(channel, "SendMessage", data)
                status = service.SendMessageResponse.FromString(answer).status
                assert status.code != definition.OK

    async with good_client(node), asyncio.TaskGroup() as tasks:
        for _ in range(4):
            tasks.create_task(refused())


async def test_requests_cut_off(node: Standalone) -> None:
    """Clients that go away in the middle of a large request leave nothing behind."""
    request = valid_request("SendMessage")
    request.messages[0].body = bytes(3 * 1024 * 1024)
    data = request.SerializeToString()
    async with good_client(node):
        for _ in range(50):
            async with grpc.aio.insecure_channel(node.endpoint) as channel:
                send: Any = channel.unary_unary(SERVICE + "SendMessage")
                call = send(data, metadata=CLIENT_ID)
                await asyncio.sleep(0.005)
                call.cancel()


async def test_slow_readers(node: Standalone) -> None:
    """Consumers that ask for much and read nothing do not fill the node's memory."""
    topic = node.create_topic("slow-readers", "--queues", "1")
    body = bytes(1024 * 1024)
    async with Client(node.endpoint) as client:
        for _ in range(32):
            await client.send(topic, [(client.new_message_id(), body)])
        [queue] = await client.queues(topic)

    async with good_client(node):
        request = service.ReceiveMessageRequest(message_queue=queue, batch_size=32)
        request.filter_expression.type = definition.TAG
        request.filter_expression.expression = "*"
        request.invisible_duration.seconds = 60
        request.long_polling_timeout.seconds = 5
        channels = [slow_channel(node.endpoint, number) for number in range(24)]
        calls = []
        for number, channel in enumerate(channels):
            request.group.name = f"slow-{number}"
            receive: Any = channel.unary_stream(SERVICE + "ReceiveMessage")
            call = receive(request.SerializeToString(), metadata=CLIENT_ID, timeout=60)
            calls.append(call)
            try:
                await call.read()  # the status; the messages stay unread
            except grpc.aio.AioRpcError as refused:
                # Those before it hold all that the node keeps for slow readers.
                assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                assert number > 8
        await asyncio.sleep(3)  # time for a node without back-pressure to show it
        for call, channel in zip(calls, channels, strict=True):
            call.cancel()
            await channel.close()


def slow_channel(endpoint: str, number: int) -> grpc.aio.Channel:
    """Return a channel with a connection of its own that reads little ahead."""
    return grpc.aio.insecure_channel(
        endpoint,
        options=[
            ("grpc.max_receive_message_length", -1),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.primary_user_agent", f"slow-{number}"),
            ("grpc.http2.bdp_probe", 0),
        ],
    )


@pytest.mark.timeout(300)
async def test_idle_connections(node: Standalone) -> None:
    """10,000 connections, silent or stopped after the preface, cost little and stop nobody."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(IDLE_CONNECTIONS, soft - SPARE_DESCRIPTORS)
    if count < IDLE_CONNECTIONS:
        print(f"only {count} connections: the limit of open files is {soft}")
    opened = 0
    async with good_client(node):
        with ExitStack() as stack:
            for number in range(count):
                connection = stack.enter_context(await asyncio.to_thread(connect, node))
                if number % 10 == 0:
                    connection.sendall(PREFACE + frame(4, 0, 0, b""))
                opened += 1
            await asyncio.sleep(1)  # the good client meets all of them at once
    assert opened == count
