"""Pops under way, so that their broker can end one whose client has gone.

A call that is cancelled loses its answer, and with it the leases that it may have taken in that
moment. A pop that is ended here is answered all the same: with nothing, or with what it had taken
already, which its broker then gives back. Invariant: a pop that is ended keeps no lease that its
answer does not name, because one that is cancelled gives back what it took.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Any

_Key = tuple[int, int]
"""(broker boot id, its number of the pop)."""


class RunningPops:
    """See the module docstring. Used on the event loop only."""

    __slots__ = ("_running",)

    def __init__(self) -> None:
        self._running: dict[_Key, RunningPop] = {}

    def __len__(self) -> int:
        return len(self._running)

    def of(self, boot_id: int, number: int) -> RunningPop:
        """Return `with` around a pop in the task of its call; being ended leaves it early.

        Args:
            boot_id: of the broker that asks.
            number: what it calls this pop; 0: it will not end it.
        """
        return RunningPop(self._running, (boot_id, number))

    def end(self, boot_id: int, numbers: Iterable[int]) -> None:
        """End pops of a broker, those that are under way."""
        for number in numbers:
            running = self._running.get((boot_id, number))
            if running is not None:
                running.end()


class RunningPop:
    """See `RunningPops.of`."""

    __slots__ = ("_all", "_ended", "_key", "_task")

    def __init__(self, all_of_them: dict[_Key, RunningPop], key: _Key) -> None:
        self._all = all_of_them
        self._key = key
        self._ended = False
        self._task: asyncio.Task[Any] | None = None

    def end(self) -> None:
        """Let it be answered with what it has."""
        if not self._ended and self._task is not None:
            self._ended = True
            self._task.cancel()

    def __enter__(self) -> None:
        # A broker that gives a number twice cannot end the second one.
        if self._key[1] and self._key not in self._all:
            self._task = asyncio.current_task()
            self._all[self._key] = self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if self._task is None:
            return False
        del self._all[self._key]
        if not self._ended:
            return False
        # The call itself may be cancelled, too.
        others = self._task.uncancel()
        return kind is asyncio.CancelledError and not others
