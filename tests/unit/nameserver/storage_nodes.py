"""Storage nodes as a nameserver sees them: they beat, and carry out what the rows say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strata.meta.v1 import meta_pb2
from strata_nameserver.base.config import NameserverConfig

if TYPE_CHECKING:
    from tests.unit.nameserver.conftest import Nameserver

CONFIG = NameserverConfig(
    raft_groups_per_storage_node=1,
    replica_repair_delay_ms=5_000,
    leader_balance_delay_ms=1_000,
    max_moves_in_flight=1,
)
NODES = ("a", "b", "c")


def storage(node_id: str) -> meta_pb2.Node:
    return meta_pb2.Node(node_id=node_id, kind=meta_pb2.NODE_KIND_STORAGE, boot_id=1)


class Storage:
    """Storage nodes that beat, and leaders that carry out what the rows say."""

    def __init__(self, nameserver: Nameserver, node_ids: tuple[str, ...]) -> None:
        self.nameserver = nameserver
        self.alive = set(node_ids)
        self.index = 1
        self.told: dict[int, meta_pb2.Membership] = {}
        self.clocks_off: set[str] = set()

    def row(self, raft_group: int) -> meta_pb2.RaftGroup:
        return self.nameserver.machine.speculative.topology.raft_groups[raft_group]

    def rows(self) -> dict[int, meta_pb2.RaftGroup]:
        return self.nameserver.machine.speculative.topology.raft_groups

    def leader_of(self, row: meta_pb2.RaftGroup) -> str:
        able = [replica.node_id for replica in row.replicas if replica.node_id in self.alive]
        wish = row.preferred_leader_node_id
        return wish if wish in able else able[0]

    def membership_of(self, row: meta_pb2.RaftGroup) -> meta_pb2.Membership:
        """Return the desired configuration, with a higher index when it is another one."""
        voters = sorted(r.replica_id for r in row.replicas if not r.learner)
        learners = sorted(r.replica_id for r in row.replicas if r.learner)
        known = self.told.get(row.raft_group, row.membership)
        if voters == sorted(known.voters) and learners == sorted(known.learners):
            return known
        self.index += 1
        self.told[row.raft_group] = meta_pb2.Membership(
            configuration_index=self.index, voters=voters, learners=learners
        )
        return self.told[row.raft_group]

    def load_of(self, node_id: str) -> meta_pb2.StorageLoad | None:
        """Return what a node measured since its last heartbeat; None: it does not say."""
        return None

    def beat(self) -> None:
        leaders = {number: self.leader_of(row) for number, row in self.rows().items()}
        for node_id in sorted(self.alive):
            led = [
                meta_pb2.LedGroup(
                    raft_group=number,
                    term=1,
                    membership=self.membership_of(self.row(number)),
                    caught_up=[replica.replica_id for replica in self.row(number).replicas],
                    settled_revision=self.row(number).revision,
                )
                for number, leader in leaders.items()
                if leader == node_id
            ]
            others = set(self.nameserver.machine.speculative.topology.nodes) - {node_id}
            self.nameserver.metadata.heartbeat(
                meta_pb2.HeartbeatRequest(
                    node_id=node_id,
                    boot_id=1,
                    full=True,
                    led=led,
                    heard_node_ids=sorted(others & self.alive),
                    unheard_node_ids=sorted(others - self.alive),
                    clock_is_off=node_id in self.clocks_off,
                    load=self.load_of(node_id),
                )
            )

    async def run(self, duration_ms: int) -> None:
        for _ in range(0, duration_ms, 100):
            self.nameserver.clock.advance(0.1)
            self.beat()
            await self.nameserver.metadata.controller.step(0.0)
