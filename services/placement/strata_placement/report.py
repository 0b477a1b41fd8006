"""The back-test as a page that a person can read: one HTML file, its plots are SVG.

The file needs nothing else: no script, no font, no network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from strata_placement.backtest import BacktestResult
from strata_placement.series import PlacementError

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 900, 260, 60, 30
_MOST_POINTS = 450
_COLOURS = ("#b3261e", "#0b6e4f", "#1f4e9c", "#8a5a00", "#6b3fa0", "#7a7a7a")
_SHOWN = ("greedy_reactive", "forecast", "oracle")
_STYLE = (
    "body{font:15px/1.5 sans-serif;max-width:960px;margin:2em auto;padding:0 1em;color:#222}"
    "table{border-collapse:collapse}td,th{padding:.3em .8em;border-bottom:1px solid #ddd;"
    "text-align:right}td:first-child,th:first-child{text-align:left}svg{max-width:100%}"
)


def write_report(path: Path, trace: str, result: BacktestResult, capacity: float) -> None:
    """Write the page.

    Args:
        path: of the file; it is replaced.
        trace: where the loads come from.
        result: what is shown.
        capacity: utilisation that counts as above capacity.

    Raises:
        PlacementError: the file cannot be written.
    """
    try:
        path.write_text(render(trace, result, capacity), encoding="utf-8")
    except OSError as error:
        raise PlacementError(f"{path}: {error.strerror}") from None


def render(trace: str, result: BacktestResult, capacity: float) -> str:
    """Return the page."""
    document = result.to_json()
    first, last = result.split.test
    verdict = (
        "Looking ahead spent less time above capacity than greedy-reactive, with no more moves."
        if result.forecast_wins
        else "Looking ahead did not beat greedy-reactive on both time above capacity and moves."
    )
    peaks = {name: result.outcomes[name][0].peaks for name in _SHOWN}
    errors = {name: error.wape_by_step for name, error in result.errors.items()}
    times = {name: row["time_above_capacity"] / 3600 for name, row in document["planners"].items()}
    parts = [
        f"<h1>Back-test of placement on {escape(trace)}</h1>",
        f"<p>{verdict} Test windows {first} to {last}; what was fitted and tuned ended before. "
        f"Best forecaster of the tuning days: {escape(result.best_forecaster)}.</p>",
        "<h2>Outcome of the planners</h2>",
        _planner_table(document["planners"]),
        "<h2>Node-hours above capacity</h2>",
        _bars(times),
        f"<h2>Utilisation of the busiest node, first cluster (line: {capacity:.0%})</h2>",
        _lines(peaks, mark=capacity),
        "<h2>Forecast error by step (sum of errors / sum of loads)</h2>",
        _lines(errors),
    ]
    title = f"Back-test of placement on {escape(trace)}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _planner_table(planners: Mapping[str, Mapping[str, object]]) -> str:
    columns = ("time_above_capacity", "moves", "flaps", "max_over_mean", "peak", "settings")
    head = "".join(f"<th>{column.replace('_', ' ')}</th>" for column in ("planner", *columns))
    rows = []
    for name, row in planners.items():
        cells = "".join(f"<td>{escape(_text(row[column]))}</td>" for column in columns)
        rows.append(f"<tr><td>{escape(name)}</td>{cells}</tr>")
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"


def _text(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) and value < 100 else str(value)


def _bars(values: Mapping[str, float]) -> str:
    most = max(values.values(), default=0.0) or 1.0
    row_height = 26
    parts = []
    for at, (name, value) in enumerate(values.items()):
        width = (_WIDTH - 260) * value / most
        y = at * row_height
        parts.append(
            f'<text x="0" y="{y + 17}" font-size="13">{escape(name)}</text>'
            f'<rect x="150" y="{y + 4}" width="{width:.1f}" height="18" '
            f'fill="{_COLOURS[at % len(_COLOURS)]}"/>'
            f'<text x="{156 + width:.1f}" y="{y + 17}" font-size="13">{value:.1f} h</text>'
        )
    return _svg(parts, row_height * len(values))


def _lines(series: Mapping[str, Sequence[float]], mark: float | None = None) -> str:
    most = max((max(values, default=0.0) for values in series.values()), default=0.0)
    most = max(most, mark or 0.0) * 1.05 or 1.0
    parts = [_axis(most)]
    if mark is not None:
        y = _y(mark, most)
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#999" '
            'stroke-dasharray="4 4"/>'
        )
    for at, (name, values) in enumerate(series.items()):
        colour = _COLOURS[at % len(_COLOURS)]
        points = " ".join(
            f"{_LEFT + (_WIDTH - _LEFT) * x:.1f},{_y(value, most):.1f}"
            for x, value in _thinned(values)
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}"/>')
        parts.append(
            f'<text x="{_LEFT + 10 + 150 * at}" y="{_HEIGHT - 6}" font-size="13" '
            f'fill="{colour}">{escape(name)}</text>'
        )
    return _svg(parts, _HEIGHT)


def _thinned(values: Sequence[float]) -> list[tuple[float, float]]:
    """Return (position from 0 to 1, value); of many values the highest of each few."""
    group = max(1, len(values) // _MOST_POINTS)
    last = max(1, len(values) - 1)
    return [
        (first / last, max(values[first : first + group])) for first in range(0, len(values), group)
    ]


def _axis(most: float) -> str:
    marks = []
    for part in range(5):
        value = most * part / 4
        y = _y(value, most)
        marks.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#eee"/>'
            f'<text x="0" y="{y + 4:.1f}" font-size="12">{value:.2f}</text>'
        )
    return "".join(marks)


def _y(value: float, most: float) -> float:
    return (_HEIGHT - _BOTTOM) * (1 - value / most) + 4


def _svg(parts: Sequence[str], height: int) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" role="img">'
        f"{''.join(parts)}</svg>"
    )
