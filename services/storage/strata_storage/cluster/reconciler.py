"""Carries out what the metadata wants of the raft groups led here, one step at a time.

`membership_plan` decides, this performs: it asks for the next step of every led raft group whose
wish or standing may have changed, starts it as a task, and asks again when it has ended. Nothing
is remembered that a new leader would have to know.

Bounded: one step per raft group and `max_steps_in_flight` on the node; a step that failed is tried
again after `retry_ms`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from strata.meta.v1 import meta_pb2 as meta
from strata_metadata import ClusterView
from strata_multiraft import LogFull, NotLeader, Overloaded, ReadOnly, Replica
from strata_multiraft.base import MembershipRefused, TransferFailed
from strata_runtime.clock import Clock
from strata_runtime.logs import get_logger
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import Tasks
from strata_runtime.timeouts import Timeout
from strata_storage.base.directory import Directory
from strata_storage.cluster.membership_plan import (
    ChangeTo,
    Desired,
    HandOver,
    Settled,
    Standing,
    Wait,
    next_step,
)

_FAILURES = (
    NotLeader,
    MembershipRefused,
    TransferFailed,
    LogFull,
    ReadOnly,
    Overloaded,
    TimeoutError,
)


@dataclass(frozen=True, slots=True)
class ReconcilerOptions:
    """Times and limits.

    Attributes:
        interval_ms: how often raft groups that are not settled are looked at.
        settled_interval_ms: how often settled ones are, beside every change of the metadata.
        retry_ms: pause after a step that failed.
        step_timeout_ms: a step that takes longer is given up, and decided anew.
        max_steps_in_flight: membership changes and hand-overs at once on this node.
        min_office_ms: who leads and may go on leading hands over to the preferred leader only after
            so long: each hand-over is a pause for its clients.
        wish_wait_ms: how long a leader that must stop leading waits for the nameserver to name its
            successor, so that the leadership moves once and not twice.
    """

    interval_ms: int = 100
    settled_interval_ms: int = 2_000
    retry_ms: int = 1_000
    step_timeout_ms: int = 10_000
    max_steps_in_flight: int = 4
    min_office_ms: int = 3_000
    wish_wait_ms: int = 1_000


def desired_of(
    row: meta.RaftGroup, directory: Directory, is_fit_to_lead: Callable[[int], bool]
) -> Desired:
    """Return what a metadata row wants.

    Args:
        row: of the raft group.
        directory: tells which nodes are draining.
        is_fit_to_lead: whether a replica's node may lead, as far as the leader knows.
    """
    preferred = row.preferred_leader_node_id
    unfit: set[int] = set()
    preferred_leader = 0
    for replica in row.replicas:
        if directory.is_draining(replica.node_id) or not is_fit_to_lead(replica.replica_id):
            unfit.add(replica.replica_id)
        if preferred and replica.node_id == preferred and not replica.learner:
            preferred_leader = replica.replica_id
    return Desired(
        frozenset(replica.replica_id for replica in row.replicas if not replica.learner),
        frozenset(replica.replica_id for replica in row.replicas if replica.learner),
        preferred_leader,
        frozenset(unfit),
    )


def standing_of(replica: Replica) -> Standing:
    """Return what a leader knows of its raft group."""
    configuration = replica.configuration
    caught_up = {
        progress.replica_id
        for progress in replica.progress()
        if progress.recently_heard and replica.fitness.holds_log(progress.replica_id)
    }
    applied = {replica_id for replica_id in caught_up if replica.fitness.has_applied(replica_id)}
    return Standing(
        replica.replica_id,
        configuration.voters,
        configuration.learners,
        configuration.is_joint() or replica.configuration_index > replica.commit_index,
        frozenset(caught_up | {replica.replica_id}),
        frozenset(applied | {replica.replica_id}),
    )


class Reconciler:
    """See the module docstring.

    Args:
        replicas: hosted replicas by raft group; those that lead are looked at.
        view: of the metadata.
        directory: tells which nodes are draining.
        tasks: owner of the steps.
        clock: for pauses.
        options: times and limits.
        metrics: steps.
    """

    def __init__(
        self,
        replicas: Mapping[int, Replica],
        view: ClusterView,
        directory: Directory,
        *,
        tasks: Tasks,
        clock: Clock,
        options: ReconcilerOptions,
        metrics: Metrics,
    ) -> None:
        self._replicas = replicas
        self._view = view
        self._directory = directory
        self._tasks = tasks
        self._clock = clock
        self._options = options
        self._steps_total = metrics.counter("strata_storage_membership_steps_total")
        self._running: set[int] = set()
        # raft group -> (term, revision of the row) for which nothing was left to do.
        self._settled: dict[int, tuple[int, int]] = {}
        metrics.gauge("strata_storage_membership_steps", lambda: len(self._running))
        # When a raft group is looked at next, by monotonic time; absent: now.
        self._next_look_s: dict[int, float] = {}
        # Raft group -> (term, when it was first seen led from here in it).
        self._in_office: dict[int, tuple[int, float]] = {}
        # Raft group -> (term, when its leader was first seen unwanted).
        self._unwanted: dict[int, tuple[int, float]] = {}
        self._version = -1
        self._logger = get_logger("membership")

    async def run(self) -> None:
        """Look and act until cancelled."""
        while True:
            self.reconcile()
            await asyncio.sleep(self._options.interval_ms / 1_000)

    def settled_revision(self, raft_group: int, term: int) -> int:
        """Return the revision of the row that a raft group fulfils, as its leader of a term.

        No membership change of that leader is under way then, nor of one before it: a ready
        leader knows all configurations that can still be committed. 0: not settled.
        """
        settled_term, revision = self._settled.get(raft_group, (0, 0))
        return revision if settled_term == term else 0

    def reconcile(self) -> None:
        """Start the next step of every raft group that needs one and may begin one."""
        if self._version != self._view.version:
            self._version = self._view.version
            self._next_look_s.clear()
        now_s = self._clock.monotonic_s()
        for raft_group, replica in list(self._replicas.items()):
            if raft_group in self._running or self._next_look_s.get(raft_group, 0.0) > now_s:
                continue
            if replica.is_ready_leader() and not replica.read_only:
                if self._in_office.get(raft_group, (0, 0.0))[0] != replica.term:
                    self._in_office[raft_group] = replica.term, now_s
                self._look_at(raft_group, replica, now_s)

    def _look_at(self, raft_group: int, replica: Replica, now_s: float) -> None:
        row = self._view.raft_group(raft_group)
        if row is None:
            return
        desired = desired_of(row, self._directory, replica.fitness.may_take_over)
        step = next_step(desired, standing_of(replica))
        self._settled.pop(raft_group, None)
        if isinstance(step, HandOver) and not self._is_time_to_go(replica, desired, step, now_s):
            step = Wait("a hand-over soon after another one, or before the nameserver's wish")
        if isinstance(step, Settled):
            self._settled[raft_group] = (replica.term, row.revision)
            self._next_look_s[raft_group] = now_s + self._options.settled_interval_ms / 1_000
        elif not isinstance(step, Wait) and len(self._running) < self._options.max_steps_in_flight:
            self._running.add(raft_group)
            self._tasks.spawn(f"membership-{raft_group}", self._perform(replica, step))

    def _is_time_to_go(
        self, replica: Replica, desired: Desired, step: HandOver, now_s: float
    ) -> bool:
        """Tell whether a hand-over may begin: several in a row are one pause after another."""
        must_go = replica.replica_id in desired.unfit or replica.replica_id not in desired.voters
        since = self._unwanted if must_go else self._in_office
        if must_go and step.target == desired.preferred_leader:
            return True
        term, began_s = since.get(replica.raft_group, (0, now_s))
        if term != replica.term:
            began_s = now_s
            since[replica.raft_group] = replica.term, now_s
        least_ms = self._options.wish_wait_ms if must_go else self._options.min_office_ms
        return now_s - began_s >= least_ms / 1_000

    async def _perform(self, replica: Replica, step: ChangeTo | HandOver) -> None:
        raft_group = replica.raft_group
        result = "ok"
        try:
            async with Timeout(self._options.step_timeout_ms / 1_000):
                if isinstance(step, HandOver):
                    await replica.transfer_leadership(step.target)
                else:
                    await replica.change_membership(step.voters, step.learners)
        except _FAILURES as error:
            result = "failed"
            pause_s = self._options.retry_ms / 1_000
            self._next_look_s[raft_group] = self._clock.monotonic_s() + pause_s
            self._logger.info("step failed", raft_group=raft_group, step=step, reason=str(error))
        else:
            self._logger.info("step done", raft_group=raft_group, step=step)
        finally:
            self._running.discard(raft_group)
            kind = "hand_over" if isinstance(step, HandOver) else "change"
            self._steps_total.add(1, {"kind": kind, "result": result})
