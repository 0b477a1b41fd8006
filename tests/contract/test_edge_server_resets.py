"""Streams that the native edge itself ends or refuses cost their client nothing.

A client pays for resets of its own and for those that it brings about; grpcio's front cannot tell
the server's resets apart, so it takes the time for all of them.
"""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from strata_edge.guard_limits import GuardLimits
from strata_edge.options import EdgeOptions
from strata_testing import until
from tests.contract import http2_raw as raw
from tests.contract.edge_ways import SERVICE, OpenWay, Way
from tests.contract.edge_ways import certificate as certificate
from tests.contract.edge_ways import open_way as open_way

SEND = f"/{SERVICE}/SendMessage"
RECEIVE = f"/{SERVICE}/ReceiveMessage"
WINDOW_UPDATE = 0x8

# Ten resets at once, then ten a second.
STRICT = GuardLimits(
    max_resets_per_s=10,
    control_credit_ms=1_000,
    max_control_pause_ms=100,
    max_unfinished_requests=20,
)


def begun(stream: int, path: str, **more: str) -> bytes:
    """The headers of a call."""
    return raw.frame(raw.HEADERS, raw.END_HEADERS, stream, raw.request_headers(path, **more))


def cost(way: Way) -> tuple[float, float]:
    """How many pauses connections were given, and how many were ended."""
    counter = way.metrics.counter
    return (
        counter("strata_edge_connection_pauses_total").value(),
        counter("strata_edge_ended_connections_total").value(),
    )


async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, stream: int) -> None:
    """Make a call on a connection, and get its answer."""
    writer.write(begun(stream, SEND) + raw.data_frames(stream, raw.message(b"on"), end=True))
    assert raw.message(b"on") in await raw.read_until_end(reader, stream)


@pytest.mark.parametrize("path", [SEND, f"/{SERVICE}/Nothing"], ids=["deadline", "no such method"])
@pytest.mark.parametrize("replies", [False, True], ids=["sends on", "resets, too"])
async def test_a_call_that_the_server_ends_first(
    open_way: OpenWay, path: str, replies: bool
) -> None:
    """Requests that are under way when their time is over, or that nobody takes, by the hundred."""
    way = await open_way("native", EdgeOptions(port=0, guard=STRICT))
    reader, writer = await raw.connect(way.port)
    part = raw.message(bytes(10_000))[:1_000]
    async with asyncio.timeout(30):
        for first in range(1, 401, 20):
            streams = range(first, first + 20, 2)
            for stream in streams:
                writer.write(begun(stream, path, grpc_timeout="1m"))
                writer.write(raw.data_frames(stream, part, end=False))
            ended: set[int] = set()
            while not ended.issuperset(streams):
                head = await reader.readexactly(9)
                await reader.readexactly(int.from_bytes(head[:3]))
                if head[3] == raw.RST_STREAM:
                    ended.add(int.from_bytes(head[5:9]))
            for stream in streams:
                writer.write(raw.data_frames(stream, bytes(1_000), end=False) * 3)
                if replies:
                    writer.write(raw.frame(raw.RST_STREAM, 0, stream, b"\0\0\0\x08"))
        await answered(reader, writer, 401)
    assert cost(way) == (0, 0)
    raw.leave(writer)


async def test_streams_that_are_refused(open_way: OpenWay) -> None:
    """A client that opens more streams than it may at once is refused those, and nothing else."""
    way = await open_way("native", EdgeOptions(port=0, guard=STRICT, max_streams_per_connection=5))
    reader, writer = await raw.connect(way.port)
    for stream in range(1, 4_001, 2):
        request = raw.data_frames(stream, raw.message(b"hold"), end=True)
        writer.write(begun(stream, RECEIVE) + request)
    async with asyncio.timeout(30):
        assert (await raw.read_until_end(reader, 3_999)).endswith(b"\0\0\0\x07")
    assert len(way.broker.calls) == 5
    for call in way.broker.calls:
        call.complete([b"m"])
    async with asyncio.timeout(30):
        await raw.read_until_end(reader, 9)
        await answered(reader, writer, 4_001)
    assert cost(way) == (0, 0)
    raw.leave(writer)


async def test_resets_that_the_client_brings_about(open_way: OpenWay) -> None:
    """Windows beyond what there is: streams that the server has to reset cost like the client's."""
    way = await open_way("native", EdgeOptions(port=0, guard=STRICT))
    reader, writer = await raw.connect(way.port)
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):  # it is ended
        async with asyncio.timeout(30):
            for stream in range(1, 4_001, 2):
                wrong = raw.frame(WINDOW_UPDATE, 0, stream, b"\x7f\xff\xff\xff")
                writer.write(begun(stream, RECEIVE) + 2 * wrong)
                await raw.read_until_end(reader, stream)
    await until(lambda: cost(way)[1] == 1, 5)
    await until(lambda: way.gauge("strata_edge_hot_calls") == 0)
    assert await way.send(b"on") == b"on"
    raw.leave(writer)


async def test_a_reset_of_a_parked_receive_is_seen(open_way: OpenWay) -> None:
    """Each receive that waits and is reset is told, in its order, and takes no answer any more."""
    way = await open_way("native", EdgeOptions(port=0))
    reader, writer = await raw.connect(way.port)
    for stream in range(1, 41, 2):
        request = raw.data_frames(stream, raw.message(b"hold %d" % stream), end=True)
        writer.write(begun(stream, RECEIVE) + request)
    await until(lambda: len(way.broker.calls) == 20)
    for stream in range(1, 21, 2):
        writer.write(raw.frame(raw.RST_STREAM, 0, stream, b"\0\0\0\x08"))
    await until(lambda: len(way.broker.gone) == 10)
    assert way.broker.gone == [b"hold %d" % stream for stream in range(1, 21, 2)]
    assert [call.done() for call in way.broker.calls] == [True] * 10 + [False] * 10
    not_taken: list[bytes] = []
    for call in way.broker.calls[10:]:
        call.complete([b"m"], lambda call=call: not_taken.append(call.request))  # type: ignore[misc]
    async with asyncio.timeout(30):
        await answered(reader, writer, 41)
    assert not_taken == []
    assert way.gauge("strata_edge_hot_calls") == 0
    raw.leave(writer)
