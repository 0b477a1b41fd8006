"""HTTP/2 that no library speaks: frames in numbers and orders that are made to hurt.

Judged by the witness (tests/abuse/witness.py), as connections are in hostile_connections.py.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from apache.rocketmq.v2 import service_pb2 as service
from tests.abuse.calls import SERVICE, receive_request, who
from tests.abuse.raw_http2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    RawConnection,
    call_headers,
    data_frames,
    frame,
    grpc_message,
    literal,
)
from tests.abuse.witness import TOPIC, prepared, witnessed
from tests.e2e.standalone import Standalone

PRIORITY, PUSH_PROMISE, GOAWAY, UNKNOWN = 2, 5, 7, 0x60


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


def opened(stream: int, method: str = "ReceiveMessage") -> bytes:
    """Return the frame that begins a call."""
    return frame(HEADERS, END_HEADERS, stream, call_headers(SERVICE + method, who("frames@1@1")))


def resets_by_the_server(connection: RawConnection) -> None:
    """Make the server reset streams: a window that grows by nothing is an error of the stream."""
    for begin in range(1, 40_000, 200):
        data = b"".join(
            opened(stream) + frame(WINDOW_UPDATE, 0, stream, bytes(4))
            for stream in range(begin, begin + 200, 2)
        )
        if not connection.send(data):
            return


def windows_that_overflow(connection: RawConnection) -> None:
    """Grow windows beyond what there is."""
    most = (2**31 - 1).to_bytes(4)
    for stream in range(1, 20_000, 2):
        if not connection.send(opened(stream) + frame(WINDOW_UPDATE, 0, stream, most) * 2):
            return


def calls_of_nothing(connection: RawConnection) -> None:
    """Call methods that there are none of, by the hundred thousand."""
    for begin in range(1, 20_000, 200):
        data = b"".join(
            opened(stream, f"Nothing{stream}") + data_frames(stream, grpc_message(b""), end=True)
            for stream in range(begin, begin + 200, 2)
        )
        if not connection.send(data):
            return


def empty_data(connection: RawConnection) -> None:
    """Send a request that consists of empty frames."""
    connection.send(opened(1, "SendMessage"))
    for _ in range(200):
        if not connection.send(frame(DATA, 0, 1) * 1_000):
            return


def empty_messages(connection: RawConnection) -> None:
    """Send a telemetry stream of empty messages."""
    connection.send(opened(1, "Telemetry"))
    for _ in range(20):
        if not connection.send(data_frames(1, grpc_message(b"") * 10_000, end=False)):
            return


def priorities(connection: RawConnection) -> None:
    """Send priorities, and kinds of frames that nobody knows."""
    for _ in range(200):
        odd = frame(PRIORITY, 0, 1, bytes(5)) * 500 + frame(UNKNOWN, 0, 0, bytes(50)) * 500
        if not connection.send(odd):
            return


def settings(connection: RawConnection) -> None:
    """Change the size of all windows again and again while streams are open."""
    for stream in range(1, 1_001, 2):
        connection.send(opened(stream))
    for number in range(20_000):
        value = struct.pack(">HI", 4, number % 2 * (2**31 - 1))
        if not connection.send(frame(SETTINGS, 0, 0, value)):
            return


def tables(connection: RawConnection) -> None:
    """Put a large header into the table and name it thousands of times in one block."""
    entry = b"\x40" + literal("x", "y" * 3_900)[1:]
    for stream in range(1, 401, 2):
        first = frame(HEADERS, 0, stream, call_headers(SERVICE + "Heartbeat") + entry)
        if not connection.send(first + frame(CONTINUATION, END_HEADERS, stream, b"\xbe" * 16_000)):
            return


def what_only_servers_say(connection: RawConnection) -> None:
    """Promise, go away, and speak on streams that are none."""
    connection.send(frame(PUSH_PROMISE, END_HEADERS, 1, bytes(4) + call_headers("/x")))
    connection.send(frame(GOAWAY, 0, 0, bytes(8)))
    for stream in range(2, 2_000, 2):
        said = frame(DATA, END_STREAM, stream, bytes(1_000)) + frame(
            RST_STREAM, 0, stream, bytes(4)
        )
        if not connection.send(said):
            return


def pings_of_any_length(connection: RawConnection) -> None:
    """Send pings that are as long as a frame can be."""
    for _ in range(100):
        if not connection.send(frame(PING, 0, 0, bytes(16_000))):
            return


FLOODS = [
    resets_by_the_server,
    windows_that_overflow,
    calls_of_nothing,
    empty_data,
    empty_messages,
    priorities,
    settings,
    tables,
    what_only_servers_say,
    pings_of_any_length,
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("flood", FLOODS, ids=lambda flood: flood.__name__)
async def test_floods(node: Standalone, flood: Callable[[RawConnection], None]) -> None:
    """However often it is said, it fills neither memory nor log, and others go on."""

    def run() -> None:
        for _ in range(10):
            with RawConnection(node.port, timeout_s=2.0) as connection:
                flood(connection)

    async with witnessed(node):
        await asyncio.to_thread(run)


@pytest.mark.timeout(300)
async def test_small_uploads_that_never_end(node: Standalone) -> None:
    """Ten thousand requests of 60 KiB whose last byte does not come are not held for long."""
    begun = data_frames(1, grpc_message(bytes(60_000))[:-1], end=False)

    def upload() -> None:
        with ExitStack() as stack:
            for _ in range(10):
                connection = stack.enter_context(RawConnection(node.port, timeout_s=1.0))
                for stream in range(1, 2_001, 2):
                    number = stream.to_bytes(4)
                    ours = b"".join(
                        begun[at : at + 5] + number + begun[at + 9 : at + 9 + 16_384]
                        for at in range(0, len(begun), 9 + 16_384)
                    )
                    if not connection.send(opened(stream, "SendMessage") + ours):
                        break
            ended.wait(5)

    ended = threading.Event()
    async with witnessed(node):
        await asyncio.to_thread(upload)


@pytest.mark.timeout(300)
async def test_sessions_that_are_open(node: Standalone) -> None:
    """Four thousand telemetry streams with large settings hold a bounded part of the memory."""
    command = service.TelemetryCommand()
    command.settings.publishing.topics.add(name=TOPIC)
    command.settings.user_agent.hostname = "x" * 20_000
    message = grpc_message(command.SerializeToString())

    def open_all() -> None:
        with ExitStack() as stack:
            for number in range(10):
                connection = stack.enter_context(RawConnection(node.port, timeout_s=2.0))
                for stream in range(1, 801, 2):
                    name = f"open@{number}@{stream}"
                    block = call_headers(SERVICE + "Telemetry", who(name))
                    begun = frame(HEADERS, END_HEADERS, stream, block)
                    if not connection.send(begun + data_frames(stream, message, end=False)):
                        break
            ended.wait(3)

    ended = threading.Event()
    async with witnessed(node):
        await asyncio.to_thread(open_all)


@pytest.mark.timeout(300)
async def test_half_open_calls(node: Standalone) -> None:
    """Receives that begin and send no request, by the thousand, keep nobody out."""

    def open_all() -> None:
        with ExitStack() as stack:
            for _ in range(10):
                connection = stack.enter_context(RawConnection(node.port, timeout_s=2.0))
                for stream in range(1, 2_001, 2):
                    if not connection.send(opened(stream)):
                        break
            ended.wait(5)

    ended = threading.Event()
    async with witnessed(node):
        await asyncio.to_thread(open_all)


@pytest.mark.timeout(300)
async def test_windows_of_a_byte(node: Standalone) -> None:
    """Answers that are taken byte by byte keep nobody waiting."""
    request = grpc_message(receive_request("bytewise", poll_s=0).SerializeToString())

    def take() -> None:
        with ExitStack() as stack:
            connections = [
                stack.enter_context(RawConnection(node.port, window_bytes=1, timeout_s=2.0))
                for _ in range(20)
            ]
            for connection in connections:
                for stream in range(1, 201, 2):
                    connection.send(opened(stream) + data_frames(stream, request, end=True))
            for _ in range(50):
                for connection in connections:
                    more = (1).to_bytes(4)
                    connection.send(
                        b"".join(
                            frame(WINDOW_UPDATE, 0, stream, more) for stream in range(1, 201, 2)
                        )
                    )

    async with witnessed(node):
        await asyncio.to_thread(take)
