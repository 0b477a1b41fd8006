"""The port for clients, as the sections `[node]` and `[edge]` describe it."""

from __future__ import annotations

from pathlib import Path

from strata_cli.processes.standalone_config import StandaloneConfig
from strata_edge.options import EdgeOptions
from strata_runtime import tls


def edge_options(config: StandaloneConfig, tls_folder: Path, host: str) -> EdgeOptions:
    """Return the options of a broker's edge.

    Args:
        config: of the process.
        tls_folder: where a self-signed certificate is kept.
        host: name that the self-signed certificate bears.

    Raises:
        ConfigError: the configured certificate is not there.
    """
    node, edge = config.node, config.edge
    certificate = None
    if edge.tls and (edge.certificate_file or edge.key_file):
        certificate = tls.own(Path(edge.certificate_file), Path(edge.key_file))
    elif edge.tls:
        certificate = tls.self_signed(tls_folder, [host])
    return EdgeOptions(
        host=node.host,
        port=node.grpc_port,
        front=edge.tls,
        certificate=certificate,
        max_connections=edge.max_connections,
        max_receive_bytes=edge.max_receive_bytes,
        max_unread_bytes=edge.max_unread_bytes,
        handshake_timeout_ms=edge.handshake_timeout_ms,
    )
