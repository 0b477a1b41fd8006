"""An edge without front or TLS, with the limits that a broker gives its methods.

It is the native one if that is installed; STRATA_EDGE_ADAPTER chooses, as for a process.
"""

from __future__ import annotations

import os
from typing import cast

from strata_broker.base.config import BrokerConfig
from strata_broker.base.method_limits import default_limits, method_limits
from strata_edge.choice import Adapter, choose_edge
from strata_edge.options import EdgeOptions
from strata_edge.ports import Edge
from strata_runtime.metrics import Metrics


def plain_edge(
    config: BrokerConfig, host: str = "127.0.0.1", metrics: Metrics | None = None
) -> Edge:
    """Return an edge that listens itself."""
    adapter = cast(Adapter, os.environ.get("STRATA_EDGE_ADAPTER", "auto"))
    options = EdgeOptions(
        host=host,
        port=0,
        front=False,
        method_limits=method_limits(config, EdgeOptions().max_receive_bytes),
        default_limits=default_limits(config),
    )
    return choose_edge(adapter, options, metrics or Metrics.disabled())
