"""Carries a plan out: one step at a time, each measured before the next begins.

    PENDING --begin--> RUNNING --done--> SETTLING --not worse--> DONE, the next step
       |                | |                  | worse
       |    overtaken   | | too long     REVERTING --undone--> REVERTED, the plan is stopped
       v   .------------' v                  | too long
    SKIPPED             FAILED <-------------+        the plan is stopped
    the next step

Everything is written in the plan's row, in the same change as what it does, so a new metadata
leader goes on where the old one stopped. `advance` decides and never waits. Steps go through the
same wishes that operators have (moves of queues, preferred leaders, changes of replicas), with the
same refusals; one that does not fit the cluster any more, or is overtaken, is SKIPPED (see
`steps`). Worse means: a node that got load by the step is busier than the busiest one was before,
relative to the mean, by more than `plan_worse_by`, at every look from `plan_settle_ms` to twice
that after the step (see `judging`). No step begins, is judged or is undone while a storage node is
not UP or a raft group has no leader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from strata.meta.v1 import meta_pb2
from strata_metadata.errors import MetaRefused
from strata_nameserver.base.config import NameserverConfig
from strata_nameserver.plans import plans, steps
from strata_nameserver.plans.judging import Beginning, Sight, judge
from strata_nameserver.policies.loads import imbalance
from strata_nameserver.state.draft import Draft


@dataclass(frozen=True, slots=True)
class ExecutorFacts:
    """Facts by which a step is judged.

    Attributes:
        now: the cluster as it is seen.
        beginning: what was seen when the active step began; None: not known.
    """

    now: Sight
    beginning: Beginning | None


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
    number, step = plans.active_step(plan)
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
    number, step = plans.active_step(plan)
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
    trouble = facts.now.trouble
    if trouble:
        if _waited_ms(draft, plan, step) < config.plan_step_timeout_ms:
            return ""
        plans.end(draft, plan, f"no step can begin: {trouble}")
        return plan.reason
    outdated = steps.why_outdated(draft, step, facts.now.leaders)
    if outdated:
        return _enter(
            draft, step, meta_pb2.STEP_STATE_SKIPPED, f"made for another place: {outdated}"
        )
    step.measured_before = imbalance(facts.now.loads, config.busy_node_floor_bytes_per_s)
    steps.begin(draft, step, config)
    return _enter(draft, step, meta_pb2.STEP_STATE_RUNNING, "")


def _running(
    draft: Draft,
    plan: meta_pb2.PlacementPlan,
    step: meta_pb2.PlacementStep,
    facts: ExecutorFacts,
    config: NameserverConfig,
) -> str:
    if steps.is_done(draft, step, facts.now.leaders):
        return _enter(draft, step, meta_pb2.STEP_STATE_SETTLING, "")
    overtaken = steps.why_overtaken(draft, step)
    if overtaken:
        return _enter(draft, step, meta_pb2.STEP_STATE_SKIPPED, overtaken)
    allowed_ms = _allowed_ms(step, facts.now, config)
    if _age_ms(draft, step) < allowed_ms:
        return ""
    plans.end(draft, plan, "a step took too long")
    return _enter(
        draft, step, meta_pb2.STEP_STATE_FAILED, f"not done after {allowed_ms // 1_000} s"
    )


def _settling(
    draft: Draft,
    plan: meta_pb2.PlacementPlan,
    step: meta_pb2.PlacementStep,
    facts: ExecutorFacts,
    config: NameserverConfig,
) -> str:
    overtaken = steps.why_overtaken(draft, step)
    if overtaken:
        return _enter(draft, step, meta_pb2.STEP_STATE_DONE, f"not judged: {overtaken}")
    age_ms, trouble = _age_ms(draft, step), facts.now.trouble
    if age_ms < config.plan_settle_ms:
        return ""
    if trouble:
        if age_ms < 2 * config.plan_settle_ms + config.plan_step_timeout_ms:
            return ""
        plans.end(draft, plan, f"no step can be judged: {trouble}")
        return _enter(draft, step, meta_pb2.STEP_STATE_DONE, f"not judged: {trouble}")
    verdict = judge(draft, step, facts.beginning, facts.now, config)
    before, after = step.measured_before, step.measured_after = verdict.before, verdict.after
    measured = f"busiest node {before:.2f} -> {after:.2f} times the mean"
    if verdict.is_worse:
        if age_ms < 2 * config.plan_settle_ms:
            # One look may be a moment's noise: it must be worse at each of them.
            return ""
        steps.undo(draft, step, facts.now.leaders, config)
        return _enter(draft, step, meta_pb2.STEP_STATE_REVERTING, f"worse: {measured}")
    if verdict.may_have_felled:
        plans.end(draft, plan, f"{verdict.unknown}, and the step before had given it load")
    note = measured if before and after else "there was no load to measure"
    if verdict.unknown:
        note = f"not judged: {verdict.unknown}; {note}"
    return _enter(draft, step, meta_pb2.STEP_STATE_DONE, note)


def _reverting(
    draft: Draft,
    plan: meta_pb2.PlacementPlan,
    step: meta_pb2.PlacementStep,
    facts: ExecutorFacts,
    config: NameserverConfig,
) -> str:
    if steps.is_done(draft, step, facts.now.leaders, undo=True):
        plans.end(draft, plan, f"a step made it worse and was undone: {step.note}")
        return _enter(draft, step, meta_pb2.STEP_STATE_REVERTED, step.note)
    overtaken = steps.why_overtaken(draft, step, undo=True)
    if overtaken:
        plans.end(draft, plan, f"a step made it worse, and there is nothing to undo: {overtaken}")
        return _enter(draft, step, meta_pb2.STEP_STATE_SKIPPED, f"{overtaken}; {step.note}")
    if _age_ms(draft, step) < _allowed_ms(step, facts.now, config, undo=True):
        return ""
    plans.end(draft, plan, "a step made it worse and could not be undone in time")
    return _enter(draft, step, meta_pb2.STEP_STATE_FAILED, f"not undone; {step.note}")


_HANDLERS: Mapping[int, Handler] = {
    meta_pb2.STEP_STATE_PENDING: _pending,
    meta_pb2.STEP_STATE_RUNNING: _running,
    meta_pb2.STEP_STATE_SETTLING: _settling,
    meta_pb2.STEP_STATE_REVERTING: _reverting,
}


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


def _allowed_ms(
    step: meta_pb2.PlacementStep, now: Sight, config: NameserverConfig, *, undo: bool = False
) -> int:
    """Return how long a step, or its undoing, may take: one that copies, as its size demands.

    Where nobody knows the size, no replica is larger than what the fullest disk holds.
    """
    if not steps.copies(step, undo=undo):
        return config.plan_step_timeout_ms
    size_bytes = step.cost_bytes or max(now.disk_used_bytes.values(), default=0)
    copy_ms = size_bytes * 1_000 // config.min_plan_copy_bytes_per_s
    return config.plan_step_timeout_ms + copy_ms
