"""Steps are started where they are needed, one per raft group, and tried again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from strata.meta.v1 import meta_pb2 as meta
from strata_metadata import ClusterView
from strata_multiraft.base.errors import TransferFailed
from strata_raft import Configuration, ReplicaProgress
from strata_raft.progress import ProgressState
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import Tasks
from strata_storage.base.directory import Directory
from strata_storage.cluster.heartbeats import Heartbeats, HeartbeatSources
from strata_storage.cluster.reconciler import Reconciler, ReconcilerOptions, desired_of
from strata_storage.process.metrics import METRICS
from strata_storage.upkeep.instruments import Instruments
from strata_testing import ManualClock

_THREE = Configuration(frozenset({1, 2, 3}))


@dataclass
class FakeReplica:
    """A leader of {1, 2, 3}, all caught up."""

    raft_group: int
    replica_id: int = 1
    term: int = 4
    configuration: Configuration = _THREE
    configuration_index: int = 0
    commit_index: int = 9
    read_only: str = ""
    leads: bool = True
    fails: bool = False
    unfit: frozenset[int] = frozenset()
    rebuilding: frozenset[int] = frozenset()
    calls: list[object] = field(default_factory=list)

    def is_ready_leader(self) -> bool:
        return self.leads

    def is_sole(self) -> bool:
        return False

    def progress(self) -> Sequence[ReplicaProgress]:
        others = self.configuration.replicas() - {self.replica_id}
        return [
            ReplicaProgress(each, 9, ProgressState.REPLICATE, True, False)
            for each in sorted(others)
        ]

    @property
    def fitness(self) -> FakeReplica:
        return self

    def holds_log(self, replica_id: int) -> bool:
        return True

    def caught_up(self, replica_id: int) -> bool:
        return self.has_applied(replica_id)

    def has_applied(self, replica_id: int) -> bool:
        return replica_id not in self.rebuilding

    def may_take_over(self, replica_id: int) -> bool:
        return replica_id not in self.unfit

    async def transfer_leadership(self, target: int | None = None) -> None:
        self.calls.append(target)
        if self.fails:
            raise TransferFailed("not now")
        self.leads = False

    async def change_membership(
        self, voters: frozenset[int], learners: frozenset[int] = frozenset()
    ) -> None:
        self.calls.append((sorted(voters), sorted(learners)))
        self.configuration = Configuration(voters, learners)


def row(raft_group: int, **fields: object) -> meta.Change:
    replicas = [meta.Replica(replica_id=n, node_id=f"node-{n}") for n in (1, 2, 3)]
    made = meta.RaftGroup(raft_group=raft_group, replicas=replicas)
    made.MergeFrom(meta.RaftGroup(**fields))  # type: ignore[arg-type]
    return meta.Change(raft_group=made)


def view_of(*changes: meta.Change) -> ClusterView:
    view = ClusterView()
    view.apply(meta.WatchResponse(revision=1, changes=changes))
    return view


class Setup:
    def __init__(self, view: ClusterView, *replicas: FakeReplica, **options: int) -> None:
        options = {"min_office_ms": 0, "wish_wait_ms": 0, **options}
        self.clock = ManualClock()
        self.tasks = Tasks("test", lambda name, error: pytest.fail(f"{name}: {error!r}"))
        metrics = Metrics.disabled()
        metrics.declare(METRICS)
        self.reconciler = Reconciler(
            {each.raft_group: each for each in replicas},  # type: ignore[misc]
            view,
            Directory(view),
            tasks=self.tasks,
            clock=self.clock,
            options=ReconcilerOptions(max_steps_in_flight=2, **options),
            metrics=metrics,
        )

    async def reconcile(self) -> None:
        self.reconciler.reconcile()
        await self.tasks.drain(1.0)


async def test_a_new_replica_is_added_as_a_learner() -> None:
    """The step is performed by the raft group's leader."""
    added = meta.Replica(replica_id=4, node_id="node-4")
    replica = FakeReplica(1)
    await Setup(view_of(row(1, replicas=[added])), replica).reconcile()
    assert replica.calls == [([1, 2, 3], [4])]


async def test_a_replica_that_rebuilds_its_rows_gets_the_leadership_afterwards() -> None:
    """The preferred leader holds the whole log and none of the rows: first it applies."""
    replica = FakeReplica(1, rebuilding=frozenset({2}))
    setup = Setup(view_of(row(1, preferred_leader_node_id="node-2")), replica)
    await setup.reconcile()
    assert replica.calls == []
    replica.rebuilding = frozenset()
    setup.clock.advance(10)
    await setup.reconcile()
    assert replica.calls == [2]


async def test_a_leader_by_a_wish_stays_for_a_while() -> None:
    """Wishes that change while nodes come and go are not followed one after another."""
    replica = FakeReplica(1)
    view = view_of(row(1, preferred_leader_node_id="node-2"))
    setup = Setup(view, replica, min_office_ms=3_000)
    for _ in range(3):
        await setup.reconcile()
        assert replica.calls == []
        setup.clock.advance(1)
    await setup.reconcile()
    assert replica.calls == [2]
    # It leads again in a later term: its time of office begins anew.
    replica.leads, replica.term = True, 9
    await setup.reconcile()
    assert replica.calls == [2]


async def test_who_must_go_waits_for_the_wish_and_goes_there_at_once() -> None:
    """One hand-over, not one to anybody and a second to the wanted one; without a wish it goes."""
    replica = FakeReplica(1)
    node = meta.Change(node=meta.Node(node_id="node-1", draining=True))
    view = view_of(node, row(1))
    setup = Setup(view, replica, min_office_ms=3_000, wish_wait_ms=1_000)
    await setup.reconcile()
    assert replica.calls == []
    change = row(1, preferred_leader_node_id="node-3")
    view.apply(meta.WatchResponse(revision=2, changes=[change]))
    await setup.reconcile()
    assert replica.calls == [3]
    other = FakeReplica(1)
    setup = Setup(view_of(node, row(1)), other, min_office_ms=3_000, wish_wait_ms=1_000)
    await setup.reconcile()
    setup.clock.advance(1)
    await setup.reconcile()
    assert other.calls == [2]


async def test_a_failed_step_is_tried_again_after_a_pause() -> None:
    """And not before."""
    replica = FakeReplica(1, fails=True)
    setup = Setup(view_of(row(1, preferred_leader_node_id="node-2")), replica)
    await setup.reconcile()
    await setup.reconcile()
    assert replica.calls == [2]
    setup.clock.advance(2)
    await setup.reconcile()
    assert replica.calls == [2, 2]


async def test_a_settled_raft_group_is_looked_at_when_the_metadata_changes() -> None:
    """A change of any row makes all be looked at again."""
    replica = FakeReplica(1)
    view = view_of(row(1))
    setup = Setup(view, replica)
    await setup.reconcile()
    change = row(1, preferred_leader_node_id="node-3")
    view.apply(meta.WatchResponse(revision=2, changes=[change]))
    await setup.reconcile()
    assert replica.calls == [3]


async def test_steps_at_once_are_limited_and_followers_do_nothing() -> None:
    """Two of three begin; the third begins at the next look; one that does not lead never."""
    replicas = [FakeReplica(group) for group in (1, 2, 3)]
    follower = FakeReplica(4, leads=False)
    rows = [row(group, preferred_leader_node_id="node-2") for group in (1, 2, 3, 4)]
    setup = Setup(view_of(*rows), *replicas, follower)
    setup.reconciler.reconcile()
    await asyncio.sleep(0)
    assert [bool(each.calls) for each in replicas] == [True, True, False]
    await setup.reconcile()
    assert [bool(each.calls) for each in replicas] == [True, True, True]
    assert follower.calls == []


def test_what_is_desired_comes_from_row_and_nodes() -> None:
    """Learners, the preferred node's replica, and replicas on nodes that should not lead."""
    learner = meta.Replica(replica_id=4, node_id="node-4", learner=True)
    node = meta.Change(node=meta.Node(node_id="node-3", draining=True))
    change = row(1, replicas=[learner], preferred_leader_node_id="node-2")
    directory = Directory(view_of(node, change))
    desired = desired_of(change.raft_group, directory, lambda replica_id: replica_id != 1)
    assert desired.voters == {1, 2, 3}
    assert desired.learners == {4}
    assert desired.preferred_leader == 2
    assert desired.unfit == {1, 3}


async def test_a_node_that_must_not_lead_is_not_handed_the_leadership() -> None:
    """Not even when the row prefers it: nothing is tried until clock and disk let it."""
    replica = FakeReplica(1, unfit=frozenset({2}))
    setup = Setup(view_of(row(1, preferred_leader_node_id="node-2")), replica)
    await setup.reconcile()
    assert replica.calls == []
    replica.unfit = frozenset()
    setup.clock.advance(10)
    await setup.reconcile()
    assert replica.calls == [2]


class FakeNode:
    def __init__(self, *replicas: FakeReplica) -> None:
        self.instruments = Instruments(Metrics.disabled())
        self.by_group = {each.raft_group: each for each in replicas}
        self.appended = 1_000

    def replicas(self):  # type: ignore[no-untyped-def]  # noqa: ANN201
        return self.by_group

    def membership(self, raft_group: int) -> tuple[int, Configuration]:
        replica = self.by_group[raft_group]
        return replica.configuration_index, replica.configuration

    def log_bytes(self) -> tuple[int, int]:
        return 500, self.appended

    def disk_bytes(self) -> tuple[int, int]:
        return 10, 20


def test_a_heartbeat_tells_changes_and_a_full_one_everything() -> None:
    """It has leaderships gained and lost, damage, heard nodes, and the load since the last."""
    node = FakeNode(FakeReplica(1), FakeReplica(2))
    heartbeats = Heartbeats(
        "me",
        7,
        node,
        heard_nodes=lambda: (["a"], ["b"]),
        clock=ManualClock(),
        sources=HeartbeatSources(
            refused=lambda: [99],
            clock_is_off=lambda: node.appended > 1_000,
            answer_latencies=lambda: {"a": 1.5},
        ),
    )
    first = heartbeats.make(True)
    assert not first.clock_is_off
    assert [led.raft_group for led in first.led] == [1, 2]
    assert list(first.led[0].membership.voters) == [1, 2, 3]
    assert list(first.led[0].caught_up) == [1, 2, 3]
    assert (list(first.heard_node_ids), list(first.unheard_node_ids)) == (["a"], ["b"])
    assert [(peer.node_id, peer.latency_ms) for peer in first.load.answers] == [("a", 1.5)]
    assert list(first.damaged_replica_ids) == [99]
    node.appended += 50
    node.by_group[1].term = 5
    node.by_group[2].leads = False
    node.by_group[2].read_only = "damaged"
    second = heartbeats.make(False)
    assert [(led.raft_group, led.term) for led in second.led] == [(1, 5)]
    assert list(second.led_no_longer) == [2]
    assert second.clock_is_off
    assert sorted(second.damaged_replica_ids) == [1, 99]
    assert (second.load.appended_bytes, second.load.disk_free_bytes) == (50, 10)
    assert heartbeats.make(False).led == []
    assert [led.raft_group for led in heartbeats.make(True).led] == [1]
