"""Write the tables of a comparison into docs/performance.md: `python -m bench.peers.table`.

The tables replace what is between the markers there. They come from bench/results/peers.json alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.peers.works import WORKS, Bar, Figure, Kind, Phase, Work

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results" / "peers.json"
PAGE = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"
STRATA = {Phase.SINGLE: "strata", Phase.REPLICATED: "strata-3", Phase.TABLES: "strata-tables"}
HEADINGS = {
    Phase.SINGLE: "One copy of each message",
    Phase.REPLICATED: "Three replicas",
    Phase.TABLES: "Tables, three replicas",
}
FIXED_RATE = (Kind.END_TO_END, Kind.WAITS)
"""Kinds of work whose rate says nothing."""


@dataclass(frozen=True)
class Summary:
    """All rounds of one work on one system.

    Attributes:
        figures: the median of each figure over the rounds that did not fail.
        spread: the largest rate above the smallest, as a share of the median.
        rounds: how many did not fail.
        failed: how many failed.
        errors: answers that were errors, in all rounds.
    """

    figures: Mapping[Figure, float]
    spread: float
    rounds: int
    failed: int
    errors: int


def summaries(loads: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], Summary]:
    """Return the summary of each (work, system) that was measured."""
    grouped: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for load in loads:
        grouped.setdefault((load["work"], load["system"]), []).append(load)
    return {key: summary(each) for key, each in grouped.items()}


def summary(loads: Sequence[Mapping[str, Any]]) -> Summary:
    """Return the summary of the rounds of one work on one system."""
    good = [load for load in loads if "failed" not in load]
    figures = {
        figure: statistics.median(load[figure.value] for load in good) if good else 0.0
        for figure in Figure
    }
    rates = [load[Figure.RATE.value] for load in good]
    middle = figures[Figure.RATE]
    return Summary(
        figures,
        spread=(max(rates) - min(rates)) / middle if middle else 0.0,
        rounds=len(good),
        failed=len(loads) - len(good),
        errors=sum(load.get("errors", 0) for load in loads),
    )


def tables(document: Mapping[str, Any]) -> str:
    """Return all tables as Markdown."""
    found = summaries(document["loads"])
    systems = document["systems"]
    parts = [header(document)]
    for phase in Phase:
        names = [name for name, system in systems.items() if system["phase"] == phase.value]
        works = [work for work in WORKS if work.phase is phase]
        measured = [name for name in names if any((work.name, name) in found for work in works)]
        if measured:
            rows = phase_rows(phase, works, {name: systems[name] for name in measured}, found)
            parts.append("\n".join(rows))
    verdicts = verdict_rows(found)
    if len(verdicts) > len(VERDICT_HEAD):
        parts.append("\n".join(verdicts))
    notes = system_notes(systems)
    if notes:
        parts.append("\n".join(notes))
    return "\n\n".join(parts)


def header(document: Mapping[str, Any]) -> str:
    """Return when and on what a run measured, and how to read its figures."""
    machine = document["machine"]
    date = machine["measured_at"].partition("T")[0]
    return (
        f"{date}, commit {machine['commit']}, {machine['cores']} cores of {machine['cpu']}, "
        f"{machine.get('memory_gib', '?')} GiB, clients on the same machine, bodies of 1 KiB. "
        f"Each cell is the median of windows of {document['seconds']:g} s ({document['rounds']} of "
        f"them; {(document['rounds'] + 1) // 2} with three replicas): "
        "messages per second · p50 and p99 in ms · messages per second of the CPU time of all "
        f"servers. Other programs used {machine.get('busy_before', 0):.0%} of the machine before "
        "the run."
    )


def phase_rows(
    phase: Phase,
    works: Sequence[Work],
    systems: Mapping[str, Mapping[str, Any]],
    found: Mapping[tuple[str, str], Summary],
) -> list[str]:
    """Return the table of one phase: a row for each work, a column for each system."""
    titles = [f"{system['title']}<br>({system['durability']})" for system in systems.values()]
    rows = [row(HEADINGS[phase], *titles), row("---", *("---" for _ in titles))]
    for work in works:
        cells = [cell(work, found.get((work.name, name))) for name in systems]
        if any(text != "-" for text in cells):
            rows.append(row(work.text, *cells))
    return rows


def row(*cells: str) -> str:
    """Return a line of a table."""
    return f"| {' | '.join(cells)} |"


def cell(work: Work, measured: Summary | None) -> str:
    """Return the cell of a work on a system."""
    if measured is None:
        return "-"
    if not measured.rounds:
        return "failed"
    figures = measured.figures
    text = f"{milliseconds(figures[Figure.P50])}, {milliseconds(figures[Figure.P99])} ms"
    if work.kind not in FIXED_RATE:
        text = f"{figures[Figure.RATE]:,.0f}/s · {text}"
    text += f" · {figures[Figure.PER_CPU_S]:,.0f}"
    if measured.failed:
        text += f" ({measured.failed} failed)"
    if measured.errors:
        text += f" ({measured.errors:,} errors)"
    return text


VERDICT_HEAD = (
    row("StrataMQ", "figure", "measured", "must", "goal"),
    row("---", "---", "---", "---", "---"),
)


def verdict_rows(found: Mapping[tuple[str, str], Summary]) -> list[str]:
    """Return the table of targets: what is reached and what is missed."""
    rows = [*VERDICT_HEAD]
    for work in WORKS:
        ours = found.get((work.name, STRATA[work.phase]))
        if ours is None or not ours.rounds:
            continue
        for target in work.targets:
            bars = [
                verdict(target.figure, ours, bar, found.get((work.name, bar.of)))
                for bar in (target.must, target.goal)
            ]
            place = "three replicas, " if work.phase is Phase.REPLICATED else ""
            value = shown(target.figure, ours.figures[target.figure])
            rows.append(row(place + work.text, NAMES[target.figure], value, *bars))
    return rows


NAMES = {
    Figure.RATE: "per second",
    Figure.PER_CPU_S: "per CPU second",
    Figure.P50: "p50",
    Figure.P99: "p99",
}


def verdict(figure: Figure, ours: Summary, bar: Bar, other: Summary | None) -> str:
    """Return a bar with whether it is reached.

    Args:
        figure: what is judged.
        ours: of StrataMQ.
        bar: what to reach.
        other: of the system that the bar names, if it was measured.
    """
    value = ours.figures[figure]
    if not bar.of:
        reached = value >= bar.value if figure.more_is_better else value <= bar.value
        return f"{shown(figure, bar.value)}: {'reached' if reached else 'missed'}"
    if other is None or not other.figures[figure]:
        return f"{bar.value:g} x {bar.of}: not measured"
    ratio = value / other.figures[figure]
    reached = ratio >= bar.value if figure.more_is_better else ratio <= bar.value
    return f"{bar.value:g} x {bar.of}: {'reached' if reached else 'missed'}, {ratio:.2f} x"


def shown(figure: Figure, value: float) -> str:
    """Return a value of a figure for people."""
    return f"{value:,.0f}" if figure.more_is_better else f"{milliseconds(value)} ms"


def milliseconds(value: float) -> str:
    """Return a latency in milliseconds with three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def system_notes(systems: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the table of what each system takes, and a line for each that is missing."""
    rows = [row("system", "starts in", "idle memory", "idle, of a core"), row(*["---"] * 4)]
    lines = []
    for name, system in systems.items():
        if "skipped" in system:
            lines.append(f"- {system['title']} was not measured: {system['skipped']}")
        elif "failed" in system:
            lines.append(f"- {system['title']} did not start.")
        elif "idle_cores" in system:
            title = system["title"] + (" with tables" if name == STRATA[Phase.TABLES] else "")
            memory = f"{system['idle_resident_mb']:,.0f} MB"
            rows.append(row(title, f"{system['start_s']} s", memory, f"{system['idle_cores']:.1%}"))
    return [*rows, *(["", *lines] if lines else [])] if len(rows) > 2 else lines


def line(load: Mapping[str, Any]) -> str:
    """Return a load for the screen."""
    if "failed" in load:
        return f"FAILED: {load['failed']}"
    text = (
        f"{load[Figure.RATE.value]:>9,.0f}/s  p50 {load[Figure.P50.value]:>7.2f}  "
        f"p99 {load[Figure.P99.value]:>7.2f} ms  "
        f"{load[Figure.PER_CPU_S.value]:>9,.0f} per server CPU s"
    )
    errors = load.get("errors", 0)
    return f"{text}  {errors} errors: {load['first_error']}" if errors else text


def replaced(page: str, content: str) -> str:
    """Return a page with new content between its markers.

    Raises:
        ValueError: the page has not each marker once, in order.
    """
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        raise ValueError(f"the page must have {BEGIN} and {END} once each, in this order")
    before = page[: page.index(BEGIN) + len(BEGIN)]
    return f"{before}\n\n{content}\n\n{page[page.index(END) :]}"


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--results", type=Path, default=RESULTS, help="JSON of a run")
    parser.add_argument("--page", type=Path, default=PAGE, help="page with the markers")
    options = parser.parse_args()
    document = json.loads(options.results.read_text())
    options.page.write_text(replaced(options.page.read_text(), tables(document)))
    print(f"{options.page.name} shows the run of {document['machine']['measured_at']}")


if __name__ == "__main__":
    main()
