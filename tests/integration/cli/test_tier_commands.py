"""`strata standalone --tier`, and what `strata tier` and `strata topic` say and do about it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from strata_testing import until_blocking

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Node, StartNode

WAIT_S = 30.0


def objects(node: Node) -> int:
    """Return how many objects the tier has."""
    groups = node.json("tier", "status")["raft_groups"]
    assert all(group["note"] == "" for group in groups), groups
    return sum(group["objects"] for group in groups)


def test_a_flush_makes_everything_restorable_at_once(start_node: StartNode, tmp_path: Path) -> None:
    """Before the first manifest verify says that nothing is; a flush uploads and writes one."""
    url = f"posix://{tmp_path / 'tier'}"
    node = start_node("--tier", url)
    node.json("topic", "create", "orders", "--queues", "2", "--tiered-storage-level", "FORCE")
    for number in range(5):
        node.json("message", "send", "orders", "--body", f"{number}")
    assert objects(node) == 0
    flushed = node.json("tier", "flush")["raft_groups"]
    assert [each["raft_group"] for each in flushed] == [1, 2]
    assert all(each["raft_index"] > 0 for each in flushed)
    verified = node.json("tier", "verify", "--from", url)
    assert (verified["ok"], verified["messages"]) == (True, 5)
    plan = node.json("tier", "restore", "--from", url, "--data-dir", "/nowhere", "--dry-run")
    assert sum(each["lost"] for each in plan["queues"]) == 0
    # Messages that came later are flushed as well.
    node.json("message", "send", "orders", "--body", "later")
    again = node.json("tier", "flush", "--raft-group", "1", "--raft-group", "2")["raft_groups"]
    assert sum(each["raft_index"] for each in again) > sum(each["raft_index"] for each in flushed)
    assert node.json("tier", "verify", "--from", url)["messages"] >= 6
    manifests = [each for each in (tmp_path / "tier").rglob("*.json") if "manifest" in str(each)]
    assert len(manifests) >= 2
    for manifest in manifests:
        manifest.unlink()
    empty = node.strata("tier", "verify", "--from", url)
    assert empty.returncode == 1
    assert "nothing can be restored" in empty.stderr
    assert "ok" in empty.stdout.split("\n")[0]
    assert "yes" not in empty.stdout.split("\n")[0]


def test_a_topic_is_uploaded_paused_and_resumed(start_node: StartNode, tmp_path: Path) -> None:
    """Messages of a topic come to the tier, but not while uploads are paused."""
    node = start_node("--tier", f"posix://{tmp_path / 'tier'}", STRATA_TIER_FLUSH_AGE_MS="200")
    level = ("--tiered-storage-level", "FORCE", "--retention", "365d", "--local-retention", "1h")
    made = node.json("topic", "create", "orders", "--queues", "1", *level)
    assert made["attributes"] == {"local_retention_ms": "3600000", "tiered_storage_level": "FORCE"}
    node.json("message", "send", "orders", "--body", "first", "--key", "key-1")
    until_blocking(lambda: objects(node) == 1, WAIT_S, step_s=0.2)
    paused = node.json("tier", "pause")["paused"]
    assert {group["state"] for group in node.json("tier", "status")["raft_groups"]} == {"PAUSED"}
    node.json("message", "send", "orders", "--body", "second", "--key", "key-1")
    time.sleep(1)
    assert objects(node) == 1
    assert node.json("tier", "resume")["resumed"] == paused
    until_blocking(lambda: objects(node) == 2, WAIT_S, step_s=0.2)
    found = node.json("message", "query", "orders", "--key", "key-1")["messages"]
    assert {message["body"] for message in found} == {"first", "second"}
    changed = node.json("topic", "update", "orders", "--local-retention", "2h")
    assert changed["attributes"] == {
        "local_retention_ms": "7200000",
        "tiered_storage_level": "FORCE",
    }
