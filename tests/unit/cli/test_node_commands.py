"""`strata node drain --wait` returns when the node is empty; `strata node list` fits a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_cli.main import run

if TYPE_CHECKING:
    from tests.unit.cli.conftest import ScriptedAdmin

NODE = meta_pb2.Node(node_id="storage-1", kind=meta_pb2.NODE_KIND_STORAGE, draining=True)


@pytest.fixture
def draining(scripted: ScriptedAdmin, monkeypatch: pytest.MonkeyPatch) -> ScriptedAdmin:
    """A node with replicas of two raft groups, one of which leaves with each look."""
    monkeypatch.setattr("strata_cli.commands.node._POLL_S", 0.001)
    scripted.answers = {
        "GetCluster": admin_pb2.GetClusterResponse(
            nodes=[NODE],
            raft_groups=[admin_pb2.GroupHealth(raft_group=number) for number in (1, 2)],
        ),
        "DrainNode": admin_pb2.DrainNodeResponse(node=NODE),
    }
    return scripted


def answer(scripted: ScriptedAdmin, held: Iterator[bool]) -> None:
    """Say with each question about a raft group whether the node has a replica of it."""

    def group(request: admin_pb2.GetRaftGroupRequest) -> admin_pb2.GetRaftGroupResponse:
        node = "storage-1" if next(held) else "storage-2"
        return admin_pb2.GetRaftGroupResponse(replicas=[admin_pb2.ReplicaHealth(node_id=node)])

    scripted.answers["GetRaftGroup"] = group


def test_it_waits_until_no_replica_is_left(
    draining: ScriptedAdmin, endpoint_of_scripted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The result is the node, as without --wait."""
    answer(draining, iter([True, True, True, False, False, False]))
    command = ["node", "drain", "storage-1", "--wait", "30s", "--endpoint", endpoint_of_scripted]
    assert run([*command, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["node"] == "storage-1"
    assert len(draining.asked("GetRaftGroup")) == 6


def test_the_time_limit_says_what_is_left(
    draining: ScriptedAdmin, endpoint_of_scripted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The drain goes on; the exit code is that of a failure."""
    answer(draining, iter([True, False]))
    command = ["node", "drain", "storage-1", "--wait", "0s", "--endpoint", endpoint_of_scripted]
    assert run(command) == 1
    assert "1 replicas are still on storage-1; the drain goes on" in capsys.readouterr().err
    assert run([*command, "--undo"]) == 2


@pytest.mark.parametrize(
    ("form", "there", "left_out"),
    [("text", "replicas", "rack"), ("wide", "rack", "none"), ("text", "endpoints", "bytes per s")],
)
def test_a_terminal_gets_columns_that_say_something(
    scripted: ScriptedAdmin,
    endpoint_of_scripted: str,
    capsys: pytest.CaptureFixture[str],
    form: str,
    there: str,
    left_out: str,
) -> None:
    """80 characters are few; -o wide has all columns."""
    scripted.answers = {
        "GetCluster": admin_pb2.GetClusterResponse(
            nodes=[NODE],
            conditions=[admin_pb2.NodeCondition(node_id="storage-1", state="up", replicas=4)],
        ),
        "GetPlacement": admin_pb2.GetPlacementResponse(),
    }
    assert run(["node", "list", "--endpoint", endpoint_of_scripted, "-o", form]) == 0
    head = capsys.readouterr().out.splitlines()[0]
    assert there in head
    assert left_out not in head


def test_nodes_show_their_release_and_uptime(
    scripted: ScriptedAdmin,
    endpoint_of_scripted: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A row of an older release has neither: its uptime is unknown, not 50 years."""
    monkeypatch.setattr("strata_cli.cluster_views.wall_ms", lambda: 1_700_000_090_000)
    new = meta_pb2.Node(node_id="new", version="1.2.3", started_at_ms=1_700_000_000_000)
    scripted.answers = {
        "GetCluster": admin_pb2.GetClusterResponse(nodes=[meta_pb2.Node(node_id="old"), new]),
        "GetPlacement": admin_pb2.GetPlacementResponse(),
    }
    command = ["node", "list", "--endpoint", endpoint_of_scripted]
    assert run([*command, "-o", "json"]) == 0
    old, new_view = json.loads(capsys.readouterr().out)["nodes"]
    assert (old["version"], old["started_at_ms"], old["uptime_ms"]) == ("", 0, None)
    assert (new_view["version"], new_view["uptime_ms"]) == ("1.2.3", 90_000)
    assert run([*command, "-o", "wide"]) == 0
    assert "1.2.3" in capsys.readouterr().out
    assert run(["node", "show", "new", "--endpoint", endpoint_of_scripted]) == 0
    shown = capsys.readouterr().out
    assert "version" in shown
    assert "90s" in shown
