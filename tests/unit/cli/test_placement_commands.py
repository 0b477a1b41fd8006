"""`strata placement`: which plan is stopped, how a plan ended, and the version of a model."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_cli.main import run
from strata_runtime.windows import WindowBatch, WindowKind
from tests.unit.cli.test_placement_facts import FakeClient, batch, queue_row, skewed, stored

if TYPE_CHECKING:
    from tests.unit.cli.conftest import ScriptedAdmin

PROPOSED, RUNNING = meta_pb2.PLAN_STATE_PROPOSED, meta_pb2.PLAN_STATE_RUNNING
DONE, STOPPED = meta_pb2.PLAN_STATE_DONE, meta_pb2.PLAN_STATE_STOPPED


def plan(
    number: int, state: meta_pb2.PlanState.ValueType, reason: str = ""
) -> meta_pb2.PlacementPlan:
    return meta_pb2.PlacementPlan(plan_id=number, state=state, reason=reason)


def with_plans(scripted: ScriptedAdmin, *plans: meta_pb2.PlacementPlan) -> None:
    """Let the nameserver know plans, the newest first; one that is applied runs or is stopped."""
    scripted.answers["GetPlacement"] = admin_pb2.GetPlacementResponse(plans=plans)
    scripted.answers["ApplyPlan"] = lambda request: admin_pb2.ApplyPlanResponse(
        plan=plan(request.plan_id, STOPPED if request.stop else RUNNING)
    )


def apply(endpoint: str, *arguments: str) -> int:
    return run(["placement", "apply", *arguments, "--endpoint", endpoint, "-o", "json"])


def test_stop_without_a_number_stops_the_plan_that_runs(
    scripted: ScriptedAdmin, endpoint_of_scripted: str
) -> None:
    """Not the newest one, which may be a proposal that somebody made meanwhile."""
    with_plans(scripted, plan(9, PROPOSED), plan(5, RUNNING), plan(4, STOPPED))
    assert apply(endpoint_of_scripted, "--stop") == 0
    assert apply(endpoint_of_scripted) == 0
    assert apply(endpoint_of_scripted, "9", "--stop") == 0
    asked = [(request.plan_id, request.stop) for request in scripted.asked("ApplyPlan")]
    assert asked == [(5, True), (9, False), (9, True)]


def test_stop_without_a_plan_that_runs_says_so(
    scripted: ScriptedAdmin, endpoint_of_scripted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A proposal is withdrawn by its number only."""
    with_plans(scripted, plan(9, PROPOSED), plan(4, STOPPED))
    assert apply(endpoint_of_scripted, "--stop") == 1
    assert "no plan is running; to withdraw one" in json.loads(capsys.readouterr().err)["error"]
    assert not scripted.asked("ApplyPlan")


@pytest.mark.parametrize(("state", "code"), [(DONE, 0), (STOPPED, 1)])
def test_wait_tells_by_its_exit_code_how_the_plan_ended(
    scripted: ScriptedAdmin,
    endpoint_of_scripted: str,
    capsys: pytest.CaptureFixture[str],
    state: meta_pb2.PlanState.ValueType,
    code: int,
) -> None:
    """A plan that was stopped before its last step did not do what it was applied for."""
    with_plans(scripted, plan(5, state, "a step took too long"))
    assert apply(endpoint_of_scripted, "5", "--wait") == code
    shown = capsys.readouterr()
    assert json.loads(shown.out)["state"] == ("stopped" if code else "done")
    if code:
        told = json.loads(shown.err)["error"]
        assert told == "plan 5 was stopped before its last step: a step took too long"


def test_stop_and_wait_is_done_when_the_plan_is_stopped(
    scripted: ScriptedAdmin, endpoint_of_scripted: str
) -> None:
    """That is what was asked for."""
    with_plans(scripted, plan(5, RUNNING))
    assert apply(endpoint_of_scripted, "--stop", "--wait") == 0


def in_a_cluster(scripted: ScriptedAdmin, batches: list[WindowBatch]) -> None:
    """Answer for the cluster of `FakeClient`, with these metric windows."""
    cluster = FakeClient(stored(batches), page_size=1_000)
    for rpc in ("FindMessages", "ListTopics", "GetTopic", "GetCluster", "GetRaftGroup"):
        scripted.answers[rpc] = getattr(cluster, rpc)
    scripted.answers["GetPlacement"] = admin_pb2.GetPlacementResponse()


@pytest.mark.parametrize("ahead_ms", [-60_000, 365 * 86_400_000])
def test_a_model_of_a_clock_ahead_locks_out_no_later_model(
    scripted: ScriptedAdmin, endpoint_of_scripted: str, ahead_ms: int
) -> None:
    """The nameserver takes rising versions only."""
    in_a_cluster(scripted, skewed())
    now_ms = int(time.time() * 1_000)
    known = meta_pb2.PlacementModel(version=now_ms + ahead_ms)
    scripted.answers["GetPlacement"] = admin_pb2.GetPlacementResponse(model=known)
    scripted.answers["SetPlacementModel"] = admin_pb2.SetPlacementModelResponse()
    assert run(["placement", "forecast", "--use", "--endpoint", endpoint_of_scripted]) == 0
    [request] = scripted.asked("SetPlacementModel")
    assert request.model.version > known.version
    assert now_ms <= request.model.version <= max(now_ms + 60_000, known.version + 1)
    assert now_ms < request.model.valid_until_ms <= now_ms + 86_400_000 + 60_000


def test_a_plan_and_a_forecast_say_which_windows_do_not_count(
    scripted: ScriptedAdmin, endpoint_of_scripted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A note tells the reader that one node's clock is wrong."""
    ahead = batch(WindowKind.QUEUE, "node-2", 4_000, [queue_row("cold", 0, 2, 9, 9)])
    in_a_cluster(scripted, [*skewed(), ahead])
    for command in (["plan", "--no-store"], ["forecast"]):
        given = ["placement", *command, "--endpoint", endpoint_of_scripted, "-o", "json"]
        assert run(given) == 0
        notes = json.loads(capsys.readouterr().out)["notes"]
        assert "1 of node-2 begin after now" in notes[0]
