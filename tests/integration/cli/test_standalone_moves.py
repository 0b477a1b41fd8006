"""Queues and slots move between the raft groups of one node, as they do in a cluster."""

from __future__ import annotations

from tests.integration.cli.conftest import StartNode


def test_queues_and_slots_move_on_a_standalone_node(start_node: StartNode) -> None:
    """Messages before and after a move are received; a restart keeps to it; a topic can go on."""
    node = start_node()
    assert node.strata("topic", "create", "moving", "--queues", "4").returncode == 0
    for number in range(8):
        sent = node.strata("message", "send", "moving", "--body", f"before {number}")
        assert sent.returncode == 0, sent.stderr
    source = node.json("queue", "show", "moving", "0")["raft_group"]
    other = str(3 - source)
    moved = node.json("queue", "move", "moving", "0", "--to", other)
    assert moved["done"] is True
    assert node.json("queue", "show", "moving", "0")["raft_group"] == 3 - source
    slot = node.json("queue", "show", "moving", "1")["slot"]
    owner = node.json("queue", "show", "moving", "1")["slot_raft_group"]
    given = node.json("slot", "move", str(slot), "1", "--to", str(3 - owner))
    assert (given["left"], given["done"]) == (0, True)
    for number in range(8):
        sent = node.strata("message", "send", "moving", "--body", f"after {number}")
        assert sent.returncode == 0, sent.stderr
    code, output, log = node.stop()
    assert (code, output) == (0, "")
    # Changes are told at every log level.
    assert all('"component": "audit"' in line for line in log.splitlines()), log
    node = start_node()
    created = node.strata("topic", "create", "later", "--queues", "8")
    assert created.returncode == 0, created.stderr
    expected = {f"{when} {number}" for when in ("before", "after") for number in range(8)}
    received: set[str] = set()
    for _ in range(60):
        if received == expected:
            break
        found = node.json("message", "receive", "moving", "--group", "g", "--count", "16", "--ack")
        received |= {row["body"] for row in found["messages"]}
    assert received == expected


def test_what_cannot_be_done_alone_is_refused_in_one_line(start_node: StartNode) -> None:
    """Nothing could take over from the only node; nothing is uploaded without a tier."""
    node = start_node()
    shown = node.json("cluster", "show")["nodes"]
    storage = next(each["node"] for each in shown if each["role"] == "storage")
    broker = next(each["node"] for each in shown if each["role"] == "broker")
    for arguments, reason in (
        (("node", "drain", storage), "only storage node that runs"),
        (("node", "remove", broker), "only broker that runs"),
        (("tier", "pause"), "this node has no tier"),
    ):
        refused = node.strata(*arguments)
        assert (refused.returncode, refused.stdout) == (4, "")
        assert reason in refused.stderr
        assert refused.stderr.count("\n") == 1
