"""Membership, leadership transfer, removal and full disks, through the driver."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from strata_multiraft import (
    LogFull,
    MembershipRefused,
    MultiRaftOptions,
    NotLeader,
    ReadOnly,
    ReplicaSpec,
    TransferFailed,
)
from strata_raft import Role
from strata_seglog.errors import DiskFull
from strata_sim.rows_machine import RowsMachine
from tests.unit.multiraft.memory_cluster import VOTERS, Cluster, Settled, three_nodes


@pytest.fixture
async def cluster(make_node: Any, settled: Settled) -> AsyncIterator[Cluster]:
    async for made in three_nodes(make_node, settled):
        yield made


async def test_a_raft_group_grows_and_shrinks(cluster: Cluster) -> None:
    """A learner catches up and becomes a voter; a voter that is left out is not heard any more."""
    await cluster.propose(1, b"before")
    await cluster.boot(4, frozenset())
    leader = cluster.replica(1)
    adding = asyncio.ensure_future(leader.change_membership(VOTERS, frozenset({4})))
    await cluster.tick(1, times=3)
    await adding
    assert leader.caught_up(4)
    progress = {each.replica_id: each for each in leader.progress()}
    assert progress[4].is_learner
    assert progress[4].match_index == leader.last_index
    assert progress[4].state == "replicate"
    assert all(each.recently_heard for each in progress.values())
    await leader.change_membership(frozenset({1, 2, 4}))
    assert leader.configuration.voters == frozenset({1, 2, 4})
    assert leader.configuration_index == leader.commit_index
    await cluster.propose(1, b"after")
    await cluster.tick(1)
    assert cluster.machines[4].payloads() == [b"before", b"after"]
    assert cluster.machines[3].payloads() == [b"before"]
    await leader.change_membership(frozenset({1, 2, 4}))  # in force: nothing happens


async def test_a_sole_voter_gets_company(make_node: Any, settled: Settled) -> None:
    """Entries sent before the newcomer was there are lost; heartbeats find that out and go on."""
    cluster = Cluster(make_node, settled)
    leader = await cluster.boot(1, frozenset({1}))
    await settled()
    await cluster.propose(1, b"before")
    await leader.change_membership(frozenset({1}), frozenset({2}))
    await cluster.boot(2, frozenset())
    await cluster.tick(1, times=4)
    assert leader.caught_up(2)
    await leader.change_membership(frozenset({1, 2}))
    await cluster.tick(times=20)
    assert leader.is_ready_leader(), "its heartbeats keep the new voter from campaigning"
    await leader.change_membership(frozenset({1}))
    assert 1 not in cluster.nodes[1].multiraft.ticker.ticked, "alone again it needs no time"
    for node in cluster.nodes.values():
        await node.multiraft.stop()


async def test_configurations_are_found_again_after_a_restart(cluster: Cluster) -> None:
    """A restarted node takes them from the machine's row and from later entries of its log."""
    leader = cluster.replica(1)
    await leader.change_membership(frozenset({1, 2}), frozenset({3}))
    await cluster.tick(1)
    for node_id in VOTERS:
        assert cluster.replica(node_id).configuration == leader.configuration
    node = cluster.nodes[2]
    applied_before, applied_after = RowsMachine(), cluster.machines[2]
    await node.multiraft.stop()
    for machine in (applied_before, applied_after):
        replica = await cluster.boot(2, machine=machine, log=node.log.crashed())
        assert replica.configuration == leader.configuration
        assert replica.configuration_index == leader.configuration_index
        await cluster.nodes[2].multiraft.stop()


async def test_a_leader_that_leaves_itself_out_steps_down(cluster: Cluster) -> None:
    """Its call resolves when the final configuration is committed, and another leads at once."""
    await cluster.replica(1).change_membership(frozenset({2, 3}))
    assert cluster.replica(1).role is Role.LEARNER
    await cluster.settled()
    leaders = [n for n in (2, 3) if cluster.replica(n).is_ready_leader()]
    assert len(leaders) == 1
    await cluster.propose(leaders[0], b"x")


async def test_changes_are_refused_by_name(cluster: Cluster, settled: Settled) -> None:
    """One change at a time; only leaders change; a lost leadership is told."""
    with pytest.raises(NotLeader):
        await cluster.replica(2).change_membership(frozenset({2}))
    with pytest.raises(MembershipRefused, match="needs a voter"):
        await cluster.replica(1).change_membership(frozenset())
    cluster.cut = {2, 3}
    first = asyncio.ensure_future(cluster.replica(1).change_membership(frozenset({1, 2})))
    await settled()
    with pytest.raises(MembershipRefused, match="another"):
        await cluster.replica(1).change_membership(frozenset({1, 3}))
    await cluster.tick(1, times=13)
    with pytest.raises(NotLeader):
        await first


async def test_leadership_is_handed_over(cluster: Cluster) -> None:
    """To a named voter, or to the most advanced one that answers."""
    await cluster.propose(1, b"x")
    await cluster.replica(1).transfer_leadership(3)
    await cluster.settled()
    assert cluster.replica(3).is_ready_leader()
    await cluster.tick(3, times=2)
    cluster.cut = {1}
    await cluster.tick(3, times=14)
    await cluster.replica(3).transfer_leadership()
    await cluster.settled()
    assert cluster.replica(2).is_ready_leader()
    with pytest.raises(NotLeader):
        await cluster.replica(3).transfer_leadership()


async def test_a_transfer_that_fails_leaves_the_leader_in_office(cluster: Cluster) -> None:
    """An unreachable target is given up after an election timeout, and proposals go on."""
    with pytest.raises(TransferFailed, match="not a voter"):
        await cluster.replica(1).transfer_leadership(9)
    cluster.cut = {3}
    transfer = asyncio.ensure_future(cluster.replica(1).transfer_leadership(3))
    await cluster.tick(1, times=7)
    with pytest.raises(TransferFailed, match="election timeout"):
        await transfer
    await cluster.propose(1, b"x")


async def test_a_removed_replica_never_comes_back(cluster: Cluster) -> None:
    """Its log ends with the frame that says so; proposals fail; the id is refused afterwards."""
    node = cluster.nodes[3]
    replica = cluster.replica(3)
    await node.multiraft.remove_replica(1)
    assert 1 not in node.multiraft.replicas()
    assert node.log.replicas()[3].removed
    with pytest.raises(NotLeader):
        replica.propose((b"x",))
    with pytest.raises(ValueError, match="removed"):
        node.multiraft.add_replica(ReplicaSpec(1, 3, VOTERS), RowsMachine())
    added = node.multiraft.add_replica(ReplicaSpec(1, 7, frozenset()), RowsMachine())
    assert added.role is Role.LEARNER
    await cluster.propose(1, b"two are enough")
    await cluster.tick(1)


async def test_a_removed_leader_hands_over_and_decides_nothing(cluster: Cluster) -> None:
    """Another voter leads at once; what is proposed to the old one is refused, applied is left."""
    leader = cluster.replica(1)
    await cluster.propose(1, b"x")
    await cluster.nodes[1].multiraft.remove_replica(1)
    await cluster.settled()
    with pytest.raises(NotLeader):
        leader.propose((b"y",))
    assert not leader.has_ready()
    assert any(cluster.replica(node_id).is_ready_leader() for node_id in (2, 3))


async def test_a_removed_sole_voter_decides_nothing(cluster: Cluster) -> None:
    """It has nobody to hand over to; its proposals are refused all the same."""
    node = cluster.nodes[1]
    sole = node.multiraft.add_replica(ReplicaSpec(5, 50, frozenset({50})), RowsMachine())
    await cluster.settled()
    assert sole.is_ready_leader()
    await node.multiraft.remove_replica(5)
    with pytest.raises(NotLeader):
        sole.propose((b"y",))


async def test_what_was_given_to_the_log_before_a_removal_is_there_at_its_end(
    cluster: Cluster,
) -> None:
    """A removed replica is put aside with all that it acknowledged (rule 32)."""
    cluster.cut = {2}  # from now on nothing is committed without replica 3
    await cluster.propose(1, b"before")
    node, leader = cluster.nodes[3], cluster.replica(1)
    node.gate.close()
    first = leader.propose((b"under way",))
    await cluster.settled()
    second = leader.propose((b"waits behind it",))
    await cluster.settled()
    put_aside: list[int] = []

    async def before_end() -> None:
        put_aside.append(node.log.replicas()[3].last_index)

    removal = asyncio.ensure_future(node.multiraft.remove_replica(1, before_end))
    await cluster.settled()
    told_early = list(put_aside)
    node.gate.open()
    await removal
    assert told_early == []
    await cluster.settled()
    assert first.result() < second.result() == put_aside[0]


async def test_a_removal_without_room_is_done_when_called_again(cluster: Cluster) -> None:
    """The replica is silent at once and stays known until its end is durable."""
    node = cluster.nodes[3]
    node.log.failures = [DiskFull("no room")]
    with pytest.raises(LogFull):
        await node.multiraft.remove_replica(1)
    last_index = cluster.replica(3).last_index
    await cluster.propose(1, b"not for replica 3")
    await cluster.tick(1)
    assert cluster.replica(3).last_index == last_index
    await asyncio.sleep(0.002)
    await node.multiraft.remove_replica(1)
    assert node.log.replicas()[3].removed


async def test_a_leader_whose_apply_fails_is_followed_by_another(cluster: Cluster) -> None:
    """It gives up the leadership at once instead of leading without an answer."""
    cluster.machines[1].fails_at = cluster.replica(1).last_index + 1
    index = await cluster.replica(1).propose((b"poison for replica 1",))
    with pytest.raises(ReadOnly):
        await cluster.replica(1).applied(index)
    assert cluster.replica(1).role is not Role.LEADER
    await cluster.settled()
    assert any(cluster.replica(node_id).is_ready_leader() for node_id in (2, 3))


async def test_a_leader_without_room_hands_over(cluster: Cluster) -> None:
    """Its write fails, its proposal too, and a follower leads without an election timeout."""
    cluster.nodes[1].log.failures = [DiskFull("no room")]
    failed = cluster.replica(1).propose((b"x",))
    await cluster.settled()
    with pytest.raises((LogFull, NotLeader)):
        await failed
    leaders = [n for n in (2, 3) if cluster.replica(n).is_ready_leader()]
    assert len(leaders) == 1
    await cluster.propose(leaders[0], b"y")


async def test_disk_marks_decide_who_leads_and_what_is_taken(cluster: Cluster) -> None:
    """A leader with a worse mark hands over; with no quorum that has room it refuses."""
    cluster.mark({1: 1, 2: 1})
    await cluster.settled()
    assert cluster.replica(3).is_ready_leader()
    leader = cluster.replica(3)
    assert leader.disk_mark == 1
    await cluster.propose(3, b"the driver itself refuses only at the last mark")
    cluster.mark({1: 3, 2: 3})
    await cluster.settled()
    assert leader.disk_mark == 3
    with pytest.raises(LogFull, match="replicas"):
        leader.propose((b"x",))
    cluster.mark({1: 3})
    assert leader.disk_mark == 0
    await cluster.propose(3, b"y")


async def test_a_full_disk_does_not_campaign(cluster: Cluster) -> None:
    """A follower that cannot store a vote of its own waits until there is room."""
    options = MultiRaftOptions(tick_ms=1000, disk_full_retry_ms=600_000)
    await cluster.nodes[3].multiraft.stop()
    log = cluster.nodes[3].log.crashed()
    await cluster.boot(3, machine=cluster.machines[3], log=log, options=options)
    await cluster.tick(1)
    node = cluster.nodes[3]
    node.log.failures = [DiskFull("no room")]
    lost = cluster.replica(1).propose((b"x",))
    await cluster.settled()
    assert await lost
    assert node.multiraft.is_disk_full()
    term = cluster.replica(3).term
    cluster.cut = {1, 2}
    await cluster.tick(3, times=20)
    assert cluster.replica(3).term == term
    # It does not even ask for pre-votes.
    assert cluster.replica(3).role is Role.FOLLOWER


async def test_a_damaged_replica_neither_votes_nor_acknowledges(cluster: Cluster) -> None:
    """With another one away there is no quorum, for entries as little as for a leader (rule 8)."""
    damaged = cluster.replica(3)
    damaged.fail("its log is damaged")
    cluster.cut = {2}
    lost = cluster.replica(1).propose((b"held by one",))
    await cluster.tick(1, times=3)
    assert not lost.done()
    assert damaged.last_index < cluster.replica(1).last_index
    cluster.cut = {1}
    term = damaged.term
    await cluster.tick(2, times=30)
    assert cluster.replica(2).role is not Role.LEADER
    assert damaged.term == term
    cluster.cut = set()
    await cluster.tick(1, times=3)
    await lost
