"""Plans as rows: proposed by whoever made them, applied on request, one at a time.

A plan's id is the revision that proposed it, so later ones are higher. One that was proposed more
than `max_plan_age_ms` ago is not applied: loads are others by now. The newest `max_plans` are
kept; the one that runs is never dropped.
"""

from __future__ import annotations

from typing import Protocol

from strata.meta.v1 import meta_pb2
from strata_metadata.errors import MetaRefused
from strata_nameserver.base.config import NameserverConfig
from strata_nameserver.base.errors import invalid
from strata_nameserver.policies.model import LoadModel, ModelError
from strata_nameserver.state.draft import Draft
from strata_state.metadata_keys import (
    PLACEMENT_MODEL_KEY,
    MetadataRowKind,
    kind_range,
    placement_plan_key,
)

_MAX_PLAN_BYTES = 256 * 1024
_ACTIVE = (
    meta_pb2.STEP_STATE_PENDING,
    meta_pb2.STEP_STATE_RUNNING,
    meta_pb2.STEP_STATE_SETTLING,
    meta_pb2.STEP_STATE_REVERTING,
)


class Rows(Protocol):
    """Where plans are read: a draft and the speculative state to decide, the store to show."""

    def rows(self, first: bytes, end: bytes) -> list[bytes]:
        """Return the rows from key `first` up to, not including, `end`."""


def plans_in(rows: Rows) -> list[meta_pb2.PlacementPlan]:
    """Return the plans that are kept, newest first."""
    found = map(
        meta_pb2.PlacementPlan.FromString, rows.rows(*kind_range(MetadataRowKind.PLACEMENT_PLAN))
    )
    return sorted(found, key=lambda plan: -plan.plan_id)


def propose(
    draft: Draft, wanted: meta_pb2.PlacementPlan, config: NameserverConfig
) -> meta_pb2.PlacementPlan:
    """Keep a plan; the oldest ones that do not run make room.

    Args:
        draft: the change.
        wanted: the plan as it was made.
        config: limits.

    Raises:
        MetaRefused: INVALID: a step says nothing, or there are too many.
    """
    if len(wanted.steps) > config.max_plan_steps:
        raise invalid(
            f"the plan has {len(wanted.steps)} steps, allowed are {config.max_plan_steps} "
            "(nameserver.max_plan_steps)"
        )
    if any(step.WhichOneof("action") is None for step in wanted.steps):
        raise invalid("a step of the plan has no action")
    plan = _copy(wanted)
    plan.plan_id = draft.revision
    plan.state, plan.since_ms = meta_pb2.PLAN_STATE_PROPOSED, draft.now_ms
    plan.reason = ""
    for step in plan.steps:
        step.state, step.since_ms, step.note = meta_pb2.STEP_STATE_PENDING, draft.now_ms, ""
        step.measured_before = step.measured_after = 0.0
    if plan.ByteSize() > _MAX_PLAN_BYTES:
        raise invalid(f"the plan has {plan.ByteSize()} bytes, allowed are {_MAX_PLAN_BYTES}")
    ended = [row for row in plans_in(draft) if row.state != meta_pb2.PLAN_STATE_RUNNING]
    for row in ended[config.max_plans - 1 :]:
        draft.delete(meta_pb2.PlacementPlan(plan_id=row.plan_id))
    draft.put(plan)
    return plan


def apply(draft: Draft, plan_id: int, config: NameserverConfig) -> meta_pb2.PlacementPlan:
    """Let a plan run; one that runs already goes on.

    Raises:
        MetaRefused: NOT_FOUND; CONFLICT: another one runs, or this one has run or is too old.
    """
    plan = stored_plan(draft, plan_id)
    if plan.state == meta_pb2.PLAN_STATE_RUNNING:
        return plan
    if plan.state != meta_pb2.PLAN_STATE_PROPOSED:
        raise _conflict(f"plan {plan_id} has run; make a new one from the loads of today")
    # By the nameserver's clock: when the plan was made is told by that of whoever made it.
    age_ms = draft.now_ms - plan.since_ms
    if age_ms > config.max_plan_age_ms:
        raise _conflict(
            f"plan {plan_id} is {age_ms / 3_600_000:.1f} h old, and plans are applied within "
            f"{config.max_plan_age_ms / 3_600_000:.1f} h (nameserver.max_plan_age_ms): make a new "
            "one from the loads of today"
        )
    running = [row.plan_id for row in plans_in(draft) if row.state == meta_pb2.PLAN_STATE_RUNNING]
    if running:
        raise _conflict(f"plan {running[0]} is running; wait for it or stop it")
    plan.state, plan.since_ms = meta_pb2.PLAN_STATE_RUNNING, draft.now_ms
    draft.put(plan)
    return plan


def stop(draft: Draft, plan_id: int) -> meta_pb2.PlacementPlan:
    """End a plan that runs or waits; the step that is under way goes on by itself.

    Raises:
        MetaRefused: NOT_FOUND; CONFLICT: it has ended.
    """
    plan = stored_plan(draft, plan_id)
    if plan.state not in (meta_pb2.PLAN_STATE_RUNNING, meta_pb2.PLAN_STATE_PROPOSED):
        raise _conflict(f"plan {plan_id} has ended")
    end(draft, plan, "stopped by an operator")
    draft.put(plan)
    return plan


def active_step(plan: meta_pb2.PlacementPlan) -> tuple[int, meta_pb2.PlacementStep | None]:
    """Return the first step that has not ended, with its position; None: all have."""
    for number, step in enumerate(plan.steps):
        if step.state in _ACTIVE:
            return number, step
    return len(plan.steps), None


def end(draft: Draft, plan: meta_pb2.PlacementPlan, reason: str) -> None:
    """Mark a plan as stopped before its last step; the row is not put."""
    plan.state, plan.since_ms = meta_pb2.PLAN_STATE_STOPPED, draft.now_ms
    plan.reason = reason


def set_model(draft: Draft, wanted: meta_pb2.PlacementModel) -> meta_pb2.PlacementModel:
    """Take a model into use.

    Raises:
        MetaRefused: INVALID: it cannot be read; CONFLICT: a later version is in use.
    """
    # Before it is read, which takes as long as it is large.
    size_bytes = len(wanted.table.encode())
    if size_bytes > _MAX_PLAN_BYTES:
        raise invalid(f"the model has {size_bytes} bytes, allowed are {_MAX_PLAN_BYTES}")
    try:
        LoadModel.parse(wanted.table)
    except ModelError as error:
        raise invalid(f"model {wanted.version}: {error}") from None
    stored = draft.get(PLACEMENT_MODEL_KEY)
    known = meta_pb2.PlacementModel.FromString(stored) if stored is not None else None
    if known is not None and known.version > wanted.version:
        raise _conflict(f"model {known.version} is in use, {wanted.version} is older")
    model = meta_pb2.PlacementModel(
        version=wanted.version, valid_until_ms=wanted.valid_until_ms, table=wanted.table
    )
    draft.put(model)
    return model


def stored_plan(draft: Draft, plan_id: int) -> meta_pb2.PlacementPlan:
    """Return a copy of a plan's row.

    Raises:
        MetaRefused: NOT_FOUND.
    """
    value = draft.get(placement_plan_key(plan_id))
    if value is None:
        raise MetaRefused(meta_pb2.META_OUTCOME_NOT_FOUND, f"plan {plan_id} does not exist")
    return meta_pb2.PlacementPlan.FromString(value)


def _copy(plan: meta_pb2.PlacementPlan) -> meta_pb2.PlacementPlan:
    copy = meta_pb2.PlacementPlan()
    copy.CopyFrom(plan)
    return copy


def _conflict(reason: str) -> MetaRefused:
    return MetaRefused(meta_pb2.META_OUTCOME_CONFLICT, reason)
