"""Every call of an edge gets an answer, and whoever gave one learns when it was not taken."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Awaitable, Callable

import grpc
import pytest

from strata_edge.options import EdgeOptions
from strata_edge.ports import CallError
from strata_testing import until
from tests.contract import http2_raw as raw
from tests.contract.edge_ways import SERVICE, OpenWay, Way, is_tls, stream, unary
from tests.contract.edge_ways import certificate as certificate
from tests.contract.edge_ways import open_way as open_way
from tests.contract.edge_ways import way as way

FEW = 1_000_000


async def test_an_answer_that_is_taken_tells_nobody(way: Way) -> None:
    """`on_not_taken` stays silent for an answer that the client reads."""
    told: list[str] = []
    call = stream(way.channel, "ReceiveMessage")(b"hold", timeout=20)
    await until(lambda: len(way.broker.calls) == 1)
    way.broker.calls[0].complete([b"one", b"two"], lambda: told.append("not taken"))
    assert [response async for response in call] == [b"one", b"two"]
    assert await way.send(b"on") == b"on"
    assert told == []


async def test_an_answer_to_a_client_that_has_gone(way: Way) -> None:
    """An answer to a call that is done is not taken: told once, never from within `complete`."""
    told: list[str] = []
    call = stream(way.channel, "ReceiveMessage")(b"hold", timeout=20)
    await until(lambda: len(way.broker.calls) == 1)
    call.cancel()
    await until(way.broker.calls[0].done)
    way.broker.calls[0].complete([b"one"], lambda: told.append("not taken"))
    assert told == []
    await until(lambda: told == ["not taken"])
    assert await way.send(b"on") == b"on"
    assert told == ["not taken"]


async def test_an_answer_in_the_turn_in_which_its_client_goes(way: Way) -> None:
    """200 clients leave while they are answered: each got its answer or the broker is told."""
    told: set[bytes] = set()
    rest = stream(way.channel, "ReceiveMessage")
    calls = {b"hold %d" % number: rest(b"hold %d" % number, timeout=60) for number in range(200)}
    await until(lambda: len(way.broker.calls) == len(calls))
    for call in way.broker.calls:
        request = call.request
        # Two that fit at once, and one that no client takes without reading.
        answer = [b"one", bytes(20 * FEW)]
        call.complete(answer, lambda request=request: told.add(request))  # type: ignore[misc]
        calls[request].cancel()
    await until(lambda: told == set(calls))
    assert await way.send(b"on") == b"on"


async def test_a_slow_reader_that_leaves(way: Way) -> None:
    """A client that read the beginning of an answer and resets it did not take it."""
    told: list[str] = []
    call = stream(way.channel, "ReceiveMessage")(b"hold", timeout=60)
    await until(lambda: len(way.broker.calls) == 1)
    answer = [b"first", *(bytes(FEW) for _ in range(60))]
    way.broker.calls[0].complete(answer, lambda: told.append("not taken"))
    assert await call.read() == b"first"
    assert told == []
    call.cancel()
    await until(lambda: told == ["not taken"])
    assert way.metrics.counter("strata_edge_answers_not_taken_total").value() == 1


async def test_a_connection_that_ends_takes_no_more(open_way: OpenWay) -> None:
    """An answer that was not out when its connection was lost (the front died) was not taken."""
    way = await open_way("tls", EdgeOptions(port=0))
    told: list[str] = []
    call = stream(way.channel, "ReceiveMessage")(b"hold", timeout=60)
    await until(lambda: len(way.broker.calls) == 1)
    answer = [b"first", *(bytes(FEW) for _ in range(60))]
    way.broker.calls[0].complete(answer, lambda: told.append("not taken"))
    assert await call.read() == b"first"
    assert way.edge.front_pid is not None
    os.kill(way.edge.front_pid, signal.SIGKILL)
    await until(lambda: told == ["not taken"])


async def test_a_client_that_breaks_off_takes_no_more(way: Way) -> None:
    """An answer that was not out when its client's connection broke was not taken."""
    if is_tls(way.kind):
        pytest.skip("HTTP/2 by hand is plaintext")
    told: list[str] = []
    _, writer = await raw.connect(way.port)
    headers = raw.request_headers(f"/{SERVICE}/ReceiveMessage")
    writer.write(raw.frame(raw.HEADERS, raw.END_HEADERS, 1, headers))
    writer.write(raw.data_frames(1, raw.message(b"hold"), end=True))
    await until(lambda: len(way.broker.calls) == 1)
    way.broker.calls[0].complete([b"first", bytes(FEW)], lambda: told.append("not taken"))
    await until(lambda: way.gauge("strata_edge_unread_bytes") > FEW)
    assert told == []
    writer.transport.abort()
    await until(lambda: told == ["not taken"])
    await until(lambda: way.gauge("strata_edge_unread_bytes") == 0)


async def test_a_stop_takes_no_more(way: Way) -> None:
    """An answer that was not out when the edge stopped was not taken."""
    told: list[str] = []
    call = stream(way.channel, "ReceiveMessage")(b"hold", timeout=60)
    await until(lambda: len(way.broker.calls) == 1)
    answer = [b"first", *(bytes(FEW) for _ in range(60))]
    way.broker.calls[0].complete(answer, lambda: told.append("not taken"))
    assert await call.read() == b"first"
    await way.edge.stop(0)
    await until(lambda: told == ["not taken"])
    call.cancel()


async def test_a_failed_call(way: Way) -> None:
    """A hot call ends with the status that the broker gives it, stream or not."""
    for call in (
        unary(way.channel, "SendMessage")(b"fail", timeout=10),
        stream(way.channel, "ReceiveMessage")(b"fail", timeout=10).read(),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert caught.value.details() == "not like this"


async def test_a_batch_whose_handler_raises(way: Way) -> None:
    """A handler that raises at one call of a batch leaves no call of it without an answer."""
    requests = [b"raise" if number % 3 == 1 else b"%d" % number for number in range(60)]
    outcomes = await asyncio.gather(*(_outcome(way, request) for request in requests))
    for request, outcome in zip(requests, outcomes, strict=True):
        expected = {b"INTERNAL"} if request == b"raise" else {request, b"INTERNAL"}
        assert outcome in expected
    assert await way.send(b"on") == b"on"
    failures = way.metrics.counter("strata_request_failures_total")
    assert failures.value({"component": "edge"}) >= 1


async def test_a_rare_handler_that_raises(way: Way) -> None:
    """A mistake of a rare RPC's handler is INTERNAL without its words, and counted."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await unary(way.channel, "Reverse")(b"raise", timeout=10)
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "because of a bug" in (caught.value.details() or "")
    failures = way.metrics.counter("strata_request_failures_total")
    assert failures.value({"component": "edge"}) == 1
    assert await way.send(b"on") == b"on"


async def _outcome(way: Way, request: bytes) -> bytes:
    try:
        return await way.send(request)
    except grpc.aio.AioRpcError as error:
        return error.code().name.encode()


async def test_a_call_that_is_refused_leaves_nothing_to_the_collector(way: Way) -> None:
    """A call that has ended, of every kind, holds nothing any more, without a collection."""
    large = bytes((64 << 10) + 1)
    refused: dict[str, Callable[[], Awaitable[object]]] = {
        "failed": lambda: unary(way.channel, "AckMessage")(b"fail"),
        "too large": lambda: unary(way.channel, "AckMessage")(large),
        "failed stream": lambda: stream(way.channel, "ReceiveMessage")(b"fail").read(),
        "too large stream": lambda: stream(way.channel, "ReceiveMessage")(large).read(),
        "rare": lambda: unary(way.channel, "Reverse")(b"refuse"),
        "rare stream": lambda: stream(way.channel, "Count")(large).read(),
    }
    gc.collect()
    gc.disable()
    try:
        for name, call in refused.items():
            for _ in range(5):
                with pytest.raises(grpc.aio.AioRpcError):
                    await call()
            print(name)
            way.broker.batches.clear()
            # gRPC holds the last call until the next one comes.
            await until(lambda: len(_ends_of_calls()) <= 1)
    finally:
        gc.enable()


def _ends_of_calls() -> list[object]:
    ends = (grpc.aio.AbortError, CallError)
    return [one for one in gc.get_objects() if isinstance(one, ends)]
