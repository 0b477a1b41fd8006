"""Options of an edge without front or TLS, with the limits that a broker gives its methods."""

from __future__ import annotations

from strata_broker.base.config import BrokerConfig
from strata_broker.base.method_limits import default_limits, method_limits
from strata_edge.options import EdgeOptions


def plain_edge(config: BrokerConfig, host: str = "127.0.0.1") -> EdgeOptions:
    """Return options of an edge that listens itself."""
    return EdgeOptions(
        host=host,
        port=0,
        front=False,
        method_limits=method_limits(config, EdgeOptions().max_receive_bytes),
        default_limits=default_limits(config),
    )
