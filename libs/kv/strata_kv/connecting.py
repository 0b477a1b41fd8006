"""Connections and pauses of both clients."""

from __future__ import annotations

from collections.abc import Sequence

Metadata = Sequence[tuple[str, str]]

MAX_RESPONSE_BYTES = 64 * 1024 * 1024
OPTIONS = (
    ("grpc.max_receive_message_length", MAX_RESPONSE_BYTES),
    ("grpc.max_send_message_length", MAX_RESPONSE_BYTES),
    ("grpc.enable_http_proxy", 0),
    # A broker that comes back is seen soon.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # In spite of its name: how long an attempt to connect may take, TLS included.
    ("grpc.min_reconnect_backoff_ms", 5_000),
)
PAUSE_S = 0.05
WATCH_PAUSE_S = 0.2
