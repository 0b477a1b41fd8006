"""`strata status`: what is wrong and the next command, on one screen."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest
import yaml

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_cli.advice import _BY_KIND, _BY_STATE, advice_for
from strata_cli.main import app, run
from strata_cli.reference import JSON_KEYS, commands
from strata_runtime.health import KINDS

if TYPE_CHECKING:
    from tests.unit.cli.conftest import ScriptedAdmin

ROOT = Path(__file__).parents[3]


def healthy(scripted: ScriptedAdmin) -> None:
    """Let a broker answer for a cluster in which all is well."""
    scripted.answers = {
        "GetHealth": admin_pb2.GetHealthResponse(
            status="healthy",
            raft_groups={"SERVING": 8, "LEADERLESS": 0},
            nodes={"up": 2},
            broker_node_id="broker-1",
        ),
        "GetCluster": admin_pb2.GetClusterResponse(
            topic_count=1_000_000,
            consumer_group_count=3,
            version="1.2.3",
            nodes=[
                meta_pb2.Node(
                    node_id=f"storage-{number}",
                    kind=meta_pb2.NODE_KIND_STORAGE,
                    state=meta_pb2.NODE_STATE_UP,
                )
                for number in (1, 2)
            ],
        ),
        "GetPlacement": admin_pb2.GetPlacementResponse(),
        "ListDeadLetterTopics": admin_pb2.ListDeadLetterTopicsResponse(),
    }


def broken(scripted: ScriptedAdmin) -> None:
    """Let a broker answer for a cluster in which much is wrong."""
    healthy(scripted)
    health = scripted.answers["GetHealth"]
    health.status = "down"
    health.problems.add(kind="raft_group", name="3", state="LEADERLESS", severity="down")
    health.problems.add(
        kind="node", name="storage-2", state="DOWN", severity="degraded", detail="no sign of life"
    )
    scripted.answers["GetPlacement"] = admin_pb2.GetPlacementResponse(
        loads=[meta_pb2.NodeLoad(node_id="storage-1", is_slow=True, slow_reason="syncs take 90 ms")]
    )
    scripted.answers["ListDeadLetterTopics"] = admin_pb2.ListDeadLetterTopicsResponse(
        topics=[
            admin_pb2.DeadLetterTopic(consumer_group="billing", waiting=7, namespace="shop"),
            admin_pb2.DeadLetterTopic(consumer_group="clean", waiting=0),
        ]
    )


def test_a_healthy_cluster_needs_no_command(
    scripted: ScriptedAdmin, endpoint_of_scripted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The counts, and nothing to do; exit code 0."""
    healthy(scripted)
    assert run(["status", "--endpoint", endpoint_of_scripted]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"healthy: broker-1 at {endpoint_of_scripted}, version 1.2.3\n")
    assert "2 storage nodes up" in out
    assert re.search(r"raft groups +8 serving\n", out)
    assert re.search(r"topics +1000000\n +groups +3\n", out), "counted by the broker, not listed"
    assert out.endswith("Nothing to do.\n")


def test_each_finding_has_the_next_command(
    scripted: ScriptedAdmin, endpoint_of_scripted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The worst first; the command reaches the same broker and, if it must, the same namespace."""
    broken(scripted)
    assert run(["status", "--endpoint", endpoint_of_scripted, "-o", "json"]) == 2
    report = json.loads(capsys.readouterr().out)
    promised = set(re.findall(r"`([a-z0-9_]+)`", JSON_KEYS["status"]))
    findings = report["findings"]
    assert {*report, *(key for each in findings for key in each)} <= promised
    assert report["nodes"] == {"storage": {"up": 2}}
    tail = f" --endpoint {endpoint_of_scripted}"
    assert [each["next"] for each in findings] == [
        f"strata raft-group show 3{tail}",
        f"strata node show storage-2{tail}",
        f"strata placement explain{tail}",
        f"strata dlq show billing{tail} --namespace shop",
    ]
    assert [each["severity"] for each in findings] == ["down", "degraded", "note", "note"]
    assert run(["status", "--endpoint", endpoint_of_scripted]) == 2
    out = capsys.readouterr().out
    assert "2. degraded: node storage-2 DOWN\n   no sign of life\n" in out
    assert "strata node remove storage-2 --force" in out
    assert "docs/runbooks/StrataNodeDown.md" in out


def test_the_command_is_short_where_the_environment_says_the_rest(
    scripted: ScriptedAdmin,
    endpoint_of_scripted: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nothing is repeated that every command finds by itself."""
    broken(scripted)
    monkeypatch.setenv("STRATA_ENDPOINT", endpoint_of_scripted)
    assert run(["status", "-o", "yaml"]) == 2
    report = yaml.safe_load(capsys.readouterr().out)
    assert report["findings"][0]["next"] == "strata raft-group show 3"


def test_a_caller_who_may_see_little_sees_health(
    scripted: ScriptedAdmin, endpoint_of_scripted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Refused counts are null; they do not end the command."""
    healthy(scripted)
    for rpc in ("GetCluster", "ListDeadLetterTopics"):
        scripted.answers[rpc] = grpc.StatusCode.PERMISSION_DENIED
    assert run(["status", "--endpoint", endpoint_of_scripted, "-o", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["topics"], report["consumer_groups"], report["nodes"]) == (None, None, {})
    assert report["findings"] == []


def test_no_broker_is_a_finding_too(capsys: pytest.CaptureFixture[str]) -> None:
    """The next command looks at the connection."""
    assert run(["status", "--endpoint", "127.0.0.1:1", "-o", "json"]) == 2
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["next"] == "strata doctor --endpoint 127.0.0.1:1"


def test_all_advice_leads_somewhere() -> None:
    """Each command exists, each page too, and no kind of problem is without advice."""
    names = {name for name, _ in commands(app)}
    for advice in (*_BY_STATE.values(), *_BY_KIND.values()):
        words = advice.command.split()
        assert {" ".join(words[1:2]), " ".join(words[1:3])} & names, advice.command
        if advice.runbook:
            assert (ROOT / "docs" / "runbooks" / f"{advice.runbook}.md").exists(), advice.runbook
    for kind in KINDS:
        problem = {"kind": kind, "name": "x", "state": "NEW", "detail": "", "severity": "note"}
        assert "{" not in advice_for(problem).command
