"""Limits and addresses of the edge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from strata_edge.guard_limits import KIB, MIB, GuardLimits
from strata_edge.listener import Keepalive
from strata_edge.method_limits import MethodLimits
from strata_edge.pace import LeastRate
from strata_edge.shares import Shares
from strata_runtime.tls import Certificate
from strata_runtime.tls_policy import TlsPolicy


@dataclass(frozen=True, slots=True)
class EdgeOptions:
    """How an edge listens and what it allows.

    Attributes:
        host: address to listen on.
        port: 0 takes any free one; `Edge.start` returns the real one.
        is_port_shared: other processes of this user listen on the port, too (SO_REUSEPORT).
        front: whether a front process serves TLS and plaintext on the port. False: the server
            itself listens, plaintext only (tests, measuring what the front costs).
        certificate: for TLS; needed with a front, which reads it again when it changes.
        tls_only: whether the front closes connections that speak plaintext.
        tls_policy: lowest version of TLS, and ciphers.
        socket_folder: where the private unix socket's folder is made; None: the system's.
        max_connections: client connections; more are closed at once.
        max_connections_per_address: of these, by one client address.
        handshake_timeout_ms: from a connection's acceptance to its first byte, and with TLS to the
            end of the handshake; a slower one is closed.
        max_hot_calls: hot calls waiting for an answer; more end with RESOURCE_EXHAUSTED.
        max_rare_calls: the same for all other calls, telemetry streams among them.
        max_calls_per_address: of each of the two, by one client address.
        max_unread_bytes: answers of all kinds that clients have not read; while there are more,
            receives and other streams end with RESOURCE_EXHAUSTED, sends and acks do not.
        max_unread_bytes_per_address: of these, by one client address; a connection that has read
            everything may have one receive at a time beyond that.
        max_unread_bytes_per_connection: of these, by one connection; then any call on it ends so.
        unread_reserve_bytes: beyond `max_unread_bytes`, for connections that have read everything:
            each may have one receive at a time.
        max_read_pause_ms: a connection that does not go on to read for so long, while others are
            refused because of it, is ended (grpcio: only with a front).
        min_read_bytes_per_s: in that time it has to read at least so fast, or everything.
        max_streams_per_connection: RPCs at once on one connection; a client's others wait.
        max_receive_bytes: size of one request message, the largest of any method; grpcio refuses
            a larger one by its length, before its bytes are collected.
        method_limits: limits of methods, by `/package.Service/Rpc`.
        default_limits: limits of the methods that have none of their own.
        slow_upload_ms: a request that is not here after so long is a slow upload.
        max_upload_ms: a request that is not here after so long is given up.
        max_slow_uploads: slow uploads at once; more end with RESOURCE_EXHAUSTED.
        max_slow_uploads_per_address: of these, by one client address.
        max_large_request_bytes: with a front, of large requests that the server receives or has
            not answered.
        max_large_request_bytes_per_address: of these, by one client address; further ones wait.
            One that holds nothing may have one larger request.
        max_large_request_bytes_per_connection: of these, by one connection; the same.
        guard: with a front, what a connection may ask beside its calls.
        max_metadata_bytes: size of all headers of a call.
        min_client_ping_interval_s: clients may ping as often as this, with or without calls.
        keepalive: how clients that have gone without a word are found; not those of a grpcio
            without a front.
        front_ready_timeout_s: for the front to come up.
        relay_buffer_bytes: bytes per direction that the front holds for a slow reader.
    """

    host: str = "127.0.0.1"
    port: int = 8081
    is_port_shared: bool = False
    front: bool = True
    certificate: Certificate | None = None
    tls_only: bool = False
    tls_policy: TlsPolicy = field(default_factory=TlsPolicy)
    socket_folder: Path | None = None
    max_connections: int = 20_000
    max_connections_per_address: int = 15_000
    handshake_timeout_ms: int = 10_000
    max_hot_calls: int = 100_000
    max_rare_calls: int = 50_000
    max_calls_per_address: int = 5_000
    max_unread_bytes: int = 128 * MIB
    max_unread_bytes_per_address: int = 96 * MIB
    max_unread_bytes_per_connection: int = 32 * MIB
    unread_reserve_bytes: int = 32 * MIB
    max_read_pause_ms: int = 30_000
    min_read_bytes_per_s: int = 64 * KIB
    max_streams_per_connection: int = 1_024
    max_receive_bytes: int = 16 * MIB
    method_limits: Mapping[str, MethodLimits] = field(default_factory=dict)
    default_limits: MethodLimits = field(default_factory=MethodLimits)
    slow_upload_ms: int = 1_000
    max_upload_ms: int = 30_000
    max_slow_uploads: int = 64
    max_slow_uploads_per_address: int = 16
    max_large_request_bytes: int = 32 * MIB
    max_large_request_bytes_per_address: int = 16 * MIB
    max_large_request_bytes_per_connection: int = 16 * MIB
    guard: GuardLimits = field(default_factory=GuardLimits)
    max_metadata_bytes: int = 16 * KIB
    min_client_ping_interval_s: float = 5.0
    keepalive: Keepalive = field(default_factory=Keepalive)
    front_ready_timeout_s: float = 15.0
    relay_buffer_bytes: int = 128 * KIB

    @property
    def unread(self) -> Shares:
        """Shares of answers that clients have not read."""
        return Shares(
            self.max_unread_bytes,
            self.max_unread_bytes_per_address,
            self.max_unread_bytes_per_connection,
            self.unread_reserve_bytes,
        )

    @property
    def least_read(self) -> LeastRate:
        """Return the least rate of a client with answers to read while others are refused."""
        return LeastRate(self.max_read_pause_ms / 1_000, self.min_read_bytes_per_s)

    @property
    def large_requests(self) -> Shares:
        """Shares of large requests under way."""
        return Shares(
            self.max_large_request_bytes,
            self.max_large_request_bytes_per_address,
            self.max_large_request_bytes_per_connection,
        )
