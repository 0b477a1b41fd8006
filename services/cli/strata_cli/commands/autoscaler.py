"""`strata autoscaler`: KEDA's external scaler."""

# ruff: noqa: D417

from __future__ import annotations

import os
from pathlib import Path

from strata_cli.commands.run import LogLevel, with_flags
from strata_cli.options import COMMON, Common


def autoscaler(
    *,
    host: str | None = None,
    port: int | None = None,
    metrics_port: int | None = None,
    log_level: LogLevel | None = None,
    config: Path | None = None,
    common: Common = COMMON,
) -> None:
    """Serve lag, rates and forecasts of a cluster to KEDA, which scales pods by them.

    It prints one line that starts with "ready" when it serves; SIGTERM ends it. It starts without
    a broker, too. While no broker answers, it serves the last values for a while
    (autoscaler.keep_last_ms). docs/autoscaling.md describes the triggers.

    For instance: strata autoscaler --host 0.0.0.0 --endpoint brokers:8081

    Args:
        host: Address to listen on; default 127.0.0.1, or the configured address.
        port: Port for KEDA, 0 for any free port; default 9878, or the configured port.
        metrics_port: Port for Prometheus and health.
        log_level: Lowest level that is logged.
        config: TOML file; the variable STRATA_<SECTION>_<KEY> overrides a key of the file.
    """
    from strata_cli.processes.autoscaler import run
    from strata_cli.processes.cluster_config import ClusterConfig
    from strata_runtime.config import load

    settings = with_flags(
        load(ClusterConfig, config, os.environ),
        node={"host": host, "metrics_port": metrics_port, "log_level": log_level},
        autoscaler={"port": port},
    )
    run(settings, common)
