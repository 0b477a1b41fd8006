"""`strata doctor`: verdicts of its checks, and the exit code that a script gets."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from strata.admin.v1 import admin_pb2
from strata_cli import doctor
from strata_cli.main import run
from strata_cli.reference import JSON_KEYS
from strata_runtime.authority import issue, make_authority
from strata_runtime.roles import PeerRole

if TYPE_CHECKING:
    from tests.unit.cli.conftest import ScriptedAdmin

GIB = 1 << 30


@pytest.mark.parametrize(
    ("limit", "verdict"), [(1_024, "failed"), (20_000, "warning"), (1 << 20, "ok"), (-1, "ok")]
)
def test_files(limit: int, verdict: str) -> None:
    """A process that may open few files serves few clients."""
    found = doctor.files(limit)
    assert (found.verdict, found.values["limit"]) == (verdict, limit)


@pytest.mark.parametrize(
    ("available_kib", "cgroup", "verdict"),
    [
        (8 << 20, {}, "ok"),
        (1 << 19, {}, "failed"),
        (8 << 20, {"memory.max": "max\n"}, "ok"),
        (8 << 20, {"memory.max": f"{4 * GIB}\n", "memory.current": f"{3 * GIB - 1}\n"}, "warning"),
    ],
)
def test_memory(tmp_path: Path, available_kib: int, cgroup: dict[str, str], verdict: str) -> None:
    """The limit of a container counts where it is lower than the machine's memory."""
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(f"MemTotal: 1 kB\nMemAvailable:   {available_kib} kB\n")
    for name, text in cgroup.items():
        (tmp_path / name).write_text(text)
    assert doctor.memory(meminfo, tmp_path).verdict == verdict


@pytest.mark.parametrize(
    ("skew_ms", "error_ms", "verdict"),
    [(3, 1, "ok"), (-150, 100, "ok"), (-150, 10, "warning"), (5_000, 10, "failed")],
)
def test_a_clock_is_judged_within_what_is_certain(
    skew_ms: float, error_ms: float, verdict: str
) -> None:
    """A slow call proves nothing about the clock."""
    *_, found = doctor.clock(doctor.BrokerClock(skew_ms=skew_ms, error_ms=error_ms))
    assert (found.name, found.verdict) == ("broker", verdict)


def test_a_port_is_free_or_taken() -> None:
    """The error names the command that finds the process."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        found = doctor.port(address)
    assert (found.verdict, found.name) == ("failed", address)
    assert "address already in use" in found.detail
    assert doctor.port("127.0.0.1:0").verdict == "ok"


def test_a_disk_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    """Room and syncs as numbers; a folder that is not there yet is judged by its parent."""
    checks = list(doctor.disk(tmp_path / "not" / "there"))
    values = {name for each in checks for name in each.values}
    assert {"free_bytes", "total_bytes", "sync_p50_ms", "sync_p99_ms"} <= values
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_a_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It must not end the command: that is what it is asked for."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    *_, last = doctor.disk(tmp_path)
    assert (last.check, last.verdict) == ("disk", "failed")
    assert "no space left on device" in last.detail
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_seen_is_judged_by_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user's folder is no reason to end the command."""
    is_dir = Path.is_dir

    def hidden(path: Path) -> bool:
        if path.name == "hidden":
            raise PermissionError(errno.EACCES, "Permission denied")
        return is_dir(path)

    monkeypatch.setattr(Path, "is_dir", hidden)
    assert next(doctor.disk(tmp_path / "hidden")).values["total_bytes"] > 0


@pytest.mark.parametrize("address", ["0.0.0.0:99999", "0.0.0.0:abc", "a..b:1", "h:²", "h:"])
def test_what_is_no_address_is_a_verdict(address: str) -> None:
    """The other checks are still made."""
    found = doctor.port(address)
    assert (found.verdict, found.detail) == ("failed", "this is no address of a port")


def test_the_file_system_is_that_of_the_deepest_mount(tmp_path: Path) -> None:
    """A folder below a mount, and a neighbour whose name only begins like it."""
    root = str(tmp_path)
    mounts = tmp_path / "mounts"
    mounts.write_text(f"a / ext4 rw 0 0\nb {root}/data nfs4 rw 0 0\nc {root}/my\\040disk xfs r 0 0")
    for name, kind in (("data/x", "nfs4"), ("data2", "ext4"), ("my disk/log", "xfs")):
        assert doctor.file_system_of(tmp_path / name, mounts) == kind


def test_a_certificate_has_days_left(tmp_path: Path) -> None:
    """Enough of them, few of them, or no certificate at all."""
    make_authority(tmp_path / "ca", days=400)
    verdicts = [
        doctor.certificate(
            issue(tmp_path / "ca", tmp_path / str(days), PeerRole.STORAGE, ["a"], days=days)
        ).verdict
        for days in (300, 5)
    ]
    (tmp_path / "none.crt").write_text("no certificate")
    verdicts += [doctor.certificate(tmp_path / name).verdict for name in ("none.crt", "gone.crt")]
    assert verdicts == ["ok", "warning", "failed", "failed"]


def test_the_exit_code_is_the_worst_verdict(
    scripted: ScriptedAdmin, endpoint_of_scripted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A broker whose clock is an hour away fails, and the keys are those of the page."""
    scripted.answers["GetHealth"] = lambda request: admin_pb2.GetHealthResponse(
        status="healthy", looked_at_ms=round(time.time() * 1_000) + 3_600_000
    )
    command = ["doctor", "--endpoint", endpoint_of_scripted, "-o", "json"]
    assert run(command) == 2
    report = json.loads(capsys.readouterr().out)
    promised = set(re.findall(r"`([a-z0-9_]+)`", JSON_KEYS["doctor"]))
    used = {key for each in report["checks"] for key in (*each, *each["values"])}
    assert {*report, *used} <= promised
    first = report["checks"][0]
    assert (report["status"], first["check"], first["name"]) == ("failed", "clock", "broker")
    assert first["action"]


def test_no_broker_fails_unless_none_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    """A machine that is to run a first process has no broker to ask."""
    assert run(["doctor", "--endpoint", "127.0.0.1:1", "-o", "wide"]) == 2
    assert "connection refused" in capsys.readouterr().out
    run(["doctor", "--endpoint", "127.0.0.1:1", "--offline", "-o", "json"])
    checks = {each["check"] for each in json.loads(capsys.readouterr().out)["checks"]}
    assert checks == {"clock", "disk", "files", "memory"}
