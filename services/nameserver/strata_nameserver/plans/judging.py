"""Whether a step made loads worse, and not something else that happened meanwhile.

A step is to blame when a node to which it gave load is loaded more, against the mean, than the
busiest node was when the step began, by more than `plan_worse_by`. The mean is that of as many
nodes as there were then: a node that joins lowers nobody's load. Nothing is said about a step when
a raft group came to that node otherwise, when a node was DOWN meanwhile (its load is measured anew,
and others bear what it bore), or when another nameserver led when it began: what was measured then
is soft state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from strata.meta.v1 import meta_pb2
from strata_nameserver.base.config import NameserverConfig
from strata_nameserver.plans import plans, steps
from strata_nameserver.policies.loads import imbalance
from strata_nameserver.state.draft import Draft


@dataclass(frozen=True, slots=True)
class Sight:
    """The cluster as the metadata leader sees it at one moment.

    Attributes:
        loads: bytes per second of every storage node, measured.
        leaders: node that leads each raft group; empty: not known.
        states: of storage nodes.
        disk_used_bytes: on the disk of every storage node's log, as far as known.
    """

    loads: Mapping[str, float]
    leaders: Mapping[int, str]
    states: Mapping[str, meta_pb2.NodeState.ValueType]
    disk_used_bytes: Mapping[str, int] = field(default_factory=dict)

    @property
    def trouble(self) -> str:
        """Why no step may begin or be undone; empty: nothing is wrong."""
        for node_id, state in self.states.items():
            if state != meta_pb2.NODE_STATE_UP:
                return f"storage node {node_id} is not up"
        for number, leader in self.leaders.items():
            if not leader:
                return f"raft group {number} has no leader"
        return ""


@dataclass(frozen=True, slots=True)
class Beginning:
    """The cluster as it was when a step began.

    Attributes:
        sight: before the step had any effect.
        went_down: storage nodes that were DOWN at any look since.
    """

    sight: Sight
    went_down: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class StepVerdict:
    """The outcome of a step, as far as it can be told.

    Attributes:
        before, after: load of the busiest node / mean, as measured; 0.0: no load to speak of.
        is_worse: the step is to blame for a busier node.
        unknown: why nothing can be said; empty: something can.
        may_have_felled: a node that the step gave load to was DOWN since; empty: none.
    """

    before: float
    after: float
    is_worse: bool = False
    unknown: str = ""
    may_have_felled: str = ""


class StepWatch:
    """Remembers what was seen when the active step began; forgotten with the leadership."""

    def __init__(self) -> None:
        self._key = (0, 0)
        self._beginning: Beginning | None = None

    def reset(self) -> None:
        """Forget everything."""
        self._key, self._beginning = (0, 0), None

    def beginning_of(self, plan: meta_pb2.PlacementPlan) -> Beginning | None:
        """Return what was seen when a plan's active step began; None: not known."""
        number, _ = plans.active_step(plan)
        return self._beginning if self._key == (plan.plan_id, number) else None

    def looked(
        self, before: meta_pb2.PlacementPlan, after: meta_pb2.PlacementPlan, sight: Sight
    ) -> None:
        """Take in a look at a plan.

        Args:
            before: the plan when it was looked at.
            after: as it stands now.
            sight: by which it was taken further.
        """
        number, step = plans.active_step(after)
        key = (after.plan_id, number)
        if step is None or step.state == meta_pb2.STEP_STATE_PENDING:
            self.reset()
            return
        is_running = step.state == meta_pb2.STEP_STATE_RUNNING
        has_begun = is_running and before.steps[number].state == meta_pb2.STEP_STATE_PENDING
        # A copy takes long, and has its effect at its end: what counts is how it was just before.
        if has_begun or (is_running and steps.copies(step)):
            self._key, self._beginning = key, Beginning(sight)
        elif self._key == key and self._beginning is not None:
            down = {
                node_id
                for node_id, state in sight.states.items()
                if state == meta_pb2.NODE_STATE_DOWN and node_id in self._beginning.sight.states
            }
            went_down = self._beginning.went_down | down
            self._beginning = replace(self._beginning, went_down=went_down)


def judge(
    draft: Draft,
    step: meta_pb2.PlacementStep,
    beginning: Beginning | None,
    now: Sight,
    config: NameserverConfig,
) -> StepVerdict:
    """Return what can be said of a step that is done."""
    floor = config.busy_node_floor_bytes_per_s
    if beginning is None:
        after = imbalance(now.loads, floor)
        return StepVerdict(
            step.measured_before, after, unknown="another nameserver led when it began"
        )
    then = beginning.sight
    before = imbalance(then.loads, floor)
    scale = len(then.loads) / max(1, len(now.loads))
    after = imbalance(now.loads, floor) * scale
    got_more = steps.receivers(draft, step, now.leaders)
    if beginning.went_down:
        # Another node may lead by now.
        given = got_more | steps.receivers(draft, step, then.leaders)
        felled = min(beginning.went_down & given, default="")
        unknown = f"storage node {felled or min(beginning.went_down)} was down meanwhile"
        return StepVerdict(before, after, unknown=unknown, may_have_felled=felled)
    busiest = max(got_more, key=lambda node: (now.loads.get(node, 0.0), node), default="")
    most = max(now.loads.values(), default=0.0)
    share = after * now.loads.get(busiest, 0.0) / most if most else 0.0
    if not before or not after or share <= before * (1 + config.plan_worse_by):
        return StepVerdict(before, after)
    own = steps.moved_leaderships(step)
    for number, node_id in now.leaders.items():
        if node_id == busiest and number not in own and then.leaders.get(number) != busiest:
            unknown = f"raft group {number} came to {busiest} meanwhile"
            return StepVerdict(before, after, unknown=unknown)
    return StepVerdict(before, after, is_worse=True)
