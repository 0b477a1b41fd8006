"""Nodes of one raft group over a network in memory, ticked by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from strata_multiraft import Replica, ReplicaSpec
from strata_sim.rows_machine import RowsMachine
from strata_testing.memory_transport import MemoryNetwork

Settled = Callable[[], Awaitable[None]]
VOTERS = frozenset({1, 2, 3})


class Cluster:
    """Raft group 1 with replica n on node n."""

    def __init__(self, make_node: Any, settled: Settled) -> None:
        self.cut: set[int] = set()
        self.network = MemoryNetwork(lambda a, b: not self.cut & {int(a), int(b)})
        self.machines: dict[int, RowsMachine] = {}
        self.nodes: dict[int, Any] = {}
        self.settled = settled
        self._make_node = make_node

    async def boot(
        self,
        node_id: int,
        voters: frozenset[int] = VOTERS,
        machine: RowsMachine | None = None,
        **fields: Any,
    ) -> Replica:
        node = self._make_node(
            transport=self.network.transport(str(node_id)), node_of=str, **fields
        )
        machine = machine or RowsMachine()
        replica: Replica = node.multiraft.add_replica(ReplicaSpec(1, node_id, voters), machine)
        self.network.connect(str(node_id), node.multiraft.receive)
        self.nodes[node_id], self.machines[node_id] = node, machine
        await node.multiraft.start()
        return replica

    def replica(self, node_id: int) -> Replica:
        replica: Replica = self.nodes[node_id].multiraft.replicas()[1]
        return replica

    async def tick(self, *node_ids: int, times: int = 1) -> None:
        for _ in range(times):
            for node_id in node_ids or list(self.nodes):
                if node_id not in self.cut:
                    self.nodes[node_id].multiraft.tick()
            await self.settled()

    async def propose(self, node_id: int, payload: bytes) -> None:
        index = await self.replica(node_id).propose((payload,))
        await self.replica(node_id).applied(index)

    def mark(self, own: dict[int, int]) -> None:
        """Tell every node how full all disks are."""
        for node_id, node in self.nodes.items():
            peers = {str(other): mark for other, mark in own.items() if other != node_id}
            node.multiraft.set_peer_disk_marks(peers)
        for node_id, node in self.nodes.items():
            node.multiraft.set_disk_mark(own.get(node_id, 0))


async def three_nodes(make_node: Any, settled: Settled) -> AsyncIterator[Cluster]:
    """Yield three nodes of which the first one leads."""
    cluster = Cluster(make_node, settled)
    for node_id in VOTERS:
        await cluster.boot(node_id)
    await cluster.tick(1, times=7)
    assert cluster.replica(1).is_ready_leader()
    yield cluster
    for node in cluster.nodes.values():
        await node.multiraft.stop()
