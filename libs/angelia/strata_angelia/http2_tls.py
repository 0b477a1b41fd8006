"""Mutual TLS of the http2 transport: gRPC's own credentials, with what gRPC does not have.

gRPC takes new files of a server by itself; a channel keeps what it was made with, so `Http2Channel`
makes a new one. gRPC tells a caller neither the certificate of the server nor, in words, why a
handshake failed: a caller first makes a connection of its own (`probe`), which says both. gRPC
cannot serve TLS and plaintext on one port: while a cluster changes over, `TwoWayPort` stands before
two ports of the loopback interface.

gRPC takes TLS 1.2 and later; its ciphers are those of the environment GRPC_SSL_CIPHER_SUITES.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

import grpc

from strata_angelia.tls import PeerTls, refused_by_server, role_of_peer, speaks_no_tls
from strata_runtime.addresses import host_and_port
from strata_runtime.listening import endpoint_of, listening
from strata_runtime.logs import get_logger
from strata_runtime.roles import PeerRole, role_of
from strata_runtime.tasks import RequestTasks, TooManyTasksError
from strata_runtime.timeouts import Timeout

_TLS_FIRST_BYTE = b"\x16"
_FIRST_BYTE_TIMEOUT_S = 5.0
_READ_BYTES = 256 * 1024
LOOPBACK = "127.0.0.1"


def server_credentials(tls: PeerTls) -> grpc.ServerCredentials:
    """Return credentials that always have the newest files."""
    given = 0

    def newest() -> grpc.ServerCertificateConfiguration | None:
        # Called by threads of gRPC for each handshake.
        nonlocal given
        credentials = tls.credentials
        if credentials.number == given:
            return None
        given = credentials.number
        return _configuration(tls)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(tls),
        newest,  # type: ignore[arg-type]  # None: nothing is new
        require_client_authentication=True,
    )


def channel_credentials(tls: PeerTls) -> grpc.ChannelCredentials:
    """Return credentials with the files as they are now."""
    now = tls.credentials
    return grpc.ssl_channel_credentials(now.ca_pem, now.key_pem, now.certificate_pem)


def _configuration(tls: PeerTls) -> grpc.ServerCertificateConfiguration:
    now = tls.credentials
    return grpc.ssl_server_certificate_configuration(
        [(now.key_pem, now.certificate_pem)], root_certificates=now.ca_pem
    )


def role_of_caller(auth_context: Mapping[str, Any]) -> tuple[bool, PeerRole | None]:
    """Return whether a caller came over TLS, and the role in its certificate."""
    if b"ssl" not in auth_context.get("transport_security_type", ()):
        return False, None
    names = auth_context.get("x509_subject_alternative_name", ())
    return True, role_of([bytes(name).decode("utf-8", "replace") for name in names])


async def probe(endpoint: str, tls: PeerTls) -> tuple[bool, PeerRole | None]:
    """Find out whether a server speaks TLS, and its role; a refusal of either end is raised.

    Raises:
        OSError: no connection, or certificates that do not fit.
        ValueError: the endpoint is no address.
    """
    host, port = host_and_port(endpoint)
    context = tls.credentials.client
    try:
        reader, writer = await asyncio.open_connection(host, port, ssl=context)
    except OSError as error:
        if tls.mode == "required" or not speaks_no_tls(error):
            raise
        return False, None
    try:
        ssl_object = writer.get_extra_info("ssl_object")
        tls.met(endpoint, ssl_object)
        role = role_of_peer(ssl_object)
        # A server of gRPC speaks first, unless it refuses the certificate.
        if ssl_object.selected_alpn_protocol() is not None and not await reader.read(1):
            raise refused_by_server(tls)
    except ConnectionResetError as error:
        raise refused_by_server(tls) from error
    finally:
        writer.transport.abort()
    return True, role


class TwoWayPort:
    """A port for TLS and plaintext before two ports of a server.

    Args:
        tls_port: of the loopback interface, for callers that speak TLS.
        plaintext_port: for the others.
        max_connections: more are closed.
    """

    def __init__(self, tls_port: int, plaintext_port: int, max_connections: int) -> None:
        self._tls_port = tls_port
        self._plaintext_port = plaintext_port
        self._relays = RequestTasks("angelia.relay", max_tasks=max_connections)
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> str:
        """Listen; return the endpoint.

        Raises:
            ListenError: the address cannot be listened on.
        """
        with listening(host, port, "for other nodes"):
            self._server = await asyncio.start_server(self._accepted, host, port)
        return endpoint_of(*self._server.sockets[0].getsockname()[:2])

    async def stop(self) -> None:
        """Close the port and its connections."""
        if self._server is not None:
            self._server.close()
        await self._relays.stop()

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self._relays.spawn("relay", self._relay(reader, writer))
        except (TooManyTasksError, RuntimeError):
            writer.close()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError, TimeoutError):
            async with Timeout(_FIRST_BYTE_TIMEOUT_S):
                first = await reader.read(_READ_BYTES)
            port = self._tls_port if first[:1] == _TLS_FIRST_BYTE else self._plaintext_port
            to_server = await asyncio.open_connection(LOOPBACK, port)
            with contextlib.closing(to_server[1]):
                to_server[1].write(first)
                async with asyncio.TaskGroup() as both:
                    both.create_task(_pump(reader, to_server[1]))
                    both.create_task(_pump(to_server[0], writer))
            return
        get_logger("angelia").debug("a relayed connection broke")


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy bytes until one end has gone; the other end learns of it."""
    with contextlib.suppress(OSError):
        while data := await reader.read(_READ_BYTES):
            writer.write(data)
            await writer.drain()
    writer.close()
