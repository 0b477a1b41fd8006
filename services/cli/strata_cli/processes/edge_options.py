"""The port for clients, as the sections `[node]` and `[edge]` describe it."""

from __future__ import annotations

from pathlib import Path

from strata_broker.base.method_limits import default_limits, method_limits
from strata_cli.processes.standalone_config import EdgeSection, StandaloneConfig
from strata_edge.guard_limits import GuardLimits
from strata_edge.listener import Keepalive
from strata_edge.options import EdgeOptions
from strata_runtime import tls
from strata_runtime.errors import ConfigError
from strata_runtime.tls_policy import TlsPolicy


def edge_options(
    config: StandaloneConfig, tls_folder: Path, host: str, *, is_port_shared: bool = False
) -> EdgeOptions:
    """Return the options of a broker's edge.

    Args:
        config: of the process.
        tls_folder: where a self-signed certificate is kept.
        host: name in the self-signed certificate.
        is_port_shared: other workers listen on the port, too.

    Raises:
        ConfigError: the configured certificate cannot be used, or keys contradict each other.
    """
    node, edge = config.node, config.edge
    certificate = None
    if edge.tls_only and not edge.tls:
        raise ConfigError("edge.tls_only is set but edge.tls is not: set both")
    if bool(edge.certificate_file) != bool(edge.key_file):
        given, other = ("certificate_file", "key_file")
        if edge.key_file:
            given, other = other, given
        raise ConfigError(f"edge.{given} is set but edge.{other} is not: set both or none")
    if edge.tls and (edge.certificate_file or edge.key_file):
        certificate = tls.own(Path(edge.certificate_file), Path(edge.key_file))
    elif edge.tls:
        certificate = tls.self_signed(tls_folder, [host])
    return EdgeOptions(
        host=node.host,
        port=node.grpc_port,
        is_port_shared=is_port_shared,
        front=edge.tls,
        tls_only=edge.tls_only,
        tls_policy=TlsPolicy.checked(edge.min_tls_version, edge.tls_ciphers),
        certificate=certificate,
        max_connections=edge.max_connections,
        max_connections_per_address=edge.max_connections_per_address,
        max_calls_per_address=edge.max_calls_per_address,
        max_streams_per_connection=edge.max_streams_per_connection,
        max_receive_bytes=edge.max_receive_bytes,
        method_limits=method_limits(config, edge.max_receive_bytes),
        default_limits=default_limits(config),
        max_unread_bytes=edge.max_unread_bytes,
        max_unread_bytes_per_address=edge.max_unread_bytes_per_address,
        max_unread_bytes_per_connection=edge.max_unread_bytes_per_connection,
        unread_reserve_bytes=edge.unread_reserve_bytes,
        max_read_pause_ms=edge.max_read_pause_ms,
        min_read_bytes_per_s=edge.min_read_bytes_per_s,
        max_hot_calls=edge.max_hot_calls,
        max_rare_calls=edge.max_rare_calls,
        max_metadata_bytes=edge.max_metadata_bytes,
        min_client_ping_interval_s=edge.min_client_ping_interval_ms / 1_000,
        relay_buffer_bytes=edge.relay_buffer_bytes,
        guard=_guard_limits(edge),
        max_large_request_bytes=edge.max_large_request_bytes,
        max_large_request_bytes_per_address=edge.max_large_request_bytes_per_address,
        max_large_request_bytes_per_connection=edge.max_large_request_bytes_per_connection,
        slow_upload_ms=edge.slow_upload_ms,
        max_upload_ms=edge.max_upload_ms,
        max_slow_uploads=edge.max_slow_uploads,
        max_slow_uploads_per_address=edge.max_slow_uploads_per_address,
        handshake_timeout_ms=edge.handshake_timeout_ms,
        keepalive=Keepalive(
            edge.keepalive_idle_ms, edge.keepalive_interval_ms, edge.keepalive_questions
        ),
    )


def _guard_limits(edge: EdgeSection) -> GuardLimits:
    """Return what a connection may ask beside its calls."""
    return GuardLimits(
        large_request_bytes=edge.large_request_bytes,
        max_unfinished_requests=edge.max_unfinished_requests_per_connection,
        max_resets_per_s=edge.max_resets_per_s,
        max_control_frames_per_s=edge.max_control_frames_per_s,
        max_header_bytes_per_s=edge.max_header_bytes_per_s,
        control_credit_ms=edge.control_credit_ms,
        max_control_pause_ms=edge.max_control_pause_ms,
        control_grace_ms=edge.control_grace_ms,
        control_connections_per_address=edge.control_connections_per_address,
        max_request_pause_ms=edge.max_request_pause_ms,
        min_upload_bytes_per_s=edge.min_upload_bytes_per_s,
    )
