"""Health of a cluster: the ONE place where states of raft groups and nodes are decided.

The leading nameserver and every broker pass in their facts (rows, claimed leaders, reports of
storage nodes, unreachable nodes) and get the same picture. `strata cluster health`, `/ready`, gRPC
health, log lines and metrics show it.

- LEADERLESS: the raft group has had no leader for a moment. It serves no sends or receives.
- DEGRADED: it has a leader, but a replica is missing or a disk that it needs is too full.
- SERVING: it has a leader and all replicas.

A change of leaders takes a moment and is not an outage: it is shown only if it lasts. Recovery is
shown at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple

from strata.meta.v1 import meta_pb2
from strata_metadata.enum_names import name_of
from strata_runtime.clock import Clock
from strata_runtime.health import Problem, Severity

SERVING = "SERVING"
DEGRADED = "DEGRADED"
LEADERLESS = "LEADERLESS"

DISK_MARKS = ("NORMAL", "REFUSE_APPENDS", "REFUSE_ALL_BUT_ACKS", "STOP")
"""Names of the disk marks 0 to 3 (rule 11)."""

STATUSES = ("healthy", "degraded", "down")
"""Status of a cluster, by the severity of its worst problem."""

_NAMES_IN_REASON = 5


@dataclass(frozen=True, slots=True)
class HealthOptions:
    """When something counts.

    Attributes:
        leaderless_after_s: an election that takes longer is an outage.
        suspect_after_s: a node that is SUSPECT for longer is a problem.
        stale_after_s: metadata that no nameserver confirmed for so long are old.
    """

    leaderless_after_s: float = 1.5
    suspect_after_s: float = 3.0
    stale_after_s: float = 2.5


class Facts(NamedTuple):
    """Facts that the observer knows.

    Attributes:
        nodes: rows.
        raft_groups: rows.
        leaders: raft group -> node that says that it leads it.
        told: storage node -> what it said last of itself.
        unreached: storage nodes that cannot be reached from here.
        metadata_age_s: since a nameserver with a majority confirmed the rows.
        metadata_trouble: why nameservers that answer are not followed; empty: they are.
        full_nameservers: nameservers whose disk is full.
    """

    nodes: Sequence[meta_pb2.Node]
    raft_groups: Sequence[meta_pb2.RaftGroup]
    leaders: Mapping[int, str]
    told: Mapping[str, meta_pb2.StorageHealth]
    unreached: AbstractSet[str] = frozenset()
    metadata_age_s: float = 0.0
    metadata_trouble: str = ""
    full_nameservers: AbstractSet[str] = frozenset()


class GroupCondition(NamedTuple):
    """Health of a raft group.

    Attributes:
        state: SERVING, DEGRADED or LEADERLESS.
        serves: whether messages can be received and acked.
        severity: how bad its state is.
        live: replicas that are heard and hold what is committed.
        wanted: replicas that there should be.
        reason: why it is not SERVING.
        leader: node that leads it; empty: none.
    """

    raft_group: int
    state: str
    serves: bool
    severity: Severity
    live: int
    wanted: int
    reason: str
    leader: str


class NodeCondition(NamedTuple):
    """Health of a node; `state` as in `NodeState`, lower case, or "unknown"."""

    node_id: str
    kind: str
    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class ClusterPicture:
    """Health of a cluster at one moment.

    Attributes:
        groups: by number.
        nodes: by node id.
        problems: the worst first.
        metadata_age_s: see `Facts`.
        is_stale: the metadata is old: nodes and raft groups may have changed since.
    """

    groups: Mapping[int, GroupCondition] = field(default_factory=dict)
    nodes: Mapping[str, NodeCondition] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    metadata_age_s: float = 0.0
    is_stale: bool = False

    @property
    def status(self) -> str:
        """Return "healthy", "degraded" or "down"."""
        return STATUSES[max((each.severity for each in self.problems), default=Severity.NOTE)]

    @property
    def serves(self) -> bool:
        """Whether some raft group can be used, as far as there are any."""
        return not self.groups or any(group.serves for group in self.groups.values())

    def groups_by_state(self) -> dict[str, int]:
        """Return how many raft groups are in each state; every state is there."""
        counts = Counter(group.state for group in self.groups.values())
        return {state: counts[state] for state in (SERVING, DEGRADED, LEADERLESS)}

    def nodes_by_state(self) -> dict[str, int]:
        """Return how many nodes are in each state."""
        return dict(Counter(node.state for node in self.nodes.values()))


class _Told(NamedTuple):
    """The reports of storage nodes, by their subject.

    `lacking`: by node and raft group. `stopped`: why a replica takes no part, by raft group.
    """

    lacking: Mapping[str, Mapping[int, meta_pb2.LackingGroup]]
    stopped: Mapping[int, str]


class ClusterJudge:
    """Judges a cluster again and again; see the module docstring.

    Args:
        clock: monotonic time.
        options: when something counts.
    """

    def __init__(self, clock: Clock, options: HealthOptions | None = None) -> None:
        self._clock = clock
        self._options = options or HealthOptions()
        # Since when (monotonic) a raft group has no leader, a node is SUSPECT.
        self._leaderless_s: dict[int, float] = {}
        self._suspect_s: dict[str, float] = {}
        self._judged_at_s = 0.0

    @property
    def is_waiting(self) -> bool:
        """Whether the same facts may give another picture a moment later."""
        options, at_s = self._options, self._judged_at_s
        return any(
            at_s - since_s < options.leaderless_after_s for since_s in self._leaderless_s.values()
        ) or any(at_s - since_s < options.suspect_after_s for since_s in self._suspect_s.values())

    def is_stale(self, metadata_age_s: float) -> bool:
        """Whether metadata of this age is old."""
        return metadata_age_s > self._options.stale_after_s

    def judge(self, facts: Facts) -> ClusterPicture:
        """Return the picture that the facts give."""
        now_s = self._clock.monotonic_s()
        is_stale = self.is_stale(facts.metadata_age_s)
        nodes = {row.node_id: _node(row, facts, is_stale=is_stale) for row in facts.nodes}
        self._suspect_s = {
            node_id: self._suspect_s.get(node_id, now_s)
            for node_id, node in nodes.items()
            if node.state == "suspect"
        }
        self._leaderless_s = {
            row.raft_group: self._leaderless_s.get(row.raft_group, now_s)
            for row in facts.raft_groups
            if not facts.leaders.get(row.raft_group)
        }
        self._judged_at_s = now_s
        told = _told(facts.told)
        groups = {
            row.raft_group: self._group(row, facts, nodes, told, now_s) for row in facts.raft_groups
        }
        problems = [
            *_metadata_problems(facts, is_stale=is_stale),
            *(
                Problem("raft_group", str(each.raft_group), each.state, each.severity, each.reason)
                for each in groups.values()
                if each.state != SERVING
            ),
            *self._node_problems(facts, nodes, now_s),
            *_storage_problems(facts, nodes),
            *_nameserver_problems(facts, nodes),
        ]
        problems.sort(key=lambda each: -each.severity)
        return ClusterPicture(groups, nodes, tuple(problems), facts.metadata_age_s, is_stale)

    def _group(
        self,
        row: meta_pb2.RaftGroup,
        facts: Facts,
        nodes: Mapping[str, NodeCondition],
        told: _Told,
        now_s: float,
    ) -> GroupCondition:
        number, leader = row.raft_group, facts.leaders.get(row.raft_group, "")
        lacking = told.lacking.get(leader, {}).get(number)
        missing = [
            replica.node_id for replica in row.replicas if _is_missing(row, replica, lacking, nodes)
        ]
        wanted = len(row.replicas)
        live = wanted - len(missing)
        if not leader:
            since_s = self._leaderless_s[number]
            if now_s - since_s >= self._options.leaderless_after_s:
                reason = f"no leader; {live} of {wanted} replicas can be reached"
                reason += _names("; missing: ", missing)
                reason += f"; {told.stopped[number]}" if number in told.stopped else ""
                return GroupCondition(
                    number, LEADERLESS, False, Severity.DOWN, live, wanted, reason, ""
                )
        reasons = []
        if missing:
            reasons.append(f"{live} of {wanted} replicas" + _names("; missing: ", missing))
        severity = Severity.DEGRADED
        mark = lacking.disk_mark if lacking is not None else 0
        if mark:
            severity = Severity.DOWN
            reasons.append(f"disk {DISK_MARKS[min(mark, 3)]}: sends are refused")
        return GroupCondition(
            number,
            DEGRADED if reasons else SERVING,
            mark < DISK_MARKS.index("REFUSE_ALL_BUT_ACKS"),
            severity if reasons else Severity.NOTE,
            live,
            wanted,
            "; ".join(reasons),
            leader,
        )

    def _node_problems(
        self, facts: Facts, nodes: Mapping[str, NodeCondition], now_s: float
    ) -> list[Problem]:
        problems = []
        for row in facts.nodes:
            node = nodes[row.node_id]
            detail = f"{node.kind}, {node.reason}" if node.reason else node.kind
            if node.state == "suspect":
                if now_s - self._suspect_s[row.node_id] >= self._options.suspect_after_s:
                    problems.append(_of_node(node, "SUSPECT", Severity.DEGRADED, detail))
            elif node.state in ("down", "unreachable"):
                problems.append(_of_node(node, node.state.upper(), Severity.DEGRADED, detail))
            elif row.draining:
                problems.append(_of_node(node, "DRAINING", Severity.NOTE, detail))
        return problems


def _told(told: Mapping[str, meta_pb2.StorageHealth]) -> _Told:
    lacking = {
        node_id: {each.raft_group: each for each in health.lacking}
        for node_id, health in told.items()
    }
    stopped = {
        each.raft_group: f"{node_id}: {each.reason}"
        for node_id, health in told.items()
        for each in health.stopped
    }
    return _Told(lacking, stopped)


def _of_node(node: NodeCondition, state: str, severity: Severity, detail: str) -> Problem:
    return Problem("node", node.node_id, state, severity, detail)


def _node(row: meta_pb2.Node, facts: Facts, *, is_stale: bool) -> NodeCondition:
    kind = name_of(meta_pb2.NodeKind, row.kind).removeprefix("NODE_KIND_").lower()
    state = name_of(meta_pb2.NodeState, row.state).removeprefix("NODE_STATE_").lower()
    reason = ""
    if row.kind == meta_pb2.NODE_KIND_STORAGE:
        if row.node_id in facts.unreached and state != "down":
            # The nameservers may not have noticed yet, or cannot.
            state = "down" if is_stale else "unreachable"
            reason = "no answer from " + _where(row)
        elif row.node_id in facts.told and is_stale:
            state = "up"
    elif is_stale:
        state, reason = "unknown", f"no report from a nameserver for {facts.metadata_age_s:.0f} s"
    if state in ("down", "suspect") and not reason:
        reason = "no sign of life from " + _where(row)
    return NodeCondition(row.node_id, kind, state, reason)


def _where(row: meta_pb2.Node) -> str:
    return row.endpoints[0] if row.endpoints else row.advertised_endpoint or "it"


def _is_missing(
    row: meta_pb2.RaftGroup,
    replica: meta_pb2.Replica,
    lacking: meta_pb2.LackingGroup | None,
    nodes: Mapping[str, NodeCondition],
) -> bool:
    node = nodes.get(replica.node_id)
    if node is None or node.state in ("down", "unreachable"):
        return True
    if lacking is not None and replica.replica_id in lacking.missing_replica_ids:
        return True
    membership = row.membership
    return bool(membership.configuration_index) and (
        replica.replica_id not in membership.voters
        and replica.replica_id not in membership.learners
    )


def _names(prefix: str, names: Sequence[str]) -> str:
    if not names:
        return ""
    more = len(names) - _NAMES_IN_REASON
    shown = ", ".join(name or "?" for name in names[:_NAMES_IN_REASON])
    return prefix + shown + (f" and {more} more" if more > 0 else "")


def _metadata_problems(facts: Facts, *, is_stale: bool) -> list[Problem]:
    if not is_stale:
        return []
    why = facts.metadata_trouble or "no nameserver with a majority answers"
    detail = f"{facts.metadata_age_s:.0f} s old: {why}"
    return [Problem("metadata", "", "STALE", Severity.DEGRADED, detail)]


def _storage_problems(facts: Facts, nodes: Mapping[str, NodeCondition]) -> list[Problem]:
    """Return what storage nodes that are there say of their disks and of the tier."""
    problems = []
    for node_id, told in facts.told.items():
        node = nodes.get(node_id)
        if node is None or node.state in ("down", "unreachable"):
            continue
        if told.disk_mark:
            mark = DISK_MARKS[min(told.disk_mark, 3)]
            detail = "free some space, or shorten the retention of topics"
            problems.append(Problem("disk", node_id, mark, Severity.DEGRADED, detail))
        if told.tier_state:
            detail = told.tier_detail
            problems.append(Problem("tier", node_id, told.tier_state, Severity.DEGRADED, detail))
    return problems


def _nameserver_problems(facts: Facts, nodes: Mapping[str, NodeCondition]) -> list[Problem]:
    """Return which nameservers, of those that are there, have no room left."""
    detail = (
        "nameserver, it takes no changes of the metadata: free some space "
        "(nameserver.refuse_changes_free_bytes)"
    )
    return [
        Problem("disk", node_id, "STOP", Severity.DEGRADED, detail)
        for node_id in sorted(facts.full_nameservers)
        if node_id in nodes and nodes[node_id].state in ("up", "suspect")
    ]
