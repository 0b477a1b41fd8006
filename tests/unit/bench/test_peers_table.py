"""The comparison with other systems: medians, ratios, targets and the page that shows them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bench.peers import table
from bench.peers.run import text_of
from bench.peers.works import WORKS, Bar, Figure, Phase, Work

SEND = next(work for work in WORKS if work.name == "send-64")
END_TO_END = next(work for work in WORKS if work.name == "end-to-end")


def load(system: str, rate: float, *, work: str = "send-64", **more: Any) -> dict[str, Any]:
    """Return one load of a run."""
    return {
        "system": system,
        "work": work,
        "round": 0,
        "messages_per_s": rate,
        "messages_per_server_cpu_s": rate * 2,
        "p50_ms": 3.25,
        "p99_ms": 12.0,
        **more,
    }


def document(*loads: dict[str, Any]) -> dict[str, Any]:
    """Return a run with two systems that were measured, and two that were not."""
    return {
        "machine": {"measured_at": "2026-11-25T20:00:00+00:00", "commit": "abc", "cores": 2}
        | {"cpu": "some", "memory_gib": 24, "busy_before": 0.02},
        "seconds": 5.0,
        "rounds": 3,
        "systems": {
            "rocketmq": {"title": "RocketMQ", "phase": "single", "durability": "page cache"}
            | {"start_s": 9.1, "idle_cores": 0.05, "idle_resident_mb": 600.4},
            "strata": {"title": "StrataMQ", "phase": "single", "durability": "fsync"}
            | {"start_s": 1.1, "idle_cores": 0.01, "idle_resident_mb": 119.9},
            "kafka": {"title": "Kafka", "phase": "replicated", "durability": "page cache"}
            | {"skipped": "mvn is not there: install Maven (maven)"},
            "nats": {"title": "NATS", "phase": "replicated", "durability": "fsync", "failed": "no"},
        },
        "loads": list(loads),
    }


def test_a_cell_is_the_median_of_the_rounds_that_worked() -> None:
    """A slow round or one that failed changes no figure, and both are told."""
    loads = [load("strata", rate) for rate in (100.0, 40.0, 110.0)]
    loads.append({"system": "strata", "work": "send-64", "round": 3, "failed": "timeout"})
    found = table.summaries(loads)[("send-64", "strata")]
    assert found.figures[Figure.RATE] == 100.0
    assert (found.rounds, found.failed) == (3, 1)
    assert found.spread == pytest.approx(0.7)
    assert table.cell(SEND, found) == "100/s · 3.25, 12 ms · 200 (1 failed)"


def test_errors_are_shown_and_a_fixed_rate_is_not() -> None:
    """A rate that the client chose says nothing about a system."""
    found = table.summary([load("strata", 1_000.0, errors=7), load("strata", 1_000.0)])
    assert table.cell(END_TO_END, found) == "3.25, 12 ms · 2,000 (7 errors)"


def test_work_that_never_worked_and_work_that_was_not_done() -> None:
    """The one has failed, the other is no failure."""
    failed = table.summary([{"system": "a", "work": "send-64", "round": 0, "failed": "x"}])
    assert table.cell(SEND, failed) == "failed"
    assert table.cell(SEND, None) == "-"


@pytest.mark.parametrize(
    ("figure", "bar", "expected"),
    [
        (Figure.RATE, Bar(90), "90: reached"),
        (Figure.RATE, Bar(26_000), "26,000: missed"),
        (Figure.P99, Bar(13), "13 ms: reached"),
        (Figure.P99, Bar(8), "8 ms: missed"),
        (Figure.RATE, Bar(1.2, "rocketmq"), "1.2 x rocketmq: reached, 1.25 x"),
        (Figure.RATE, Bar(1.5, "rocketmq"), "1.5 x rocketmq: missed, 1.25 x"),
        (Figure.P50, Bar(1.0, "rocketmq"), "1 x rocketmq: reached, 1.00 x"),
    ],
)
def test_a_target_is_reached_or_missed(figure: Figure, bar: Bar, expected: str) -> None:
    """Rates must reach their bar, latencies must not exceed it, ratios go with the other system."""
    ours, other = table.summary([load("strata", 100.0)]), table.summary([load("rocketmq", 80.0)])
    assert table.verdict(figure, ours, bar, other) == expected


def test_a_ratio_to_a_system_that_was_not_measured() -> None:
    """It is neither reached nor missed."""
    ours = table.summary([load("strata", 100.0)])
    said = "1.2 x rocketmq: not measured"
    assert table.verdict(Figure.RATE, ours, Bar(1.2, "rocketmq"), None) == said
    failed = table.summary([{"system": "rocketmq", "work": "send-64", "failed": "x"}])
    assert table.verdict(Figure.RATE, ours, Bar(1.2, "rocketmq"), failed) == said


def test_all_tables_of_a_run() -> None:
    """They have the date, a column for each system with results, and a line for each without."""
    shown = table.tables(document(load("rocketmq", 80.0), load("strata", 100.0)))
    assert "2026-11-25, commit abc, 2 cores" in shown
    assert "| One copy of each message | RocketMQ<br>(page cache) | StrataMQ<br>(fsync) |" in shown
    assert "| unary send, 64 in flight | 80/s · 3.25, 12 ms · 160 | 100/s" in shown
    assert "| unary send, 64 in flight | per second | 100 | 1.2 x rocketmq: reached" in shown
    assert "Three replicas" not in shown
    assert "- Kafka was not measured: mvn is not there: install Maven (maven)" in shown
    assert "- NATS did not start." in shown
    assert "| StrataMQ | 1.1 s | 120 MB | 1.0% |" in shown


def test_a_run_without_results_has_tables_too() -> None:
    """A run in which nothing worked ends in order."""
    assert "was not measured" in table.tables(document())


def test_results_are_json_with_a_line_for_each_load() -> None:
    """A person can read them, and git shows what changed."""
    run = document(load("rocketmq", 80.0), load("strata", 100.0))
    text = text_of(run)
    assert json.loads(text) == run
    assert sum('"work"' in line for line in text.splitlines()) == 2


def test_a_page_keeps_what_is_around_the_tables() -> None:
    """Tables replace what is between the markers, as often as they are written."""
    page = f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n"
    once = table.replaced(page, "new")
    assert once == f"before\n{table.BEGIN}\n\nnew\n\n{table.END}\nafter\n"
    assert table.replaced(once, "new") == once


@pytest.mark.parametrize("page", ["", table.BEGIN, f"{table.END}{table.BEGIN}"])
def test_a_page_without_markers_is_refused(page: str) -> None:
    """Else the tables would end up somewhere."""
    with pytest.raises(ValueError, match="must have"):
        table.replaced(page, "new")


def test_the_page_has_the_markers() -> None:
    """The tables of the next run have a place."""
    assert table.replaced(table.PAGE.read_text(), "new")


def test_each_work_has_one_name_and_targets_name_systems_of_its_phase() -> None:
    """A target beside a system that never does the work could not be judged."""
    names = [work.name for work in WORKS]
    assert len(set(names)) == len(names)
    against = {Phase.SINGLE: {"", "rocketmq"}, Phase.REPLICATED: {""}, Phase.TABLES: {"", "etcd"}}

    def named(work: Work) -> set[str]:
        return {bar.of for target in work.targets for bar in (target.must, target.goal)}

    assert [work.name for work in WORKS if not named(work) <= against[work.phase]] == []
