"""The options of an edge as the extension takes them: numbers by name."""

from __future__ import annotations

from strata_edge.options import EdgeOptions

# Headers of a call as they are on the wire; who sends so many more is cut off.
_HEADERS_ON_THE_WIRE = 4


def native_options(options: EdgeOptions) -> dict[str, int]:
    """Return every limit that the extension holds to."""
    guard = options.guard
    return {
        "tls": int(options.front),
        "tls_only": int(options.tls_only),
        "max_connections": options.max_connections,
        "max_connections_per_address": options.max_connections_per_address,
        "handshake_timeout_ms": options.handshake_timeout_ms,
        "max_hot_calls": options.max_hot_calls,
        "max_rare_calls": options.max_rare_calls,
        "max_calls_per_address": options.max_calls_per_address,
        "max_unread_bytes": options.max_unread_bytes,
        "max_unread_bytes_per_address": options.max_unread_bytes_per_address,
        "max_unread_bytes_per_connection": options.max_unread_bytes_per_connection,
        "unread_reserve_bytes": options.unread_reserve_bytes,
        "max_read_pause_ms": options.max_read_pause_ms,
        "min_read_bytes_per_s": options.min_read_bytes_per_s,
        "max_streams_per_connection": options.max_streams_per_connection,
        "max_request_bytes": options.max_receive_bytes,
        "slow_upload_ms": options.slow_upload_ms,
        "max_upload_ms": options.max_upload_ms,
        "max_slow_uploads": options.max_slow_uploads,
        "max_slow_uploads_per_address": options.max_slow_uploads_per_address,
        "max_large_request_bytes": options.max_large_request_bytes,
        "max_large_request_bytes_per_address": options.max_large_request_bytes_per_address,
        "max_large_request_bytes_per_connection": options.max_large_request_bytes_per_connection,
        "max_metadata_bytes": options.max_metadata_bytes,
        "relay_buffer_bytes": options.relay_buffer_bytes,
        "large_request_bytes": guard.large_request_bytes,
        "max_header_bytes": _HEADERS_ON_THE_WIRE * options.max_metadata_bytes,
        "max_unfinished_requests": guard.max_unfinished_requests,
        "max_resets_per_s": guard.max_resets_per_s,
        "max_control_frames_per_s": guard.max_control_frames_per_s,
        "max_header_bytes_per_s": guard.max_header_bytes_per_s,
        "control_credit_ms": guard.control_credit_ms,
        "max_control_pause_ms": guard.max_control_pause_ms,
        "control_grace_ms": guard.control_grace_ms,
        "control_connections_per_address": guard.control_connections_per_address,
        "max_request_pause_ms": guard.max_request_pause_ms,
        "min_upload_bytes_per_s": guard.min_upload_bytes_per_s,
    }
