"""The forwarder on real sockets: it spreads connections and leaves brokers that do not serve."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from strata_cli.processes.forwarder import BrokerList, Forwarder, ForwarderOptions
from strata_runtime import loop
from strata_runtime.metrics import Metrics
from strata_testing import until

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

LIMIT_S = 30.0
OPTIONS = ForwarderOptions(
    "127.0.0.1", 0, check_interval_ms=20, check_timeout_ms=200, connect_timeout_ms=200
)
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class FakeBroker:
    """A gRPC server with a health service; it knows the service that bears its name."""

    def __init__(self, name: str, address: str = "127.0.0.1:0") -> None:
        self.name = name
        self.health = health.aio.HealthServicer()
        self._server = grpc.aio.server()
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port(address)}"

    async def start(self) -> None:
        await self._server.start()
        await self.health.set("", SERVING)
        await self.health.set(self.name, SERVING)

    async def stop(self) -> None:
        await self._server.stop(0)


@asynccontextmanager
async def forwarding(
    *brokers: str, options: ForwarderOptions = OPTIONS, file: Path | None = None
) -> AsyncIterator[Forwarder]:
    """Run a forwarder before some brokers, more of them in a file."""

    def fail(name: str, failure: BaseException) -> None:
        raise AssertionError(name) from failure

    forwarder = Forwarder(options, BrokerList(brokers, file), Metrics.disabled(), on_fatal=fail)
    await forwarder.start()
    yield forwarder
    await forwarder.stop(1.0)


@pytest.fixture
async def two() -> AsyncIterator[tuple[FakeBroker, FakeBroker]]:
    """Two brokers, a and b."""
    a, b = FakeBroker("a"), FakeBroker("b")
    await a.start()
    await b.start()
    yield a, b
    await a.stop()
    await b.stop()


def host_and_port(endpoint: str) -> tuple[str, int]:
    """Take an address apart."""
    host, _, port = endpoint.rpartition(":")
    return host, int(port)


async def who(endpoint: str) -> str | None:
    """Return the name of the broker that a new connection reaches; None: it reaches none."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(endpoint, options) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for name in ("a", "b"):
            with suppress(grpc.aio.AioRpcError):
                await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=LIMIT_S)
                return name
    return None


async def test_connections_are_spread(two: tuple[FakeBroker, FakeBroker]) -> None:
    """Both brokers get half of the connections that stay open."""
    a, b = two
    async with forwarding(a.address, b.address) as forwarder:
        await until(lambda: forwarder.serving == {a.address, b.address})
        host, _, port = forwarder.endpoint.rpartition(":")
        opened = [await asyncio.open_connection(host, int(port)) for _ in range(6)]
        await until(lambda: forwarder.load() == {a.address: 3, b.address: 3})
        for _, writer in opened:
            await closed(writer)
        await until(lambda: forwarder.load() == {a.address: 0, b.address: 0})


async def test_a_draining_broker_gets_no_new_connection(
    two: tuple[FakeBroker, FakeBroker],
) -> None:
    """Once its health is NOT_SERVING the other one gets all."""
    a, b = two
    async with forwarding(a.address, b.address) as forwarder:
        await until(lambda: forwarder.serving == {a.address, b.address})
        await a.health.set("", NOT_SERVING)
        await until(lambda: forwarder.serving == {b.address})
        assert {await who(forwarder.endpoint) for _ in range(4)} == {"b"}


async def test_a_dead_broker_is_passed_over_before_the_next_check(
    two: tuple[FakeBroker, FakeBroker],
) -> None:
    """A connection that is refused goes to the other broker; the client sees no error."""
    a, b = two
    seldom = ForwarderOptions("127.0.0.1", 0, check_interval_ms=60_000)
    async with forwarding(a.address, b.address, options=seldom) as forwarder:
        await until(lambda: forwarder.serving == {a.address, b.address})
        await a.stop()
        assert {await who(forwarder.endpoint) for _ in range(4)} == {"b"}


async def test_a_broker_that_dies_without_a_word_is_passed_over() -> None:
    """The client's bytes go to the next one; the client sees its answer and no error."""
    heard: list[bytes] = []

    async def die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(100))
        if len(heard) % 2:
            await closed(writer)
        else:
            writer.transport.abort()

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read(100))
        await reader.read()
        await closed(writer)

    async with serving(die) as dying, serving(echo) as alive, forwarding(dying, alive) as forwarder:
        for _ in range(8):
            reader, writer = await asyncio.open_connection(*host_and_port(forwarder.endpoint))
            writer.write(b"hello")
            async with asyncio.timeout(LIMIT_S):
                assert await reader.readexactly(5) == b"hello"
            await closed(writer)
    # The others came from health checks.
    assert b"hello" in heard


async def test_a_connection_that_every_broker_closes_is_let_go() -> None:
    """After a few of them, not never."""
    count = 0

    async def die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        count += 1
        await closed(writer)

    async with serving(die) as address, forwarding(address) as forwarder:
        reader, writer = await asyncio.open_connection(*host_and_port(forwarder.endpoint))
        with suppress(ConnectionError):
            assert await reader.read() == b""
        await closed(writer)
    assert 1 < count < 100


async def test_connections_to_a_broker_that_stops_are_left_alone() -> None:
    """Its port is closed already, and it serves to the end who is connected."""
    hung_up = asyncio.Event()
    greeted = asyncio.Event()

    async def echo_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Health checks begin with something else.
        first = await reader.readexactly(5)
        if first == b"first":
            greeted.set()
            first = await reader.readexactly(5)
        writer.write(first)
        await hung_up.wait()

    async with listening(echo_once) as server, forwarding(address_of(server)) as forwarder:
        reader, writer = await asyncio.open_connection(*host_and_port(forwarder.endpoint))
        writer.write(b"first")
        async with asyncio.timeout(LIMIT_S):
            await greeted.wait()
        server.close()
        await asyncio.sleep(0.5)
        writer.write(b"hello")
        async with asyncio.timeout(LIMIT_S):
            assert await reader.readexactly(5) == b"hello"
        hung_up.set()
        await closed(writer)


async def test_connections_to_a_broker_that_hangs_are_closed(
    two: tuple[FakeBroker, FakeBroker], tmp_path: Path
) -> None:
    """A broker that accepts and says nothing loses its clients, so that they go elsewhere."""
    file = tmp_path / "brokers"
    async with serving(hang) as address:
        file.write_text(address)
        async with forwarding(file=file) as forwarder:
            await until(lambda: address in forwarder.load())
            reader, writer = await asyncio.open_connection(*host_and_port(forwarder.endpoint))
            writer.write(b"anybody there?")
            await until(lambda: forwarder.load() == {address: 1})
            file.write_text(f"{address} {two[0].address}")
            async with asyncio.timeout(LIMIT_S):
                with suppress(ConnectionResetError):
                    assert await reader.read() == b""
            await closed(writer)


async def test_the_last_broker_keeps_its_connections() -> None:
    """One that is only slow to say that it is well is left alone when nobody else serves."""
    async with serving(hang) as address, forwarding(address) as forwarder:
        await until(lambda: address in forwarder.load())
        _, writer = await asyncio.open_connection(*host_and_port(forwarder.endpoint))
        await until(lambda: forwarder.load() == {address: 1})
        broker = forwarder.brokers[address]
        await until(lambda: broker.failures > 2 * OPTIONS.failures_to_drop)
        assert forwarder.load() == {address: 1}
        await closed(writer)


async def test_a_connection_that_fails_ends_alone(
    two: tuple[FakeBroker, FakeBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unexpected exception costs one client its connection, and no other client anything."""
    async with forwarding(two[0].address) as forwarder:
        await until(lambda: forwarder.serving == {two[0].address})
        with monkeypatch.context() as patch:
            patch.setattr(forwarder, "_connect_once", _mistake)
            reader, writer = await asyncio.open_connection(*host_and_port(forwarder.endpoint))
            async with asyncio.timeout(LIMIT_S):
                with suppress(ConnectionResetError):
                    assert await reader.read() == b""
            await closed(writer)
        assert await who(forwarder.endpoint) == "a"


async def test_a_check_that_fails_is_begun_anew(
    two: tuple[FakeBroker, FakeBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile its broker does not count as serving."""
    with monkeypatch.context() as patch:
        patch.setattr(Forwarder, "_check", _mistake)
        async with forwarding(two[0].address) as forwarder:
            await until(lambda: two[0].address in forwarder.brokers)
            assert forwarder.serving == set()
            patch.undo()
            await until(lambda: forwarder.serving == {two[0].address})


async def _mistake(*_: object) -> bool:
    raise LookupError("planted")


async def test_bytes_pass_both_ways_and_half_closes_too() -> None:
    """A large echo comes back whole after the client said that it is done."""
    await exchange()


def test_bytes_pass_on_the_event_loop_of_servers() -> None:
    """Uvloop's transports behave a little differently; bytes and half-closes pass all the same."""
    loop.run(exchange())


async def exchange() -> None:
    body = bytes(range(256)) * 20_000
    patient = ForwarderOptions("127.0.0.1", 0, check_timeout_ms=60_000)
    async with serving(echo) as address, forwarding(address, options=patient) as forwarder:
        host, _, own_port = forwarder.endpoint.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(own_port))
        writer.write(body)
        writer.write_eof()
        async with asyncio.timeout(LIMIT_S):
            assert await reader.read() == body
        await closed(writer)


async def test_a_client_waits_for_the_only_broker_to_come_back() -> None:
    """A broker that starts again soon is no error for who connects meanwhile."""
    a = FakeBroker("a")
    await a.start()
    async with forwarding(a.address) as forwarder:
        await until(lambda: forwarder.serving == {a.address})
        await a.stop()
        asked = asyncio.ensure_future(who(forwarder.endpoint))
        await asyncio.sleep(0.3)
        again = FakeBroker("a", a.address)
        await again.start()
        assert await asked == "a"
        await again.stop()


async def test_without_any_broker_a_client_is_let_go() -> None:
    """Nobody waits long for a broker that may never come."""
    async with forwarding("127.0.0.1:9") as forwarder:
        host, _, port = forwarder.endpoint.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        async with asyncio.timeout(LIMIT_S):
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
        await closed(writer)


@asynccontextmanager
async def serving(answer: Handler) -> AsyncIterator[str]:
    """Run a TCP server; yield its address, and wait for the end of its connections."""
    async with listening(answer) as server:
        yield address_of(server)


def address_of(server: asyncio.Server) -> str:
    """Return host:port of a server."""
    host, port = server.sockets[0].getsockname()
    return f"{host}:{port}"


# Turns of the event loop until a connection that was accepted last has its handler.
_ACCEPT_TURNS = 5


@asynccontextmanager
async def listening(answer: Handler) -> AsyncIterator[asyncio.Server]:
    """Run a TCP server, and wait for the end of its connections."""
    handlers: set[asyncio.Task[None] | None] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.add(asyncio.current_task())
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await answer(reader, writer)
        await closed(writer)

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        yield server
    for _ in range(_ACCEPT_TURNS):
        await asyncio.sleep(0)
    await asyncio.gather(*(task for task in handlers if task is not None))


async def closed(writer: asyncio.StreamWriter) -> None:
    """Close a connection and wait until it is."""
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read and say nothing."""
    while await reader.read(1024):
        pass


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send back what comes."""
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
