"""Rules of the tcp transport alone: its handshake refuses with a reason."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable

import pytest

from strata.meta.v1 import meta_pb2
from strata_angelia import frames, ports
from strata_angelia.frames import FrameReader, ReceivedFrame, WireFrameKind
from strata_angelia.options import AngeliaOptions
from strata_angelia.ports import AngeliaError
from strata_angelia.tcp_channel import TcpChannel
from strata_angelia.tcp_server import TcpServer
from strata_runtime.metrics import Metrics
from strata_testing import until

GET = "/strata.meta.v1.MetaService/GetSnapshot"


class MorseCodec:
    """A codec the server does not know."""

    name = "morse"

    def encode(self, message: object) -> bytes:
        return b""

    def decode(self, data: bytes, message_type: type) -> object:
        return message_type()


@pytest.fixture
async def server() -> AsyncIterator[tuple[str, Metrics]]:
    metrics = Metrics()
    server = TcpServer("127.0.0.1", 0, options=AngeliaOptions(max_connections=2), metrics=metrics)
    yield await server.start(), metrics
    await server.stop(0)


async def _answers(endpoint: str, data: bytes) -> list[ReceivedFrame]:
    """Send bytes on a new connection; return all frames until the server closes."""
    host, _, port = endpoint.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    async with asyncio.timeout(30):
        received = await reader.read()
    writer.close()
    return FrameReader().feed(received)


def _hello(version: int, codec: str) -> bytes:
    payload = frames.Hello(version, 1_000, 1_000, codec).encode()
    return frames.header(WireFrameKind.HELLO, len(payload)) + payload


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (_hello(9, "protobuf"), "unknown version 9, this is 2"),
        (_hello(2, "morse"), "unknown codec 'morse'"),
        (frames.header(WireFrameKind.REQUEST, 0), "REQUEST before HELLO"),
        (frames.header(WireFrameKind.HELLO, 1 << 30), "a frame has 1073741824 bytes"),
        (frames.header(WireFrameKind.HELLO, 3) + b"abc", "not an Angelia handshake"),
        (
            _hello(2, "protobuf") + frames.header(WireFrameKind.REQUEST, 1) + b"x",
            "request frame too short",
        ),
        (_hello(2, "protobuf") + frames.header(WireFrameKind.ITEM, 0), "ITEM from a caller"),
    ],
)
async def test_refusal_has_a_reason(server: tuple[str, Metrics], data: bytes, reason: str) -> None:
    """A handshake that the server cannot follow is counted and ends with a GOODBYE and a reason."""
    endpoint, metrics = server
    *_, goodbye = await _answers(endpoint, data)
    assert goodbye.kind is WireFrameKind.GOODBYE
    code, text = frames.decode_error(goodbye.payload)
    assert code == ports.BAD_REQUEST
    assert reason in text
    refused = metrics.counter("strata_angelia_refused_connections_total")
    assert refused.value({"reason": ports.BAD_REQUEST}) == 1


async def test_caller_learns_why(server: tuple[str, Metrics]) -> None:
    """A channel with a codec the server lacks gets the server's words."""
    channel = TcpChannel(server[0], codec=MorseCodec())  # type: ignore[arg-type]
    with pytest.raises(AngeliaError, match="unknown codec 'morse'"):
        await channel.call(GET, meta_pb2.GetSnapshotRequest(), meta_pb2.GetSnapshotResponse)
    await channel.close()


async def test_closing_while_it_connects() -> None:
    """A call that waits for a server's handshake ends with the channel, as the connection does."""
    held: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    silent = await asyncio.start_server(lambda *ends: held.append(ends), "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    channel = TcpChannel(f"127.0.0.1:{port}")
    async with asyncio.TaskGroup() as group:
        request = meta_pb2.GetSnapshotRequest()
        call = group.create_task(_code(channel.call(GET, request, meta_pb2.GetSnapshotResponse)))
        await until(lambda: held)
        await channel.close()
    assert call.result() == ports.UNAVAILABLE
    ((reader, writer),) = held
    async with asyncio.timeout(30):
        assert await reader.read() == _hello_of_a_channel()
    writer.close()
    await writer.wait_closed()
    silent.close()
    await silent.wait_closed()


def _hello_of_a_channel() -> bytes:
    options = AngeliaOptions()
    payload = frames.Hello(
        frames.VERSION, options.stream_window_bytes, options.max_message_bytes, "protobuf"
    ).encode()
    return frames.header(WireFrameKind.HELLO, len(payload)) + payload


@pytest.mark.parametrize("turns", range(6))
async def test_a_stop_ends_connections_that_are_just_made(turns: int) -> None:
    """However far a connection has come when the server stops, the caller hears of the end."""
    server = TcpServer("127.0.0.1", 0)
    host, _, port = (await server.start()).rpartition(":")
    with socket.create_connection((host, int(port))) as caller:
        for _ in range(turns):
            await asyncio.sleep(0)
        await server.stop(0)
        caller.settimeout(60)
        with contextlib.suppress(ConnectionError):
            while await asyncio.to_thread(caller.recv, 65_536):
                pass
    assert not server.connections


@contextlib.asynccontextmanager
async def _caller_that_does_not_read(server: TcpServer) -> AsyncIterator[None]:
    """Start a server and send more to a caller than is taken while it does not read."""
    host, _, port = (await server.start()).rpartition(":")
    with socket.create_connection((host, int(port))):
        await until(lambda: server.connections)
        (connection,) = server.connections
        connection.send(WireFrameKind.PING, bytes(16_000_000))
        yield


async def test_a_stop_does_not_wait_for_a_caller_that_does_not_read() -> None:
    """Bytes that such a caller has not taken when the grace is over are given up."""
    server = TcpServer("127.0.0.1", 0)
    async with _caller_that_does_not_read(server):
        await server.stop(0.1)
        await until(lambda: not server.connections)


@pytest.mark.parametrize("is_stubborn", [False, True], ids=["cancelled", "ignores it"])
async def test_a_stop_has_one_grace(is_stubborn: bool) -> None:
    """Calls that do not end and callers that do not read have one grace together."""
    server = TcpServer("127.0.0.1", 0)
    ends = asyncio.Event()

    async def never_ends() -> None:
        while not ends.is_set():
            try:
                await ends.wait()
            except asyncio.CancelledError:
                if not is_stubborn:
                    raise

    async with _caller_that_does_not_read(server):
        call = server.calls.spawn("never ends", never_ends())
        try:
            # As long as a lifecycle gives it.
            async with asyncio.timeout(2.0 + 1.0):
                await server.stop(2.0)
        finally:
            ends.set()
        await until(lambda: not server.connections)
        await until(call.done)


async def test_a_stop_that_is_cut_short_leaves_no_connection() -> None:
    """A caller that does not read is cut off also if nobody waits for the end of the grace."""
    server = TcpServer("127.0.0.1", 0)
    async with _caller_that_does_not_read(server):
        stop = asyncio.ensure_future(server.stop(60.0))
        await asyncio.sleep(0)
        stop.cancel()
        await asyncio.wait((stop,))

        assert stop.cancelled()
        await until(lambda: not server.connections, 10.0)


async def _code(call: Awaitable[object]) -> str:
    try:
        await call
    except AngeliaError as error:
        return error.code
    return "ok"


async def test_connection_limit(server: tuple[str, Metrics]) -> None:
    """Connections above the limit are refused with a reason; the gauge shows those held."""
    endpoint, metrics = server
    host, _, port = endpoint.rpartition(":")
    held = [await asyncio.open_connection(host, int(port)) for _ in range(2)]
    (goodbye,) = await _answers(endpoint, b"")
    assert frames.decode_error(goodbye.payload)[0] == ports.OVERLOADED
    metrics.read_gauges()
    assert b'strata_angelia_connections{transport="tcp"} 2.0' in metrics.render()
    for _, writer in held:
        writer.close()
