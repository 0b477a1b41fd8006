"""Connections of another protocol on the port of an edge: who gets them, and what they are."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace

import pytest

from strata_edge.grpcio_edge import GrpcioEdge
from strata_edge.handover import HandedConnection
from strata_edge.native_edge import NativeEdge
from strata_edge.options import EdgeOptions
from strata_runtime.metrics import Metrics
from strata_runtime.tls import Certificate
from strata_testing import until
from tests.contract.edge_ways import SERVICE, Adapter, Broker
from tests.contract.edge_ways import adapter as adapter
from tests.contract.edge_ways import certificate as certificate
from tests.contract.http2_raw import PREFACE

FRAME = struct.pack(">I", 5) + b"hello"


@dataclass
class Taker:
    """Takes connections and answers each piece in capitals; `end` ends the connection."""

    taken: list[HandedConnection] = field(default_factory=list)
    got: list[bytes] = field(default_factory=list)
    ended: int = 0
    serving: list[asyncio.Task[None]] = field(default_factory=list)

    def take(self, connection: HandedConnection) -> None:
        self.taken.append(connection)
        self.serving.append(asyncio.get_running_loop().create_task(self._serve(connection)))

    async def _serve(self, connection: HandedConnection) -> None:
        reader, writer = await asyncio.open_connection(sock=connection.socket)
        with contextlib.suppress(ConnectionError):
            while (piece := await reader.read(65_536)) and b"end" not in piece:
                self.got.append(piece)
                writer.write(piece.upper())
                await writer.drain()
        self.ended += 1
        writer.close()


@dataclass
class SharedEdge:
    """An edge that gives connections away."""

    edge: GrpcioEdge | NativeEdge
    taker: Taker
    metrics: Metrics
    port: int
    certificate: Certificate

    async def connect(
        self, *, tls: bool, alpn: str = ""
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        context = None
        if tls:
            file = str(self.certificate.certificate_file)
            context = ssl.create_default_context(cafile=file)
            if alpn:
                context.set_alpn_protocols([alpn])
        return await asyncio.open_connection(
            "127.0.0.1",
            self.port,
            ssl=context,
            server_hostname="localhost" if tls else None,
        )

    def counted(self, name: str) -> float:
        return self.metrics.counter(f"strata_edge_{name}_total").value()


OpenShared = Callable[..., Awaitable[SharedEdge]]


@pytest.fixture
async def open_shared(adapter: Adapter, certificate: Certificate) -> AsyncIterator[OpenShared]:
    opened: list[SharedEdge] = []

    async def open_one(*, wanted: bool = True, **changes: object) -> SharedEdge:
        metrics, taker = Metrics(), Taker()
        options = replace(EdgeOptions(port=0, certificate=certificate), **changes)  # type: ignore[arg-type]
        edge = adapter(options, metrics)
        edge.set_hot_handler(SERVICE, Broker())
        if wanted:
            assert edge.handover is not None
            edge.handover.to(taker.take)
        shared = SharedEdge(edge, taker, metrics, await edge.start(), certificate)
        opened.append(shared)
        return shared

    yield open_one
    for shared in opened:
        await shared.edge.stop(0)
        await asyncio.wait_for(asyncio.gather(*shared.taker.serving), 20)


async def _is_closed(reader: asyncio.StreamReader) -> bool:
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(20):
            while await reader.read(65_536):
                pass
    return True


@pytest.mark.parametrize("tls", [False, True], ids=["plaintext", "tls"])
async def test_a_connection_of_another_protocol_is_given_away(
    open_shared: OpenShared, *, tls: bool
) -> None:
    """Its taker gets every byte from the first on, and the client every byte of the answer."""
    shared = await open_shared()
    reader, writer = await shared.connect(tls=tls)
    for piece in (FRAME, bytes(300_000) + b"x" * 300_000):
        writer.write(piece)
        async with asyncio.timeout(20):
            assert await reader.readexactly(len(piece)) == piece.upper()
    assert b"".join(shared.taker.got)[: len(FRAME)] == FRAME
    (taken,) = shared.taker.taken
    assert (taken.peer, taken.is_secured) == (
        "{}:{}".format(*writer.get_extra_info("sockname")),
        tls,
    )
    await until(lambda: shared.counted("handed_over") == 1)
    writer.close()
    await until(lambda: shared.taker.ended == 1)


@pytest.mark.parametrize("tls", [False, True], ids=["plaintext", "tls"])
async def test_the_taker_ends_a_connection(open_shared: OpenShared, *, tls: bool) -> None:
    """A client sees the end, and the edge counts the connection no longer."""
    shared = await open_shared()
    reader, writer = await shared.connect(tls=tls)
    writer.write(struct.pack(">I", 3) + b"end")
    assert await _is_closed(reader)
    writer.close()
    await until(lambda: shared.edge.connections() == 0)


@pytest.mark.parametrize("tls", [False, True], ids=["plaintext", "tls"])
@pytest.mark.parametrize("alpn", ["", "h2"])
async def test_http2_stays_with_the_edge(open_shared: OpenShared, alpn: str, *, tls: bool) -> None:
    """A client of HTTP/2 gets its settings, also one that names no protocol in its handshake."""
    shared = await open_shared()
    reader, writer = await shared.connect(tls=tls, alpn=alpn)
    writer.write(PREFACE + bytes.fromhex("000000040000000000"))
    async with asyncio.timeout(20):
        assert (await reader.readexactly(9))[3] == 4, "no SETTINGS"
    assert shared.taker.taken == []
    writer.close()


async def test_nobody_takes_connections_that_nobody_wants(open_shared: OpenShared) -> None:
    """Without a taker, the bytes of another protocol are bad HTTP/2."""
    shared = await open_shared(wanted=False)
    reader, writer = await shared.connect(tls=False)
    writer.write(FRAME + bytes(64))
    assert await _is_closed(reader)
    assert shared.counted("handed_over") == 0
    writer.close()


async def test_plaintext_is_refused_before_its_protocol_is_known(open_shared: OpenShared) -> None:
    """With tls_only a frame in plaintext is refused and counted; one behind TLS is taken."""
    shared = await open_shared(tls_only=True)
    reader, writer = await shared.connect(tls=False)
    writer.write(FRAME)
    assert await _is_closed(reader)
    await until(lambda: shared.counted("plaintext_refused") == 1)
    secured, its_writer = await shared.connect(tls=True)
    its_writer.write(FRAME)
    async with asyncio.timeout(20):
        assert await secured.readexactly(len(FRAME)) == FRAME.upper()
    for each in (writer, its_writer):
        each.close()


async def test_silence_behind_tls_has_the_time_of_a_handshake(open_shared: OpenShared) -> None:
    """A client that does not say which protocol it speaks is closed in time, and counted."""
    shared = await open_shared(handshake_timeout_ms=300)
    reader, writer = await shared.connect(tls=True)
    assert await _is_closed(reader)
    await until(lambda: shared.counted("handshake_timeouts") == 1)
    assert shared.taker.taken == []
    writer.close()


async def test_relayed_connections_count_at_the_edge(open_shared: OpenShared) -> None:
    """Behind TLS a given connection holds a place of its address until it ends."""
    shared = await open_shared(max_connections_per_address=1)
    reader, writer = await shared.connect(tls=True)
    writer.write(FRAME)
    async with asyncio.timeout(20):
        await reader.readexactly(len(FRAME))
    assert shared.edge.connections() == 0, "it is no client of gRPC"
    late, its_writer = await shared.connect(tls=False)
    assert await _is_closed(late)
    await until(lambda: shared.counted("refused_connections") == 1)
    writer.close()
    its_writer.close()
    await until(lambda: shared.taker.ended == 1)


async def test_a_drain_waits_until_the_taker_has_ended_its_connections(
    open_shared: OpenShared,
) -> None:
    """An edge that drains serves relayed connections on; the port is closed meanwhile."""
    shared = await open_shared()
    reader, writer = await shared.connect(tls=True)
    writer.write(FRAME)
    async with asyncio.timeout(20):
        await reader.readexactly(len(FRAME))
    draining = asyncio.ensure_future(shared.edge.drain(20))

    async def is_closed() -> bool:
        try:
            _, extra = await shared.connect(tls=False)
        except OSError:
            return True
        extra.close()
        return False

    await until(is_closed)
    writer.write(FRAME)
    async with asyncio.timeout(20):
        assert await reader.readexactly(len(FRAME)) == FRAME.upper()
        assert not draining.done()
        writer.write(struct.pack(">I", 3) + b"end")
        assert await _is_closed(reader)
        writer.close()
        await draining


@pytest.mark.parametrize("adapter", [True], indirect=True, ids=["native"])
async def test_a_client_that_reads_nothing_is_given_up(open_shared: OpenShared) -> None:
    """The native edge ends a relay whose client leaves an answer unread for too long."""
    shared = await open_shared(max_upload_ms=300)
    _, writer = await shared.connect(tls=True)
    writer.write(FRAME)
    await until(lambda: len(shared.taker.taken) == 1)
    flood = asyncio.ensure_future(_flood(writer))
    await until(lambda: shared.taker.ended == 1, 30)
    flood.cancel()
    await asyncio.wait((flood,))
    writer.close()


async def _flood(writer: asyncio.StreamWriter) -> None:
    """Write without an end to a taker that echoes."""
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    with contextlib.suppress(ConnectionError):
        while True:
            writer.write(bytes(1 << 20))
            await writer.drain()
