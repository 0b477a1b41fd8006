"""One run of a whole cluster under faults, and its verdict.

start -> topics -> clients work while a storm rages and drills go on -> everything heals
-> sends work again, everything answered is delivered and acknowledged -> checks
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from strata.meta.v1 import meta_pb2
from strata_sim import drills
from strata_sim.cluster import SimCluster
from strata_sim.history import check
from strata_sim.invariants import all_invariants
from strata_sim.lite_work import LiteWork
from strata_sim.options import ClusterOptions
from strata_sim.pending_workload import PendingWorkload
from strata_sim.storm import Storm, StormOptions
from strata_sim.table_work import TableWork
from strata_sim.virtual_loop import Stuck
from strata_sim.workload import Workload, WorkloadOptions

_SAMPLE_S = 0.5
_VIOLATIONS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class ScenarioOptions:
    """Settings of a run.

    Attributes:
        storm_s: how long faults happen.
        calm_s: how long everything may take to work again after them.
        drain_s: how long deliveries may take then.
        limit_s: how long everything may take.
        drills: whether operators do something meanwhile.
        tables: whether clients use tables.
        lite: whether clients use lite topics.
        cluster, workload, storm: see there.
    """

    storm_s: float = 15.0
    calm_s: float = 30.0
    drain_s: float = 60.0
    limit_s: float = 300.0
    drills: bool = True
    tables: bool = True
    lite: bool = False
    cluster: ClusterOptions = field(default_factory=ClusterOptions)
    workload: WorkloadOptions = field(default_factory=WorkloadOptions)
    storm: StormOptions = field(default_factory=StormOptions)


def at_rest() -> ScenarioOptions:
    """Return options without a tier and tables, whose own work lets no raft group rest."""
    return ScenarioOptions(tables=False, cluster=ClusterOptions(tier=None))


def with_lite_topics() -> ScenarioOptions:
    """Return options with lite topics, and without tables."""
    return ScenarioOptions(tables=False, lite=True)


@dataclass(slots=True)
class Verdict:
    """Result of a run.

    Attributes:
        seed: of the run.
        violations: what must not happen and did; empty: the run is good.
        checksum: over all events; the same for the same seed.
        newest: the last events.
        virtual_s: how long it took, in virtual time.
        sends, answered, acknowledged, messages, faults: how much happened.
        errors: what clients met, with counts.
        activity: how often what was done, by its name.
    """

    seed: int
    violations: list[str]
    checksum: int
    newest: list[str]
    virtual_s: float
    sends: int
    answered: int
    acknowledged: int
    messages: int
    faults: int
    errors: dict[str, int]
    activity: dict[str, int]


class Scenario:
    """See the module docstring.

    Args:
        seed: of everything that is left to chance.
        options: what it does.
        show: called with every event, for a replay.

    Attributes:
        cluster: what it happens to.
        workload: what clients did.
    """

    def __init__(
        self,
        seed: int,
        options: ScenarioOptions | None = None,
        *,
        show: Callable[[str], None] | None = None,
    ) -> None:
        self.options = options or ScenarioOptions()
        self.cluster = SimCluster(seed, self.options.cluster, show=show)
        self.workload = Workload(self.cluster, self.options.workload)
        self.pending = PendingWorkload(self.cluster)
        self._more: list[TableWork | LiteWork] = []
        if self.options.tables:
            self._more.append(TableWork(self.cluster))
        if self.options.lite:
            self._more.append(LiteWork(self.cluster))
        self._storm = Storm(self.cluster, self.options.storm)
        self._invariants = all_invariants()
        self._drained = False
        self._outside = contextvars.copy_context()
        self._hosts = {host.name: host for host in self.cluster.hosts}

    def run(self) -> Verdict:
        """Run it and judge it."""
        cluster, trace = self.cluster, self.cluster.trace
        cluster.network.on_post = self._look_at_sender
        try:
            cluster.run(self._limited())
        except (Stuck, TimeoutError) as failure:
            trace.violations.append(f"stuck: {failure!r}")
        history = self.workload.history
        history.grown = cluster.grown_topics
        # A message that nobody was given is lost only if everything was drained.
        violations = [*trace.violations, *check(history, drained=self._drained)]
        if not violations:
            # Positions are known from deliveries: of no use unless everything was drained.
            violations += self.workload.ends.violations(history)
        return Verdict(
            cluster.seed,
            violations[:_VIOLATIONS_SHOWN],
            trace.checksum,
            trace.newest(80),
            cluster.now_s,
            len(history.sends),
            len(history.answered),
            len(history.acknowledged),
            cluster.network.messages,
            self._storm.begun,
            dict(self.workload.errors),
            dict(
                Counter(cluster.tally.work())
                + Counter(self.pending.counts())
                + sum((work.done for work in self._more), Counter())
                + cluster.operations
                + self._storm.kinds
            ),
        )

    async def _limited(self) -> None:
        async with asyncio.timeout(self.options.limit_s):
            await self._whole()

    async def _whole(self) -> None:
        cluster, options, trace = self.cluster, self.options, self.cluster.trace
        await cluster.start()
        await self.workload.create()
        await self.pending.create()
        for work in self._more:
            await work.create()
            work.start()
        self.workload.start()
        self.pending.start()
        until_s = cluster.now_s + options.storm_s
        async with asyncio.TaskGroup() as group:
            sampler = group.create_task(self._sample())
            storm = group.create_task(self._storm.run(until_s))
            if options.drills:
                group.create_task(drills.run_all(cluster, until_s))
            await storm
            trace.note("the storm is over")
            for violation in await self._calm():
                trace.violation(violation)
            if not trace.violations:
                self._drained = True
                for violation in await self.workload.drain(options.drain_s):
                    trace.violation(violation)
                for violation in await self.pending.drain(options.drain_s):
                    trace.violation(violation)
                for work in self._more:
                    for violation in await work.drain(options.drain_s):
                        trace.violation(violation)
                for violation in await self._settle_slots():
                    trace.violation(violation)
            await self.workload.stop()
            await self.pending.stop()
            for work in self._more:
                await work.stop()
            sampler.cancel()

    async def _calm(self) -> list[str]:
        """Start what does not run, and wait until everything serves and takes sends."""
        cluster = self.cluster
        members = [host for host in cluster.hosts if host.machine.lives]
        for host in members:
            if not host.machine.runs:
                host.start()
        try:
            await cluster.until(lambda: all(host.serving for host in members), self.options.calm_s)
        except TimeoutError:
            return [f"stuck: {host.name} does not start" for host in members if not host.serving]
        return await self.workload.probe(self.options.calm_s)

    async def _settle_slots(self) -> list[str]:
        """Wait until no slot is on its way any more."""

        def moves() -> list[meta_pb2.SlotMove]:
            views = (host.app.view for host in self.cluster.storage if host.app is not None)
            newest = max(views, key=lambda view: view.revision)
            return list(newest.slot_moves())

        try:
            await self.cluster.until(lambda: not moves(), self.options.calm_s)
        except TimeoutError:
            return [
                f"stuck: slots from raft group {move.from_raft_group} to {move.to_raft_group}"
                for move in moves()
            ]
        return []

    # Invariants ---------------------------------------------------------------------------------

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(_SAMPLE_S)
            for invariant in self._invariants:
                self._note(invariant.check(self.cluster.hosts))

    def _look_at_sender(self, name: str) -> None:
        host = self._hosts.get(name)
        if host is None:
            return
        for invariant in self._invariants:
            if invariant.EVERY_MESSAGE:
                self._note(invariant.check((host,)))

    def _note(self, violations: Iterable[str]) -> None:
        for violation in violations:
            if len(self.cluster.trace.violations) < _VIOLATIONS_SHOWN:
                self.cluster.trace.violation(violation)
