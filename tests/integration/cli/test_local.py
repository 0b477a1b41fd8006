"""The verbs of `strata local` on real processes; a forwarder, the cheapest, stands for all."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strata_cli.errors import CliError
from strata_cli.local.cluster import LocalCluster, Timeouts
from strata_cli.local.plan import ClusterPlan, Member, free_ports, save

TIMEOUTS = Timeouts(start_s=20.0, stop_s=10.0)
STRATA = (sys.executable, "-m", "strata_cli.main")


def folder_with(folder: Path, *members: Member) -> LocalCluster:
    folder.mkdir(exist_ok=True)
    save(folder, ClusterPlan(members))
    return LocalCluster.open(folder, TIMEOUTS)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """A cluster of one forwarder that does not run yet."""
    made = folder_with(tmp_path / "c", Member("forwarder", "forwarder", next(free_ports())))
    yield made
    made.down()


def strata(*arguments: str) -> dict[str, Any]:
    """Run a command that must succeed and return its JSON."""
    done = subprocess.run(
        [*STRATA, *arguments, "-o", "json"], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def state(cluster: LocalCluster) -> tuple[str, int | None]:
    [view] = cluster.status()
    return view["state"], view["pid"]


def test_a_process_through_all_its_states(cluster: LocalCluster) -> None:
    """stopped, running, paused, running, dead, running on the same address, stopped."""
    assert state(cluster) == ("stopped", None)
    cluster.up()
    running, pid = state(cluster)
    assert running == "running"
    assert pid is not None and os.getsid(pid) == pid, "it must outlive the session that started it"

    cluster.pause(["forwarder"])
    assert state(cluster) == ("paused", pid)
    cluster.resume(["forwarder"])
    assert state(cluster) == ("running", pid)
    cluster.kill(["forwarder"])
    assert state(cluster) == ("dead", None)

    cluster.start(["forwarder"])
    [view] = cluster.status()
    assert view["pid"] not in (None, pid)
    host, _, port = view["address"].rpartition(":")
    socket.create_connection((host, int(port)), 5.0).close()
    cluster.pause(["forwarder"])
    cluster.stop(["forwarder"])
    assert state(cluster) == ("stopped", None)


def test_the_commands_print_the_promised_json(cluster: LocalCluster) -> None:
    """`local up` and `local status` list the processes; a command later finds them again."""
    data_dir = ("--data-dir", str(cluster.folder))
    up = strata("local", "up", *data_dir)
    assert up == strata("local", "status", *data_dir)
    [process] = up["processes"]
    assert set(process) == {"name", "role", "pid", "address", "state", "node", "metrics"}
    assert (process["name"], process["role"]) == ("forwarder", "forwarder")
    assert strata("local", "up", *data_dir) == up, "a second up leaves what runs alone"
    down = strata("local", "down", *data_dir)
    assert [each["state"] for each in down["processes"]] == ["stopped"]


def test_a_start_that_fails_tells_why_and_leaves_nothing(tmp_path: Path) -> None:
    """A taken port is found before anything is started, with the process and the address."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        cluster = folder_with(
            tmp_path / "c",
            Member("forwarder", "forwarder", next(free_ports())),
            Member("forwarder-2", "forwarder", taken.getsockname()[1]),
        )
        with pytest.raises(CliError, match="for forwarder-2: another process has the port"):
            cluster.up()
    assert {view["state"] for view in cluster.status()} == {"stopped"}


def test_verbs_refuse_what_makes_no_sense(cluster: LocalCluster, tmp_path: Path) -> None:
    """Unknown names, processes that do not run, a folder without a cluster: one clear line."""
    with pytest.raises(CliError, match="no process named storage-1"):
        cluster.kill(["storage-1"])
    with pytest.raises(CliError, match="forwarder does not run"):
        cluster.pause(["forwarder"])
    with pytest.raises(CliError, match="holds no local cluster"):
        LocalCluster.open(tmp_path / "empty")
    cluster.up()
    with pytest.raises(CliError, match="forwarder is running"):
        cluster.start(["forwarder"])
    with pytest.raises(CliError, match="strata local stop forwarder first"):
        cluster.remove("forwarder")


def test_a_process_killed_by_somebody_else_is_dead(cluster: LocalCluster) -> None:
    """The state is what the kernel says, not what the last command did."""
    cluster.up()
    _, pid = state(cluster)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert state(cluster) == ("dead", None)
    cluster.up()
    assert state(cluster)[0] == "running"
