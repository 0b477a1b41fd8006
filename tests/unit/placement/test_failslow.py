"""Fail-slow detection: faults are found before they hurt, and a healthy cluster is left alone."""

from __future__ import annotations

from dataclasses import replace

from strata_runtime.failslow import FailSlowDetector, FailSlowOptions, NodeWindow, SlowNode
from strata_testing.fault_trials import TrialOptions, run_trial

TRIAL = TrialOptions(nodes=5, windows=1_300, faults=3, fault_windows=100, warm_windows=300)
OPTIONS = FailSlowOptions()


def test_injected_faults_are_found_before_they_hurt() -> None:
    """Throttled disk, delayed network, busy core, in four seeds: precision 1, recall over 0.9."""
    results = [run_trial(replace(TRIAL, seed=seed), OPTIONS) for seed in (1, 2, 3, 4)]
    found, missed = sum(r.found for r in results), sum(r.missed for r in results)
    assert sum(result.false_alarms for result in results) == 0
    assert found / (found + missed) > 0.9
    assert all(result.lead_windows > 0 for result in results), results


def test_healthy_nodes_raise_no_alarm() -> None:
    """Hours with outliers and slow spells of the whole cluster: nobody is called slow."""
    result = run_trial(replace(TRIAL, faults=0, seed=11), OPTIONS)
    assert (result.found, result.false_alarms, result.precision, result.recall) == (0, 0, 1.0, 1.0)


def windows(at: int, latencies: dict[str, float], load: float = 50e6) -> list[NodeWindow]:
    return [
        NodeWindow(node_id, at * 10_000, load, latency, latency / 2)
        for node_id, latency in latencies.items()
    ]


def warmed() -> FailSlowDetector:
    detector = FailSlowDetector(OPTIONS)
    for at in range(200):
        load = 20e6 + at % 10 * 5e6
        same = {name: 5.0 + at % 3 for name in "abc"}
        assert detector.observe(windows(at, same, load)) == []
    return detector


def test_one_node_is_slow_and_recovers() -> None:
    """Named after four windows, with since when and how much, and cleared when it is fine again."""
    detector = warmed()
    said = [detector.observe(windows(200 + at, {"a": 5.0, "b": 60.0, "c": 5.0})) for at in range(8)]
    assert [bool(slow) for slow in said] == [False] * 3 + [True] * 5
    assert [type(slow) for slow in said[-1]] == [SlowNode]
    assert (said[-1][0].node_id, said[-1][0].since_ms) == ("b", 2_000_000)
    assert 6 < said[-1][0].times_expected < 20
    for at in range(208, 220):
        last = detector.observe(windows(at, dict.fromkeys("abc", 5.0)))
    assert last == []


def test_what_is_slow_for_all_is_nobodys_fault() -> None:
    """Ten times slower everywhere: no alarm."""
    detector = warmed()
    for at in range(200, 215):
        assert detector.observe(windows(at, dict.fromkeys("abc", 60.0))) == []


def test_a_node_that_always_was_slower_is_not_failing() -> None:
    """Older hardware is above its peers, but as it always was."""
    detector = FailSlowDetector(OPTIONS)
    for at in range(300):
        assert detector.observe(windows(at, {"a": 5.0, "b": 20.0, "c": 5.0})) == []
