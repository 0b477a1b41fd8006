"""The memory that an edge holds for clients that do not read is bounded."""

import asyncio
import gc
from collections.abc import Iterator

import grpc
import pytest

from strata_edge.options import EdgeOptions
from strata_testing import until
from tests.contract import http2_raw as raw
from tests.contract.edge_ways import SERVICE, OpenWay, stream
from tests.contract.edge_ways import certificate as certificate
from tests.contract.edge_ways import direct as direct
from tests.contract.edge_ways import open_way as open_way


async def test_unread_answers_are_bounded(open_way: OpenWay, direct: str) -> None:
    """While a client does not read, receives above the limit are refused; afterwards not."""
    way = await open_way(direct, EdgeOptions(port=0, max_unread_bytes=1_000_000))
    slow = stream(way.channel, "ReceiveMessage")(b"hold", timeout=20)
    await until(lambda: len(way.broker.calls) == 1)
    way.broker.calls[0].complete([b"first", *(bytes(500_000) for _ in range(40))])
    assert await slow.read() == b"first"
    await until(lambda: way.gauge("strata_edge_unread_bytes") > 1_000_000)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream(way.channel, "ReceiveMessage")(b"more", timeout=10).read()
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert [await slow.read() for _ in range(40)] == [bytes(500_000)] * 40
    assert await slow.read() == grpc.aio.EOF
    await until(lambda: way.gauge("strata_edge_unread_bytes") == 0)
    assert way.metrics.counter("strata_edge_refused_calls_total").value({"limit": "unread"}) == 1


async def test_who_reads_is_served_beside_one_that_does_not(open_way: OpenWay, direct: str) -> None:
    """Behind one address: a connection that has read everything has one call at a time."""
    way = await open_way(direct, EdgeOptions(port=0, max_unread_bytes_per_address=1_000_000))
    slow = stream(way.channel, "ReceiveMessage")(b"hold", timeout=20)
    await until(lambda: len(way.broker.calls) == 1)
    way.broker.calls[0].complete([b"first", *(bytes(500_000) for _ in range(40))])
    assert await slow.read() == b"first"
    await until(lambda: way.gauge("strata_edge_unread_bytes") > 1_000_000)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream(way.channel, "ReceiveMessage")(b"more", timeout=10).read()
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    reader = way.open_channel()
    for _ in range(3):
        received = stream(reader, "ReceiveMessage")(b"m", timeout=10)
        assert (await anext(aiter(received))).startswith(b"m")
        assert all([part.startswith(b"m") async for part in received])
    handed_over = len(way.broker.calls)
    waiting = stream(reader, "ReceiveMessage")(b"hold", timeout=20)
    await until(lambda: len(way.broker.calls) == handed_over + 1)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream(reader, "ReceiveMessage")(b"more", timeout=10).read()
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    waiting.cancel()
    slow.cancel()
    await until(lambda: way.gauge("strata_edge_unread_bytes") == 0)
    await reader.close()


async def test_answers_that_come_together_are_bounded(open_way: OpenWay) -> None:
    """The native edge refuses answers that find no room; who answered learns what was not taken."""
    way = await open_way("native", EdgeOptions(port=0, max_unread_bytes=1_000_000))
    reader, writer = await raw.connect(way.port)
    headers = raw.request_headers(f"/{SERVICE}/ReceiveMessage")
    for number in range(1, 21, 2):
        writer.write(raw.frame(raw.HEADERS, raw.END_HEADERS, number, headers))
        writer.write(raw.data_frames(number, raw.message(b"hold %d" % number), end=True))
    await until(lambda: len(way.broker.calls) == 10)
    not_taken: list[bytes] = []
    for call in way.broker.calls:
        call.complete(
            [bytes(600_000)],
            lambda call=call: not_taken.append(call.request),  # type: ignore[misc]
        )
    await until(lambda: len(not_taken) == 8)
    assert not_taken == [b"hold %d" % number for number in range(5, 21, 2)]
    assert way.gauge("strata_edge_unread_bytes") == 1_200_000
    async with asyncio.timeout(30):
        assert b"8" in raw.header_texts(await raw.read_until_end(reader, 19))
    raw.leave(writer)
    await until(lambda: len(not_taken) == 10)
    assert way.gauge("strata_edge_unread_bytes") == 0


@pytest.fixture
def _no_collection() -> Iterator[None]:
    """Turn the collection off, so that objects are freed by their last reference."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_no_collection")
async def test_what_a_client_did_not_take_is_gone_with_its_call(open_way: OpenWay) -> None:
    """The native edge holds one copy while nobody reads; after the call nothing holds any."""
    way = await open_way("native", EdgeOptions(port=0, max_unread_bytes=1_000_000))
    reader, writer = await raw.connect(way.port)
    headers = raw.request_headers(f"/{SERVICE}/Large")
    for number in range(1, 21, 2):
        writer.write(raw.frame(raw.HEADERS, raw.END_HEADERS, number, headers))
        writer.write(raw.data_frames(number, raw.message(b"500000"), end=True))
    made = way.broker.large_answers
    await until(lambda: len(made) > 0)
    await until(lambda: way.gauge("strata_edge_unread_bytes") > 1_000_000)
    assert {len(each() or ()) for each in made} == {0}, "the edge holds the bytes, nobody else"
    assert any(each() is not None for each in made)
    raw.leave(writer)
    await until(lambda: all(each() is None for each in made))
    await until(lambda: way.gauge("strata_edge_unread_bytes") == 0)
    del reader
