"""Health that a storage node reports: only what is so for a while, and only when it changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from strata.meta.v1 import meta_pb2 as meta
from strata_multiraft import Replica
from strata_seglog.ports import DiskSpace
from strata_storage.base.disk_guard import DiskGuard, DiskGuardOptions, DiskMark
from strata_storage.cluster.node_health import NodeHealth
from strata_storage.cluster.unhosted import MissingReplica


@dataclass
class FakeReplica:
    """A replica that leads; `behind` are its followers that lack something."""

    followers: tuple[int, ...] = (11, 12)
    behind: set[int] = field(default_factory=set)
    disk_mark: int = 0
    read_only: str = ""
    leads: bool = True
    replica_id: int = 10

    def is_ready_leader(self) -> bool:
        return self.leads

    def progress(self) -> list[Any]:
        return [SimpleNamespace(replica_id=each) for each in (self.replica_id, *self.followers)]

    def caught_up(self, replica_id: int) -> bool:
        return replica_id not in self.behind


class FakeNode:
    """A storage node with one raft group."""

    def __init__(self) -> None:
        self.replica = FakeReplica()
        self.disk_guard = DiskGuard(DiskGuardOptions())
        self.failure = ""
        self.lag_ms = 0
        self.tiering: Any = SimpleNamespace(
            failure=lambda: self.failure, lag_ms=lambda: self.lag_ms, max_lag_ms=lambda: 60_000
        )
        self.now_s = 0.0
        self.unheard: list[str] = []
        self.told: list[meta.StorageHealth] = []
        self.health = NodeHealth(
            self, lambda: ([], self.unheard), cast(Any, self), tell=self.told.append
        )

    def replicas(self) -> dict[int, Replica]:
        return {1: cast(Replica, self.replica)}

    def node_of(self, replica_id: int) -> str:
        return f"node-{replica_id}"

    def monotonic_s(self) -> float:
        return self.now_s

    def missing(self, after_s: float = 0.0) -> list[int]:
        self.now_s += after_s
        said = self.health.check()
        return [each for group in said.lacking for each in group.missing_replica_ids]


def test_a_node_that_is_well_says_nothing() -> None:
    """However often it looks."""
    node = FakeNode()
    for _ in range(3):
        assert node.health.check() == meta.StorageHealth()
    assert node.told == []


def test_a_follower_that_is_not_heard_is_missing_at_once() -> None:
    """And back when it is heard; each change is told once."""
    node = FakeNode()
    node.unheard = ["node-12"]
    assert node.missing() == node.missing() == [12]
    node.unheard = []
    assert node.missing() == []
    assert len(node.told) == 2


def test_a_follower_that_lags_is_missing_after_a_while() -> None:
    """Under load all lag a little: only what lasts counts."""
    node = FakeNode()
    node.replica.behind = {11}
    assert node.missing() == []
    assert node.missing(0.9) == []
    node.replica.behind = set()
    assert node.missing(0.9) == []
    node.replica.behind = {11}
    assert node.missing() == []
    assert node.missing(1.1) == [11]


def test_who_does_not_lead_says_nothing_of_the_others() -> None:
    """Its leader does; but a replica that takes no part is told."""
    node = FakeNode()
    node.replica.leads, node.replica.behind, node.replica.read_only = False, {11}, "damaged"
    assert node.missing(5.0) == node.missing(5.0) == []
    assert [each.reason for each in node.health.said.stopped] == ["damaged"]


def test_a_wanted_replica_that_could_not_be_hosted_is_told_with_the_reason() -> None:
    """Refused or tried again; a replica that was not tried yet is about to be hosted."""
    node = FakeNode()
    node.health.missing = lambda: {
        3: MissingReplica(31, "it was removed", is_refused=True),
        2: MissingReplica(21, "Too many open files"),
        4: MissingReplica(41),
    }
    said = node.health.check()
    assert [(each.raft_group, each.reason) for each in said.stopped] == [
        (2, "replica 21 is not hosted yet; it is tried again: Too many open files"),
        (3, "replica 31 cannot be hosted: it was removed"),
    ]
    assert node.health.check() == said
    node.health.missing = dict
    assert node.health.check() == meta.StorageHealth()
    assert len(node.told) == 2


def test_disks_are_told_with_the_mark_that_a_raft_group_obeys() -> None:
    """Its own mark, and that of the fullest disk that a quorum needs."""
    node = FakeNode()
    node.disk_guard.observe(DiskSpace(1024, 1 << 40))
    node.replica.disk_mark = 3
    said = node.health.check()
    assert said.disk_mark == DiskMark.STOP
    assert [each.disk_mark for each in said.lacking] == [3]


def test_uploads_that_fail_or_wait_too_long_are_told() -> None:
    """Without numbers that move all the time."""
    node = FakeNode()
    node.lag_ms = 61_000
    said = node.health.check()
    assert (said.tier_state, said.tier_detail) == ("BEHIND", "messages wait for more than 60 s")
    node.lag_ms = 62_000
    assert node.health.check() is said or node.health.check() == said
    node.failure = "connection refused"
    assert node.health.check().tier_state == "UNREACHABLE"
    assert len(node.told) == 2
