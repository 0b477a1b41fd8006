"""Rules of the native edge; grpcio's front has tests of its own for them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading

import grpc
import pytest

from strata_edge.guard_limits import GuardLimits
from strata_edge.options import EdgeOptions
from strata_testing import until
from tests.contract import http2_raw as raw
from tests.contract.edge_ways import MIB, SERVICE, OpenWay, Way, unary
from tests.contract.edge_ways import certificate as certificate
from tests.contract.edge_ways import open_way as open_way

SEND = f"/{SERVICE}/SendMessage"
PING, GOAWAY = 0x6, 0x7


def _counted(way: Way, name: str) -> float:
    return way.metrics.counter(f"strata_edge_{name}_total").value()


async def _is_closed(reader: asyncio.StreamReader) -> bool:
    """Read to the end of a connection."""
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(30):
            while await reader.read(65_536):
                pass
    return True


async def test_a_panic_ends_one_call(open_way: OpenWay) -> None:
    """A panic in native code is INTERNAL for its call, counted, and nobody else's business."""
    way = await open_way("native", EdgeOptions(port=0))
    held = asyncio.ensure_future(way.send(b"hold"))
    await until(lambda: len(way.broker.calls) == 1)
    way.edge._server.panic_once()  # type: ignore[union-attr]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await way.send(b"one")
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "because of a bug" in (caught.value.details() or "")
    failures = way.metrics.counter("strata_request_failures_total")
    assert failures.value({"component": "edge"}) == 1
    assert await way.send(b"on") == b"on"
    way.broker.calls[0].complete([b"done"])
    assert await held == b"done"


async def test_an_answer_that_is_no_bytes_is_refused_where_it_is_made(open_way: OpenWay) -> None:
    """A mistake of the handler raises in the handler; the call gets INTERNAL like any other."""
    way = await open_way("native", EdgeOptions(port=0))
    call = asyncio.ensure_future(way.send(b"hold"))
    await until(lambda: len(way.broker.calls) == 1)
    held = way.broker.calls[0]
    with pytest.raises(TypeError):
        held.complete(["text"])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="no status ODD"):
        held.fail("ODD", "not a status of gRPC")
    assert not held.done()
    held.complete([b"done"])
    assert await call == b"done"


async def test_metadata_of_a_connection_is_decoded_once(open_way: OpenWay) -> None:
    """The same headers are the same mapping, which nobody can change; others are another."""
    way = await open_way("native", EdgeOptions(port=0))
    for client, request in (("c1", b"1"), ("c1", b"2"), ("c2", b"3")):
        metadata = (("x-mq-client-id", client), ("k-bin", b"v"))
        await unary(way.channel, "SendMessage")(request, metadata=metadata)
    first, second, third = (call.metadata for call in way.broker.calls)
    assert first is second
    assert (first["x-mq-client-id"], third["x-mq-client-id"]) == ("c1", "c2")
    assert {"te", "content-type", "k-bin"}.isdisjoint(first)
    with pytest.raises(TypeError):
        first["x"] = "y"  # type: ignore[index]


@pytest.mark.parametrize("kind", ["native", "native-tls"])
@pytest.mark.parametrize(
    "said",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00", id="half a ClientHello"),
        pytest.param(b"PRI * HT", id="half a preface"),
    ],
)
async def test_a_client_has_a_limited_time_to_begin(
    open_way: OpenWay, kind: str, said: bytes
) -> None:
    """Silence and a handshake that never ends are closed when the time is over, and counted."""
    way = await open_way(kind, EdgeOptions(port=0, handshake_timeout_ms=100))
    reader, writer = await asyncio.open_connection("127.0.0.1", way.port)
    writer.write(said)
    assert await _is_closed(reader)
    await until(lambda: _counted(way, "handshake_timeouts") == 1)
    assert await way.send(b"on") == b"on"
    writer.close()


async def test_who_has_spoken_may_be_idle_for_ever(open_way: OpenWay) -> None:
    """After the first bytes of HTTP/2 no deadline holds."""
    way = await open_way("native", EdgeOptions(port=0, handshake_timeout_ms=50))
    reader, writer = await raw.connect(way.port)
    silent, other = await asyncio.open_connection("127.0.0.1", way.port)
    assert await _is_closed(silent)
    writer.write(raw.frame(PING, 0, 0, b"12345678"))
    async with asyncio.timeout(30):
        assert b"12345678" in await reader.readuntil(b"12345678")
    for each in (writer, other):
        each.close()


@pytest.mark.parametrize("kind", [PING, raw.SETTINGS])
async def test_who_floods_on_after_the_longest_pause_is_ended(open_way: OpenWay, kind: int) -> None:
    """A connection that is slowed down for as long as any may be, and floods on, is closed."""
    guard = GuardLimits(
        max_control_frames_per_s=10, control_credit_ms=100, max_control_pause_ms=100
    )
    way = await open_way("native", EdgeOptions(port=0, guard=guard))
    reader, writer = await raw.connect(way.port)
    flood = raw.frame(kind, 0, 0, bytes(8) if kind == PING else b"") * 20_000
    writer.write(flood)
    assert await _is_closed(reader)
    await until(lambda: _counted(way, "ended_connections") == 1)
    assert await way.send(b"on") == b"on"
    writer.close()


async def test_who_resets_on_after_the_longest_pause_is_ended(open_way: OpenWay) -> None:
    """A rapid reset that goes on ends its connection; a client that stops resetting keeps its."""
    guard = GuardLimits(max_resets_per_s=10, control_credit_ms=1_000, max_control_pause_ms=100)
    way = await open_way("native", EdgeOptions(port=0, guard=guard))
    headers = raw.request_headers(f"/{SERVICE}/ReceiveMessage")

    def resets(first: int, last: int) -> bytes:
        return b"".join(
            raw.frame(raw.HEADERS, raw.END_HEADERS, name, headers)
            + raw.frame(raw.RST_STREAM, 0, name, b"\0\0\0\x08")
            for name in range(first, last, 2)
        )

    modest, its_writer = await raw.connect(way.port)
    its_writer.write(resets(1, 11))
    reader, writer = await raw.connect(way.port)
    writer.write(resets(1, 20_001))
    assert await _is_closed(reader)
    await until(lambda: _counted(way, "ended_connections") == 1)
    its_writer.write(raw.frame(raw.HEADERS, raw.END_HEADERS, 11, raw.request_headers(SEND)))
    its_writer.write(raw.data_frames(11, raw.message(b"on"), end=True))
    async with asyncio.timeout(30):
        assert raw.message(b"on") in await raw.read_until_end(modest, 11)
    for each in (writer, its_writer):
        raw.leave(each)


async def test_it_stops_while_clients_connect_without_end(open_way: OpenWay) -> None:
    """Connections that arrive while those before them end do not keep the edge from its end."""
    way = await open_way("native", EdgeOptions(port=0))
    headers = raw.request_headers(f"/{SERVICE}/ReceiveMessage")
    writers = [(await raw.connect(way.port))[1] for _ in range(20)]
    for writer in writers:
        for number in range(1, 101, 2):
            writer.write(raw.frame(raw.HEADERS, raw.END_HEADERS, number, headers))
            writer.write(raw.data_frames(number, raw.message(b"hold"), end=True))
    await until(lambda: len(way.broker.calls) == 1_000)
    over = threading.Event()
    knocks = asyncio.gather(*(asyncio.to_thread(_knock, way.port, over) for _ in range(3)))
    await until(lambda: way.gauge("strata_edge_connections") > 100)
    try:
        async with asyncio.timeout(30):
            await way.edge.stop(0)
    finally:
        over.set()
        await knocks
    for writer in writers:
        raw.leave(writer)
    assert all(call.done() for call in way.broker.calls)


def _knock(port: int, over: threading.Event) -> None:
    """Open connections until nobody listens, and hold them."""
    with contextlib.ExitStack() as opened:
        with contextlib.suppress(OSError):
            while not over.is_set():
                connection = socket.create_connection(("127.0.0.1", port), 30)
                opened.enter_context(connection).sendall(raw.hello())
        over.wait()


async def test_a_flood_of_pings_is_not_read(open_way: OpenWay) -> None:
    """A client that pings without end is paused, one that leaves in debt let go; others go on."""
    guard = GuardLimits(max_control_frames_per_s=10, control_credit_ms=1_000)
    way = await open_way("native", EdgeOptions(port=0, guard=guard))
    reader, writer = await raw.connect(way.port)
    writer.write(raw.frame(PING, 0, 0, bytes(8)) * 1_000)
    await until(lambda: _counted(way, "connection_pauses") >= 1)
    other = way.open_channel()
    assert await unary(other, "SendMessage")(b"on", timeout=10) == b"on"
    await other.close()
    await until(lambda: way.gauge("strata_edge_connections") == 1)
    writer.close()
    await until(lambda: way.gauge("strata_edge_connections") == 0, 5)
    del reader


async def test_a_large_request_that_stands_still_is_ended(open_way: OpenWay) -> None:
    """A client that holds awaited room and sends nothing more loses the connection."""
    guard = GuardLimits(max_request_pause_ms=300)
    options = EdgeOptions(port=0, max_large_request_bytes=MIB, guard=guard)
    way = await open_way("native", options)
    reader, writer = await raw.connect(way.port)
    writer.write(raw.frame(raw.HEADERS, raw.END_HEADERS, 1, raw.request_headers(SEND)))
    writer.write(raw.data_frames(1, raw.message(bytes(2 * MIB))[:1_000], end=False))
    await until(lambda: way.gauge("strata_edge_large_request_bytes") == 2 * MIB)
    await asyncio.sleep(0.5)
    assert _counted(way, "ended_connections") == 0, "nobody waits for its room"
    assert await way.send(bytes(MIB), timeout=60) == bytes(MIB)
    assert await _is_closed(reader)
    assert _counted(way, "ended_connections") == 1
    writer.close()


async def test_who_resets_what_was_not_taken_up_is_slowed_down(open_way: OpenWay) -> None:
    """Resets behind their calls in one piece, far above the rate, cost time or the connection."""
    way = await open_way("native", EdgeOptions(port=0))
    reader, writer = await raw.connect(way.port)
    headers = raw.request_headers(f"/{SERVICE}/ReceiveMessage")
    flood = b"".join(
        raw.frame(raw.HEADERS, raw.END_HEADERS, name, headers)
        + raw.frame(raw.RST_STREAM, 0, name, b"\0\0\0\x08")
        for name in range(1, 6_001, 2)
    )
    writer.write(flood)
    paused = way.metrics.counter("strata_edge_connection_pauses_total")
    ended = way.metrics.counter("strata_edge_ended_connections_total")
    await until(lambda: paused.value() + ended.value() >= 1)
    assert await way.send(b"on") == b"on"
    raw.leave(writer)
    await until(lambda: way.gauge("strata_edge_connections") == 1)
    await until(lambda: way.gauge("strata_edge_hot_calls") == 0)
    del reader


async def test_what_is_no_grpc_is_refused(open_way: OpenWay) -> None:
    """A GET of a browser gets an HTTP status; the connection goes on."""
    way = await open_way("native", EdgeOptions(port=0))
    reader, writer = await raw.connect(way.port)
    get = raw.request_headers(SEND).replace(b"\x04POST", b"\x03GET")
    writer.write(raw.frame(raw.HEADERS, raw.END_HEADERS | raw.END_STREAM, 1, get))
    async with asyncio.timeout(30):
        await raw.read_until_end(reader, 1)
    writer.write(raw.frame(raw.HEADERS, raw.END_HEADERS, 3, raw.request_headers(SEND)))
    writer.write(raw.data_frames(3, raw.message(b"on"), end=True))
    async with asyncio.timeout(30):
        assert raw.message(b"on") in await raw.read_until_end(reader, 3)
    assert [call.request for call in way.broker.calls] == [b"on"]
    writer.close()


async def test_an_answer_is_one_piece(open_way: OpenWay) -> None:
    """Small responses of a stream leave in one frame of data, their prefixes between them."""
    way = await open_way("native", EdgeOptions(port=0))
    reader, writer = await raw.connect(way.port)
    headers = raw.request_headers(f"/{SERVICE}/ReceiveMessage")
    writer.write(raw.frame(raw.HEADERS, raw.END_HEADERS, 1, headers))
    writer.write(raw.data_frames(1, raw.message(b"m"), end=True))
    answer = b"".join(raw.message(b"m%d" % number) for number in range(3))
    async with asyncio.timeout(30):
        assert raw.frame(raw.DATA, 0, 1, answer) in await raw.read_until_end(reader, 1)
    writer.close()


async def test_many_parked_calls_end_with_their_connection(open_way: OpenWay) -> None:
    """A thousand receives that wait are all told of when their client goes."""
    way = await open_way("native", EdgeOptions(port=0))
    _, writer = await raw.connect(way.port)
    headers = raw.request_headers(f"/{SERVICE}/ReceiveMessage")
    for number in range(1, 2_001, 2):
        writer.write(raw.frame(raw.HEADERS, raw.END_HEADERS, number, headers))
        writer.write(raw.data_frames(number, raw.message(b"hold"), end=True))
    await until(lambda: len(way.broker.calls) == 1_000)
    assert way.gauge("strata_edge_hot_calls") == 1_000
    writer.transport.abort()
    await until(lambda: len(way.broker.gone) == 1_000)
    assert way.gauge("strata_edge_hot_calls") == 0
    assert all(call.done() for call in way.broker.calls)
