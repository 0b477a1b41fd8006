"""Limits and times of Angelia; every queue and buffer of the package is bounded by one of them."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class AngeliaOptions:
    """Limits of a server or a channel.

    Attributes:
        max_message_bytes: serialised size of one request or response.
        max_calls: calls under way per connection (and per in-process server); more answer
            OVERLOADED.
        max_in_flight_bytes: request bytes under way per connection. A channel waits, within the
            call's deadline; a server reads no further.
        stream_window_bytes: response bytes of one stream that its consumer has not taken yet;
            the server waits. One message may exceed it.
        max_connections: connections of a server.
        connect_timeout_s: for connecting and the handshake.
        reconnect_pause_s: after a failed connect, calls fail at once for this time.
        ping_interval_s: distance of pings on a connection.
        silence_timeout_s: a connection on which nothing arrived for so long is lost.
    """

    max_message_bytes: int = 64 * MIB
    max_calls: int = 8_192
    max_in_flight_bytes: int = 128 * MIB
    stream_window_bytes: int = 4 * MIB
    max_connections: int = 1_024
    connect_timeout_s: float = 3.0
    reconnect_pause_s: float = 0.1
    ping_interval_s: float = 3.0
    silence_timeout_s: float = 10.0
