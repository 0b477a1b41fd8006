"""From the model of a dashboard to Grafana's JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from string import ascii_uppercase

from grafana_foundation_sdk.builders import dashboard as grafana
from grafana_foundation_sdk.builders import prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    Threshold,
    ThresholdsMode,
    VariableRefresh,
)
from scripts.dashboards.model import Board, Figure, Graph, Section

_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
_COLUMNS = 24
_GRAPHS_A_ROW = 3
_GRAPH_HEIGHT = 8
_FIGURE_HEIGHT = 4
_MAX_FIGURE_WIDTH = 6


def render(board: Board) -> str:
    """Return the dashboard as JSON that Grafana imports."""
    builder = (
        grafana.Dashboard(f"StrataMQ / {board.title}")
        .uid(board.uid)
        .description(board.description)
        .tags(["stratamq"])
        .refresh("30s")
        .time("now-1h", "now")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .link(
            grafana.DashboardLink("StrataMQ")
            .type(DashboardLinkType.DASHBOARDS)
            .tags(["stratamq"])
            .as_dropdown(True)
            .include_vars(True)
            .keep_time(True)
        )
        .with_variable(grafana.DatasourceVariable("datasource").label("Source").type("prometheus"))
    )
    for variable in ("cluster", *board.variables):
        builder.with_variable(_variable(variable))
    numbers = count(1)
    for section in board.sections:
        _add(builder, section, numbers)
    text = json.dumps(builder.build(), cls=JSONEncoder, indent=1, sort_keys=True)
    return f"{text}\n"


def _variable(label: str) -> grafana.QueryVariable:
    chosen = '{cluster="$cluster"}' if label != "cluster" else ""
    metric = {
        "cluster": "strata_process_serving",
        "node_id": "strata_process_serving",
    }.get(label, "rocketmq_consumer_lag_messages")
    builder = (
        grafana.QueryVariable(label)
        .label(label.replace("_", " ").capitalize())
        .datasource(_SOURCE)
        .query(f"label_values({metric}{chosen}, {label})")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
    )
    if label != "cluster":
        builder.include_all(True).multi(True).all_value(".*")
    return builder


def _add(builder: grafana.Dashboard, section: Section, numbers: Iterator[int]) -> None:
    builder.with_row(grafana.Row(section.title).id(next(numbers)))
    figures = [panel for panel in section.panels if isinstance(panel, Figure)]
    for figure in figures:
        width = min(_MAX_FIGURE_WIDTH, _COLUMNS // len(figures))
        builder.with_panel(_figure(figure).id(next(numbers)).span(width).height(_FIGURE_HEIGHT))
    for panel in section.panels:
        if isinstance(panel, Graph):
            width = _COLUMNS // _GRAPHS_A_ROW
            builder.with_panel(_graph(panel).id(next(numbers)).span(width).height(_GRAPH_HEIGHT))


def _graph(graph: Graph) -> timeseries.Panel:
    panel = (
        timeseries.Panel()
        .title(graph.title)
        .description(graph.description)
        .unit(graph.unit)
        .datasource(_SOURCE)
        .min(0)
        .line_width(1)
        .fill_opacity(10)
    )
    for reference, series in zip(ascii_uppercase, graph.series, strict=False):
        panel.with_target(
            prometheus.Dataquery()
            .ref_id(reference)
            .expr(series.query)
            .legend_format(series.legend or "__auto")
            .datasource(_SOURCE)
        )
    return panel


def _figure(figure: Figure) -> stat.Panel:
    panel = (
        stat.Panel()
        .title(figure.title)
        .description(figure.description)
        .unit(figure.unit)
        .datasource(_SOURCE)
        .with_target(
            prometheus.Dataquery().ref_id("A").expr(figure.query).instant().datasource(_SOURCE)
        )
    )
    steps = _steps(figure)
    if steps:
        panel.thresholds(grafana.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps))
    return panel


def _steps(figure: Figure) -> list[Threshold]:
    warn_at, alarm_at = figure.warn_at, figure.alarm_at
    if warn_at is None or alarm_at is None:
        return []
    if warn_at <= alarm_at:
        return [
            Threshold(None, "green"),
            Threshold(warn_at, "orange"),
            Threshold(alarm_at, "red"),
        ]
    return [Threshold(None, "red"), Threshold(alarm_at, "orange"), Threshold(warn_at, "green")]
