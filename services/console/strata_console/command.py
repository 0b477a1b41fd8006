"""`strata console`: the web console for a cluster."""

# ruff: noqa: D417

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from strata_cli.errors import UsageError
from strata_cli.options import COMMON, Common

DEFAULT_PORT = 8085


def console(
    *,
    host: str | None = None,
    port: int | None = None,
    client_endpoint: str = "",
    certificate: str | None = None,
    key: str | None = None,
    behind_tls: Annotated[bool, Parameter(negative="")] = False,
    insecure: Annotated[bool, Parameter(negative="")] = False,
    metrics_port: int | None = None,
    config: Path | None = None,
    common: Common = COMMON,
) -> None:
    """Serve the web console for the cluster of --endpoint.

    It prints one line that starts with "ready" when it serves; SIGTERM ends it. Users sign in with
    their own keys: keys among the options are not used.

    For instance: strata console --endpoint 127.0.0.1:8081 --port 8085

    Args:
        host: Address to listen on; default 127.0.0.1, or the configured address.
        port: Port for browsers, 0 for any free port; default 8085, or the configured port.
        client_endpoint: HOST:PORT of the broker's port for clients, where --endpoint is its port
            for operators.
        certificate: Certificate chain (PEM) for TLS.
        key: Key of the certificate (PEM, without a password).
        behind_tls: A proxy in front of the console has TLS.
        insecure: Serve other machines without TLS, and without a sign-in where access control is
            off: anybody may do anything.
        metrics_port: Port for Prometheus and health.
        config: TOML file, of which the section [console] counts; the variable
            STRATA_CONSOLE_<KEY> overrides a key of the file.
    """
    from pydantic import ValidationError

    from strata_cli.processes.cluster_config import ClusterConfig
    from strata_cli.processes.console_config import ConsoleSection
    from strata_console.server import run
    from strata_runtime.config import load

    section = load(ClusterConfig, config, os.environ).console
    given: dict[str, Any] = {
        "host": host,
        "port": port if port is not None else (section.port or DEFAULT_PORT),
        "certificate_file": certificate,
        "key_file": key,
        "behind_tls": behind_tls or None,
        "insecure": insecure or None,
        "metrics_port": metrics_port,
    }
    values = section.model_dump() | {name: each for name, each in given.items() if each is not None}
    try:
        settings = ConsoleSection.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        raise UsageError(f"console.{first['loc'][0]}: {first['msg']}") from None
    run(settings, common, clients=client_endpoint)
