"""A standalone node as a process of its own, and the `strata` command beside it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.leftovers import free_disk
from tests.parts.commands import PROGRAM, Done, strata

READY_TIMEOUT_S = 30
STRATA = PROGRAM


class Node:
    """A standalone node in a process."""

    def __init__(
        self,
        data_dir: Path,
        *arguments: str,
        environment: dict[str, str],
        program: Sequence[str] = STRATA,
    ) -> None:
        self.data_dir = data_dir
        started = time.monotonic()
        self.process = subprocess.Popen(
            [*program, "standalone", "--data-dir", str(data_dir), "--grpc-port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
        )
        assert self.process.stdout is not None
        self.ready_line = self.process.stdout.readline()
        self.start_s = time.monotonic() - started
        fields = dict(part.split("=", 1) for part in self.ready_line.split()[1:])
        self.endpoint = fields.get("grpc", "")

    def strata(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command against this node; see `inside`."""
        done = self.inside(*arguments)
        return subprocess.CompletedProcess(
            arguments, done.code, done.out.decode(), done.err.decode()
        )

    def inside(self, *arguments: str, stdin: bytes = b"") -> Done:
        """Run a command against this node; see `tests.parts.commands`."""
        assert self.endpoint, f"it does not serve: {self.process.communicate()}"
        return strata(*arguments, environment={"STRATA_ENDPOINT": self.endpoint}, stdin=stdin)

    def json(self, *arguments: str, stdin: bytes = b"") -> dict[str, Any]:
        """Return the JSON of a command that must succeed; see `inside`."""
        done = self.inside(*arguments, "-o", "json", stdin=stdin)
        assert (done.code, done.err) == (0, b""), done.err
        result: dict[str, Any] = json.loads(done.out)
        return result

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str, str]:
        """Stop it; return (exit code, the rest of stdout, stderr)."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err


StartNode = Callable[..., Node]


@pytest.fixture
def start_node(tmp_path: Path) -> Iterator[StartNode]:
    """Start nodes on the test's data folder; those still running are killed at the end."""
    nodes: list[Node] = []

    def start(*arguments: str, program: Sequence[str] = STRATA, **environment: str) -> Node:
        node = Node(tmp_path / "data", *arguments, environment=environment, program=program)
        nodes.append(node)
        return node

    yield start
    for node in nodes:
        if node.process.poll() is None:
            node.stop(signal.SIGKILL)
        for pipe in (node.process.stdout, node.process.stderr):
            if pipe is not None:
                pipe.close()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """One node for the tests of a module that only add to it."""
    started = Node(tmp_path_factory.mktemp("node") / "data", environment={})
    yield started
    code, _, err = started.stop()
    assert code == 0, err
    free_disk(started.data_dir)
