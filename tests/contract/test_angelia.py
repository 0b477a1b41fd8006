"""Rules of every transport and codec of Angelia: tcp and http2 times three, in-process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any

import pytest

from strata_angelia import ports
from strata_angelia.factory import open_channel
from strata_angelia.ports import AngeliaError, Channel
from strata_angelia.tcp_server import TcpServer
from strata_testing import until
from tests.contract.angelia_pairs import (
    COUNT_UP,
    OPTIONS,
    SAY_BACK,
    SERVICE,
    TRACE_PARENT,
    Note,
    OpenPair,
    Pair,
)
from tests.contract.angelia_pairs import open_pair as open_pair
from tests.contract.angelia_pairs import pair as pair


async def test_unary(pair: Pair) -> None:
    """A unary call brings the handler's response; the handler sees deadline, trace and peer."""
    response = await pair.channel.call(
        SAY_BACK, Note(body=b"\0\xff", number=6), Note, timeout_s=60.0
    )
    assert (response.body, response.number) == (b"\0\xff", 7)
    (context,) = pair.handler.contexts
    assert context.timeout_s is not None
    # gRPC rounds the header up.
    assert 30.0 < context.timeout_s < 60.1
    assert context.trace_parent == TRACE_PARENT
    assert context.peer


async def test_no_deadline(pair: Pair) -> None:
    """Without a timeout the handler sees none."""
    await pair.say(b"x", timeout_s=None)
    assert pair.handler.contexts[0].timeout_s is None


async def test_stream_brings_all_items_in_order(pair: Pair) -> None:
    """A stream far larger than its window arrives whole and in order."""
    request = Note(number=300, body=bytes(1_000))
    numbers = [item.number async for item in pair.channel.stream(COUNT_UP, request, Note)]
    assert numbers == list(range(300))


async def test_empty_stream(pair: Pair) -> None:
    """A stream without items just ends."""
    assert [item async for item in pair.channel.stream(COUNT_UP, Note(), Note)] == []


async def test_stream_error_comes_after_its_items(pair: Pair) -> None:
    """Items sent before an error arrive, then the error is raised."""
    stream = pair.channel.stream(COUNT_UP, Note(number=3, body=b"refuse"), Note)
    numbers = [(await anext(stream)).number for _ in range(3)]
    with pytest.raises(AngeliaError) as caught:
        await anext(stream)
    assert numbers == [0, 1, 2]
    assert (caught.value.code, caught.value.reason) == (ports.OVERLOADED, "no more")


async def test_leaving_a_stream_ends_its_handler(pair: Pair) -> None:
    """A consumer that leaves early ends the handler at the server."""
    request = Note(number=1, body=b"wait")
    async with contextlib.aclosing(pair.channel.stream(COUNT_UP, request, Note)) as items:  # type: ignore[type-var]
        async for item in items:
            assert item.number == 0
            break
    await until(lambda: pair.handler.ended == 1)


async def test_slow_consumer_holds_the_producer(pair: Pair) -> None:
    """A stream nobody reads stops its handler before it has sent everything."""
    request = Note(number=20_000, body=bytes(2_000))
    async with contextlib.aclosing(pair.channel.stream(COUNT_UP, request, Note)) as items:  # type: ignore[type-var]
        assert (await anext(items)).number == 0
        seen = -1
        while seen != pair.handler.sent:
            seen = pair.handler.sent
            await asyncio.sleep(0.1)
        assert seen < 20_000
        assert (await anext(items)).number == 1


async def test_deadline(pair: Pair) -> None:
    """A call over its deadline fails and its handler is cancelled."""
    # The first call connects: on a busy machine that may be all that the second has time for.
    assert (await pair.say(b"on")).body == b"on"
    with pytest.raises(AngeliaError) as caught:
        await pair.say(b"wait", timeout_s=1.0)
    assert caught.value.code == ports.DEADLINE_EXCEEDED
    await until(lambda: pair.handler.ended == 2)


async def test_cancelled_caller(pair: Pair) -> None:
    """Cancelling the caller cancels the handler; the channel serves on."""
    async with asyncio.TaskGroup() as group:
        call = group.create_task(pair.say(b"wait"))
        await until(lambda: pair.handler.running == 1)
        call.cancel()
    await until(lambda: pair.handler.ended == 1)
    assert (await pair.say(b"on")).body == b"on"


@pytest.mark.parametrize("method", ["/strata.test.v1.EchoService/Nothing", "/no.Service/SayBack"])
async def test_unknown_method(pair: Pair, method: str) -> None:
    """A method the server lacks is UNKNOWN_METHOD, unary or streaming."""
    with pytest.raises(AngeliaError) as caught:
        await pair.channel.call(method, Note(), Note, timeout_s=5.0)
    assert caught.value.code == ports.UNKNOWN_METHOD
    with pytest.raises(AngeliaError) as caught:
        await anext(pair.channel.stream(method, Note(), Note))
    assert caught.value.code == ports.UNKNOWN_METHOD


async def test_handler_refuses(pair: Pair) -> None:
    """A handler's AngeliaError reaches the caller with code and reason."""
    with pytest.raises(AngeliaError) as caught:
        await pair.say(b"refuse")
    assert (caught.value.code, caught.value.reason) == (ports.OVERLOADED, "not now")


async def test_handler_breaks(pair: Pair) -> None:
    """A handler's mistake is INTERNAL, names the error, and the server serves on."""
    with pytest.raises(AngeliaError) as caught:
        await pair.say(b"break")
    assert caught.value.code == ports.INTERNAL
    assert "a mistake" in caught.value.reason
    assert (await pair.say(b"on")).body == b"on"


async def test_a_mistake_is_counted(pair: Pair) -> None:
    """The alert on failed requests sees mistakes of every server; refusals are none."""
    for body in (b"break", b"refuse"):
        with pytest.raises(AngeliaError):
            await pair.say(body)
        with pytest.raises(AngeliaError):
            async for _ in pair.channel.stream(COUNT_UP, Note(body=body, number=1), Note):
                pass
    await until(lambda: 'strata_request_failures_total{component="angelia"} 2' in scrape(pair))
    assert (await pair.say(b"on")).body == b"on"


def scrape(pair: Pair) -> str:
    return pair.metrics.render().decode()


async def test_oversize(pair: Pair) -> None:
    """A request or response above the limit is TOO_LARGE and harms no other call."""
    if pair.transport == "inproc":
        pytest.skip("nothing is serialised, no size is known")
    with pytest.raises(AngeliaError) as caught:
        await pair.say(bytes(OPTIONS.max_message_bytes + 1))
    assert caught.value.code == ports.TOO_LARGE
    with pytest.raises(AngeliaError) as caught:
        await pair.say(b"swell")
    assert caught.value.code == ports.TOO_LARGE
    room = OPTIONS.max_message_bytes - 100
    body = bytes(room * 3 // 4 if pair.codec == "json" else room)  # JSON has bytes in base64
    assert (await pair.say(body)).body == body


async def test_server_with_smaller_limit(open_pair: OpenPair) -> None:
    """A request above the server's own limit is TOO_LARGE although the caller's allows it."""
    pair = await open_pair(replace(OPTIONS, max_message_bytes=1_000))
    if pair.transport == "inproc":
        pytest.skip("nothing is serialised, no size is known")
    with pytest.raises(AngeliaError) as caught:
        await pair.say(bytes(2_000))
    assert caught.value.code == ports.TOO_LARGE
    assert (await pair.say(b"on")).body == b"on"


async def test_thousand_concurrent_calls(pair: Pair) -> None:
    """1,000 calls run at once and each gets its own answer."""
    async with asyncio.TaskGroup() as group:
        calls = [
            group.create_task(
                pair.channel.call(SAY_BACK, Note(body=b"wait", number=n), Note, timeout_s=30.0)
            )
            for n in range(1_000)
        ]
        await until(lambda: pair.handler.running == 1_000)
        pair.handler.release.set()
    assert [call.result().number for call in calls] == list(range(1, 1_001))
    assert pair.handler.most_running == 1_000


async def test_stop_gives_grace(pair: Pair) -> None:
    """Stop lets a running call end within the grace and takes no new one."""
    async with asyncio.TaskGroup() as group:
        call = group.create_task(pair.say(b"wait"))
        await until(lambda: pair.handler.running == 1)
        stop = group.create_task(pair.server.stop(5.0))
        await asyncio.sleep(0.05)
        with pytest.raises(AngeliaError) as caught:
            await pair.say(b"late", timeout_s=1.0)
        pair.handler.release.set()
    assert stop.done()
    assert call.result().body == b"wait"
    assert caught.value.code in (ports.UNAVAILABLE, ports.DEADLINE_EXCEEDED)


async def test_stop_cancels_after_grace(pair: Pair) -> None:
    """After the grace, running calls and streams end with UNAVAILABLE."""
    stream = pair.channel.stream(COUNT_UP, Note(number=1, body=b"wait"), Note)
    assert (await anext(stream)).number == 0
    async with asyncio.TaskGroup() as group:
        call = group.create_task(_failure_code(pair.say(b"wait", timeout_s=20.0)))
        await until(lambda: pair.handler.running == 1)
        await pair.server.stop(0.1)
    assert call.result() == ports.UNAVAILABLE
    assert await _failure_code(anext(stream)) == ports.UNAVAILABLE
    await until(lambda: pair.handler.ended == 2)


async def test_no_server(pair: Pair) -> None:
    """A call to an endpoint nobody serves is UNAVAILABLE, soon."""
    await pair.server.stop(0)
    other = pair.open_channel()
    assert await _failure_code(_call(other, b"x")) == ports.UNAVAILABLE
    await other.close()


async def test_closed_channel(pair: Pair) -> None:
    """Closing the channel fails what is under way and every later call; handlers are cancelled."""
    async with asyncio.TaskGroup() as group:
        call = group.create_task(_failure_code(pair.say(b"wait")))
        await until(lambda: pair.handler.running == 1)
        await pair.channel.close()
    assert call.result() == ports.UNAVAILABLE
    assert await _failure_code(pair.say(b"x")) == ports.UNAVAILABLE
    await until(lambda: pair.handler.ended == 1)


async def test_server_comes_back(pair: Pair) -> None:
    """A channel reaches a server that was started again at the same endpoint."""
    await pair.say(b"x")
    await pair.server.stop(0)
    assert await _failure_code(pair.say(b"x", timeout_s=1.0)) == ports.UNAVAILABLE
    again = pair.open_server()
    assert await again.start() == pair.endpoint
    for _ in range(200):
        if await _failure_code(pair.say(b"x", timeout_s=1.0)) == "ok":
            break
        await asyncio.sleep(0.05)
    assert (await pair.say(b"on")).body == b"on"
    await again.stop(0)


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n\r\n", bytes(4_096), b"\xff" * 4_096, b"\x16\x03\x01\x02\x00"]
)
async def test_garbage_bytes(pair: Pair, garbage: bytes) -> None:
    """A connection that speaks garbage is closed or ignored; other callers are served on."""
    if pair.transport == "inproc":
        pytest.skip("there are no bytes")
    host, _, port = pair.endpoint.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(garbage)
    writer.write_eof()
    async with asyncio.timeout(30):
        with contextlib.suppress(ConnectionError):
            await reader.read()
    writer.close()
    assert (await pair.say(b"on")).body == b"on"


async def test_peer_death(pair: Pair) -> None:
    """When the server's connection breaks, calls and streams under way fail at once."""
    if pair.transport == "inproc":
        pytest.skip("server and caller die together")
    relay = await _Relay.start(pair.endpoint)
    channel = open_channel(
        relay.endpoint, pair.transport, pair.codec, options=OPTIONS, tls=pair.tls
    )
    stream = channel.stream(COUNT_UP, Note(number=1, body=b"wait"), Note)
    assert (await anext(stream)).number == 0
    async with asyncio.TaskGroup() as group:
        call = group.create_task(_failure_code(_call(channel, b"wait")))
        await until(lambda: pair.handler.running == 1)
        relay.cut()
    assert call.result() == ports.UNAVAILABLE
    assert await _failure_code(anext(stream)) == ports.UNAVAILABLE
    await until(lambda: pair.handler.ended == 2)
    await channel.close()
    await relay.stop()


async def test_handler_must_have_every_method(pair: Pair) -> None:
    """Registering a handler without an RPC's method is a TypeError that names it."""
    server = TcpServer("127.0.0.1", 0)
    with pytest.raises(TypeError, match="say_back"):
        server.register(SERVICE, object())


async def _call(channel: Channel, body: bytes) -> Any:
    return await channel.call(SAY_BACK, Note(body=body), Note, timeout_s=5.0)


async def _failure_code(call: Awaitable[Any]) -> str:
    try:
        await call
    except AngeliaError as error:
        return error.code
    return "ok"


class _Relay:
    """A tcp relay that can cut its connections as a dying machine's kernel would."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None
        self.endpoint = ""

    @classmethod
    async def start(cls, target: str) -> _Relay:
        relay = cls(target)
        relay._server = await asyncio.start_server(relay._serve, "127.0.0.1", 0)
        relay.endpoint = f"127.0.0.1:{relay._server.sockets[0].getsockname()[1]}"
        return relay

    def cut(self) -> None:
        for writer in self._writers:
            writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0"
            )
            writer.transport.abort()

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self._target.rpartition(":")
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        self._writers += [writer, far_writer]
        async with asyncio.TaskGroup() as group:
            group.create_task(self._copy(reader, far_writer))
            group.create_task(self._copy(far_reader, writer))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                writer.write(data)
