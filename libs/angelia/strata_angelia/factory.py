"""Channels and servers by the names that configuration uses."""

from __future__ import annotations

from collections.abc import Callable

from strata_angelia.cluster_id import ClusterId
from strata_angelia.codec import CODECS
from strata_angelia.http2 import Http2Server
from strata_angelia.http2_channel import Http2Channel
from strata_angelia.options import AngeliaOptions
from strata_angelia.ports import Channel, Server
from strata_angelia.tcp_channel import TcpChannel
from strata_angelia.tcp_server import TcpServer
from strata_angelia.tls import PeerTls
from strata_runtime.metrics import Metrics

TRANSPORTS = ("tcp", "http2")
CODEC_NAMES = tuple(CODECS)


def open_channel(
    endpoint: str,
    transport: str = "tcp",
    codec: str = "protobuf",
    *,
    options: AngeliaOptions | None = None,
    trace_parent: Callable[[], str] = str,
    cluster: ClusterId | None = None,
    tls: PeerTls | None = None,
) -> Channel:
    """Return a channel of its own to `host:port`; it connects with the first call.

    Args:
        endpoint: `host:port` of a server of that transport.
        transport: one of `TRANSPORTS`.
        codec: one of `CODEC_NAMES`.
        options: limits.
        trace_parent: gives the W3C `traceparent` of the running context, or "".
        cluster: of this process; None: it belongs to none.
        tls: certificates of this process; None: plaintext.

    Raises:
        ValueError: an unknown transport or codec.
    """
    if codec not in CODECS:
        raise ValueError(f"unknown codec {codec!r}; choose one of {', '.join(CODEC_NAMES)}")
    kind = TcpChannel if _checked(transport) == "tcp" else Http2Channel
    return kind(
        endpoint,
        codec=CODECS[codec],
        options=options,
        trace_parent=trace_parent,
        cluster=cluster,
        tls=tls,
    )


def open_server(
    host: str,
    port: int,
    transport: str = "tcp",
    *,
    options: AngeliaOptions | None = None,
    metrics: Metrics | None = None,
    cluster: ClusterId | None = None,
    tls: PeerTls | None = None,
) -> Server:
    """Return a server that takes every codec; not started.

    Args:
        host: address to listen on.
        port: 0 takes any free one.
        transport: one of `TRANSPORTS`.
        options: limits.
        metrics: calls and connections.
        cluster: of this process; None: it belongs to none.
        tls: certificates of this process; None: plaintext.

    Raises:
        ValueError: an unknown transport.
    """
    kind = TcpServer if _checked(transport) == "tcp" else Http2Server
    return kind(host, port, options=options, metrics=metrics, cluster=cluster, tls=tls)


def _checked(transport: str) -> str:
    if transport not in TRANSPORTS:
        raise ValueError(f"unknown transport {transport!r}; choose one of {', '.join(TRANSPORTS)}")
    return transport
