"""A replica that lost its rows gets no leadership before it has them again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from strata_multiraft import MultiRaftOptions, Replica, ReplicaSpec
from strata_multiraft.base.errors import TransferFailed
from strata_multiraft.replica.commit_history import CommitHistory
from strata_raft import Role
from strata_testing import ManualClock
from strata_testing.memory_transport import MemoryNetwork
from tests.unit.multiraft.conftest import Gate

Settled = Callable[[], Awaitable[None]]
# Committed entries must be applied at once: a test does not wait.
OPTIONS = MultiRaftOptions(tick_ms=1000, fit_lag_ms=0, max_apply_bytes=20)
NODES = (1, 2, 3)
ENTRIES = 50


def test_what_was_committed_a_while_ago_is_known() -> None:
    """It holds for a busy raft group and for one at rest; entries that just came do not count."""
    clock = ManualClock()
    history = CommitHistory(clock, 1000, 7)
    assert history.a_while_ago() == 7
    for step in range(1, 301):
        clock.advance(0.01)
        history.saw(7 + step)
        a_second_ago = max(7, 7 + step - 100)
        assert a_second_ago - 1 <= history.a_while_ago() <= a_second_ago + 10
    clock.advance(1)
    assert history.a_while_ago() == 307
    history.restart(3)
    assert history.a_while_ago() == 3


class Cluster:
    """Raft group 1 with replica n on node n; the rows of node 3 are deleted, its disk is slow."""

    def __init__(self, make_node: Any, settled: Settled) -> None:
        self.cut: set[int] = set()
        self.network = MemoryNetwork(lambda a, b: not self.cut & {int(a), int(b)})
        self.nodes: dict[int, Any] = {}
        self.settled = settled
        self._make_node = make_node
        for node_id in NODES:
            self.boot(node_id)

    def boot(self, node_id: int, **fields: Any) -> None:
        node = self._make_node(
            transport=self.network.transport(str(node_id)), node_of=str, options=OPTIONS, **fields
        )
        node.add(ReplicaSpec(1, node_id, frozenset(NODES)))
        self.network.connect(str(node_id), node.multiraft.receive)
        self.nodes[node_id] = node

    def replica(self, node_id: int) -> Replica:
        replica: Replica = self.nodes[node_id].multiraft.replicas()[1]
        return replica

    async def tick(self, *node_ids: int, times: int = 1) -> None:
        for _ in range(times):
            for node_id in node_ids:
                self.nodes[node_id].multiraft.tick()
            await self.settled()

    async def lose_rows(self) -> Gate:
        """Restart node 3 without rows; return the gate behind which its log is read."""
        log = self.nodes[3].log.crashed()
        await self.nodes[3].multiraft.stop()
        self.boot(3, log=log)
        reads = Gate()
        reads.close()
        self.nodes[3].multiraft._applier._run_reads = reads
        await self.nodes[3].multiraft.start()
        await self.tick(1, times=4)
        assert self.replica(3).applied_index == 0
        return reads


@pytest.fixture
async def cluster(make_node: Any, settled: Settled) -> Any:
    cluster = Cluster(make_node, settled)
    for node in cluster.nodes.values():
        await node.multiraft.start()
    await cluster.tick(1, times=7)
    for number in range(ENTRIES):
        await cluster.replica(1).propose((b"%d" % number,))
    await cluster.tick(1, times=2)
    assert cluster.replica(1).caught_up(3)
    yield cluster
    for node in cluster.nodes.values():
        await node.multiraft.stop()


async def test_no_leadership_is_handed_to_who_lost_its_rows(cluster: Cluster) -> None:
    """It holds the log and could vote; it is no successor until it has applied everything."""
    reads = await cluster.lose_rows()
    leader = cluster.replica(1)
    assert leader.fitness.holds_log(3)
    assert not leader.caught_up(3)
    assert leader.caught_up(2)
    assert leader.successor() == 2
    assert cluster.replica(3).is_behind()
    with pytest.raises(TransferFailed, match="replica 3 has yet to apply"):
        await leader.transfer_leadership(3)
    reads.open()
    await cluster.replica(3).applied(leader.commit_index)
    await cluster.tick(1, times=2)
    assert leader.caught_up(3)
    assert not cluster.replica(3).is_behind()
    await leader.transfer_leadership(3)
    await cluster.settled()
    assert cluster.replica(3).is_ready_leader()


async def test_who_lost_its_rows_wins_no_election_while_others_can(cluster: Cluster) -> None:
    """It campaigns first; the whole one refuses, campaigns and leads without any silence."""
    await cluster.lose_rows()
    await cluster.tick(2)
    cluster.cut = {1}
    await cluster.tick(3, times=7)
    await cluster.tick(2, times=7)
    assert cluster.replica(2).is_ready_leader()
    assert cluster.replica(3).role is Role.FOLLOWER
    index = await cluster.replica(2).propose((b"later",))
    await cluster.replica(2).applied(index)


async def test_who_lost_its_rows_leads_if_nobody_else_can(cluster: Cluster) -> None:
    """With the others' clocks off it is better than nobody."""
    reads = await cluster.lose_rows()
    await cluster.tick(2)
    cluster.cut = {1}
    cluster.nodes[2].multiraft.liveness = NeverLeads(cluster.nodes[2].multiraft.liveness)
    for _ in range(5):
        await cluster.tick(2, 3, times=7)
    assert cluster.replica(3).role is Role.LEADER
    reads.open()
    await cluster.replica(3).applied(cluster.replica(3).commit_index)
    await cluster.settled()
    assert cluster.replica(3).is_ready_leader()


class NeverLeads:
    """The liveness of a node whose clock is off."""

    def __init__(self, other: Any) -> None:
        self._other = other

    def may_campaign(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._other, name)
