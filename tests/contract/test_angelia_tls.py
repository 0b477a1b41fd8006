"""Mutual TLS between processes, on both transports: who is refused, and how files are replaced."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from strata_angelia import ports
from strata_angelia.factory import TRANSPORTS, open_channel, open_server
from strata_angelia.ports import AngeliaError, Channel, Server
from strata_angelia.tls import PeerFiles, PeerTls, TlsMode
from strata_runtime.audit import AuditEvent
from strata_runtime.authority import CA_FILE, issue, make_authority
from strata_runtime.errors import ConfigError
from strata_runtime.roles import PeerRole
from strata_testing import until
from tests.contract.angelia_pairs import COUNT_UP, OPTIONS, SAY_BACK, SERVICE, Handler, Note

HOSTS = ["127.0.0.1"]


@dataclass
class Scene:
    """An authority, a server of a storage node, and callers."""

    folder: Path
    transport: str
    handler: Handler = field(default_factory=Handler)
    servers: list[Server] = field(default_factory=list)
    channels: list[Channel] = field(default_factory=list)

    def make(
        self,
        name: str,
        role: PeerRole,
        mode: TlsMode = "required",
        *,
        authority: str = "ca",
        hosts: list[str] | None = None,
    ) -> PeerTls:
        """Issue a certificate and load it."""
        if not (self.folder / authority).exists():
            make_authority(self.folder / authority)
        issue(self.folder / authority, self.folder / name, role, hosts or HOSTS)
        tls = PeerTls(PeerFiles.in_folder(self.folder / name), role, mode)
        tls.load()
        return tls

    async def serve(self, tls: PeerTls | None, port: int = 0) -> str:
        """Serve with a certificate; return the endpoint."""
        server = open_server("127.0.0.1", port, self.transport, options=OPTIONS, tls=tls)
        server.register(SERVICE, self.handler)
        self.servers.append(server)
        return await server.start()

    def connect(self, endpoint: str, tls: PeerTls | None) -> Channel:
        """Return a channel that is closed at the end."""
        channel = open_channel(endpoint, self.transport, options=OPTIONS, tls=tls)
        self.channels.append(channel)
        return channel


@pytest.fixture(params=TRANSPORTS)
async def scene(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Scene]:
    scene = Scene(tmp_path, request.param)
    yield scene
    for channel in scene.channels:
        await channel.close()
    for server in scene.servers:
        await server.stop(0)


async def say(channel: Channel, body: bytes = b"on") -> Any:
    return await channel.call(SAY_BACK, Note(body=body), Note, timeout_s=10.0)


async def failure(channel: Channel) -> AngeliaError:
    with pytest.raises(AngeliaError) as caught:
        await say(channel)
    assert "\n" not in caught.value.reason
    return caught.value


async def test_both_ends_know_each_other(scene: Scene) -> None:
    """The handler sees the role in the caller's certificate."""
    endpoint = await scene.serve(scene.make("storage", PeerRole.STORAGE))
    channel = scene.connect(endpoint, scene.make("broker", PeerRole.BROKER))
    assert (await say(channel)).body == b"on"
    assert [context.role for context in scene.handler.contexts] == [PeerRole.BROKER]


@contextlib.asynccontextmanager
async def slow_way(endpoint: str, pause_s: float) -> AsyncIterator[str]:
    """Relay to a server; whatever either end says arrives after a pause."""
    _, _, port = endpoint.rpartition(":")

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                await asyncio.sleep(pause_s)
                writer.write(data)
                await writer.drain()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection("127.0.0.1", int(port))
        async with asyncio.TaskGroup() as both:
            both.create_task(pass_on(reader, there[1]))
            both.create_task(pass_on(there[0], writer))

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        server.close()


async def test_a_handshake_may_take_longer_than_the_pause_between_attempts(scene: Scene) -> None:
    """A busy machine takes its time; an attempt that is given up for it would never succeed."""
    endpoint = await scene.serve(scene.make("storage", PeerRole.STORAGE))
    async with slow_way(endpoint, 1.5 * OPTIONS.reconnect_pause_s) as slow:
        channel = scene.connect(slow, scene.make("broker", PeerRole.BROKER))
        assert (await say(channel)).body == b"on"
        await channel.close()


async def test_a_caller_of_a_wrong_role_is_refused(scene: Scene) -> None:
    """A nameserver's certificate does not open what only brokers call; no handler runs."""
    endpoint = await scene.serve(scene.make("storage", PeerRole.STORAGE))
    for role in (PeerRole.NAMESERVER, PeerRole.STORAGE, PeerRole.CLIENT, PeerRole.ADMIN):
        refused = await failure(scene.connect(endpoint, scene.make(role, role)))
        assert refused.code == ports.FORBIDDEN
        assert refused.reason == f"{SAY_BACK} of a storage node is not for {role.described}"
    assert scene.handler.contexts == []


class Events:
    """An audit trail."""

    def __init__(self) -> None:
        self.all: list[AuditEvent] = []

    def write(self, event: AuditEvent) -> None:
        self.all.append(event)


async def test_a_refusal_is_in_the_audit_trail(scene: Scene) -> None:
    """It says which role called what, and from where."""
    tls = scene.make("storage", PeerRole.STORAGE)
    events = Events()
    tls.refusals.sink = events
    endpoint = await scene.serve(tls)
    await failure(scene.connect(endpoint, scene.make("admin", PeerRole.ADMIN)))
    [event] = events.all
    assert (event["event"], event["outcome"], event["role"]) == ("refused", "refused", "admin")
    assert (event["rpc"], event["reason"]) == (SAY_BACK, "the call is not for the caller's role")
    assert "127.0.0.1" in str(event["peer"])
    assert event["user"] == ""


async def test_a_server_of_a_wrong_role_gets_no_request(scene: Scene) -> None:
    """A broker's certificate does not make a process a storage node, whatever address it has."""
    endpoint = await scene.serve(scene.make("false", PeerRole.BROKER))
    refused = await failure(scene.connect(endpoint, scene.make("broker", PeerRole.BROKER)))
    assert refused.code == ports.FORBIDDEN
    assert refused.reason == f"{endpoint} is a broker, which does not serve {SAY_BACK}"
    assert scene.handler.contexts == []


async def test_a_foreign_authority_is_refused_by_both_ends(scene: Scene) -> None:
    """Neither a server nor a caller of another cluster's authority is talked to."""
    endpoint = await scene.serve(scene.make("storage", PeerRole.STORAGE))
    stranger = scene.make("stranger", PeerRole.BROKER, authority="other")
    refused = await failure(scene.connect(endpoint, stranger))
    assert refused.code == ports.UNAVAILABLE
    assert "its certificate is not of this cluster's authority" in refused.reason
    # A stranger that accepts the server's certificate is not accepted by it.
    own = (scene.folder / "ca" / CA_FILE).read_bytes()
    other = (scene.folder / "other" / CA_FILE).read_bytes()
    stranger.files.ca_file.write_bytes(own + other)
    stranger.load()
    refused = await failure(scene.connect(endpoint, stranger))
    assert refused.code == ports.UNAVAILABLE
    assert "it does not accept this process's certificate, which 'strata cluster" in refused.reason
    assert scene.handler.contexts == []


async def test_an_expired_certificate_is_refused(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process does not start with an expired certificate; a server that did is not called."""
    tls = scene.make("storage", PeerRole.STORAGE)
    issue(scene.folder / "ca", scene.folder / "storage", PeerRole.STORAGE, HOSTS, days=-1)
    with pytest.raises(ConfigError, match=r"tls\.crt has expired on 20"):
        tls.load()
    assert tls.credentials.number == 1
    monkeypatch.setattr(PeerTls, "_check", lambda *_: None)
    tls.load()
    endpoint = await scene.serve(tls)
    refused = await failure(scene.connect(endpoint, scene.make("broker", PeerRole.BROKER)))
    assert "its certificate has expired" in refused.reason


async def test_a_caller_with_an_expired_certificate_is_refused(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server takes no call with a certificate that has ended, and the caller learns why."""
    endpoint = await scene.serve(scene.make("storage", PeerRole.STORAGE))
    caller = scene.make("broker", PeerRole.BROKER)
    issue(scene.folder / "ca", scene.folder / "broker", PeerRole.BROKER, HOSTS, days=-1)
    monkeypatch.setattr(PeerTls, "_check", lambda *_: None)
    caller.load()
    refused = await failure(scene.connect(endpoint, caller))
    assert "this process's certificate has expired on 20" in refused.reason
    assert scene.handler.contexts == []


async def test_another_host_is_refused(scene: Scene) -> None:
    """A certificate counts only for the hosts in it."""
    endpoint = await scene.serve(
        scene.make("storage", PeerRole.STORAGE, hosts=["elsewhere.example"])
    )
    refused = await failure(scene.connect(endpoint, scene.make("broker", PeerRole.BROKER)))
    assert "its certificate is of another host" in refused.reason


async def test_plaintext_is_refused_where_tls_is_required(scene: Scene) -> None:
    """A caller without TLS gets no answer, and a caller with TLS calls no plaintext server."""
    endpoint = await scene.serve(scene.make("storage", PeerRole.STORAGE))
    assert (await failure(scene.connect(endpoint, None))).code == ports.UNAVAILABLE
    broker = scene.make("broker", PeerRole.BROKER)
    plain = await failure(scene.connect(await scene.serve(None), broker))
    assert (plain.code, "does not speak TLS" in plain.reason) == (ports.UNAVAILABLE, True)
    assert scene.handler.contexts == []


async def test_a_caller_without_a_certificate_is_refused(scene: Scene) -> None:
    """TLS alone is not enough: gRPC's own client without a certificate gets nothing."""
    endpoint = await scene.serve(scene.make("storage", PeerRole.STORAGE))
    roots = (scene.folder / "ca" / CA_FILE).read_bytes()
    async with grpc.aio.secure_channel(endpoint, grpc.ssl_channel_credentials(roots)) as channel:
        rpc: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(SAY_BACK)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rpc(b"", timeout=10)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert scene.handler.contexts == []


@pytest.mark.parametrize("server_mode", [None, "optional", "required"])
@pytest.mark.parametrize("caller_mode", [None, "optional", "required"])
async def test_a_cluster_changes_over_in_two_steps(
    scene: Scene, server_mode: TlsMode | None, caller_mode: TlsMode | None
) -> None:
    """Each step of the change goes on with the step before: plaintext, optional, required."""
    server = scene.make("storage", PeerRole.STORAGE, server_mode) if server_mode else None
    caller = scene.make("broker", PeerRole.BROKER, caller_mode) if caller_mode else None
    channel = scene.connect(await scene.serve(server), caller)
    if {server_mode, caller_mode} == {None, "required"}:
        assert (await failure(channel)).code == ports.UNAVAILABLE
        return
    assert (await say(channel)).body == b"on"
    is_tls = server is not None and caller is not None
    assert scene.handler.contexts[0].role == (PeerRole.BROKER if is_tls else None)


async def test_an_optional_caller_takes_tls_as_soon_as_the_server_does(scene: Scene) -> None:
    """A server that comes back with TLS is called with TLS, over the same channel."""
    endpoint = await scene.serve(None)
    port = int(endpoint.rpartition(":")[2])
    channel = scene.connect(endpoint, scene.make("broker", PeerRole.BROKER, "optional"))
    await say(channel)
    await scene.servers.pop().stop(0)
    await scene.serve(scene.make("storage", PeerRole.STORAGE), port)

    async def call_on() -> None:
        while scene.handler.contexts[-1].role is not PeerRole.BROKER:
            with contextlib.suppress(AngeliaError):
                await say(channel)

    async with asyncio.timeout(30):
        await call_on()


async def test_the_authority_is_replaced_under_calls(scene: Scene) -> None:
    """Both authorities, then new certificates, then the new one alone: no call fails or ends."""
    server, caller = scene.make("storage", PeerRole.STORAGE), scene.make("broker", PeerRole.BROKER)
    endpoint = await scene.serve(server)
    channel = scene.connect(endpoint, caller)
    stream = channel.stream(COUNT_UP, Note(number=2, body=b"wait"), Note)
    assert (await anext(stream)).number == 0
    stop = asyncio.Event()
    calls = 0

    async def call_on() -> None:
        nonlocal calls
        while not stop.is_set():
            # A channel of its own makes a new connection.
            fresh = open_channel(endpoint, scene.transport, options=OPTIONS, tls=caller)
            await say(fresh)
            await say(channel)
            await fresh.close()
            calls += 1

    async with asyncio.TaskGroup() as group:
        group.create_task(call_on())
        make_authority(scene.folder / "new")
        both = b"".join((scene.folder / ca / CA_FILE).read_bytes() for ca in ("ca", "new"))
        for step in ("both", "reissue", "new"):
            for tls, role in ((server, PeerRole.STORAGE), (caller, PeerRole.BROKER)):
                if step == "reissue":
                    issue(scene.folder / "new", tls.files.ca_file.parent, role, HOSTS)
                if step != "new":
                    tls.files.ca_file.write_bytes(both)
                else:
                    shutil.copy(scene.folder / "new" / CA_FILE, tls.files.ca_file)
                tls.load()
                seen = calls
                await until(lambda seen=seen: calls > seen + 1)  # type: ignore[misc]
        stop.set()
    assert server.credentials.number == 4
    scene.handler.release.set()
    assert [item.number async for item in stream] == [1]
    # A peer that kept the old certificate is refused now.
    late = await failure(scene.connect(endpoint, scene.make("late", PeerRole.BROKER)))
    assert late.code == ports.UNAVAILABLE
