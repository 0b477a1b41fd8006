"""Asks the processes of a machine for their metrics and health, over loopback."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from strata_cli.processes.supervision import LOOPBACK
from strata_runtime.health import Health, Problem, Severity
from strata_runtime.timeouts import Timeout

_MAX_BYTES = 64 * 1024 * 1024


class ProbeError(Exception):
    """A process did not answer as it should."""


async def fetch(port: int, path: str, timeout_s: float) -> bytes:
    """Return the body of an answer of a process's metrics port, whatever its status.

    Raises:
        ProbeError: there is none in time.
    """
    try:
        async with Timeout(timeout_s):
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            try:
                writer.write(f"GET {path} HTTP/1.1\r\nHost: {LOOPBACK}\r\n\r\n".encode())
                await writer.drain()
                head = await reader.readuntil(b"\r\n\r\n")
                return await reader.readexactly(_length(head))
            finally:
                writer.close()
    except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise ProbeError(str(error) or type(error).__name__) from error


def health_of(body: bytes) -> Health:
    """Return what the answer of `/ready` says.

    Raises:
        ProbeError: it says nothing.
    """
    try:
        values: dict[str, Any] = json.loads(body)
        problems = tuple(
            Problem(
                each["kind"],
                each["name"],
                each["state"],
                Severity[each["severity"].upper()],
                each["detail"],
            )
            for each in values["reasons"]
        )
        return Health(values["serves"], values["caught_up"], problems)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProbeError(f"its health is unreadable: {error}") from error


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length" and int(value) <= _MAX_BYTES:
            return int(value)
    raise ProbeError("its answer has no length")
