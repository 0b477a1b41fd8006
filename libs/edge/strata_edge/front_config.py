"""Settings of the front process and its reports, as they pass between it and its parent."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Self

from strata_edge.guard_limits import GuardLimits
from strata_edge.shares import Shares
from strata_runtime.tls_policy import TlsPolicy

SECURED, PLAIN = "tls", "plain"


def other_client_name(process_id: int, serial: int, security: str, peer: str) -> str:
    """Return the abstract name of the socket of a client of another protocol.

    Args:
        process_id: of the front.
        serial: number of the connection.
        security: SECURED or PLAIN.
        peer: address of the client, `host:port`.
    """
    return f"\0strata-other/{process_id}/{serial}/{security}/{peer}"


def other_client_of(name: bytes | str) -> tuple[str, str]:
    """Return security and address in an `other_client_name`."""
    text = name.decode() if isinstance(name, bytes) else name
    security, peer = text.split("/")[-2:]
    return security, peer


@dataclass(frozen=True, slots=True)
class FrontConfig:
    """Settings that the parent passes to the front on its command line, as JSON."""

    listen_descriptor: int
    control_descriptor: int
    server_socket: str
    certificate_file: str
    key_file: str
    tls_only: bool
    tls_policy: TlsPolicy
    max_connections: int
    max_connections_per_address: int
    relay_buffer_bytes: int
    handshake_timeout_ms: int
    large_requests: Shares
    guard: GuardLimits
    # Socket of the server for connections of another protocol; empty: there is none.
    other_socket: str = ""

    def to_json(self) -> str:
        """For the command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """From the command line."""
        values = json.loads(text)
        policy = values["tls_policy"]
        records = {
            "guard": GuardLimits(**values["guard"]),
            "large_requests": Shares(**values["large_requests"]),
            "tls_policy": TlsPolicy(policy["min_version"], tuple(policy["ciphers"])),
        }
        return cls(**values | records)


@dataclass(slots=True)
class FrontReport:
    """Report of the front to its parent, one JSON line at a time; totals since its start."""

    connections: int = 0
    refused: int = 0
    tls_failures: int = 0
    handshake_timeouts: int = 0
    plaintext_refused: int = 0
    # Times a connection was not read for a while, and connections that were ended.
    pauses: int = 0
    ended: int = 0
    # Clients that were asked to go elsewhere, and those of them that are still connected.
    sent_away: int = 0
    leaving: int = 0
    # Connections of another protocol that were begun, and those that are relayed now.
    handed_over: int = 0
    relayed: int = 0
    # Now: bytes of large requests under way, and how many of them wait.
    large_bytes: int = 0
    large_waiting: int = 0
    # Times the certificate was read again, and why it could not be the last time.
    certificates: int = 0
    certificate_error: str = ""
