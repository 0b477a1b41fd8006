"""TLS on the remoting port: by the first byte of a connection, beside plaintext or alone."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from strata_broker.app import BrokerApp
from strata_broker.base.config import BrokerConfig
from strata_broker.base.remoting_config import RemotingSection
from strata_broker.remoting.server_tls import ServerTls
from strata_broker.remoting.tls_bytes import TlsBytes
from strata_cli.processes.standalone_config import StandaloneConfig, with_remoting_defaults
from strata_remoting import RemotingError, RequestCode, ResponseCode, Serialization
from strata_runtime import tls
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import RequestTasks
from strata_runtime.tls_policy import TlsPolicy
from strata_testing import ManualClock, until
from strata_testing.broker import broker_config
from strata_testing.remoting_client import RemotingClient, send_fields


@pytest.fixture
def tls_only() -> bool:
    return False


@pytest.fixture
def config(tmp_path: Path, *, tls_only: bool) -> BrokerConfig:
    made = tls.self_signed(tmp_path)
    files = {"certificate_file": str(made.certificate_file), "key_file": str(made.key_file)}
    return broker_config(remoting={"port": 0, "tls_only": tls_only, **files})


def trusting(config: BrokerConfig, **changes: Any) -> ssl.SSLContext:
    """A client's context that knows the server's certificate."""
    context = ssl.create_default_context(cafile=config.remoting.certificate_file)
    for name, value in changes.items():
        setattr(context, name, value)
    return context


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_port_takes_tls_and_plaintext(
    app: BrokerApp, config: BrokerConfig, version: ssl.TLSVersion
) -> None:
    """Large requests and many answers, of both kinds of clients at once."""
    context = trusting(config, minimum_version=version, maximum_version=version)
    address = app.shown()["nameserver"]
    secret = RemotingClient(address, Serialization.ROCKETMQ, tls=context)
    async with secret as safe, RemotingClient(address) as plain:
        for client in (safe, plain):
            assert (await client.route("orders"))["queueDatas"]
        body = bytes(range(256)) * 8_000
        requests = [
            client.ask(RequestCode.SEND_MESSAGE_V2, send_fields("orders", 0), body)
            for client in (safe, plain)
        ]
        requests += [safe.ask(RequestCode.GET_BROKER_CLUSTER_INFO) for _ in range(100)]
        answers = await asyncio.gather(*requests)
        assert {answer.code for answer in answers} == {ResponseCode.SUCCESS}


@pytest.mark.parametrize("tls_only", [True])
async def test_plaintext_may_be_refused(
    app: BrokerApp, config: BrokerConfig, *, tls_only: bool
) -> None:
    """Such a connection is ended; clients with TLS are served."""
    address = app.shown()["nameserver"]
    async with RemotingClient(address) as plain:
        with pytest.raises(ConnectionError):
            await plain.route("orders")
    async with RemotingClient(address, tls=trusting(config)) as safe:
        assert (await safe.route("orders"))["queueDatas"]


async def test_bytes_that_are_no_tls_end_their_connection_alone(
    app: BrokerApp, config: BrokerConfig
) -> None:
    """A handshake that is none, and a client that ends its handshake; others are served on."""
    address = app.shown()["nameserver"]
    async with RemotingClient(address) as odd:
        odd.write(b"\x16\x03\x01" + bytes(1_000))
        await asyncio.wait_for(odd.ended.wait(), 20)
    stranger = ssl.create_default_context()
    with pytest.raises((ssl.SSLError, ConnectionError)):
        async with RemotingClient(address, tls=stranger):
            pass
    async with RemotingClient(address, tls=trusting(config)) as safe:
        assert (await safe.route("orders"))["queueDatas"]


@pytest.mark.parametrize(
    "given", [{"certificate_file": "a"}, {"key_file": "a"}, {"tls_only": True}]
)
def test_half_a_certificate_is_refused(given: dict[str, Any]) -> None:
    """The keys of the section belong together."""
    with pytest.raises(ValidationError, match="certificate_file"):
        RemotingSection.model_validate(given)


async def test_a_new_certificate_is_for_new_connections(tmp_path: Path) -> None:
    """The old one remains while the new files cannot be used."""
    clock, made = ManualClock(), tls.self_signed(tmp_path)
    requests = RequestTasks("remoting", Metrics.disabled(), max_tasks=10)
    server = ServerTls(str(made.certificate_file), str(made.key_file), requests, clock=clock)
    await server.start()
    first = server.context()
    made.certificate_file.write_bytes(b"not a certificate")
    await _look(server, clock, requests)
    assert server.context() is first
    made.certificate_file.unlink()
    tls.self_signed(tmp_path)
    assert server.context() is first, "nobody looks so soon again"
    await _look(server, clock, requests)
    second = server.context()
    assert second is not first
    await _look(server, clock, requests)
    assert server.context() is second
    await requests.stop()


@pytest.mark.parametrize(
    ("policy", "taken", "refused"),
    [
        ({"min_tls_version": "1.3"}, {}, {"maximum_version": ssl.TLSVersion.TLSv1_2}),
        (
            {"tls_ciphers": "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"},
            {"maximum_version": ssl.TLSVersion.TLSv1_2},
            {"maximum_version": ssl.TLSVersion.TLSv1_2, "ciphers": "ECDHE-ECDSA-AES256-GCM-SHA384"},
        ),
    ],
)
async def test_the_policy_of_tls_holds(
    policy: dict[str, Any], taken: dict[str, Any], refused: dict[str, Any], tmp_path: Path
) -> None:
    """A client gets a version and a suite of the policy, or no connection."""
    section = RemotingSection.model_validate({"port": 0} | policy)
    made = tls.self_signed(tmp_path)
    requests = RequestTasks("remoting", Metrics.disabled(), max_tasks=10)
    server = ServerTls(
        str(made.certificate_file),
        str(made.key_file),
        requests,
        clock=ManualClock(),
        policy=section.tls_policy(),
    )
    await server.start()
    for options, is_taken in ((taken, True), (refused, False)):
        context = ssl.create_default_context(cafile=str(made.certificate_file))
        context.maximum_version = options.get("maximum_version", ssl.TLSVersion.MAXIMUM_SUPPORTED)
        if ciphers := options.get("ciphers"):
            context.set_ciphers(ciphers)
        to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = context.wrap_bio(to_client, to_server, server_hostname="localhost")
        peer = TlsBytes(server.context())
        try:
            while not peer.is_open:
                with contextlib.suppress(ssl.SSLWantReadError):
                    client.do_handshake()
                peer.received(to_server.read())
                to_client.write(peer.to_write())
        except RemotingError:
            assert not is_taken
        assert peer.is_open is is_taken


def test_the_policy_comes_from_the_edge_unless_the_port_has_its_own() -> None:
    """The keys of [edge] hold for the remoting port of a process, too."""
    suite = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"
    edge = {"min_tls_version": "1.3", "tls_ciphers": suite}
    for own, expected in (
        ({}, TlsPolicy("1.3", (suite,))),
        ({"min_tls_version": "1.2", "tls_ciphers": ""}, TlsPolicy("1.2")),
    ):
        config = StandaloneConfig.model_validate({"edge": edge, "remoting": {"port": 0} | own})
        assert with_remoting_defaults(config).remoting.tls_policy() == expected


async def _look(server: ServerTls, clock: ManualClock, requests: RequestTasks) -> None:
    """Let a new connection begin a look at the files, and wait for its end."""
    clock.advance(10)
    server.context()
    await until(lambda: not len(requests))


class Peers:
    """Both ends of TLS without a network: the broker's, and a client's whose handshake is done."""

    def __init__(self, folder: Path) -> None:
        made = tls.self_signed(folder)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(made.certificate_file, made.key_file)
        self.server = TlsBytes(context)
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        trusting_context = ssl.create_default_context(cafile=str(made.certificate_file))
        self.client = trusting_context.wrap_bio(self._in, self._out, server_hostname="localhost")
        while not self.server.is_open:
            with contextlib.suppress(ssl.SSLWantReadError):
                self.client.do_handshake()
            self.server.received(self._out.read())
            self._in.write(self.server.to_write())

    def with_end(self, data: bytes) -> bytes:
        """The bytes of a client that writes and ends TLS at once."""
        self.client.write(data)
        with contextlib.suppress(ssl.SSLWantReadError):
            self.client.unwrap()
        return self._out.read()


def test_bytes_that_come_with_the_end_of_tls_are_taken(tmp_path: Path) -> None:
    """A client may send its last request and the end in one piece."""
    peers = Peers(tmp_path)
    assert peers.server.received(peers.with_end(b"last")) == b"last"
    assert peers.server.has_ended


def test_tls_that_cannot_write_resets_its_connection(tmp_path: Path) -> None:
    """An answer before the handshake is done is a client that is gone, and no failure."""
    made = tls.self_signed(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.certificate_file, made.key_file)
    with pytest.raises(ConnectionResetError, match="TLS"):
        TlsBytes(context).sealed(b"answer")
