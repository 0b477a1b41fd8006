"""Health of a process: what probes are told, and one log line for each change."""

from __future__ import annotations

import io
import json

from strata_runtime import logs
from strata_runtime.health import Health, HealthLog, Problem, ProcessHealth, Severity
from strata_runtime.metrics import Metrics


def problem(name: str = "3", state: str = "LEADERLESS") -> Problem:
    return Problem("raft_group", name, state, Severity.DOWN, "1 of 3 replicas")


def test_a_process_serves_when_it_runs_and_all_its_members_do() -> None:
    """Starting and stopping are told; one member that does not serve is enough."""
    metrics = Metrics()
    process = ProcessHealth(metrics)
    members = [Health(), Health()]
    process.follow(lambda: members[0])
    process.follow(lambda: members[1])
    assert not process().serves
    assert process().problems[0].state == "STARTING"
    process.running()
    assert process() == Health()
    members[1] = Health(is_caught_up=False, problems=(problem(),))
    assert process().serves
    assert not process().is_ready
    members[0] = Health(serves=False, problems=(problem(),))
    assert process() == Health(False, False, (problem(),)), "told once"
    metrics.read_gauges()
    text = metrics.render().decode()
    assert 'strata_problems{kind="raft_group",severity="down",state="LEADERLESS"} 1.0' in text
    assert "strata_process_serving 0.0" in text
    members[:] = [Health(), Health()]
    process.stopping()
    assert process().problems[0].state == "STOPPING"


def test_each_change_is_one_warning() -> None:
    """A problem is told when it begins, when its state is another one, and when it ends."""
    out = io.StringIO()
    logs.configure(level="warning", log_format="json", stream=out)
    try:
        log = HealthLog("broker")
        log.take([problem()])
        log.take([problem()])
        log.take([problem(state="DEGRADED")])
        log.take([])
        log.take([])
    finally:
        logs.configure()
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["event"] for line in lines] == [
        "raft group LEADERLESS",
        "raft group DEGRADED",
        "raft group SERVING",
    ]
    assert {line["level"] for line in lines} == {"warning"}
    assert lines[0]["name"] == "3"
    assert lines[0]["reason"] == "1 of 3 replicas"
    assert lines[2]["before"] == "DEGRADED"


def test_many_changes_at_once_do_not_flood_the_log() -> None:
    """Beyond the limit of one look only their number is told."""
    out = io.StringIO()
    logs.configure(level="warning", log_format="json", stream=out)
    try:
        log = HealthLog("broker", max_lines=3)
        log.take([problem(str(number)) for number in range(1_000)])
        log.take([])
    finally:
        logs.configure()
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert len(lines) == 8
    assert lines[3] == lines[3] | {"event": "further problems began", "raft_group": 997}
    assert lines[7]["event"] == "further problems ended"
