"""Starts the processes of a machine, starts those again that die, and ends them together.

At the first start all must become ready, or the machine does not start: an operator is there to
read why. Later a process that dies is started again after a pause, as often as it takes, while the
others serve on: a disk that is full and a cluster without a quorum end by themselves.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from strata_cli.machine.child import Orders
from strata_cli.machine.child_process import ChildProcess, Told
from strata_cli.machine.folder import NAMES
from strata_cli.machine.metrics import METRICS
from strata_cli.machine.probes import ProbeError, fetch, health_of
from strata_runtime.backoff import Backoff
from strata_runtime.clock import Clock
from strata_runtime.errors import StrataError, one_line
from strata_runtime.health import Health, Problem, Severity
from strata_runtime.logs import get_logger
from strata_runtime.runtime import Runtime
from strata_runtime.tasks import Tasks
from strata_runtime.timeouts import Timeout

_FIRST_PAUSE_MS = 250
_LOOK_S = 0.1
_FAILED_START_S = 10.0
# The kernel ends a killed process within that, unless its disk does not answer.
_KILLED_S = 5.0
_HEALTH_INTERVAL_S = 1.0
_PROBE_TIMEOUT_S = 2.0
# A process that was ready for so long begins with the shortest pause again.
_STEADY_S = 60.0


class MachineStartError(StrataError):
    """A machine of which not all processes start; the message says which and why."""


@dataclass(slots=True)
class _Child:
    """One process of the machine, over all its runs.

    Attributes:
        name: worker 1, shard 0.
        orders: what each run is told.
        pauses: before it is started again.
        process: the present run; None: there is none.
        told: fields of the present run's ready line; None: it is not ready.
        failure: why it is not ready; empty: no run has ended.
        said: why the present run cannot start, in its own words.
        health: as it said last.
    """

    name: str
    orders: Orders
    pauses: Backoff
    process: ChildProcess | None = None
    told: Told | None = None
    failure: str = ""
    said: str = ""
    health: Health = field(default_factory=Health)

    @property
    def number(self) -> int:
        return self.orders.place.number

    @property
    def state(self) -> str:
        if self.told is not None:
            return "ready"
        return "starting" if self.process is not None else "waiting"


class Supervisor:
    """See the module docstring; a `Service`.

    Args:
        orders: of each process.
        runtime: what the process gives it.
        max_pause_ms: no pause before a restart is longer.
        is_stopping: whether the machine was told to end while it starts.
    """

    name = "supervisor"

    def __init__(
        self,
        orders: Sequence[Orders],
        runtime: Runtime,
        *,
        max_pause_ms: int,
        is_stopping: Callable[[], bool],
    ) -> None:
        metrics = runtime.metrics
        metrics.declare(METRICS)
        self._children = [
            _Child(
                f"{NAMES[each.role]} {each.place.number}",
                each,
                Backoff(_FIRST_PAUSE_MS, max_pause_ms, runtime.random),
            )
            for each in orders
        ]
        self._clock: Clock = runtime.clock
        self._is_stopping = is_stopping
        self._stops = False
        self._serves = False
        # A process became ready or ended.
        self._moved = asyncio.Event()
        self._tasks = Tasks("supervisor", runtime.on_fatal)
        self._restarts = metrics.counter("strata_machine_restarts_total")
        self._unread = metrics.counter("strata_machine_scrape_failures_total")
        metrics.gauge("strata_machine_processes", self._states)
        self._log = get_logger("machine")

    @property
    def ready(self) -> list[Told]:
        """Fields of the ready line of each process that is ready, by number."""
        return [child.told for child in self._children if child.told is not None]

    async def start(self) -> None:
        """Return when all processes are ready.

        Raises:
            MachineStartError: one cannot start; all are ended.
        """
        for child in self._children:
            self._tasks.spawn(f"keep {child.name}", self._keep(child))
        while not all(child.told is not None for child in self._children):
            failed = next((child for child in self._children if child.failure), None)
            if failed is not None or self._is_stopping():
                await self.stop(_FAILED_START_S)
                reason = f"{failed.name} did not start: {failed.failure}" if failed else ""
                raise MachineStartError(reason or "told to stop before every process was ready")
            self._moved.clear()
            with suppress(TimeoutError):
                async with Timeout(_LOOK_S):
                    await self._moved.wait()
        self._serves = True
        if any("metrics_port" in told for told in self.ready):
            self._tasks.spawn("ask for health", self._follow_health())

    async def stop(self, grace_s: float) -> None:
        """Drain all processes at once; kill those that are not gone in time."""
        self._stops = True
        for child in self._children:
            if child.process is not None:
                child.process.end()
        try:
            async with Timeout(grace_s):
                await self._all_gone()
        except TimeoutError:
            for child in self._running():
                self._log.warning("process did not end in time, killing it", name=child.name)
        self.kill()
        try:
            async with Timeout(_KILLED_S):
                await self._all_gone()
        except TimeoutError:
            for child in self._running():
                self._log.error("process does not end though it was killed", name=child.name)
        await self._tasks.stop()

    def kill(self) -> None:
        """End all processes at once."""
        for child in self._children:
            if child.process is not None:
                child.process.kill()

    def health(self) -> Health:
        """Return how the machine does: it serves while a process does, and lags while one lags."""
        problems = [
            Problem("process", child.name, "RESTARTING", Severity.DEGRADED, child.failure)
            for child in self._children
            if child.told is None
        ]
        ready = [child.health for child in self._children if child.told is not None]
        problems += [problem for health in ready for problem in health.problems]
        is_whole = len(ready) == len(self._children)
        return Health(
            any(health.serves for health in ready),
            is_whole and all(health.is_ready for health in ready),
            tuple(problems),
        )

    async def pages(self) -> list[bytes]:
        """Return the metrics of all processes, as each renders them."""
        found = await asyncio.gather(*(self._ask(child, "/metrics") for child in self._children))
        return [page for page in found if page is not None]

    async def _keep(self, child: _Child) -> None:
        """Run a process again and again."""
        while not self._stops:
            began_s = self._clock.monotonic_s()
            child.said = ""
            child.process = ChildProcess(child.orders, lambda told: self._take(child, told))
            try:
                ending = await child.process.run()
            except OSError as error:
                # No memory, descriptors or process ids: that ends by itself, too.
                ending = f"it cannot be started: {one_line(error)}"
            finally:
                was_ready = child.told is not None
                child.process = child.told = None
                self._moved.set()
            if self._stops:
                return
            child.failure = child.said or ending
            if not self._serves:
                return
            if was_ready and self._clock.monotonic_s() - began_s >= _STEADY_S:
                child.pauses.reset()
            pause_s = child.pauses.next_s()
            self._restarts.add(1, {"number": str(child.number)})
            self._log.error(
                "process died, starting it again",
                name=child.name,
                reason=child.failure,
                pause_s=round(pause_s, 2),
            )
            await asyncio.sleep(pause_s)

    def _take(self, child: _Child, told: Told) -> None:
        if "failed" in told:
            child.said = str(told["failed"])
            return
        if self._serves:
            self._log.warning("process serves again", name=child.name)
        child.told, child.failure, child.health = told, "", Health()
        self._moved.set()

    async def _follow_health(self) -> None:
        while True:
            await asyncio.gather(*map(self._look_at, self._children))
            await asyncio.sleep(_HEALTH_INTERVAL_S)

    async def _look_at(self, child: _Child) -> None:
        body = await self._ask(child, "/ready")
        if body is None:
            return
        try:
            child.health = health_of(body)
        except ProbeError as error:
            self._not_read(child, error)

    async def _ask(self, child: _Child, path: str) -> bytes | None:
        port = child.told.get("metrics_port") if child.told is not None else None
        if port is None:
            return None
        try:
            return await fetch(port, path, _PROBE_TIMEOUT_S)
        except ProbeError as error:
            self._not_read(child, error)
            return None

    def _not_read(self, child: _Child, error: ProbeError) -> None:
        self._unread.add(1, {"number": str(child.number)})
        self._log.warning("process does not answer", name=child.name, reason=str(error))

    async def _all_gone(self) -> None:
        while self._running():
            self._moved.clear()
            await self._moved.wait()

    def _running(self) -> list[_Child]:
        return [child for child in self._children if child.process is not None]

    def _states(self) -> list[tuple[float, dict[str, str]]]:
        counts = Counter(child.state for child in self._children)
        return [(counts[state], {"state": state}) for state in ("ready", "starting", "waiting")]
