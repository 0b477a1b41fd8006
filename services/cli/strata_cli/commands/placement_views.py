"""Plans, loads and forecasts as the dicts that `-o json` prints; the keys are a contract."""

from __future__ import annotations

from dataclasses import asdict

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_cli.views import View
from strata_placement.documents import action_of
from strata_placement.plan import describe


def plan_view(row: meta_pb2.PlacementPlan) -> View:
    """Return a plan with its state and steps."""
    return summary_view(row) | {
        "notes": list(row.notes),
        "steps": [step_view(step) for step in row.steps],
    }


def summary_view(row: meta_pb2.PlacementPlan) -> View:
    """Return a plan without its steps."""
    return {
        "plan_id": row.plan_id,
        "state": meta_pb2.PlanState.Name(row.state).removeprefix("PLAN_STATE_").lower(),
        "reason": row.reason,
        "planner": row.planner,
        "forecast": row.forecast,
        "made_at_ms": row.made_at_ms,
        "since_ms": row.since_ms,
        "horizon_ms": row.horizon_ms,
        "step_count": len(row.steps),
        "cost_bytes": sum(step.cost_bytes for step in row.steps),
        "max_over_mean_before": row.before.max_over_mean,
        "max_over_mean_after": row.after.max_over_mean,
        "peak_before": row.before.peak,
        "peak_after": row.after.peak,
    }


def step_view(step: meta_pb2.PlacementStep) -> View:
    """Return a step with its result."""
    action = action_of(step)
    return {
        "action": type(action).__name__,
        "what": describe(action),
        **asdict(action),
        "reason": step.reason,
        "cost_bytes": step.cost_bytes,
        "max_over_mean_before": step.before.max_over_mean,
        "max_over_mean_after": step.after.max_over_mean,
        "peak_before": step.before.peak,
        "peak_after": step.after.peak,
        "state": meta_pb2.StepState.Name(step.state).removeprefix("STEP_STATE_").lower(),
        "measured_before": step.measured_before,
        "measured_after": step.measured_after,
        "note": step.note,
    }


def loads_view(response: admin_pb2.GetPlacementResponse) -> View:
    """Return the loads of storage nodes and the rule that places new queues."""
    return {
        "rule": response.rule,
        "model_version": response.model.version,
        "nodes": [
            {
                "node": load.node_id,
                "bytes_per_s": round(load.bytes_per_s),
                "expected_bytes_per_s": round(load.expected_bytes_per_s),
                "busy": load.is_busy,
                "slow": load.is_slow,
                "slow_reason": load.slow_reason,
            }
            for load in response.loads
        ],
    }
