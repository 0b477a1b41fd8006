"""Carries a plan out: one step at a time, each measured before the next begins.

    PENDING --begin--> RUNNING --done--> SETTLING --not worse--> DONE, the next step
                          |                  | worse
                       too long          REVERTING --undone--> REVERTED, the plan is stopped
                          v                  | too long
                        FAILED <-------------+        the plan is stopped

Everything is written in the plan's row, in the same change as what it does, so a new metadata
leader goes on where the old one stopped. `advance` decides and never waits. Steps go through the
same wishes that operators have (moves of queues, preferred leaders, changes of replicas), with the
same refusals. Worse means: the load of the busiest node / mean, as measured, is higher than before
by more than `worse_by`, at every look from `plan_settle_ms` to twice that after the step. No step
begins while a storage node is not UP or a raft group has no leader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from strata.meta.v1 import meta_pb2
from strata_metadata.errors import MetaRefused
from strata_nameserver.base.config import NameserverConfig
from strata_nameserver.drafts import raft_groups
from strata_nameserver.drafts.queue_moves import move_queue, stored_override
from strata_nameserver.drafts.topics import stored_topic
from strata_nameserver.plans import plans
from strata_nameserver.state.draft import Draft

_ACTIVE = (
    meta_pb2.STEP_STATE_PENDING,
    meta_pb2.STEP_STATE_RUNNING,
    meta_pb2.STEP_STATE_SETTLING,
    meta_pb2.STEP_STATE_REVERTING,
)


@dataclass(frozen=True, slots=True)
class ExecutorFacts:
    """Facts by which a step is judged.

    Attributes:
        imbalance: load of the busiest node / mean, measured; 0.0: no load to speak of.
        trouble: why no step may begin; empty: nothing is wrong.
        leaders: node that leads each raft group, as far as known.
    """

    imbalance: float
    trouble: str
    leaders: Mapping[int, str]


def advance(draft: Draft, plan_id: int, facts: ExecutorFacts, config: NameserverConfig) -> str:
    """Take a running plan one state further if it is time for that.

    Returns:
        A line for the log; empty: nothing happened.

    Raises:
        MetaRefused: what the step wants is refused; see `note_refusal`.
    """
    plan = plans.stored_plan(draft, plan_id)
    if plan.state != meta_pb2.PLAN_STATE_RUNNING:
        return ""
    number, step = _active_step(plan)
    if step is None:
        plan.state, plan.since_ms = meta_pb2.PLAN_STATE_DONE, draft.now_ms
        draft.put(plan)
        return "done"
    happened = _HANDLERS[step.state](draft, plan, step, facts, config)
    if not happened:
        return ""
    draft.put(plan)
    return f"step {number + 1}: {happened}"


def note_refusal(draft: Draft, plan_id: int, refused: MetaRefused, config: NameserverConfig) -> str:
    """Write down that the active step was refused: one that was to begin is left out.

    A step that conflicts with a change under way, and one that is undone, is tried again for
    `plan_step_timeout_ms`.
    """
    plan = plans.stored_plan(draft, plan_id)
    number, step = _active_step(plan)
    if step is None or plan.state != meta_pb2.PLAN_STATE_RUNNING:
        return ""
    if step.state == meta_pb2.STEP_STATE_PENDING:
        waits = _waited_ms(draft, plan, step) < config.plan_step_timeout_ms
        if refused.outcome == meta_pb2.META_OUTCOME_CONFLICT and waits:
            return ""
        _enter(draft, step, meta_pb2.STEP_STATE_SKIPPED, refused.reason)
    elif _age_ms(draft, step) > 2 * config.plan_settle_ms + config.plan_step_timeout_ms:
        _enter(draft, step, meta_pb2.STEP_STATE_FAILED, f"not undone: {refused.reason}")
        plans.end(draft, plan, f"step {number + 1} made it worse and could not be undone")
    else:
        return ""
    draft.put(plan)
    return f"step {number + 1}: {step.note}"


Handler = Callable[
    [
        Draft,
        meta_pb2.PlacementPlan,
        meta_pb2.PlacementStep,
        ExecutorFacts,
        NameserverConfig,
    ],
    str,
]
"""Takes the active step further; returns what happened, empty: nothing."""


def _pending(
    draft: Draft,
    plan: meta_pb2.PlacementPlan,
    step: meta_pb2.PlacementStep,
    facts: ExecutorFacts,
    config: NameserverConfig,
) -> str:
    if step.WhichOneof("action") == "scale_brokers":
        note = "brokers are started and stopped by whoever runs them"
        return _enter(draft, step, meta_pb2.STEP_STATE_SKIPPED, note)
    if facts.trouble:
        if _waited_ms(draft, plan, step) < config.plan_step_timeout_ms:
            return ""
        plans.end(draft, plan, f"no step can begin: {facts.trouble}")
        return plan.reason
    step.measured_before = facts.imbalance
    _begin(draft, step, config)
    return _enter(draft, step, meta_pb2.STEP_STATE_RUNNING, "")


def _running(
    draft: Draft,
    plan: meta_pb2.PlacementPlan,
    step: meta_pb2.PlacementStep,
    facts: ExecutorFacts,
    config: NameserverConfig,
) -> str:
    if _is_done(draft, step, facts):
        return _enter(draft, step, meta_pb2.STEP_STATE_SETTLING, "")
    if _age_ms(draft, step) < config.plan_step_timeout_ms:
        return ""
    plans.end(draft, plan, "a step took too long")
    note = f"not done after {config.plan_step_timeout_ms // 1_000} s"
    return _enter(draft, step, meta_pb2.STEP_STATE_FAILED, note)


def _settling(
    draft: Draft,
    plan: meta_pb2.PlacementPlan,
    step: meta_pb2.PlacementStep,
    facts: ExecutorFacts,
    config: NameserverConfig,
) -> str:
    if _age_ms(draft, step) < config.plan_settle_ms:
        return ""
    step.measured_after = facts.imbalance
    before, after = step.measured_before, step.measured_after
    measured = f"busiest node {before:.2f} -> {after:.2f} times the mean"
    if before and after > before * (1 + config.plan_worse_by):
        if _age_ms(draft, step) < 2 * config.plan_settle_ms:
            # One look may be a moment's noise: it must be worse at each of them.
            return ""
        _begin(draft, step, config, undo=True, leaders=facts.leaders)
        return _enter(draft, step, meta_pb2.STEP_STATE_REVERTING, f"worse: {measured}")
    note = measured if before and after else "there was no load to measure"
    return _enter(draft, step, meta_pb2.STEP_STATE_DONE, note)


def _reverting(
    draft: Draft,
    plan: meta_pb2.PlacementPlan,
    step: meta_pb2.PlacementStep,
    facts: ExecutorFacts,
    config: NameserverConfig,
) -> str:
    if _is_done(draft, step, facts, undo=True):
        plans.end(draft, plan, f"a step made it worse and was undone: {step.note}")
        return _enter(draft, step, meta_pb2.STEP_STATE_REVERTED, step.note)
    if _age_ms(draft, step) < config.plan_step_timeout_ms:
        return ""
    plans.end(draft, plan, "a step made it worse and could not be undone in time")
    return _enter(draft, step, meta_pb2.STEP_STATE_FAILED, f"not undone; {step.note}")


_HANDLERS: Mapping[int, Handler] = {
    meta_pb2.STEP_STATE_PENDING: _pending,
    meta_pb2.STEP_STATE_RUNNING: _running,
    meta_pb2.STEP_STATE_SETTLING: _settling,
    meta_pb2.STEP_STATE_REVERTING: _reverting,
}


def _active_step(
    plan: meta_pb2.PlacementPlan,
) -> tuple[int, meta_pb2.PlacementStep | None]:
    for number, step in enumerate(plan.steps):
        if step.state in _ACTIVE:
            return number, step
    return len(plan.steps), None


def _enter(
    draft: Draft, step: meta_pb2.PlacementStep, state: meta_pb2.StepState.ValueType, note: str
) -> str:
    step.state, step.since_ms, step.note = state, draft.now_ms, note
    name = meta_pb2.StepState.Name(state).removeprefix("STEP_STATE_").lower()
    return f"{name}: {note}" if note else name


def _age_ms(draft: Draft, step: meta_pb2.PlacementStep) -> int:
    return draft.now_ms - step.since_ms


def _waited_ms(draft: Draft, plan: meta_pb2.PlacementPlan, step: meta_pb2.PlacementStep) -> int:
    """Return how long a step could have begun: since the plan runs and the one before ended."""
    return draft.now_ms - max(plan.since_ms, *(other.since_ms for other in plan.steps))


def _begin(
    draft: Draft,
    step: meta_pb2.PlacementStep,
    config: NameserverConfig,
    *,
    undo: bool = False,
    leaders: Mapping[int, str] | None = None,
) -> None:
    """Write the wish that carries a step out, or undoes it.

    Raises:
        MetaRefused: as an operator's wish would be.
    """
    match step.WhichOneof("action"):
        case "move_queue":
            back_to = _way_back(draft, step, leaders) if undo else 0
            _begin_queue(draft, step.move_queue, back_to, config)
        case "transfer_leader":
            move = step.transfer_leader
            wish = move.from_node_id if undo else move.to_node_id
            raft_groups.prefer_leader(draft, move.raft_group, wish)
        case "move_replica":
            replica = step.move_replica
            add, remove = replica.to_node_id, replica.from_node_id
            if undo:
                add, remove = remove, add
            raft_groups.change_replicas(draft, replica.raft_group, [add], [remove], learners=False)
        case "add_read_replica":
            added = step.add_read_replica
            _change_reader(draft, added.raft_group, added.to_node_id, adds=not undo)
        case "remove_read_replica":
            removed = step.remove_read_replica
            _change_reader(draft, removed.raft_group, removed.from_node_id, adds=undo)


def _begin_queue(
    draft: Draft, move: meta_pb2.MoveQueueStep, back_to: int, config: NameserverConfig
) -> None:
    request = meta_pb2.MoveQueueRequest(
        namespace=move.namespace,
        topic=move.topic,
        queue=move.queue,
        to_raft_group=back_to or move.to_raft_group,
    )
    move_queue(draft, request, config)


def _way_back(draft: Draft, step: meta_pb2.PlacementStep, leaders: Mapping[int, str] | None) -> int:
    """Return the raft group that a queue goes back to.

    The one it came from takes it only once it is drained there; until then another one that the
    same node leads does as well.
    """
    move, known = step.move_queue, leaders or {}
    topic = stored_topic(draft, move.namespace, move.topic)
    override = stored_override(draft, topic.topic_id, move.queue)
    draining = {epoch.raft_group for epoch in override.epochs} if override is not None else set()
    home = known.get(move.from_raft_group, "")
    others = sorted(number for number, node in known.items() if home and node == home)
    for raft_group in (move.from_raft_group, *others):
        if raft_group not in draining:
            return raft_group
    return move.from_raft_group


def _change_reader(draft: Draft, raft_group: int, node_id: str, *, adds: bool) -> None:
    nodes = [node_id]
    raft_groups.change_replicas(
        draft, raft_group, nodes if adds else [], [] if adds else nodes, learners=adds
    )


def _is_done(
    draft: Draft, step: meta_pb2.PlacementStep, facts: ExecutorFacts, *, undo: bool = False
) -> bool:
    """Tell whether what a step, or its undoing, wants is so."""
    match step.WhichOneof("action"):
        case "move_queue":
            move = step.move_queue
            topic = stored_topic(draft, move.namespace, move.topic)
            override = stored_override(draft, topic.topic_id, move.queue)
            if override is None or override.moving_to:
                return False
            return (override.epochs[-1].raft_group == move.to_raft_group) is not undo
        case "transfer_leader":
            transfer = step.transfer_leader
            wanted = transfer.from_node_id if undo else transfer.to_node_id
            return facts.leaders.get(transfer.raft_group) == wanted
        case "move_replica":
            raft_group = step.move_replica.raft_group
        case "add_read_replica":
            raft_group = step.add_read_replica.raft_group
        case _:
            raft_group = step.remove_read_replica.raft_group
    row = draft.topology.raft_groups.get(raft_group)
    return row is not None and raft_groups.is_settled(row)
