"""An edge with a handler that does what requests say, and the ways to it (fixtures and helpers)."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import grpc
import pytest

from strata_edge.choice import HOW_TO_GET_IT, has_native
from strata_edge.grpcio_edge import GrpcioEdge
from strata_edge.health import ServiceHealth
from strata_edge.method_limits import MethodLimits
from strata_edge.native_edge import NativeEdge
from strata_edge.options import EdgeOptions
from strata_edge.ports import CallError, CallInfo, HotCall
from strata_runtime.metrics import Metrics
from strata_runtime.tls import Certificate, self_signed
from tests.parts.required import absent

SERVICE = "strata.test.v1.EdgeService"
MIB = 1 << 20

# Methods whose requests may be large where a test does not say otherwise.
LARGE = ("SendMessage",)

# Way to the edge: through the front with TLS, through the front in plaintext, without a front;
# with TLS and in plaintext to the edge in native code.
NATIVE_WAYS = ("native-tls", "native")
WAYS = ("tls", "plaintext", "direct", *NATIVE_WAYS)

# A way in plaintext to each adapter that takes TLS, too.
PLAINTEXT_WAYS = ("plaintext", "native")

# A way to each adapter with nothing between it and its clients.
DIRECT_WAYS = ("direct", "native")


class Answer(list[bytes]):
    """Responses that can be watched."""


class Broker:
    """A hot handler that answers what the request says, and rare handlers."""

    def __init__(self) -> None:
        self.batches: list[list[HotCall]] = []
        self.gone: list[bytes] = []
        self.ended = 0
        self.large_answers: list[weakref.ref[Answer]] = []

    def handle(self, calls: Sequence[HotCall]) -> None:
        self.batches.append(list(calls))
        for call in calls:
            if call.request.startswith(b"raise"):
                raise ValueError("a mistake")
            if call.request.startswith(b"fail"):
                call.fail("FAILED_PRECONDITION", "not like this")
            elif call.request.startswith(b"hold"):
                call.on_gone(lambda call=call: self.gone.append(call.request))  # type: ignore[misc]
            elif call.method == "ReceiveMessage":
                call.complete([call.request + b"%d" % number for number in range(3)])
            else:
                call.complete([call.request])

    @property
    def calls(self) -> list[HotCall]:
        return [call for batch in self.batches for call in batch]

    async def reverse(self, request: bytes, info: CallInfo) -> bytes:
        if request == b"refuse":
            raise CallError("FAILED_PRECONDITION", "not like this")
        if request == b"wait":
            await asyncio.sleep(60)
        if request == b"raise":
            raise ValueError("a mistake")
        if request == b"time":
            return str(info.time_left_s()).encode()
        return request[::-1] + info.metadata.get("suffix", "").encode()

    async def count(self, request: bytes, info: CallInfo) -> AsyncIterator[bytes]:
        for number in range(int(request)):
            yield b"%d" % number

    async def large(self, request: bytes, info: CallInfo) -> AsyncIterator[bytes | Sequence[bytes]]:
        """A first response, then many more held together: as many bytes as the request says."""
        yield b"first"
        answer = Answer([bytes(500_000)] * (int(request) // 500_000 + 1))
        self.large_answers.append(weakref.ref(answer))
        yield answer

    async def echo(self, requests: AsyncIterator[bytes], info: CallInfo) -> AsyncIterator[bytes]:
        try:
            yield b"hello"
            async for request in requests:
                yield request.upper()
        finally:
            self.ended += 1


@dataclass
class Way:
    """A running edge and a client's channel to it."""

    kind: str
    edge: GrpcioEdge | NativeEdge
    broker: Broker
    health: ServiceHealth
    metrics: Metrics
    port: int
    channel: grpc.aio.Channel
    open_channel: Callable[[], grpc.aio.Channel]
    times_not_taken: int = 0

    def not_taken(self) -> None:
        """Hear that an answer was not taken."""
        self.times_not_taken += 1

    async def send(
        self,
        request: bytes,
        timeout: float | None = 10,  # noqa: ASYNC109 (gRPC's own word)
        metadata: tuple[tuple[str, str], ...] = (),
    ) -> bytes:
        return await unary(self.channel, "SendMessage")(request, timeout=timeout, metadata=metadata)

    def gauge(self, name: str) -> float:
        self.metrics.read_gauges()
        for line in self.metrics.render().decode().splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
        raise AssertionError(f"{name} is not on the scrape")


def is_tls(kind: str) -> bool:
    """Whether clients of a way use TLS."""
    return kind in ("tls", "native-tls")


UnaryCall: TypeAlias = "grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]"
StreamCall: TypeAlias = "grpc.aio.UnaryStreamMultiCallable[bytes, bytes]"
TalkCall: TypeAlias = "grpc.aio.StreamStreamMultiCallable[bytes, bytes]"


def unary(channel: grpc.aio.Channel, name: str) -> UnaryCall:
    return channel.unary_unary(f"/{SERVICE}/{name}")


def stream(channel: grpc.aio.Channel, name: str) -> StreamCall:
    return channel.unary_stream(f"/{SERVICE}/{name}")


def talk(channel: grpc.aio.Channel) -> TalkCall:
    return channel.stream_stream(f"/{SERVICE}/Echo")


Adapter = type[GrpcioEdge | NativeEdge]
OpenWay = Callable[[str, EdgeOptions], Awaitable[Way]]


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return self_signed(tmp_path_factory.mktemp("tls"))


@pytest.fixture
async def open_way(certificate: Certificate) -> AsyncIterator[OpenWay]:
    opened: list[Way] = []

    async def open_one(kind: str, options: EdgeOptions) -> Way:
        way = await _open(kind, options, certificate)
        opened.append(way)
        return way

    yield open_one
    for way in opened:
        await way.channel.close()
        await way.edge.stop(0)


@pytest.fixture(params=WAYS)
async def way(request: pytest.FixtureRequest, open_way: OpenWay) -> Way:
    return await open_way(request.param, EdgeOptions(port=0))


@pytest.fixture(params=PLAINTEXT_WAYS)
async def fronted(request: pytest.FixtureRequest, open_way: OpenWay) -> Way:
    return await open_way(request.param, EdgeOptions(port=0))


@pytest.fixture(params=[False, True], ids=["grpcio", "native"])
def adapter(request: pytest.FixtureRequest) -> Adapter:
    """Each adapter that takes TLS and plaintext."""
    return edge_class(bool(request.param))


@pytest.fixture(params=PLAINTEXT_WAYS)
def plaintext(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=DIRECT_WAYS)
def direct(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def edge_class(native: bool) -> Adapter:
    """Return an adapter; whoever takes it is skipped where it is not installed."""
    if native and not has_native():
        absent(f"the native edge: {HOW_TO_GET_IT}")
    return NativeEdge if native else GrpcioEdge


async def _open(kind: str, options: EdgeOptions, certificate: Certificate) -> Way:
    front = kind != "direct"
    metrics = Metrics()
    large = {f"/{SERVICE}/{name}": MethodLimits(16 * MIB) for name in LARGE}
    limits = {**large, **options.method_limits}
    options = replace(options, front=front, certificate=certificate, method_limits=limits)
    edge = edge_class(kind in NATIVE_WAYS)(options, metrics)
    broker, health = Broker(), ServiceHealth(edge)
    edge.set_hot_handler(SERVICE, broker)
    edge.add_unary(f"/{SERVICE}/Reverse", broker.reverse)
    edge.add_server_stream(f"/{SERVICE}/Count", broker.count)
    edge.add_server_stream(f"/{SERVICE}/Large", broker.large)
    edge.add_stream(f"/{SERVICE}/Echo", broker.echo)
    port = await edge.start()

    def open_channel() -> grpc.aio.Channel:
        arguments = [
            ("grpc.max_receive_message_length", 16 * MIB),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 10_000),
        ]
        if not is_tls(kind):
            return grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=arguments)
        root = certificate.certificate_file.read_bytes()
        credentials = grpc.ssl_channel_credentials(root)
        return grpc.aio.secure_channel(f"localhost:{port}", credentials, options=arguments)

    return Way(kind, edge, broker, health, metrics, port, open_channel(), open_channel)
