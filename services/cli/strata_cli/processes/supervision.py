"""The end that a process shares with its supervisor; see `strata_cli.machine`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

LOOPBACK = "127.0.0.1"
"""Where a supervised process serves its metrics: only its supervisor asks for them."""


class SupervisorWatch:
    """Ends the process when its standard input closes; a `Service`.

    Args:
        on_closed: called once.
    """

    name = "supervisor watch"

    def __init__(self, on_closed: Callable[[], None]) -> None:
        self._on_closed = on_closed
        self._transport: asyncio.ReadTransport | None = None

    async def start(self) -> None:
        """Watch from now on."""
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.connect_read_pipe(
            lambda: _Closing(self._on_closed), sys.stdin
        )

    async def stop(self, grace_s: float) -> None:
        """Watch no more."""
        if self._transport is not None:
            self._transport.close()


class _Closing(asyncio.Protocol):
    def __init__(self, on_closed: Callable[[], None]) -> None:
        self._on_closed = on_closed

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_closed()
