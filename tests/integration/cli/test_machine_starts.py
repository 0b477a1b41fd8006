"""Starts of machines: one process that cannot start is the reason of all, and none stays."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from strata_cli.processes.data_folder import DataFolder, FolderRole
from strata_testing import until_blocking
from tests.integration.cli.test_failed_starts import STRATA, failure_of, server
from tests.parts.ports import free_port

LIMIT_S = 60.0


def children(pid: int) -> list[int]:
    """Return the processes that a process has started and that run."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found


def runs(pid: int) -> bool:
    return Path(f"/proc/{pid}/exe").exists()


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command; it has ended afterwards."""
    with subprocess.Popen(
        [*STRATA, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def waiting(folder: Path, free: int) -> list[str]:
    """A machine of two shards that wait for a nameserver."""
    return [
        *("storage", f"--data-dir={folder}", f"--nameservers=127.0.0.1:{free}"),
        *("--shards=2", "--port=0"),
    ]


@pytest.mark.parametrize(
    ("name", "option", "process"),
    [("storage", "--shards=2", "shard"), ("broker", "--workers=2", "worker")],
)
def test_the_reason_of_a_process_is_that_of_the_machine(
    name: str, option: str, process: str, tmp_path: Path
) -> None:
    """A configuration that no process can start with is told in one line, with its number."""
    command = [name, f"--data-dir={tmp_path / 'd'}", option]
    command += ["--grpc-port=0"] if name == "broker" else ["--port=0"]
    error = failure_of([*command])

    assert f"{process} " in error
    assert " did not start: cluster.nameservers is empty: give --nameservers" in error


@pytest.mark.parametrize("value", ["0", "257", "two", "-1", "1.5"])
def test_an_impossible_number_of_processes(value: str, tmp_path: Path) -> None:
    """Nothing is written."""
    folder = tmp_path / "d"
    error = failure_of(server("storage", folder, f"--shards={value}"), 2)

    assert "shards" in error
    assert not folder.exists()


def test_a_port_for_clients_that_is_taken(tmp_path: Path) -> None:
    """It is the machine's, so no worker is started."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        error = failure_of(
            server("broker", tmp_path / "d", "--workers=2", f"--grpc-port={port}"),
        )

    assert f"cannot listen on 127.0.0.1:{port} for clients: another process has the port" in error


def test_fewer_shards_need_the_word_of_a_nameserver(tmp_path: Path) -> None:
    """Nobody answers whether shard 1 has replicas: the start is refused, and nothing is lost."""
    for number in range(2):
        DataFolder.open(tmp_path / f"shard-{number}", FolderRole.STORAGE).close()
    machine = '{"format_version": 1, "machine_id": "machine-1", "role": "storage"}'
    (tmp_path / "machine.json").write_text(machine)
    error = failure_of(server("storage", tmp_path, "--shards=1"))

    assert "shard 1 (node storage-" in error
    assert "no nameserver answers whether it still has replicas" in error


def test_a_machine_that_waits_can_be_ended(tmp_path: Path) -> None:
    """SIGTERM ends it and its processes before any of them was ready."""
    with started(*waiting(tmp_path / "d", free_port())) as machine:
        until_blocking(lambda: len(children(machine.pid)) == 2, LIMIT_S)
        pids = children(machine.pid)
        machine.send_signal(signal.SIGTERM)
        output, error = machine.communicate(timeout=LIMIT_S)

    assert output == ""
    assert "told to stop before every process was ready" in error
    assert not any(map(runs, pids))


def test_processes_end_with_their_supervisor(tmp_path: Path) -> None:
    """The supervisor is killed: its processes end in order, and the folder is free again."""
    with started(*waiting(tmp_path / "d", free_port())) as machine:
        until_blocking(
            lambda: (tmp_path / "d/shard-1/LOCK").exists() and len(children(machine.pid)) == 2,
            LIMIT_S,
        )
        pids = children(machine.pid)
        machine.kill()
        machine.wait(LIMIT_S)
        until_blocking(lambda: not any(map(runs, pids)), LIMIT_S)
    for number in range(2):
        DataFolder.open(tmp_path / "d" / f"shard-{number}", FolderRole.STORAGE).close()
