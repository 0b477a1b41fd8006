"""Part of `test_quickstart_machines` in namespaces of its own: names, addresses and processes.

Not collected by itself: it changes the addresses and the names of whoever runs it.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from strata_testing import until_blocking
from tests.e2e.cluster import STRATA

PAGE = Path(__file__).parents[2] / "docs" / "quickstart.md"
HEADING = "## A cluster on several machines"
HOSTS = {
    f"{kind}-{number}": f"10.88.{subnet}.{number}"
    for subnet, (kind, count) in enumerate((("ns", 3), ("st", 3), ("br", 1)), 1)
    for number in range(1, count + 1)
}
"""A machine of the page is an address; the processes use the ports of the page."""
START_LIMIT_S = 60.0
FILE_MODE_OWNER_ONLY = 0o600


def commands() -> list[list[str]]:
    """Return the commands of the section, in order, without comments."""
    section = PAGE.read_text().partition(HEADING)[2].partition("\n### ")[0]
    blocks = "".join(re.findall(r"```\n(.*?)```", section, re.DOTALL)).replace("\\\n", " ")
    lines = [shlex.split(line, comments=True) for line in blocks.splitlines()]
    return [line[1:] for line in lines if line and line[0] == "strata"]


def of_machine(command: list[str], first: str, host: str, folder: Path) -> list[str]:
    """Return a command of the page as it is on another machine: names, files and data folder."""
    told = [word.replace(f"{first}-tls", f"{host}-tls") for word in command]
    for flag, value in (
        ("--advertise", host),
        ("--host", HOSTS[host] if "--data-dir" in told else host),
        ("--data-dir", str(folder / host)),
    ):
        if flag in told:
            told[told.index(flag) + 1] = value
    return told


@pytest.fixture
def machines(tmp_path: Path) -> Path:
    """Give every machine of the page its address and its name."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for address in HOSTS.values():
        subprocess.run(["ip", "addr", "add", f"{address}/32", "dev", "lo"], check=True)
    names = tmp_path / "hosts"
    lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in HOSTS.items())]
    names.write_text("\n".join(lines) + "\n")
    subprocess.run(["mount", "--bind", str(names), "/etc/hosts"], check=True)
    return tmp_path


@contextmanager
def running(folder: Path, calls: Mapping[str, list[str]]) -> Iterator[dict[str, Path]]:
    """Start processes; end them afterwards. Gives their output files by machine."""
    outputs = {host: folder / f"{host}.out" for host in calls}
    processes = []
    try:
        for host, call in calls.items():
            with outputs[host].open("w") as out:
                processes.append(
                    subprocess.Popen([STRATA, *call], cwd=folder, stdout=out, stderr=out)
                )
        yield outputs
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(START_LIMIT_S)


def wait_ready(host: str, output: Path) -> None:
    """Wait for the whole of a process's ready line."""
    until_blocking(
        lambda: re.search(r"^ready .*\n", output.read_text(), re.MULTILINE) is not None,
        START_LIMIT_S,
        tell=lambda: f"{host}: {output.read_text()}",
    )


def strata(folder: Path, command: list[str], environment: Mapping[str, str] = {}) -> str:
    """Run a command to its end and return what it printed."""
    done = subprocess.run(
        [STRATA, *command],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def test_the_lines_of_the_page(machines: Path) -> None:
    """Certificates, seven processes with access control, then users and policies by the admin."""
    page = commands()
    by_kind = {
        kind: [host for host in HOSTS if host.startswith(kind)] for kind in ("ns", "st", "br")
    }
    calls: dict[str, list[str]] = {}
    for command in page:
        first = next((f"{kind}-1" for kind in by_kind if f"{kind}-1-tls" in command), None)
        for host in by_kind[first[:2]] if first else ():
            told = of_machine(command, first or "", host, machines)
            if "--data-dir" in told:
                calls[host] = told
            else:
                strata(machines, told)
        if command[:2] == ["cert", "init"]:
            strata(machines, command)
    assert sorted(calls) == sorted(HOSTS)
    with running(machines, calls) as outputs:
        for host, output in outputs.items():
            wait_ready(host, output)
            assert "access_control=on" in output.read_text()
        until_blocking(lambda: [*machines.glob("ns-*/first-admin.json")], START_LIMIT_S)
        [keys] = machines.glob("ns-*/first-admin.json")
        assert keys.stat().st_mode & 0o777 == FILE_MODE_OWNER_ONLY
        admin = json.loads(keys.read_text())
        environment = {
            "STRATA_ENDPOINT": "127.0.0.1:8082",
            "STRATA_ACCESS_KEY": admin["access_key"],
            "STRATA_SECRET_KEY": admin["secret_key"],
        }

        def is_led() -> bool:
            told = strata(machines, ["raft-group", "list", "-o", "json"], environment)
            groups = json.loads(told)["raft_groups"]
            return bool(groups) and all(group["leader"] for group in groups)

        # Raft groups are made once all storage nodes are there.
        until_blocking(is_led, START_LIMIT_S, forgiven=AssertionError)
        printed = [
            strata(machines, command, environment)
            for command in page
            if command[0] in ("topic", "user", "policy")
        ]
        assert len(printed) == 4
        assert json.loads(printed[1])["secret_key"]
