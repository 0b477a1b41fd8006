"""A node hosts the replicas that the metadata rows name."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
import structlog

from strata.meta.v1 import meta_pb2 as meta
from strata.storage.v1 import storage_pb2 as pb
from strata_angelia.cluster_id import ClusterId
from strata_metadata import ClusterView
from strata_multiraft import Overloaded
from strata_seglog.errors import CorruptFrame, LogError, ReadFailed
from strata_state.metadata import MetadataStoreError
from strata_state.ports import DamagedRowsError, StateError
from strata_storage.base.errors import Refused, ReplicaEnded
from strata_storage.base.hosted import HostedGroup
from strata_storage.cluster import hosting as hosting_module
from strata_storage.cluster import unhosted
from strata_storage.cluster.hosting import Hosting, ReplicaRefused, wanted_replicas
from strata_storage.cluster.unhosted import MissingReplica, Unhosted
from strata_storage.upkeep.checkpoint import CheckpointError
from strata_testing import until

ME = "storage-1"


def replica(replica_id: int, node_id: str) -> meta.Replica:
    return meta.Replica(replica_id=replica_id, node_id=node_id)


def row(raft_group: int, *replicas: meta.Replica, **fields: object) -> meta.RaftGroup:
    made = meta.RaftGroup(raft_group=raft_group, replicas=replicas, initial_replica_ids=[11, 12])
    made.MergeFrom(meta.RaftGroup(**fields))  # type: ignore[arg-type]
    return made


class FakeHost:
    def __init__(self) -> None:
        self.groups: dict[int, HostedGroup] = {}
        self.removed: list[int] = []
        self.left: dict[int, int] = {}
        self.forgotten: list[tuple[int, int]] = []
        self.refuses = False
        self.failure: Exception = LogError("damaged")
        self.tried: list[int] = []
        self.back: dict[int, int] = {}

    def hosted(self) -> Mapping[int, HostedGroup]:
        return self.groups

    def leftovers(self) -> dict[int, int]:
        return dict(self.left)

    def taken_back(self) -> Mapping[int, int]:
        return self.back

    async def forget(self, raft_group: int, replica_id: int, revision: int) -> None:
        self.forgotten.append((raft_group, replica_id))

    async def host_beside(self, group: HostedGroup) -> None:
        self.tried.append(group.replica_id)
        if self.refuses:
            raise self.failure
        self.groups[group.raft_group] = group

    async def remove(self, raft_group: int, revision: int) -> None:
        self.removed.append(self.groups.pop(raft_group).replica_id)


def view_of(*rows: meta.RaftGroup) -> ClusterView:
    view = ClusterView()
    tell(view, *rows)
    return view


def tell(view: ClusterView, *rows: meta.RaftGroup) -> None:
    changes = [meta.Change(raft_group=each) for each in rows]
    for change in changes:
        change.raft_group.revision = change.raft_group.revision or view.revision + 1
    view.apply(meta.WatchResponse(revision=view.revision + 1, changes=changes))


def test_a_replica_of_the_first_configuration_votes_and_a_later_one_learns() -> None:
    """`initial_voters` is empty for a replica that was added later."""
    wanted = wanted_replicas([row(1, replica(11, ME)), row(2, replica(13, ME))], ME)
    assert wanted[1].voters() == {11, 12}
    assert wanted[2].voters() == frozenset()


def test_a_leaving_replica_stays_as_long_as_it_is_named() -> None:
    """The last reported membership may be any: the leader may be about to make it a voter."""
    for membership in (
        meta.Membership(configuration_index=5, voters=[11, 12]),
        meta.Membership(configuration_index=9, voters=[12]),
        meta.Membership(),
    ):
        leaving = row(1, replica(12, "other"), leaving=[replica(11, ME)], membership=membership)
        assert wanted_replicas([leaving], ME)[1].replica_id == 11
    assert wanted_replicas([row(1, replica(12, "other"))], ME) == {}


def test_a_new_replica_id_on_the_same_node_takes_the_place_of_the_old_one() -> None:
    """Repair on the same node: the wanted one wins over the leaving one."""
    members = meta.Membership(configuration_index=5, voters=[11, 12])
    both = row(1, replica(13, ME), leaving=[replica(11, ME)], membership=members)
    assert wanted_replicas([both], ME)[1].replica_id == 13


async def test_replicas_come_and_go_with_the_rows() -> None:
    """Hosting is level-triggered: the same rows again change nothing."""
    host, view = FakeHost(), view_of(row(1, replica(11, ME)), row(2, replica(21, ME)))
    hosting = Hosting(host, view, ME)
    for _ in range(2):
        await hosting.settle()
        assert sorted(host.groups) == [1, 2]
    tell(view, row(1, replica(12, "other")))
    await hosting.settle()
    assert (sorted(host.groups), host.removed) == ([2], [11])
    tell(view, row(2, replica(22, ME)))
    await hosting.settle()
    assert host.groups[2].replica_id == 22
    assert host.removed == [11, 21]


async def test_a_start_waits_until_the_named_replicas_are_hosted() -> None:
    """A process that is the whole cluster serves once they are here, or says which cannot be."""
    host, view = FakeHost(), view_of()
    hosting = Hosting(host, view, ME)
    running = asyncio.ensure_future(hosting.run())
    try:
        waiting = asyncio.ensure_future(hosting.until_hosted({11, 21}))
        tell(view, row(1, replica(11, ME)))
        await asyncio.sleep(0)
        assert not waiting.done()
        tell(view, row(2, replica(21, ME)))
        await waiting
        assert sorted(host.groups) == [1, 2]
        host.refuses = True
        tell(view, row(3, replica(31, ME)))
        with pytest.raises(ReplicaRefused, match="replica 31 cannot be hosted"):
            await hosting.until_hosted({11, 31})
    finally:
        running.cancel()


async def test_rows_are_durable_before_a_replica_is_hosted_because_of_them() -> None:
    """Else a power loss could leave the replica beside a copy by which it would be removed."""
    host, view = FakeHost(), view_of(row(1, replica(11, ME)), row(2, replica(21, "other")))
    hosted_at: list[list[int]] = []

    async def keep_rows() -> None:
        hosted_at.append(sorted(host.groups))

    hosting = Hosting(host, view, ME, keep_rows=keep_rows)
    await hosting.settle()
    assert (hosted_at, sorted(host.groups)) == ([[]], [1])
    await hosting.settle()
    tell(view, row(2, replica(22, ME)))
    await hosting.settle()
    assert (hosted_at, sorted(host.groups)) == ([[], [1]], [1, 2])


async def test_a_replica_waits_until_the_rows_that_want_it_are_durable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The disk of the copy is full: hosting goes on trying, and the node lives."""
    monkeypatch.setattr(hosting_module, "_RETRY_S", 0)
    host, view = FakeHost(), view_of(row(1, replica(11, ME)))
    hosted_at: list[list[int]] = []

    async def keep_rows() -> None:
        hosted_at.append(sorted(host.groups))
        if len(hosted_at) < 4:
            raise MetadataStoreError("No space left on device")

    hosting = Hosting(host, view, ME, keep_rows=keep_rows)
    running = asyncio.ensure_future(hosting.run())
    try:
        waiting = asyncio.ensure_future(hosting.until_hosted({11}))
        await asyncio.wait({waiting, running}, return_when=asyncio.FIRST_COMPLETED)
        assert not running.done()
        assert (hosted_at, sorted(host.groups)) == ([[]] * 4, [1])
        assert hosting.refused() == []
    finally:
        running.cancel()


async def test_a_raft_group_without_a_row_is_left_alone() -> None:
    """A raft group that is not known is not removed."""
    host = FakeHost()
    host.groups[7] = HostedGroup(7, 71)
    await Hosting(host, view_of(), ME).settle()
    assert host.removed == []


@pytest.mark.parametrize(
    "failure",
    [
        LogError("damaged"),
        CorruptFrame(0, "0.log", "payload checksum"),
        DamagedRowsError("block checksum mismatch"),
        CheckpointError("of another version"),
        ReplicaEnded("removed from this node"),
    ],
)
async def test_a_replica_that_cannot_be_hosted_is_not_tried_again_until_it_is_another(
    failure: Exception,
) -> None:
    """Only a new replica id helps (rule 8); the others are hosted.

    That holds for damage, and for an id that ended. An OSError ("read-only file system") was here
    once: it is no damage, the next try may succeed (rule 40).
    """
    host, view = FakeHost(), view_of(row(1, replica(11, ME)))
    host.failure = failure
    hosting = Hosting(host, view, ME)
    host.refuses = True
    await hosting.settle()
    host.refuses = False
    await hosting.settle()
    assert (host.groups, hosting.refused(), host.tried) == ({}, [11], [11])
    assert hosting.missing() == {1: MissingReplica(11, str(failure), is_refused=True)}
    tell(view, row(1, replica(12, ME)))
    await hosting.settle()
    assert (host.groups[1].replica_id, hosting.refused()) == (12, [])
    assert hosting.missing() == {}
    assert host.forgotten == [(1, 11)]


@pytest.mark.parametrize(
    "failure",
    [
        ReadFailed("0.log: Input/output error"),
        StateError("IO error: Too many open files"),
        OSError("read-only file system"),
        Overloaded("max_raft_groups (10) is reached"),
        Refused(pb.OUTCOME_OVERLOADED, "100 reads wait for the disk"),
    ],
)
async def test_a_replica_that_cannot_be_hosted_for_now_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    """Rule 40: nothing is damaged, so nobody is told that; one warning says what is the matter."""
    monkeypatch.setattr(unhosted, "_PAUSE_MIN_S", 0.0)
    host, view = FakeHost(), view_of(row(1, replica(11, ME)), row(2, replica(21, "other")))
    host.failure, host.refuses = failure, True
    with structlog.testing.capture_logs() as lines:
        hosting = Hosting(host, view, ME)
        running = asyncio.ensure_future(hosting.run())
        waiting = asyncio.ensure_future(hosting.until_hosted({11}))
        try:
            await until(lambda: len(host.tried) >= 5)
            assert (hosting.refused(), waiting.done()) == ([], False)
            assert hosting.missing() == {1: MissingReplica(11, str(failure))}
            host.refuses = False
            await waiting
            assert (list(host.groups), hosting.missing()) == ([1], {})
        finally:
            running.cancel()
    warnings = [line["event"] for line in lines if line["log_level"] == "warning"]
    assert warnings == ["replica is not hosted, it is tried again"]


async def test_a_replica_that_waits_holds_up_no_other_and_goes_when_it_is_wanted_no_more() -> None:
    """It is not tried before its time, whatever else changes in the rows."""
    host, view = FakeHost(), view_of(row(1, replica(11, ME)))
    host.failure, host.refuses = StateError("IO error"), True
    hosting = Hosting(host, view, ME)
    await hosting.settle()
    host.refuses = False
    tell(view, row(2, replica(21, ME)))
    await hosting.settle()
    assert (list(host.groups), host.tried) == ([2], [11, 21])
    assert list(hosting.missing()) == [1]
    tell(view, row(1, replica(12, ME)))
    await hosting.settle()
    assert (host.groups[1].replica_id, host.forgotten) == (12, [(1, 11)])
    assert hosting.missing() == {}


def test_pauses_grow_up_to_a_limit_and_another_replica_begins_anew() -> None:
    """A disk that fails for long is asked twice a minute."""
    first, second, other = HostedGroup(1, 11), HostedGroup(1, 12), HostedGroup(2, 21)
    failures, now_s = Unhosted(), 100.0
    pauses = []
    for _ in range(8):
        failures.put_off(first, "EIO", now_s)
        pause_s = failures.due_in_s(now_s)
        assert pause_s is not None
        pauses.append(pause_s)
        assert failures.to_try([first, other], now_s + pause_s - 0.01) == [other]
        now_s += pause_s
        assert failures.to_try([first, other], now_s) == [other, first], "new ones come first"
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert failures.to_try([second], now_s) == [second]
    failures.put_off(second, "EIO", now_s)
    assert failures.due_in_s(now_s) == 1.0
    failures.keep({1: first})
    assert failures.due_in_s(now_s) is None


def test_only_a_change_of_the_reason_is_news() -> None:
    """A failure that goes on is logged once."""
    group, failures = HostedGroup(1, 11), Unhosted()
    news = [failures.put_off(group, reason, 0.0) for reason in ("EIO", "EIO", "EMFILE", "EMFILE")]
    assert news == [True, False, True, False]


async def test_what_an_earlier_boot_left_behind_is_removed_when_it_is_wanted_no_more() -> None:
    """A replica that moved away while the node was down; not one whose row is unknown."""
    host = FakeHost()
    host.left = {11: 1, 21: 2, 31: 3}
    view = view_of(row(1, replica(12, "other")), row(2, replica(21, ME)))
    await Hosting(host, view, ME).settle()
    assert host.forgotten == [(1, 11)]
    assert list(host.groups) == [2]


async def test_rows_that_are_not_of_this_cluster_remove_nothing() -> None:
    """Rule 32: also rows whose source did not say whose they are; the node serves on."""
    host, view, cluster = FakeHost(), view_of(row(1, replica(11, ME))), ClusterId("mine")
    hosting = Hosting(host, view, ME, cluster=cluster)
    await hosting.settle()
    for told in ("", "theirs"):
        view.cluster_id = told
        tell(view, row(1, replica(12, "other")))
        await hosting.settle()
        assert (sorted(host.groups), host.removed) == ([1], [])
    view.cluster_id = "mine"
    await hosting.settle()
    assert host.removed == [11]


async def test_an_older_row_than_the_one_that_wanted_it_removes_nothing() -> None:
    """Nameservers that were restored to an earlier time do not know of the replica."""
    host, view = FakeHost(), view_of(row(1, replica(11, ME), revision=9))
    hosting = Hosting(host, view, ME)
    await hosting.settle()
    for revision in (5, 9):
        tell(view, row(1, replica(12, "other"), revision=revision))
        await hosting.settle()
        assert host.removed == []
    tell(view, row(1, replica(12, "other"), revision=10))
    await hosting.settle()
    assert host.removed == [11]


async def test_a_replica_that_was_taken_back_stays_until_a_newer_row() -> None:
    """Its removal was overruled by an operator; it is hosted as soon as it is wanted."""
    host = FakeHost()
    host.left, host.back = {11: 1}, {11: 7}
    view = view_of(row(1, replica(12, "other"), revision=7))
    hosting = Hosting(host, view, ME)
    await hosting.settle()
    assert (host.forgotten, host.groups) == ([], {})
    tell(view, row(1, replica(11, ME), revision=8))
    await hosting.settle()
    assert host.groups[1].replica_id == 11
