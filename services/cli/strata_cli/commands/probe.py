"""`strata probe`: asks a process of this machine how it does, for health checks of containers."""

# ruff: noqa: D417

from __future__ import annotations

import json
from http.client import HTTPConnection, HTTPException
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from strata_cli.errors import CliError, UsageError
from strata_cli.options import COMMON, Unused, milliseconds
from strata_runtime.addresses import host_and_port
from strata_runtime.listening import endpoint_of

_MAX_BYTES = 1024 * 1024
_MAX_SHOWN = 3
_OK = 200


def probe(
    *,
    host: str = "127.0.0.1",
    port: Annotated[int, Parameter(env_var="STRATA_NODE_METRICS_PORT")] = 5557,
    state: Literal["ready", "live"] = "ready",
    timeout: str = "2s",
    common: Unused = COMMON,
) -> None:
    """Ask the metrics port of a process whether it is ready, and fail if it is not.

    A health check of a container needs nothing else: no shell and no curl. Exit code 1: the process
    says no; 5: it does not answer.

    For instance: strata probe --port 5557

    Args:
        host: Address of the process.
        port: Its metrics port (node.metrics_port).
        state: ready: it serves and has caught up; live: it runs.
        timeout: Time limit for the answer.
    """
    status, body = _ask(host, port, state, milliseconds(timeout) / 1_000)
    if status != _OK:
        raise CliError(f"{host}:{port} is not {state}: {_reasons(body)}")
    print(state)


def _ask(host: str, port: int, state: str, timeout_s: float) -> tuple[int, bytes]:
    """Return status and body of the answer.

    Raises:
        CliError: there is none.
        UsageError: it is no address.
    """
    try:
        host_and_port(endpoint_of(host, port))
    except ValueError:
        raise UsageError(
            f"{host}:{port}: write a host for --host and 1 to 65535 for --port"
        ) from None
    connection = HTTPConnection(host, port, timeout=timeout_s)
    try:
        connection.request("GET", f"/{state}")
        answer = connection.getresponse()
        return answer.status, answer.read(_MAX_BYTES)
    except (OSError, HTTPException) as error:
        raise CliError(f"{host}:{port} does not answer: {error}", "unreachable") from None
    finally:
        connection.close()


def _reasons(body: bytes) -> str:
    """Return why a process is not ready, in one line."""
    try:
        reasons: list[dict[str, Any]] = json.loads(body)["reasons"]
        lines = [f"{each['name']} {each['state']}: {each['detail']}" for each in reasons]
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace").strip() or "it does not say why"
    return "; ".join(lines[:_MAX_SHOWN]) or "it starts or stops"
