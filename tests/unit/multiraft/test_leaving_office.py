"""How a leadership ends: handed over or taken, and what becomes of what was proposed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from strata_multiraft import NotLeader, TransferFailed
from strata_multiraft.base.ports import Envelope
from strata_multiraft.driver.liveness_port import NoLiveness
from strata_raft import Entry, EntryKind, Role, TransferLeadership
from strata_raft.messages import AppendRequest, TimeoutNow
from tests.unit.multiraft.memory_cluster import Cluster, Settled, three_nodes


@pytest.fixture
async def cluster(make_node: Any, settled: Settled) -> AsyncIterator[Cluster]:
    async for made in three_nodes(make_node, settled):
        yield made


class WrongClocks(NoLiveness):
    """Knows which nodes must not lead, this one perhaps among them."""

    def __init__(self, own: str, *wrong: str) -> None:
        self._own = own
        self._wrong = wrong

    def may_campaign(self) -> bool:
        return self._own not in self._wrong

    def may_lead(self, node_id: str) -> bool:
        return node_id not in self._wrong


# -- clocks (rule 4) -------------------------------------------------------------------------------


async def test_nobody_hands_over_to_a_wrong_clock(cluster: Cluster) -> None:
    """A named target is refused at once, without a pause of writes; else another one is chosen."""
    cluster.nodes[1].multiraft.liveness = WrongClocks("1", "2")
    leader = cluster.replica(1)
    with pytest.raises(TransferFailed, match="clock of the node of replica 2 is off"):
        await leader.transfer_leadership(2)
    assert not leader.is_handing_over
    await cluster.propose(1, b"goes on")
    assert leader.successor() == 3
    await leader.transfer_leadership()
    await cluster.settled()
    assert cluster.replica(3).is_ready_leader()


async def test_a_leader_stays_when_all_other_clocks_are_wrong(cluster: Cluster) -> None:
    """Nobody that may lead is left: whoever leads goes on."""
    cluster.nodes[1].multiraft.liveness = WrongClocks("1", "2", "3")
    with pytest.raises(TransferFailed, match="no other voter"):
        await cluster.replica(1).transfer_leadership()
    await cluster.propose(1, b"goes on")


class SilentNodes(NoLiveness):
    """Knows which nodes have fallen silent."""

    def __init__(self, *silent: str) -> None:
        self._silent = silent

    def is_silent(self, node_id: str) -> bool:
        return node_id in self._silent


async def test_nobody_hands_over_to_a_silent_node(cluster: Cluster) -> None:
    """A raft group at rest hears nobody, so that all followers seem to be there."""
    leader = cluster.replica(1)
    assert all(each.recently_heard for each in leader.progress())
    cluster.nodes[1].multiraft.liveness = SilentNodes("3")
    assert leader.successor() == 2
    cluster.nodes[1].multiraft.liveness = SilentNodes("2", "3")
    with pytest.raises(TransferFailed, match="no other voter"):
        await leader.transfer_leadership()
    await cluster.propose(1, b"goes on")


async def test_a_wrong_clock_does_not_take_a_leadership(cluster: Cluster) -> None:
    """The target knows better than the leader: it ignores the call, and the leader stays."""
    cluster.nodes[3].multiraft.liveness = WrongClocks("3", "3")
    leader = cluster.replica(1)
    transfer = asyncio.ensure_future(leader.transfer_leadership(3))
    await cluster.tick(1, times=7)
    with pytest.raises(TransferFailed, match="election timeout"):
        await transfer
    assert cluster.replica(3).role is Role.FOLLOWER
    await cluster.propose(1, b"goes on")
    message = TimeoutNow(1, 3, leader.term)
    cluster.nodes[3].multiraft.liveness = WrongClocks("3")
    cluster.nodes[3].multiraft.receive([Envelope(1, message)])
    await cluster.settled()
    assert cluster.replica(3).is_ready_leader()


async def test_a_wrong_clock_does_not_campaign(cluster: Cluster) -> None:
    """With all that are right gone nobody leads: time must not jump."""
    for node_id in (2, 3):
        cluster.nodes[node_id].multiraft.liveness = WrongClocks(str(node_id), "2", "3")
    cluster.cut = {1}
    await cluster.tick(2, 3, times=30)
    assert Role.LEADER not in (cluster.replica(2).role, cluster.replica(3).role)
    cluster.nodes[3].multiraft.liveness = WrongClocks("3", "2")
    await cluster.tick(2, 3, times=30)
    assert cluster.replica(3).role is Role.LEADER


# -- disks (rule 11) -------------------------------------------------------------------------------


async def test_a_full_disk_hands_over_as_soon_as_it_is_known(cluster: Cluster) -> None:
    """To a follower with more room, within the call; not to one that has no more."""
    node = cluster.nodes[1].multiraft
    node.set_peer_disk_marks({"2": 1, "3": 1})
    node.set_disk_mark(1)
    assert not cluster.replica(1).is_handing_over
    node.set_disk_mark(2)
    assert cluster.replica(1).is_handing_over
    await cluster.settled()
    assert not cluster.replica(1).is_ready_leader()
    assert any(cluster.replica(node_id).is_ready_leader() for node_id in (2, 3))


async def test_who_hands_over_does_not_rest(cluster: Cluster) -> None:
    """Without ticks a hand-over that nobody took would refuse proposals for good."""
    node, leader = cluster.nodes[1].multiraft, cluster.replica(1)
    await cluster.settled()
    assert not leader.is_busy()
    node.set_peer_disk_marks({"2": 1, "3": 1})
    node.set_disk_mark(2)
    assert leader.is_handing_over
    assert leader.is_busy()


async def test_a_full_disk_hands_over_when_somebody_gets_room(cluster: Cluster) -> None:
    """A peer's mark that falls is as good a reason as this node's that rises."""
    node = cluster.nodes[1].multiraft
    node.set_peer_disk_marks({"2": 2, "3": 2})
    node.set_disk_mark(2)
    assert cluster.replica(1).disk_mark == 2
    assert not cluster.replica(1).is_handing_over
    node.set_peer_disk_marks({"2": 2})
    await cluster.settled()
    assert cluster.replica(3).is_ready_leader()


async def test_a_fuller_disk_is_not_fit_to_lead(cluster: Cluster) -> None:
    """No replica there may take over: the leadership would come back at once."""
    node, leader = cluster.nodes[1].multiraft, cluster.replica(1)
    node.set_peer_disk_marks({"2": 1})
    assert [leader.fitness.may_take_over(replica_id) for replica_id in (1, 2, 3)] == [
        True,
        False,
        True,
    ]
    assert node.may_lead(2)
    node.set_peer_disk_marks({"2": 1, "3": 1})
    node.set_disk_mark(1)
    assert leader.fitness.may_take_over(2)
    node.liveness = WrongClocks("1", "3")
    assert not leader.fitness.may_take_over(3)


async def test_a_leader_that_comes_into_office_on_a_full_disk_leaves_it(cluster: Cluster) -> None:
    """The leader that handed over did not know how full the disk is."""
    full = cluster.nodes[3].multiraft
    full.set_disk_mark(1)
    await cluster.replica(1).transfer_leadership(3)
    await cluster.settled()
    assert not cluster.replica(3).is_ready_leader()
    assert any(cluster.replica(node_id).is_ready_leader() for node_id in (1, 2))


# -- what was proposed -----------------------------------------------------------------------------


async def test_what_is_proposed_while_a_leadership_is_handed_over_is_refused(
    cluster: Cluster,
) -> None:
    """Queued before, it fails when its turn comes, and the machine decides anew (rule 1)."""
    leader, node = cluster.replica(1), cluster.nodes[1].multiraft
    told: list[str] = []
    machine = cluster.machines[1]
    machine.on_follower = lambda term, leader_id: told.append("follower")  # type: ignore
    machine.on_leader = lambda term: told.append("leader")  # type: ignore[method-assign]
    cluster.cut = {3}
    queued = leader.propose((b"x",))
    node.perform(leader, leader.node.step(TransferLeadership(3)))
    last_index = leader.last_index
    await cluster.settled()
    with pytest.raises(NotLeader):
        await queued
    assert leader.last_index == last_index
    assert told == ["follower", "leader"]
    with pytest.raises(NotLeader):
        leader.propose((b"y",))
    await cluster.tick(1, times=7)
    assert not leader.is_handing_over
    await cluster.propose(1, b"z")
    assert machine.payloads() == [b"z"]


async def test_an_entry_that_was_replaced_is_not_taken_for_committed(cluster: Cluster) -> None:
    """One append ends the leadership, replaces the entry and commits its index: it failed."""
    leader = cluster.replica(1)
    term, last_index = leader.term, leader.last_index
    cluster.cut = {1}
    lost = leader.propose((b"mine",))
    await cluster.settled()
    assert leader.last_index == last_index + 1
    entries = (Entry(term + 1, last_index + 1, EntryKind.NORMAL, (b"another",)),)
    append = AppendRequest(2, 1, term + 1, last_index, term, entries, commit=last_index + 1)
    cluster.nodes[1].multiraft.receive([Envelope(1, append)])
    assert leader.commit_index == last_index + 1
    with pytest.raises(NotLeader):
        await lost
    await cluster.settled()
    assert cluster.machines[1].payloads() == [b"another"]
