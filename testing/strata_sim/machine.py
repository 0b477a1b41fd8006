"""Machines of a simulated cluster: a process that can be killed, paused and started again.

A machine keeps its disks over a crash, like a real machine. All other state belongs to an
incarnation and ends with it. Its clock drifts and jumps.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from strata_sim.virtual_loop import INCARNATION, Incarnation, VirtualLoop

EPOCH_MS = 1_800_000_000_000
"""Wall time at virtual second 0."""


@dataclass(slots=True)
class MachineClock:
    """A clock with a rate and an offset; implements `strata_runtime.clock.Clock`.

    Attributes:
        rate: seconds it counts per second of virtual time; changed by `set_rate`.
        wall_offset_ms: how far its wall time is off; may change at any time.
    """

    loop: VirtualLoop
    rate: float = 1.0
    wall_offset_ms: int = 0
    _since_s: float = 0.0
    _counted_s: float = 0.0

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary start; never goes back."""
        return 1_000.0 + self._seconds()

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return EPOCH_MS + int(self._seconds() * 1_000) + self.wall_offset_ms

    def set_rate(self, rate: float) -> None:
        """Run at another rate from now on."""
        self._counted_s, self._since_s = self._seconds(), self.loop.time()
        self.rate = rate

    def _seconds(self) -> float:
        return self._counted_s + (self.loop.time() - self._since_s) * self.rate


class Machine:
    """One machine with at most one process.

    Args:
        name: unique in the simulation.
        loop: its time.

    Attributes:
        clock: what its process sees of time.
        lives: how often its process was started.
    """

    def __init__(self, name: str, loop: VirtualLoop) -> None:
        self.name = name
        self.clock = MachineClock(loop)
        self.lives = 0
        self._loop = loop
        self._incarnation: Incarnation | None = None
        # Held until the end: what is collected runs its `finally` blocks.
        self._dead: list[Incarnation] = []

    @property
    def incarnation(self) -> Incarnation | None:
        """The running process; None while there is none."""
        return self._incarnation

    @property
    def runs(self) -> bool:
        """Whether there is a process, paused or not."""
        return self._incarnation is not None

    @property
    def paused(self) -> bool:
        """Whether the process is stopped and can go on."""
        return self._incarnation is not None and self._incarnation.paused

    def start(self, main: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a process that runs `main`; what it spawns belongs to it.

        Raises:
            RuntimeError: a process runs already.
        """
        if self._incarnation is not None:
            main.close()
            raise RuntimeError(f"{self.name} runs already")
        self.lives += 1
        self._incarnation = Incarnation(f"{self.name}#{self.lives}")
        return self.run(main)

    def run(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run `work` as a part of the process."""
        return self._loop.create_task(work, context=self.context())

    def context(self) -> contextvars.Context:
        """Return a context in which callbacks belong to the process.

        Raises:
            RuntimeError: there is none.
        """
        if self._incarnation is None:
            raise RuntimeError(f"{self.name} does not run")
        context = contextvars.copy_context()
        context.run(INCARNATION.set, self._incarnation)
        return context

    def kill(self) -> None:
        """End the process between two of its steps; nothing of it runs any more."""
        if self._incarnation is None:
            return
        incarnation, self._incarnation = self._incarnation, None
        incarnation.dead = True
        self._dead.append(incarnation)
        for callback in incarnation.on_death:
            callback()

    def pause(self) -> None:
        """Stop the process where it is."""
        if self._incarnation is not None:
            self._incarnation.paused = True

    def resume(self) -> None:
        """Let a paused process go on; what came due meanwhile runs at once, in order."""
        incarnation = self._incarnation
        if incarnation is None or not incarnation.paused:
            return
        incarnation.paused = False
        self._loop.call_next(incarnation.deferred)
        incarnation.deferred = []
