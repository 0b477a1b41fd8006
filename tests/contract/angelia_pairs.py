"""A server of Angelia and a channel to it, on every transport and codec (fixtures)."""

from __future__ import annotations

import asyncio
import atexit
import functools
import itertools
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import ServiceDescriptor

from strata_angelia import ports
from strata_angelia.factory import CODEC_NAMES, TRANSPORTS, open_channel, open_server
from strata_angelia.inproc import InprocNetwork
from strata_angelia.options import AngeliaOptions
from strata_angelia.ports import AngeliaError, CallContext, Channel, Server
from strata_angelia.roles import RpcAccess
from strata_angelia.tls import PeerFiles, PeerTls, TlsMode
from strata_runtime.authority import issue, make_authority
from strata_runtime.metrics import Metrics
from strata_runtime.roles import PeerRole

VARIANTS = [
    ("inproc", "none", "plaintext"),
    *itertools.product(TRANSPORTS, CODEC_NAMES, ("plaintext",)),
    # The codec does not matter to TLS.
    *itertools.product(TRANSPORTS, ("protobuf",), ("tls", "optional")),
]
ECHO_RPCS = ("SayBack", "Put", "CountUp")
ACCESS = {
    f"/strata.test.v1.EchoService/{rpc}": RpcAccess(
        frozenset({PeerRole.BROKER}), frozenset({PeerRole.STORAGE})
    )
    # Missing RPCs are asked for under names of services that do not exist.
    for rpc in (*ECHO_RPCS, "Nothing")
} | {"/no.Service/SayBack": RpcAccess(frozenset({PeerRole.BROKER}), frozenset({PeerRole.STORAGE}))}
OPTIONS = AngeliaOptions(max_message_bytes=1 << 20, stream_window_bytes=64 << 10, access_of=ACCESS)
TRACE_PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def _service() -> ServiceDescriptor:
    file = descriptor_pb2.FileDescriptorProto(
        name="strata_test/echo.proto", package="strata.test.v1", syntax="proto3"
    )
    message = file.message_type.add(name="Note")
    field_type = descriptor_pb2.FieldDescriptorProto
    message.field.add(name="body", number=1, type=field_type.TYPE_BYTES, label=1)
    message.field.add(name="number", number=2, type=field_type.TYPE_INT64, label=1)
    service = file.service.add(name="EchoService")
    for name, streaming in zip(ECHO_RPCS, (False, False, True), strict=True):
        service.method.add(
            name=name,
            input_type=".strata.test.v1.Note",
            output_type=".strata.test.v1.Note",
            server_streaming=streaming,
        )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found: ServiceDescriptor = pool.FindServiceByName("strata.test.v1.EchoService")
    return found


SERVICE = _service()
Note: Any = message_factory.GetMessageClass(SERVICE.methods[0].input_type)
SAY_BACK = "/strata.test.v1.EchoService/SayBack"
PUT = "/strata.test.v1.EchoService/Put"
COUNT_UP = "/strata.test.v1.EchoService/CountUp"


class Handler:
    """Says back; bodies that are commands do something else."""

    def __init__(self) -> None:
        self.contexts: list[CallContext] = []
        self.running = 0
        self.most_running = 0
        self.ended = 0
        self.sent = 0
        self.release = asyncio.Event()

    async def say_back(self, request: Any, context: CallContext) -> Any:
        self.contexts.append(context)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            if request.body == b"wait":
                await self.release.wait()
            elif request.body == b"refuse":
                raise AngeliaError(ports.OVERLOADED, "not now")
            elif request.body == b"break":
                raise ValueError("a mistake")
            elif request.body == b"swell":
                return Note(body=bytes(OPTIONS.max_message_bytes + 1))
            return Note(body=request.body, number=request.number + 1)
        finally:
            self.running -= 1
            self.ended += 1

    async def put(self, request: Any, context: CallContext) -> Any:
        return Note(body=request.body)

    async def count_up(self, request: Any, context: CallContext) -> AsyncIterator[Any]:
        try:
            for number in range(request.number):
                yield Note(number=number, body=request.body)
                self.sent += 1
            if request.body == b"refuse":
                raise AngeliaError(ports.OVERLOADED, "no more")
            if request.body == b"break":
                raise ValueError("a mistake")
            if request.body == b"wait":
                await self.release.wait()
        finally:
            self.ended += 1


@dataclass
class Pair:
    """A server and a channel to it, with what is needed to make another channel."""

    transport: str
    codec: str
    handler: Handler
    server: Server
    endpoint: str
    channel: Channel
    open_channel: Callable[[], Channel]
    open_server: Callable[[], Server]
    tls: PeerTls | None
    # Metrics of the first server.
    metrics: Metrics

    async def say(self, body: bytes, timeout_s: float | None = 5.0) -> Any:
        return await self.channel.call(SAY_BACK, Note(body=body), Note, timeout_s=timeout_s)


OpenPair = Callable[[AngeliaOptions], Awaitable[Pair]]


@pytest.fixture(params=VARIANTS, ids="-".join)
async def open_pair(request: pytest.FixtureRequest) -> AsyncIterator[OpenPair]:
    opened: list[Pair] = []

    async def open_one(options: AngeliaOptions) -> Pair:
        transport, codec, security = request.param
        pair = await _open(transport, codec, options, security)
        opened.append(pair)
        return pair

    yield open_one
    for pair in opened:
        await pair.channel.close()
        await pair.server.stop(0)


@pytest.fixture
async def pair(open_pair: OpenPair) -> Pair:
    return await open_pair(OPTIONS)


@functools.cache
def certificates() -> Path:
    """Return a folder with an authority and a certificate of each role, made once."""
    folder = Path(tempfile.mkdtemp(prefix="strata-test-certificates-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    make_authority(folder / "ca")
    for role in PeerRole:
        issue(folder / "ca", folder / role, role, ["127.0.0.1", "localhost"])
    return folder


def tls_of(role: PeerRole, mode: TlsMode = "required") -> PeerTls:
    """Return the loaded certificates of a role."""
    tls = PeerTls(PeerFiles.in_folder(certificates() / role), role, mode)
    tls.load()
    return tls


async def _open(transport: str, codec: str, options: AngeliaOptions, security: str) -> Pair:
    handler = Handler()
    mode: TlsMode = "optional" if security == "optional" else "required"
    server_tls = None if security == "plaintext" else tls_of(PeerRole.STORAGE, mode)
    caller_tls = None if security == "plaintext" else tls_of(PeerRole.BROKER, mode)
    network = InprocNetwork()
    # Both know the same classes; the limits of the server are its own.
    caller = replace(OPTIONS, class_of=options.class_of)

    def new_server(port: int = 0, metrics: Metrics | None = None) -> Server:
        server: Server
        if transport == "inproc":
            server = network.server("echo", options=options, metrics=metrics)
        else:
            server = open_server(
                "127.0.0.1", port, transport, options=options, metrics=metrics, tls=server_tls
            )
        server.register(SERVICE, handler)
        return server

    metrics = Metrics()
    server = new_server(metrics=metrics)
    endpoint = await server.start()
    port = 0 if transport == "inproc" else int(endpoint.rpartition(":")[2])

    def new_channel() -> Channel:
        if transport == "inproc":
            return network.channel(endpoint, trace_parent=lambda: TRACE_PARENT)
        return open_channel(
            endpoint,
            transport,
            codec,
            options=caller,
            trace_parent=lambda: TRACE_PARENT,
            tls=caller_tls,
        )

    again = partial(new_server, port)
    return Pair(
        transport,
        codec,
        handler,
        server,
        endpoint,
        new_channel(),
        new_channel,
        again,
        caller_tls,
        metrics,
    )
