"""`strata log repair` on the data folder of a standalone node."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from strata_cli.main import run
from tests.integration.cli.conftest import Node

StartNode = Callable[..., Node]
Offline = Callable[..., tuple[int, str, str]]


@pytest.fixture
def offline(capsys: pytest.CaptureFixture[str]) -> Offline:
    """Run `strata log ...` in this process; return (exit code, stdout, stderr)."""

    def call(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run(["log", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def entries(offline: Offline, log: Path, at_least: int, at_most: int) -> list[dict[str, Any]]:
    """Return the entries of a log with payloads of such lengths, oldest first."""
    _, lines, _ = offline("dump", str(log), "-o", "json")
    frames = [json.loads(line) for line in lines.splitlines()]
    return [
        each
        for each in frames
        if each.get("kind") == "entry" and at_least < each["payload_bytes"] < at_most
    ]


def flip(log: Path, position: int) -> None:
    """Flip a bit at a log position of the only segment."""
    segment = next(log.glob("*.log"))
    with segment.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)
        file.seek(position)
        file.write(bytes([byte[0] ^ 1]))


def test_a_damaged_log_is_repaired(start_node: StartNode, offline: Offline) -> None:
    """Read-only with a named error, nothing without --yes, then writable; the rest is there."""
    node = start_node()
    folder, log = str(node.data_dir), node.data_dir / "storage" / "log"
    node.json("topic", "create", "t", "--queues", "4")
    sent = {}
    for number in range(5):
        message = node.json("message", "send", "t", "--body", f"{number:04d}" * 500)
        sent[message["message_id"]] = f"{number:04d}" * 500
    code, _, error = offline("repair", folder, "--yes")
    assert (code, error.count("\n")) == (1, 1)
    assert "is in use by process" in error
    assert node.stop()[0] == 0

    bad = entries(offline, log, 2_000, 3_000)[2]
    flip(log, bad["position"] + 72 + bad["payload_bytes"] - 300)
    node = start_node()
    # The id of a message chooses its raft group: one refuses, the other does not.
    outcomes: set[int] = set()
    while not outcomes >= {0, 4}:
        sending = node.strata("message", "send", "t", "--body", "x", "--timeout", "2s")
        outcomes.add(sending.returncode)
    code, _, errors = node.stop()
    assert code == 0
    assert "raft group is read-only" in errors
    assert "strata log repair" in errors

    code, _, error = offline("repair", folder, "-o", "json")
    assert (code, error.count("\n")) == (1, 1)
    assert "--yes" in error
    assert offline("repair", folder, "--dry-run", "--yes")[0] == 0
    assert offline("verify", folder)[0] == 1, "a dry run changes nothing"
    code, out, error = offline("repair", str(log), "--yes", "-o", "json")
    assert (code, error) == (0, "")
    (lost,) = json.loads(out)["logs"][0]["lost"]
    assert (lost["raft_group"], lost["index"]) == (bad["raft_group"], bad["index"])
    assert lost["offsets_known"]
    assert len(lost["offsets"]) == 1
    assert offline("verify", folder)[0] == 0
    code, out, _ = offline("repair", folder, "--yes")
    assert (code, "no lost" in out) == (0, True)

    node = start_node()
    found: list[dict[str, Any]] = []
    for message_id, body in list(sent.items())[1:4]:
        shown = node.strata("message", "show", "t", "--id", message_id, "-o", "json")
        messages = json.loads(shown.stdout)["messages"] if shown.returncode == 0 else []
        assert [message["body"] for message in messages] in ([], [body])
        found += messages
    assert len(found) == 2
    for _ in range(2):
        assert node.json("message", "send", "t", "--body", "x")["message_id"]
    assert node.stop()[0] == 0


def test_a_damaged_metadata_log_is_repaired(start_node: StartNode, offline: Offline) -> None:
    """Its rows are elsewhere, so topics that were there still are, and new ones can be made."""
    node = start_node()
    folder, log = str(node.data_dir), node.data_dir / "nameserver" / "log"
    for name in ("one", "two"):
        node.json("topic", "create", name)
    assert node.stop()[0] == 0
    bad = entries(offline, log, 40, 10_000)[-1]
    flip(log, bad["position"] + 72 + 20)
    assert offline("verify", str(log))[0] == 1
    code, out, error = offline("repair", folder, "--yes", "-o", "json")
    assert (code, error) == (0, "")
    assert [len(each["lost"]) for each in json.loads(out)["logs"]] == [1, 0]
    node = start_node()
    node.json("topic", "create", "three")
    names = {topic["name"] for topic in node.json("topic", "list")["topics"]}
    assert names == {"one", "two", "three"}
    assert node.json("message", "send", "two", "--body", "x")["message_id"]
    assert node.stop()[0] == 0
