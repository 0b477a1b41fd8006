"""A member of a container that is started again when it fails, after growing bounded pauses.

    starting --serves--> serving --fails--> waiting --pause--> starting ...

No failure of a member reaches the container: a port that is taken, a disk that is full and a
mistake in its code end one run of this member, and the other members serve on.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from strata_cli.container.boot_hook import BootHook
from strata_cli.container.files import MemberFile
from strata_cli.container.member_run import MemberRun, MemberWorld, print_line
from strata_runtime.backoff import Backoff, Random
from strata_runtime.errors import StrataError, one_line
from strata_runtime.health import Health, Problem, Severity
from strata_runtime.logs import get_logger
from strata_runtime.member_logs import TakeLine, member_logs
from strata_runtime.metric_kinds import Counter
from strata_runtime.tasks import OnFatal, Tasks
from strata_runtime.timeouts import Timeout

FIRST_PAUSE_MS = 250
# A member that served for so long begins with the shortest pause again.
_STEADY_S = 60.0
_CLOSING_S = 10.0


@dataclass(frozen=True, slots=True)
class Supervision:
    """How members are watched.

    Attributes:
        random: spreads pauses.
        max_pause_ms: no pause before a start is longer.
        restarts_total: counts starts after failures.
        on_fatal: told if the watching itself fails.
        hook: runs before each start.
    """

    random: Random
    max_pause_ms: int
    restarts_total: Counter
    on_fatal: OnFatal
    hook: BootHook = field(default_factory=BootHook)


class SupervisedMember:
    """See the module docstring; a `strata_cli.processes.container.ContainerMember`.

    Args:
        file: the member as its file says.
        world: what the container gives it.
        supervision: how it is watched.
        take_line: its own log; None: its lines are in the container's.

    Attributes:
        file: the member as its file says.
        failure: why its last run ended; empty: it did not fail since it served.
        restarts: starts after failures.
        added_ms: wall time at which it was added.
        shown: fields of its ready line; empty: it does not serve.
    """

    def __init__(
        self,
        file: MemberFile,
        world: MemberWorld,
        supervision: Supervision,
        *,
        take_line: TakeLine | None = None,
    ) -> None:
        self.file = file
        self.name = file.name
        self.failure = ""
        self.restarts = 0
        self.added_ms = world.clock.wall_ms()
        self.shown: Mapping[str, object] = {}
        self._world = world
        self._supervision = supervision
        self._take_line = take_line
        self._pauses = Backoff(FIRST_PAUSE_MS, supervision.max_pause_ms, supervision.random)
        self._tasks = Tasks(f"member {self.name}", supervision.on_fatal)
        self._run: MemberRun | None = None
        # Cut short by `stop` while a boot hook runs.
        self._hook_limit: Timeout | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._stops = asyncio.Event()
        self._attempted = asyncio.Event()
        self._log = get_logger("container")

    @property
    def state(self) -> str:
        """One of serving, starting, waiting."""
        if self.shown:
            return "serving"
        return "starting" if self._run is not None else "waiting"

    async def start(self) -> None:
        """Begin; `attempted` tells when the first start has ended, one way or the other."""
        with member_logs(self.name, self._take_line):
            if self.file.ignored:
                self._log.warning(
                    "settings in a member's file have no effect in a container",
                    file=str(self.file.path),
                    settings=", ".join(self.file.ignored),
                )
            self._keeping = self._tasks.spawn("keep", self._keep())

    async def attempted(self) -> bool:
        """Wait for the end of the first start; return whether the member serves."""
        await self._attempted.wait()
        return bool(self.shown)

    async def stop(self, grace_s: float) -> None:
        """Drain and stop it."""
        self._stops.set()
        hook_limit, self._hook_limit = self._hook_limit, None
        if hook_limit is not None:
            hook_limit.reschedule(asyncio.get_running_loop().time())
        if self._run is not None:
            self._run.request_stop()
        if self._keeping is not None:
            # The log and rows are closed after the drain, or the folder stays locked.
            _, running = await asyncio.wait((self._keeping,), timeout=grace_s + _CLOSING_S)
            if running:
                self._log.warning("member did not stop in time", member=self.name)
        await self._tasks.stop()
        if self._keeping is not None:
            # A cancelled run, too, gives the folder back before a run of the same member begins.
            await asyncio.wait((self._keeping,))
        # Frozen objects are never collected, those of a member that has gone included.
        gc.unfreeze()

    def health(self) -> Health:
        """Return how it does; a member that does not serve is a problem of the container."""
        if self.shown and self._run is not None:
            return self._run.health()
        state = "RESTARTING" if self.failure else "STARTING"
        problem = Problem("process", self.name, state, Severity.DEGRADED, self.failure or "starts")
        return Health(serves=False, is_caught_up=False, problems=(problem,))

    def disk_bytes(self) -> tuple[int, int]:
        """Return the used bytes and the quota of its disk; 0: it does not serve, or no storage."""
        return self._run.disk_bytes() if self.shown and self._run is not None else (0, 0)

    async def page(self) -> bytes:
        """Return its metrics in the Prometheus text format; empty: it does not run."""
        return await self._run.page() if self._run is not None else b""

    async def _keep(self) -> None:
        clock = self._world.clock
        while not self._stops.is_set():
            began_s = clock.monotonic_s()
            failure = await self._run_once()
            served, self.shown, self._run = bool(self.shown), {}, None
            self._attempted.set()
            if self._stops.is_set():
                return
            self.failure = failure
            if served and clock.monotonic_s() - began_s >= _STEADY_S:
                self._pauses.reset()
            pause_s = self._pauses.next_s()
            self.restarts += 1
            self._supervision.restarts_total.add(1, {"member": self.name})
            self._log.error(
                "member failed, starting it again",
                reason=failure,
                pause_s=round(pause_s, 2),
            )
            gc.unfreeze()
            with suppress(TimeoutError):
                async with Timeout(pause_s):
                    await self._stops.wait()

    async def _run_once(self) -> str:
        """Run the member until it stops; return why."""
        try:
            await self._run_hook()
            if self._stops.is_set():
                return "it was told to stop"
            self._run = MemberRun(self.file, self._world, self._serves)
            await self._run.run()
        except (StrataError, OSError) as error:
            return one_line(error)
        except Exception as error:  # noqa: BLE001 - the boundary of the member: it ends this run
            self._log.error("member failed unexpectedly", error=one_line(error), exc_info=error)
            return one_line(error)
        return "it stopped by itself"

    async def _run_hook(self) -> None:
        """Run the boot hook to its end, or until the member is told to stop.

        Raises:
            BootHookError, OSError: it does not allow a start; `stop` ended it.
        """
        try:
            async with Timeout(None) as self._hook_limit:
                await self._supervision.hook.run(self.file)
        finally:
            self._hook_limit = None

    def _serves(self, fields: Mapping[str, object]) -> None:
        self.shown = {"data": self.file.config.member.data_dir, **fields}
        if self.failure:
            self._log.warning("member serves again")
        self.failure = ""
        print_line(
            "ready", {"member": self.name, "role": self.file.config.member.role, **self.shown}
        )
        self._attempted.set()
