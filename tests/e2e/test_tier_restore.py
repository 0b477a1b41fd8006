"""A cluster of several storage nodes comes back from the bucket of a lost node alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strata_testing import until_blocking
from tests.e2e.leftovers import free_disk
from tests.e2e.standalone import STRATA
from tests.parts.ports import free_port

WAIT_S = 240.0
REPLICAS = 3
SENT = [
    ("orders", "one", ("--key", "k1", "--tag", "red", "--property", "shop=north")),
    ("orders", "two", ("--key", "k2", "--tag", "blue")),
    ("steps", "three", ("--group", "a")),
    ("steps", "four", ("--group", "a")),
    ("later", "five", ("--delay", "1s")),
]
SAME = ("message_id", "body", "keys", "tag", "properties", "queue", "offset", "message_group")


class Processes:
    """Processes of one test, and commands against them."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._folder = folder
        self.environment = os.environ | environment
        self._running: list[subprocess.Popen[str]] = []
        self.endpoint = ""

    def start(self, role: str, data_dir: Path, **environment: str) -> subprocess.Popen[str]:
        """Start a process; its broker, if it has one, answers the commands from now on."""
        with (self._folder / f"{role}-{len(self._running)}.log").open("w") as log:
            process = subprocess.Popen(
                [str(STRATA), role, "--data-dir", str(data_dir)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self.environment | environment,
            )
        self._running.append(process)
        assert process.stdout is not None
        fields = dict(part.split("=", 1) for part in process.stdout.readline().split()[1:])
        assert fields, f"{role} did not start"
        self.endpoint = fields.get("grpc", self.endpoint)
        return process

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command."""
        return subprocess.run(
            [str(STRATA), *arguments, "-o", "json"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=self.environment | {"STRATA_ENDPOINT": self.endpoint},
        )

    def json(self, *arguments: str) -> Any:
        """Run a command that must succeed and return its JSON.

        While a raft group is without a leader it is asked again, as people would.
        """
        deadline = time.monotonic() + WAIT_S
        done = self.run(*arguments)
        while "did not answer in time" in done.stderr and time.monotonic() < deadline:
            done = self.run(*arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End all processes."""
        for process in self._running:
            process.send_signal(number)
        for process in self._running:
            process.communicate(timeout=30)
        self._running.clear()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """Processes that share a bucket; all of them end with the test."""
    started = Processes(
        tmp_path,
        {
            "STRATA_TIER_URL": f"posix://{tmp_path / 'tier'}",
            "STRATA_TIER_FLUSH_AGE_MS": "200",
            "STRATA_TIER_MANIFEST_INTERVAL_MS": "1000",
            "STRATA_STORAGE_RETENTION_INTERVAL_MS": "1000",
            "STRATA_NODE_GRPC_PORT": "0",
        },
    )
    yield started
    started.stop(signal.SIGKILL)
    for folder in tmp_path.iterdir():
        if folder.is_dir():
            free_disk(folder)


def received(processes: Processes, topic: str, group: str, count: int) -> list[dict[str, Any]]:
    """Receive and ack messages of a topic until there are enough."""
    found: list[dict[str, Any]] = []

    def enough() -> bool:
        command = ("message", "receive", topic, "--group", group, "--ack", "--wait", "2s")
        found.extend(processes.json(*command, "--count", "8")["messages"])
        return len(found) >= count

    until_blocking(enough, WAIT_S, step_s=1, tell=lambda: f"messages of {topic}")
    return sorted(found, key=lambda message: str(message["body"]))


def fill(processes: Processes) -> dict[str, list[dict[str, Any]]]:
    """Make topics and groups, send, receive with one group; return what it saw by topic."""
    topics: tuple[tuple[str, tuple[str, ...]], ...] = (
        ("orders", ("--retention", "365d")),
        ("steps", ("--type", "FIFO")),
        ("later", ("--type", "DELAY")),
    )
    for name, options in topics:
        processes.json("topic", "create", name, "--queues", "2", *options)
    processes.json("group", "create", "ordered", "--fifo", "--max-attempts", "5")
    for topic, body, options in SENT:
        processes.json("message", "send", topic, "--body", body, *options)
    return {
        topic: received(processes, topic, group, count)
        for topic, group, count in (
            ("orders", "seen", 2),
            ("steps", "ordered", 2),
            ("later", "s", 1),
        )
    }


def settings(processes: Processes) -> list[Any]:
    """Return topics and groups with what they were told, without times of changes."""
    rows = [processes.json("topic", "show", name) for name in ("orders", "steps", "later")]
    rows.append(processes.json("group", "show", "ordered"))
    return [
        {key: value for key, value in row.items() if key in ("name", "queues", "type", "topic_id")}
        | {key: row.get(key) for key in ("retention_ms", "attributes", "fifo", "max_attempts")}
        for row in rows
    ]


def voters(processes: Processes, raft_group: int) -> int:
    """Return how many voters of a raft group serve."""
    replicas = processes.json("raft-group", "show", str(raft_group))["replicas"]
    return sum(each["role"] == "voter" and each["state"] == "serving" for each in replicas)


def until_complete(processes: Processes, raft_group: int) -> None:
    """Wait until a raft group has all its voters."""

    def tell() -> object:
        return processes.json("raft-group", "show", str(raft_group)), processes.json("node", "list")

    until_blocking(lambda: voters(processes, raft_group) == REPLICAS, WAIT_S, step_s=1, tell=tell)


@pytest.mark.timeout(900)
def test_a_cluster_grows_from_what_was_restored(processes: Processes, tmp_path: Path) -> None:
    """With the one restored node dead again, fresh ones serve every message and setting."""
    processes.start("standalone", tmp_path / "lost")
    seen, told = fill(processes), settings(processes)
    url = processes.environment["STRATA_TIER_URL"]

    def is_uploaded() -> bool:
        topics = processes.json("tier", "inspect", "--from", url)["topics"]
        return bool(sum(topic["messages"] for topic in topics) >= len(SENT))

    until_blocking(is_uploaded, WAIT_S, step_s=1)
    # A checkpoint that was taken after the last ack.
    time.sleep(5)
    processes.stop(signal.SIGKILL)
    free_disk(tmp_path / "lost")
    new = tmp_path / "new"
    processes.json("tier", "restore", "--from", url, "--data-dir", str(new), "--split")

    port = free_port()
    processes.environment |= {
        "STRATA_NODE_HOST": "127.0.0.1",
        "STRATA_NODE_NAMESERVER_PORT": str(port),
        "STRATA_CLUSTER_NAMESERVERS": f"127.0.0.1:{port}",
        "STRATA_TIER_HOME": "restored",
        # Nothing fails here but what is killed, however slow the machine is.
        "STRATA_NAMESERVER_SUSPECT_AFTER_MS": "5000",
        "STRATA_NAMESERVER_DOWN_AFTER_MS": "10000",
    }
    processes.start("nameserver", new / "nameserver")
    restored, *_ = [
        processes.start("storage", folder, STRATA_NODE_STORAGE_PORT=str(free_port()))
        for folder in (new / "storage", tmp_path / "fresh-1", tmp_path / "fresh-2")
    ]
    processes.start("broker", tmp_path / "broker")
    for raft_group in (1, 2):
        until_complete(processes, raft_group)
    restored.kill()
    # Every raft group of a consumer group is asked: all have another leader.
    asks_all = ("group", "show", "ordered")
    until_blocking(lambda: processes.run(*asks_all).returncode == 0, WAIT_S, step_s=1)

    assert settings(processes) == told
    for topic, messages in seen.items():
        again = received(processes, topic, f"new-{topic}", len(messages))
        assert [{key: each[key] for key in SAME} for each in again] == [
            {key: each[key] for key in SAME} for each in messages
        ]
    # Messages that were acked before the checkpoint are not seen again.
    command = ("message", "receive", "orders", "--group", "seen", "--wait", "1s")
    assert processes.json(*command)["messages"] == []
    processes.json("message", "send", "orders", "--body", "six", "--key", "k6")
    (found,) = processes.json("message", "query", "orders", "--key", "k1")["messages"]
    assert found["body"] == "one"
    assert [each["body"] for each in received(processes, "orders", "seen", 1)] == ["six"]
