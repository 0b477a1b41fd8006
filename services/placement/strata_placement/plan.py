"""Plans: which moves are proposed, why, their cost and their expected effect.

A plan is a document: it names its inputs and its author, and each step can be read alone. `to_json`
and `from_json` are inverse to each other. Making a plan changes nothing; it takes effect only when
it is applied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from strata_placement.series import PlacementError

FORMAT = 1


@dataclass(frozen=True, slots=True)
class TransferLeader:
    """Another node leads a raft group."""

    raft_group: int
    from_node: str
    to_node: str


@dataclass(frozen=True, slots=True)
class MoveReplica:
    """A replica of a raft group goes to another node; its data is copied."""

    raft_group: int
    from_node: str
    to_node: str


@dataclass(frozen=True, slots=True)
class MoveQueue:
    """New messages of a queue go to another raft group; no byte is copied.

    Attributes:
        queue: `namespace/topic/queue`.
    """

    queue: str
    from_raft_group: int
    to_raft_group: int


@dataclass(frozen=True, slots=True)
class AddReadReplica:
    """A raft group gets a replica that only serves reads."""

    raft_group: int
    to_node: str


@dataclass(frozen=True, slots=True)
class RemoveReadReplica:
    """A replica that only serves reads goes."""

    raft_group: int
    from_node: str


@dataclass(frozen=True, slots=True)
class ScaleBrokers:
    """Another number of brokers should run; their operator carries it out."""

    from_count: int
    to_count: int


Action = (
    TransferLeader | MoveReplica | MoveQueue | AddReadReplica | RemoveReadReplica | ScaleBrokers
)

_ACTIONS: Mapping[str, type[Action]] = {
    kind.__name__: kind
    for kind in (
        TransferLeader,
        MoveReplica,
        MoveQueue,
        AddReadReplica,
        RemoveReadReplica,
        ScaleBrokers,
    )
}


@dataclass(frozen=True, slots=True)
class Balance:
    """How a cluster is loaded over the time a plan looks at.

    Attributes:
        max_over_mean: load of the busiest node / mean over nodes, at the worst time; 1.0 is even.
        peak: largest share of its capacity that a node uses.
    """

    max_over_mean: float
    peak: float


@dataclass(frozen=True, slots=True)
class Step:
    """One change.

    Attributes:
        reason: for people.
        cost_bytes: that are copied between nodes.
        before, after: balance expected without and with this step, after all earlier ones.
    """

    action: Action
    reason: str
    cost_bytes: int
    before: Balance
    after: Balance


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps in the order in which they should be taken.

    Attributes:
        made_at_ms: wall time.
        planner: who made it.
        forecast: what the expected loads come from, for instance `learned v3`.
        horizon_ms: how far it looks ahead; 0: only at the present.
        before, after: balance expected without the plan and with all of it.
        notes: what a person should know, such as what could not be done.
    """

    made_at_ms: int
    planner: str
    forecast: str
    horizon_ms: int
    before: Balance
    after: Balance
    steps: tuple[Step, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def cost_bytes(self) -> int:
        """Return the bytes that all steps copy."""
        return sum(step.cost_bytes for step in self.steps)

    def to_json(self) -> dict[str, Any]:
        """Return the document."""
        document = {field.name: getattr(self, field.name) for field in fields(self)}
        document |= {
            "format": FORMAT,
            "before": asdict(self.before),
            "after": asdict(self.after),
            "cost_bytes": self.cost_bytes,
            "steps": [step_to_json(step) for step in self.steps],
            "notes": list(self.notes),
        }
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Plan:
        """Return what a document holds.

        Raises:
            PlacementError: it is no plan, or of another format.
        """
        if document.get("format") != FORMAT:
            raise PlacementError(f"plan format {document.get('format')}, known is {FORMAT}")
        try:
            return cls(
                int(document["made_at_ms"]),
                str(document["planner"]),
                str(document["forecast"]),
                int(document["horizon_ms"]),
                Balance(**document["before"]),
                Balance(**document["after"]),
                tuple(map(_step_of, document["steps"])),
                tuple(map(str, document["notes"])),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise PlacementError(f"not a plan: {error}") from None


def step_to_json(step: Step) -> dict[str, Any]:
    """Return a step as part of a document."""
    return {
        "action": type(step.action).__name__,
        **asdict(step.action),
        "reason": step.reason,
        "cost_bytes": step.cost_bytes,
        "before": asdict(step.before),
        "after": asdict(step.after),
    }


def describe(action: Action) -> str:
    """Return an action in a few words."""
    match action:
        case TransferLeader(raft_group, from_node, to_node):
            return f"leader of raft group {raft_group}: {from_node} -> {to_node}"
        case MoveReplica(raft_group, from_node, to_node):
            return f"replica of raft group {raft_group}: {from_node} -> {to_node}"
        case MoveQueue(queue, from_raft_group, to_raft_group):
            return f"queue {queue}: raft group {from_raft_group} -> {to_raft_group}"
        case AddReadReplica(raft_group, to_node):
            return f"read replica of raft group {raft_group}: added on {to_node}"
        case RemoveReadReplica(raft_group, from_node):
            return f"read replica of raft group {raft_group}: removed from {from_node}"
        case ScaleBrokers(from_count, to_count):
            return f"brokers: {from_count} -> {to_count}"


def _step_of(document: Mapping[str, Any]) -> Step:
    kind = _ACTIONS[document["action"]]
    action = kind(**{field.name: document[field.name] for field in fields(kind)})
    return Step(
        action,
        str(document["reason"]),
        int(document["cost_bytes"]),
        Balance(**document["before"]),
        Balance(**document["after"]),
    )
