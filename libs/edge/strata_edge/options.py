"""Limits and addresses of the edge."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from strata_runtime.tls import Certificate

KIB = 1 << 10
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class EdgeOptions:
    """How an edge listens and what it allows.

    Attributes:
        host: address to listen on.
        port: 0 takes any free one; `Edge.start` returns the real one.
        front: whether a front process serves TLS and plaintext on the port. False: the server
            itself listens, plaintext only (tests, measuring what the front costs).
        certificate: for TLS; needed with a front.
        socket_folder: where the private unix socket's folder is made; None: the system's.
        max_connections: client connections; more are closed at once.
        handshake_timeout_ms: from a connection's acceptance to its first byte, and with TLS to the
            end of the handshake; a slower one is closed.
        max_hot_calls: hot calls waiting for an answer; more end with RESOURCE_EXHAUSTED.
        max_unread_bytes: answers of receives that clients have not read; while there are more,
            receives end with RESOURCE_EXHAUSTED.
        max_streams_per_connection: RPCs at once on one connection.
        max_receive_bytes: size of one request message.
        max_metadata_bytes: size of all headers of a call.
        min_client_ping_interval_s: clients may ping as often as this, with or without calls.
        front_ready_timeout_s: for the front to come up.
        relay_buffer_bytes: bytes per direction that the front holds for a slow reader.
    """

    host: str = "127.0.0.1"
    port: int = 8081
    front: bool = True
    certificate: Certificate | None = None
    socket_folder: Path | None = None
    max_connections: int = 20_000
    handshake_timeout_ms: int = 10_000
    max_hot_calls: int = 100_000
    max_unread_bytes: int = 128 * MIB
    max_streams_per_connection: int = 10_000
    max_receive_bytes: int = 16 * MIB
    max_metadata_bytes: int = 64 * KIB
    min_client_ping_interval_s: float = 5.0
    front_ready_timeout_s: float = 15.0
    relay_buffer_bytes: int = 128 * KIB
