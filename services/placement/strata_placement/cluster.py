"""The cluster as placement sees it: nodes, raft groups, and the loads of queues as columns.

Loads are looked at in `points`: times ahead (or only the present), one column each. The leader of a
raft group bears the whole load of its queues, each other replica the share `follower_share` of what
is written. Reading is the leader's, unless brokers spread it: much of it, and all of it where there
are read replicas, is divided by all replicas. A node's utilisation is its load / its capacity.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from strata_placement.plan import (
    Action,
    AddReadReplica,
    Balance,
    MoveQueue,
    MoveReplica,
    RemoveReadReplica,
    ScaleBrokers,
    TransferLeader,
)

FOLLOWER_SHARE = 0.35


@dataclass(frozen=True, slots=True)
class NodeModel:
    """A storage node.

    Attributes:
        rack: failure domain; empty: its machine is one.
        machine: what it shares with other nodes; empty: it is a machine of its own.
        capacity_bytes_per_s: load that it can bear.
        disk_free_bytes, disk_total_bytes: of its log; total 0: not known.
        can_take: it is up, not draining and not slow.
        must_go: what is on it has to leave (it drains).
    """

    node_id: str
    capacity_bytes_per_s: float
    rack: str = ""
    disk_free_bytes: int = 0
    disk_total_bytes: int = 0
    can_take: bool = True
    must_go: bool = False
    machine: str = ""

    @property
    def place(self) -> str:
        """Name of the machine that it is on, for comparison with other nodes."""
        return f"machine {self.machine}" if self.machine else f"node {self.node_id}"


@dataclass(frozen=True, slots=True)
class GroupModel:
    """A raft group.

    Attributes:
        leader: node that leads it; it has one of the voters.
        voters: nodes with a voting replica.
        readers: nodes with a replica that only reads.
        stored_bytes: what a new replica has to copy.
        read_share: share of its load that is reading; 0: none was seen, which tells nothing (loads
            by the growth of queues know no reads, and consumers may stand still).
        is_settled: no change of its replicas is under way.
        spreads_reads: brokers read from all its replicas; with read replicas they always do.
    """

    raft_group: int
    leader: str
    voters: tuple[str, ...]
    readers: tuple[str, ...] = ()
    stored_bytes: int = 0
    read_share: float = 0.0
    is_settled: bool = True
    spreads_reads: bool = False

    @property
    def read_servers(self) -> int:
        """How many replicas divide the reading."""
        is_spread = self.spreads_reads or bool(self.readers)
        return len(self.voters) + len(self.readers) if is_spread else 1

    def shares(self, follower_share: float) -> Iterator[tuple[str, float]]:
        """Give each node with the share of the raft group's load that it bears."""
        servers = self.read_servers
        written, reads = 1.0 - self.read_share, self.read_share / servers
        followed = follower_share * written + (reads if servers > 1 else 0.0)
        for node in self.voters:
            yield node, written + reads if node == self.leader else followed
        for node in self.readers:
            yield node, followed


@dataclass(frozen=True, slots=True)
class BrokerModel:
    """The broker tier.

    Attributes:
        count: how many are up.
        capacity_bytes_per_s: of each.
        peak_bytes_per_s: load of all together at the worst time ahead.
    """

    count: int
    capacity_bytes_per_s: float
    peak_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class ClusterModel:
    """See the module docstring.

    Attributes:
        queues: names; the position is the queue's number in the columns.
        raft_group_of: per queue, the raft group that takes its messages.
        points: per time that is looked at, the load of every queue in bytes per second.
        held: queues that must not move now: they moved lately, or an earlier epoch drains.
    """

    nodes: tuple[NodeModel, ...]
    groups: tuple[GroupModel, ...]
    queues: Sequence[str]
    raft_group_of: Sequence[int]
    points: Sequence[Sequence[float]]
    held: frozenset[str] = frozenset()
    brokers: BrokerModel | None = None
    follower_share: float = FOLLOWER_SHARE
    number_of_group: Mapping[int, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        numbers = {group.raft_group: at for at, group in enumerate(self.groups)}
        object.__setattr__(self, "number_of_group", numbers)

    def group_loads(self) -> list[list[float]]:
        """Return the load of every raft group at every point, `[group][point]`."""
        loads = [[0.0] * len(self.points) for _ in self.groups]
        numbers = self.number_of_group
        for at, point in enumerate(self.points):
            for raft_group, load in zip(self.raft_group_of, point, strict=True):
                loads[numbers[raft_group]][at] += load
        return loads

    def utilisation(self) -> dict[str, list[float]]:
        """Return what share of its capacity each node uses at every point."""
        used = {node.node_id: [0.0] * len(self.points) for node in self.nodes}
        capacity = {node.node_id: node.capacity_bytes_per_s for node in self.nodes}
        for group, loads in zip(self.groups, self.group_loads(), strict=True):
            for node, share in group.shares(self.follower_share):
                if node in used:
                    line, scale = used[node], share / capacity[node]
                    for at, load in enumerate(loads):
                        line[at] += scale * load
        return used


def balance_of(utilisation: Mapping[str, Sequence[float]]) -> Balance:
    """Return the balance of nodes from their utilisation at every point."""
    worst, peak = 1.0, 0.0
    for point in zip(*utilisation.values(), strict=True):
        mean, most = sum(point) / len(point), max(point)
        peak = max(peak, most)
        if mean > 0:
            worst = max(worst, most / mean)
    return Balance(worst, peak)


def applied(model: ClusterModel, actions: Sequence[Action]) -> ClusterModel:
    """Return the cluster as it stands after the actions, with the same loads.

    It is written apart from the planner's own book-keeping, so that the one can be held against
    the other.
    """
    groups = {group.raft_group: group for group in model.groups}
    raft_group_of = list(model.raft_group_of)
    numbers = {name: at for at, name in enumerate(model.queues)}
    brokers = model.brokers
    for action in actions:
        match action:
            case MoveQueue(queue, _, to_raft_group):
                raft_group_of[numbers[queue]] = to_raft_group
            case ScaleBrokers(_, to_count):
                if brokers is not None:
                    brokers = BrokerModel(
                        to_count, brokers.capacity_bytes_per_s, brokers.peak_bytes_per_s
                    )
            case _:
                groups[action.raft_group] = changed_group(groups[action.raft_group], action)
    return ClusterModel(
        model.nodes,
        tuple(groups[group.raft_group] for group in model.groups),
        model.queues,
        raft_group_of,
        model.points,
        model.held,
        brokers,
        model.follower_share,
    )


def changed_group(
    group: GroupModel, action: TransferLeader | MoveReplica | AddReadReplica | RemoveReadReplica
) -> GroupModel:
    """Return a raft group as it is after an action on it."""
    leader, voters, readers = group.leader, group.voters, group.readers
    match action:
        case TransferLeader(_, _, to_node):
            leader = to_node
        case MoveReplica(_, from_node, to_node):
            voters = tuple(to_node if node == from_node else node for node in voters)
            leader = to_node if leader == from_node else leader
        case AddReadReplica(_, to_node):
            readers = (*readers, to_node)
        case RemoveReadReplica(_, from_node):
            readers = tuple(node for node in readers if node != from_node)
    return replace(group, leader=leader, voters=voters, readers=readers)
