"""The smallest cluster of real processes, and the commands that look after it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strata_cli.reference import JSON_KEYS
from tests.e2e.leftovers import free_disk

STRATA = (sys.executable, "-m", "strata_cli.main")


class SmallCluster:
    """One process of each tier, with a configuration file for all of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        config = folder.parent / "strata.toml"
        config.write_text('[node]\nlog_level = "info"\n[send]\nmax_body_bytes = 1000\n')
        up = self.json(
            *("local", "up", "--nameservers", "1", "--storage", "1", "--brokers", "1"),
            *("--config", str(config), "--data-dir", str(folder)),
        )
        self.processes = {each["role"]: each for each in up["processes"]}
        self.endpoint = self.processes["broker"]["address"]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*STRATA, *arguments], capture_output=True, text=True, timeout=90, check=False
        )

    def json(self, *arguments: str) -> Any:
        """Run a command that must succeed and return its JSON."""
        done = self.run(*arguments, "-o", "json")
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)

    def ask(self, *arguments: str) -> Any:
        """Run a command against the cluster."""
        return self.json(*arguments, "--endpoint", self.endpoint)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallCluster]:
    folder = tmp_path_factory.mktemp("small") / "c"
    yield SmallCluster(folder)
    done = subprocess.run(
        [*STRATA, "local", "down", "--data-dir", str(folder)], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    free_disk(folder)


def promised(command: str) -> set[str]:
    """Return the keys that the page names for a command."""
    return set(re.findall(r"`([a-z0-9_]+)`", JSON_KEYS[command]))


def test_the_cluster_is_shown(cluster: SmallCluster) -> None:
    """Every process is a node that is up, under its address; every raft group has a leader."""
    shown = cluster.ask("cluster", "show")
    assert set(shown) == {
        *("version", "nodes", "raft_groups"),
        *("metadata_age_ms", "metadata_stale"),
    }
    assert shown["metadata_stale"] is False
    assert {node["role"] for node in shown["nodes"]} == {"nameserver", "storage", "broker"}
    by_role = {node["role"]: node for node in shown["nodes"]}
    for role in ("nameserver", "storage"):
        assert by_role[role]["endpoints"] == [cluster.processes[role]["address"]]
    assert by_role["storage"]["state"] == "up"
    assert len(shown["raft_groups"]) == 2
    assert {group["leader"] for group in shown["raft_groups"]} == {by_role["storage"]["node"]}
    assert cluster.ask("raft-group", "list")["raft_groups"] == shown["raft_groups"]


def test_a_raft_group_is_shown_with_its_replica(cluster: SmallCluster) -> None:
    """The JSON has the promised keys; an unknown raft group is one clear line."""
    shown = cluster.ask("raft-group", "show", "1")
    assert {*shown, *shown["replicas"][0]} <= promised("raft-group show") | promised(
        "raft-group list"
    )
    [replica] = shown["replicas"]
    assert (replica["role"], replica["leader"]) == ("voter", True)
    failed = cluster.run("raft-group", "show", "99", "--endpoint", cluster.endpoint)
    assert failed.returncode == 3
    assert failed.stderr.startswith("strata: ")
    assert failed.stderr.count("\n") == 1


def test_a_node_is_named_by_id_or_endpoint(cluster: SmallCluster) -> None:
    """Both show the same node with the replicas that it holds; a stranger is told as such."""
    address = cluster.processes["storage"]["address"]
    shown = cluster.ask("node", "show", address)
    again = cluster.ask("node", "show", shown["node"])
    assert again.pop("uptime_ms") >= shown.pop("uptime_ms")
    assert again == shown
    assert [replica["raft_group"] for replica in shown["replicas"]] == [1, 2]
    failed = cluster.run("node", "show", "nobody", "--endpoint", cluster.endpoint)
    assert (failed.returncode, "node nobody does not exist; the nodes are" in failed.stderr) == (
        3,
        True,
    )


def test_the_only_node_of_its_kind_is_not_sent_away(cluster: SmallCluster) -> None:
    """Nothing could take over from it: one line says so, and it stays as it is."""
    address = cluster.processes["storage"]["address"]
    nodes = {each["role"]: each["node"] for each in cluster.ask("cluster", "show")["nodes"]}
    for command, role in (("drain", "storage"), ("remove", "broker")):
        done = cluster.run("node", command, nodes[role], "--endpoint", cluster.endpoint)
        assert done.returncode == 4
        assert "the only" in done.stderr, done.stderr
        assert done.stderr.count("\n") == 1
    assert cluster.ask("node", "show", address)["draining"] is False
    assert cluster.ask("node", "drain", address, "--undo")["draining"] is False


def test_a_removal_that_is_only_shown_removes_nobody(cluster: SmallCluster) -> None:
    """It names the node and the raft groups that lose a replica; the node serves on."""
    nodes = {each["role"]: each["node"] for each in cluster.ask("cluster", "show")["nodes"]}
    planned = cluster.ask("node", "remove", nodes["storage"], "--force", "--dry-run")
    assert planned == {"would_remove": nodes["storage"], "raft_groups": [1, 2]}
    after = {each["role"]: each["node"] for each in cluster.ask("cluster", "show")["nodes"]}
    assert after == nodes
    assert cluster.ask("node", "show", nodes["storage"])["state"] == "up"


def test_a_queue_moves(cluster: SmallCluster) -> None:
    """It is explained, moves to the other raft group, and keeps its messages and its name."""
    cluster.ask("topic", "create", "moving", "--queues", "1")
    first = cluster.ask("message", "send", "moving", "--body", "before")
    shown = cluster.ask("queue", "show", "moving", "0")
    other = 3 - shown["raft_group"]
    explained = cluster.ask("queue", "explain", "moving", "0")
    assert {*shown, "reasons"} == set(explained)
    assert explained["reasons"]

    moved = cluster.ask("queue", "move", "moving", "0", "--to", str(other))
    assert moved["done"] is True
    assert [epoch["raft_group"] for epoch in moved["epochs"]] == [shown["raft_group"], other]
    later = cluster.ask("queue", "show", "moving", "0")
    assert (later["raft_group"], later["broker_name"]) == (other, shown["broker_name"])

    second = cluster.ask("message", "send", "moving", "--body", "after")
    assert second["offset"] == first["offset"] + 1
    received: list[str] = []
    while len(received) < 2:
        got = cluster.ask("message", "receive", "moving", "--group", "g", "--ack")
        received += [message["message_id"] for message in got["messages"]]
    assert sorted(received) == sorted([first["message_id"], second["message_id"]])


def test_slots_move(cluster: SmallCluster) -> None:
    """They are listed with their owners, go where they are sent, and queues with messages stay."""
    cluster.ask("topic", "create", "slots", "--queues", "1")
    cluster.ask("message", "send", "slots", "--body", "before")
    shown = cluster.ask("queue", "show", "slots", "0")
    slot, other = shown["slot"], 3 - shown["raft_group"]
    listed = cluster.ask("slot", "list")
    assert {*listed, *listed["ranges"][0], *listed["raft_groups"][0]} <= promised("slot list")
    assert sum(each["slots"] for each in listed["raft_groups"]) == 4_096
    text = cluster.run("slot", "list", "--endpoint", cluster.endpoint).stdout
    assert 0 < text.count("\n") <= len(listed["ranges"]) + 2 * len(listed["raft_groups"]) + 10

    moved = cluster.ask("slot", "move", str(slot), "1", "--to", str(other))
    assert set(moved) == promised("slot move")
    assert (moved["left"], moved["done"]) == (0, True)
    later = cluster.ask("queue", "show", "slots", "0")
    assert (later["slot_raft_group"], later["raft_group"]) == (other, shown["raft_group"])
    owned = cluster.ask("slot", "list", "--raft-group", str(other))["ranges"]
    assert any(
        each["first_slot"] <= slot < each["first_slot"] + each["slot_count"] for each in owned
    )
    again = cluster.ask("message", "send", "slots", "--body", "after")
    assert again["offset"] == 1
    failed = cluster.run("slot", "move", "4096", "1", "--to", "1", "--endpoint", cluster.endpoint)
    assert (failed.returncode, "are not a range within" in failed.stderr) == (4, True)


def test_one_configuration_serves_all(cluster: SmallCluster) -> None:
    """The values of the file hold in each process; the command line adds the addresses."""
    shown = cluster.ask("config", "show")
    assert shown["node"]["log_level"] == "info"
    assert shown["cluster"]["nameservers"] == [cluster.processes["nameserver"]["address"]]
    too_large = cluster.run(
        *("message", "send", "moving", "--body", "x" * 1001, "--endpoint", cluster.endpoint)
    )
    assert too_large.returncode == 4
