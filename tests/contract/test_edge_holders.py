"""Clients that hold what others need: they have shares of it, and have to make use of it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct

import grpc
import pytest

from strata_edge.guard_limits import GuardLimits
from strata_edge.listener import Keepalive
from strata_edge.options import EdgeOptions
from strata_testing import until
from tests.contract import http2_raw as raw
from tests.contract.edge_ways import SERVICE, OpenWay, Way, stream, unary
from tests.contract.edge_ways import certificate as certificate
from tests.contract.edge_ways import direct as direct
from tests.contract.edge_ways import open_way as open_way
from tests.contract.edge_ways import plaintext as plaintext

SEND = f"/{SERVICE}/SendMessage"
# Large ones fit in the first window of a stream, so that nobody has to follow windows here.
SIZE_BYTES = 20_000
# More than the first window of either adapter: without room it does not come.
OTHERS = b"o" * 100_000
LARGE = GuardLimits(large_request_bytes=10_000)
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def _ended(way: Way) -> float:
    return way.metrics.counter("strata_edge_ended_connections_total").value()


def _large_bytes(way: Way) -> float:
    return way.gauge("strata_edge_large_request_bytes")


def _waiting(way: Way) -> float:
    return way.gauge("strata_edge_large_requests_waiting")


async def _connect(way: Way, *, window_bytes: int = 65_535, host: str = "127.0.0.1") -> Ends:
    """Connect from an address, with a window for each answer."""
    ends = await asyncio.open_connection("127.0.0.1", way.port, local_addr=(host, 0))
    window = struct.pack(">HI", 4, window_bytes)
    ends[1].write(raw.PREFACE + raw.frame(raw.SETTINGS, 0, 0, window))
    return ends


def _call(stream_id: int, path: str, payload: bytes, *, end: bool = True) -> bytes:
    headers = raw.frame(raw.HEADERS, raw.END_HEADERS, stream_id, raw.request_headers(path))
    return headers + raw.data_frames(stream_id, payload, end=end)


def _begun(stream_id: int, size_bytes: int) -> bytes:
    """The beginning of a large request."""
    return _call(stream_id, SEND, raw.message(bytes(size_bytes))[:1_000], end=False)


async def _is_closed(reader: asyncio.StreamReader) -> bool:
    """Read to the end of a connection."""
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(30):
            while await reader.read(65_536):
                pass
    return True


@pytest.mark.parametrize(
    ("path", "window_bytes"),
    [
        pytest.param(SEND, 0, id="unary"),
        pytest.param(f"/{SERVICE}/Reverse", 0, id="rare"),
        pytest.param(f"/{SERVICE}/ReceiveMessage", 0, id="stream"),
        pytest.param(f"/{SERVICE}/Echo", 100, id="talk"),
    ],
)
async def test_an_answer_that_is_not_read_holds_no_room_of_its_request(
    open_way: OpenWay, plaintext: str, path: str, window_bytes: int
) -> None:
    """Large requests give their room back when they are answered, whoever reads the answer."""
    most = {
        name: 3 * SIZE_BYTES
        for name in (
            "max_large_request_bytes",
            "max_large_request_bytes_per_address",
            "max_large_request_bytes_per_connection",
        )
    }
    way = await open_way(plaintext, EdgeOptions(port=0, guard=LARGE, **most))  # type: ignore[arg-type]
    reader, writer = await _connect(way, window_bytes=window_bytes)
    for stream_id in (1, 3, 5):
        is_talk = path.endswith("Echo")
        writer.write(_call(stream_id, path, raw.message(b"m" * SIZE_BYTES), end=not is_talk))
    await until(lambda: way.gauge("strata_edge_unread_bytes") >= 3 * SIZE_BYTES)
    assert await way.send(OTHERS, timeout=20) == OTHERS
    await until(lambda: _large_bytes(way) == 0)
    assert way.gauge("strata_edge_unread_bytes") >= 3 * SIZE_BYTES
    raw.leave(writer)
    await until(lambda: way.gauge("strata_edge_unread_bytes") == 0)
    del reader


async def test_a_connection_has_its_share_of_large_requests(
    open_way: OpenWay, plaintext: str
) -> None:
    """Large requests above a connection's share wait; those of other connections pass them."""
    options = EdgeOptions(
        port=0,
        guard=LARGE,
        max_large_request_bytes=10 * SIZE_BYTES,
        max_large_request_bytes_per_connection=SIZE_BYTES,
    )
    way = await open_way(plaintext, options)
    reader, writer = await _connect(way)
    for stream_id in (1, 3, 5):
        writer.write(_begun(stream_id, SIZE_BYTES))
    await until(lambda: (_large_bytes(way), _waiting(way)) == (SIZE_BYTES, 2))
    assert await way.send(OTHERS, timeout=20) == OTHERS
    assert _waiting(way) == 2
    writer.write(raw.data_frames(1, bytes(SIZE_BYTES - 995), end=True))
    async with asyncio.timeout(20):
        await raw.read_until_end(reader, 1)
    await until(lambda: (_large_bytes(way), _waiting(way)) == (SIZE_BYTES, 1))
    raw.leave(writer)
    await until(lambda: (_large_bytes(way), _waiting(way)) == (0, 0))


async def test_an_address_has_its_share_of_large_requests(
    open_way: OpenWay, plaintext: str
) -> None:
    """Large requests above an address's share wait; those of other addresses pass them."""
    options = EdgeOptions(
        port=0,
        guard=LARGE,
        max_large_request_bytes=10 * SIZE_BYTES,
        max_large_request_bytes_per_address=2 * SIZE_BYTES,
    )
    way = await open_way(plaintext, options)
    opened = [await _connect(way, host="127.0.0.2") for _ in range(3)]
    for _, writer in opened:
        writer.write(_begun(1, SIZE_BYTES))
    await until(lambda: (_large_bytes(way), _waiting(way)) == (2 * SIZE_BYTES, 1))
    assert await way.send(OTHERS, timeout=20) == OTHERS
    assert (_large_bytes(way), _waiting(way)) == (2 * SIZE_BYTES, 1)
    raw.leave(opened[0][1])
    await until(lambda: (_large_bytes(way), _waiting(way)) == (2 * SIZE_BYTES, 0))
    for _, writer in opened[1:]:
        raw.leave(writer)


async def test_large_requests_that_trickle_are_ended(open_way: OpenWay, plaintext: str) -> None:
    """A byte now and then keeps no room for which others wait; who waited is served."""
    guard = GuardLimits(large_request_bytes=10_000, max_request_pause_ms=500)
    options = EdgeOptions(port=0, guard=guard, max_large_request_bytes=2 * SIZE_BYTES)
    way = await open_way(plaintext, options)
    reader, writer = await _connect(way)
    for stream_id in (1, 3):
        writer.write(_begun(stream_id, SIZE_BYTES))
    await until(lambda: _large_bytes(way) == 2 * SIZE_BYTES)
    assert _ended(way) == 0

    async def trickle() -> None:
        while True:
            for stream_id in (1, 3):
                writer.write(raw.data_frames(stream_id, b"x", end=False))
            await asyncio.sleep(0.02)

    trickling = asyncio.ensure_future(trickle())
    assert await way.send(OTHERS, timeout=20) == OTHERS
    assert await _is_closed(reader)
    trickling.cancel()
    assert [call.request for call in way.broker.calls] == [OTHERS]
    await until(lambda: _ended(way) == 1)
    raw.leave(writer)


async def test_who_waits_for_its_own_requests_delays_nobody(
    open_way: OpenWay, plaintext: str
) -> None:
    """A slow client with a second large request has all the time that an upload may take."""
    guard = GuardLimits(large_request_bytes=10_000, max_request_pause_ms=50)
    options = EdgeOptions(
        port=0,
        guard=guard,
        max_large_request_bytes=SIZE_BYTES,
        slow_upload_ms=1,
        max_upload_ms=3_000,
    )
    way = await open_way(plaintext, options)
    reader, writer = await _connect(way)
    for stream_id in (1, 3):
        writer.write(_begun(stream_id, SIZE_BYTES))
    async with asyncio.timeout(30):
        seen = await raw.read_until_end(reader, 1)
    assert any(b"did not arrive within" in text for text in raw.header_texts(seen))
    assert _ended(way) == 0
    raw.leave(writer)


async def _fill_unread(way: Way) -> grpc.aio.UnaryStreamCall[bytes, bytes]:
    """Give a client an answer of 20 MB, of which it reads the first bytes."""
    slow = stream(way.channel, "ReceiveMessage")(b"hold", timeout=60)
    await until(lambda: len(way.broker.calls) == 1)
    way.broker.calls[0].complete([b"first", *(bytes(500_000) for _ in range(40))], way.not_taken)
    assert await slow.read() == b"first"
    await until(lambda: way.gauge("strata_edge_unread_bytes") > 1_000_000)
    return slow


async def _receive(channel: grpc.aio.Channel) -> list[bytes]:
    return [part async for part in stream(channel, "ReceiveMessage")(b"m", timeout=10)]


async def test_who_has_read_everything_has_a_reserve(open_way: OpenWay, direct: str) -> None:
    """Beyond the total of unread answers, a connection that has none receives one at a time."""
    options = EdgeOptions(port=0, max_unread_bytes=1_000_000, unread_reserve_bytes=30_000_000)
    way = await open_way(direct, options)
    slow = await _fill_unread(way)
    reader = way.open_channel()
    for _ in range(3):
        assert await _receive(reader) == [b"m0", b"m1", b"m2"]
    handed_over = len(way.broker.calls)
    waiting = stream(reader, "ReceiveMessage")(b"hold", timeout=20)
    await until(lambda: len(way.broker.calls) == handed_over + 1)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await _receive(reader)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert _ended(way) == 0
    waiting.cancel()
    slow.cancel()
    await reader.close()


async def test_who_does_not_read_is_ended(open_way: OpenWay, plaintext: str) -> None:
    """While others are refused, a client that reads nothing more loses its connection."""
    options = EdgeOptions(
        port=0, max_unread_bytes=1_000_000, unread_reserve_bytes=0, max_read_pause_ms=300
    )
    way = await open_way(plaintext, options)
    slow = await _fill_unread(way)
    assert _ended(way) == 0, "nobody was refused"
    other = way.open_channel()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await _receive(other)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    await until(lambda: way.gauge("strata_edge_unread_bytes") == 0)
    await until(lambda: _ended(way) == 1)
    await until(lambda: way.times_not_taken == 1)
    with pytest.raises(grpc.aio.AioRpcError):
        while await slow.read() is not grpc.aio.EOF:
            pass
    assert await _receive(other) == [b"m0", b"m1", b"m2"]
    await other.close()


async def test_unary_answers_that_are_not_read_are_ended(open_way: OpenWay, plaintext: str) -> None:
    """The same holds for the answer of a send."""
    options = EdgeOptions(
        port=0, max_unread_bytes=SIZE_BYTES, unread_reserve_bytes=0, max_read_pause_ms=300
    )
    way = await open_way(plaintext, options)
    reader, writer = await _connect(way, window_bytes=0)
    writer.write(_call(1, SEND, raw.message(bytes(SIZE_BYTES))))
    await until(lambda: way.gauge("strata_edge_unread_bytes") == SIZE_BYTES)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await _receive(way.channel)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    await until(lambda: way.gauge("strata_edge_unread_bytes") == 0)
    await until(lambda: _ended(way) == 1)
    assert await _receive(way.channel) == [b"m0", b"m1", b"m2"]
    raw.leave(writer)
    del reader


async def test_who_reads_slowly_but_on_is_not_ended(open_way: OpenWay, plaintext: str) -> None:
    """A client that takes in each window what the rate asks keeps its answers."""
    options = EdgeOptions(
        port=0,
        max_unread_bytes=1_000_000,
        unread_reserve_bytes=0,
        max_read_pause_ms=300,
        min_read_bytes_per_s=1,
    )
    way = await open_way(plaintext, options)
    slow = await _fill_unread(way)
    other = way.open_channel()
    for _ in range(40):
        with contextlib.suppress(grpc.aio.AioRpcError):
            await _receive(other)
        assert await slow.read() == bytes(500_000)
        await asyncio.sleep(0.05)
    assert await slow.read() == grpc.aio.EOF
    assert _ended(way) == 0
    await other.close()


async def test_clients_without_a_word_are_asked_for_one(
    open_way: OpenWay, plaintext: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listening socket has the keepalive of the options, which its connections inherit."""
    seen: list[tuple[int, ...]] = []
    listen = socket.socket.listen

    def look(one: socket.socket, backlog: int = 0) -> None:
        names = socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT
        if one.family == socket.AF_INET:
            alive = one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            seen.append((alive, *(one.getsockopt(socket.IPPROTO_TCP, name) for name in names)))
        listen(one, backlog)

    monkeypatch.setattr(socket.socket, "listen", look)
    way = await open_way(plaintext, EdgeOptions(port=0, keepalive=Keepalive(70_000, 7_000, 3)))
    assert seen == [(1, 70, 7, 3)]
    assert await unary(way.channel, "SendMessage")(b"on", timeout=10) == b"on"
