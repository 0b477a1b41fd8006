"""How this nameserver does, and how the cluster does as the leading one sees it.

The leader knows rows and reports, so it judges the cluster, once storage nodes had the time to
report to it. The others know only whether they follow a leader: without one the metadata cannot
change, and what is read here is old.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Hashable

from strata_metadata.cluster_health import Facts
from strata_metadata.health_watch import INTERVAL_S, HealthWatch
from strata_multiraft.driver import Replica
from strata_nameserver.base.config import NameserverConfig
from strata_nameserver.drafts.reports import Reports
from strata_nameserver.process.disk_watch import DiskWatch
from strata_nameserver.state.machine import MetadataMachine
from strata_runtime.clock import Clock
from strata_runtime.health import Health, HealthLog, Problem, Severity
from strata_runtime.metrics import Metrics

_LEADERLESS_AFTER_S = 1.0
_REPORTED_AFTER_S = 1.0
"""Storage nodes find a new leader and report to it within this time."""


class NameserverHealth:
    """See the module docstring.

    Args:
        replica: of the metadata raft group.
        machine: rows and leadership.
        reports: what storage nodes say.
        disk: how full it is.
        config: times.
        clock: monotonic time.
        metrics: where the picture shows.
        others_full: node ids of the other nameservers whose disk is full.
    """

    def __init__(
        self,
        replica: Replica,
        machine: MetadataMachine,
        reports: Reports,
        *,
        disk: DiskWatch,
        config: NameserverConfig,
        clock: Clock,
        metrics: Metrics,
        others_full: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._others_full = others_full
        self._replica = replica
        self._machine = machine
        self._reports = reports
        self._disk = disk
        self._clock = clock
        self._judges = config.failure_detection
        self._patience_s = config.down_after_ms / 1_000 + _REPORTED_AFTER_S
        self._term = 0
        self._leads_since_s = 0.0
        self._had_leader_s = clock.monotonic_s()
        self._log = HealthLog("nameserver", clock)
        self._watch = HealthWatch("nameserver", self._facts, clock, metrics=metrics)

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self._log.take(self._own())
            self._watch.check()
            await asyncio.sleep(INTERVAL_S)

    def health(self) -> Health:
        """Return how the nameserver does: it serves while it leads or follows a leader."""
        own = self._own()
        serves = all(problem.severity < Severity.DOWN for problem in own)
        lags = self._replica.installing or self._replica.applied_index < self._replica.commit_index
        return Health(serves, not lags, (*own, *self._watch.picture.problems))

    def _own(self) -> tuple[Problem, ...]:
        return (*self._quorum(), *self._room())

    def _room(self) -> tuple[Problem, ...]:
        """Return what its disk forbids: nothing that is read, so it serves on."""
        if not self._disk.is_full:
            return ()
        detail = (
            f"{self._disk.free_bytes} bytes are free on the nameserver's disk: it takes no changes "
            "of the metadata (nameserver.refuse_changes_free_bytes)"
        )
        return (Problem("disk", "nameserver", "STOP", Severity.DEGRADED, detail),)

    def _quorum(self) -> tuple[Problem, ...]:
        now_s = self._clock.monotonic_s()
        if self._replica.read_only:
            return (
                Problem("nameservers", "", "READ_ONLY", Severity.DOWN, self._replica.read_only),
            )
        if self._replica.leader_replica_id:
            self._had_leader_s = now_s
        if now_s - self._had_leader_s < _LEADERLESS_AFTER_S:
            return ()
        detail = "no majority of the nameservers answers: the metadata cannot change"
        return (Problem("nameservers", "", "LEADERLESS", Severity.DOWN, detail),)

    def _facts(self) -> tuple[Hashable, Callable[[], Facts]] | None:
        machine, now_s = self._machine, self._clock.monotonic_s()
        if not self._judges or not machine.leading.is_set():
            return None
        if self._term != machine.leading_term:
            self._term, self._leads_since_s = machine.leading_term, now_s
        if now_s - self._leads_since_s < self._patience_s:
            return None
        topology = machine.speculative.topology
        full = frozenset(self._others_full())
        version = (self._term, self._reports.version, machine.revision, full)
        return version, lambda: Facts(
            list(topology.nodes.values()),
            list(topology.raft_groups.values()),
            self._reports.leaders(),
            self._reports.told(),
            full_nameservers=full,
        )
