"""The facts that placement goes by: its numbers, the state of storage nodes and raft groups."""

from __future__ import annotations

from dataclasses import dataclass

from strata.meta.v1 import meta_pb2


@dataclass(frozen=True, slots=True)
class PlacementRules:
    """Numbers that placement goes by.

    Attributes:
        replication_factor: voters of a raft group.
        max_moves_in_flight: raft groups whose replicas change at the same time.
        repair_delay_ms: a replica on a node that is DOWN is lost when the node was DOWN for so
            long since it was last UP for so long without a break.
        leader_balance_delay_ms: a node must be UP for so long before leaders are moved to it.
        full_above: share of a disk that is used, above which its node gets no replica for evenness.
            It is as far below the share at which a plan takes replicas off a disk as the largest
            replica should be.
    """

    replication_factor: int = 3
    max_moves_in_flight: int = 2
    repair_delay_ms: int = 600_000
    leader_balance_delay_ms: int = 5_000
    full_above: float = 0.7


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A storage node.

    Attributes:
        rack: failure domain; empty: its machine is one.
        machine: what it shares with other nodes; empty: it is a machine of its own.
        state_ms: how long it is in its state.
        down_ms: how long it was DOWN since it was last steadily UP (`down_times`).
        load_bytes: what it appends and serves; the less loaded of equal nodes is taken.
        is_slow: its appends take much longer than those of others; it should not lead.
        clock_is_off: it gives leaderships away itself (rule 4); it should not get any.
        disk_used: share of the disk of its log that is used; 0: not known.
    """

    node_id: str
    rack: str = ""
    machine: str = ""
    state: meta_pb2.NodeState.ValueType = meta_pb2.NODE_STATE_UP
    state_ms: int = 0
    down_ms: int = 0
    draining: bool = False
    load_bytes: float = 0.0
    is_slow: bool = False
    clock_is_off: bool = False
    disk_used: float = 0.0

    @property
    def can_take(self) -> bool:
        """Whether something may be placed there."""
        return self.state == meta_pb2.NODE_STATE_UP and not self.draining

    def is_steady(self, rules: PlacementRules) -> bool:
        """Tell whether it was not DOWN for so long lately that its replicas counted as lost."""
        return self.down_ms == 0 or self.down_ms < rules.repair_delay_ms

    @property
    def place(self) -> str:
        """Name of the machine that it is on, for comparison with other nodes."""
        return f"machine {self.machine}" if self.machine else f"node {self.node_id}"


@dataclass(frozen=True, slots=True)
class ReplicaFacts:
    """A desired replica of a raft group.

    Attributes:
        is_voter: it votes in the raft group's configuration now.
        is_caught_up: it has everything committed, as its leader says.
        is_damaged: it takes no part any more (rule 8).
        is_learner: it should only read.
    """

    replica_id: int
    node_id: str
    is_voter: bool = True
    is_caught_up: bool = True
    is_damaged: bool = False
    is_learner: bool = False


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A raft group.

    Attributes:
        is_settled: its configuration is the desired one, as its leader said last.
        is_led: it has a leader.
        leaving_node_ids: nodes that still have a replica which is to go.
        leader_node_id: node that leads it; empty: not known.
        preferred_node_id: node that should lead it; empty: any.
    """

    raft_group: int
    replicas: tuple[ReplicaFacts, ...]
    is_settled: bool = True
    is_led: bool = True
    leaving_node_ids: frozenset[str] = frozenset()
    leader_node_id: str = ""
    preferred_node_id: str = ""

    @property
    def node_ids(self) -> list[str]:
        """Nodes of the desired replicas."""
        return [replica.node_id for replica in self.replicas]

    @property
    def may_change(self) -> bool:
        """Whether its replicas may begin to change: nothing is under way, and a leader does it."""
        return self.is_settled and self.is_led
