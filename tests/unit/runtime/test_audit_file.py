"""The file of the audit trail: lines of JSON, bounded files, nothing that waits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strata_runtime.audit import AuditFile
from strata_runtime.metrics import Metrics


def audit_file(
    path: Path, metrics: Metrics, *, max_bytes: int = 1 << 20, max_files: int = 3
) -> AuditFile:
    return AuditFile(path, max_bytes=max_bytes, max_files=3, metrics=metrics)


def event(number: int) -> dict[str, str | int]:
    return {"time_ms": number, "event": "refused", "outcome": "refused", "user": '\udc80\n"x'}


def numbers(*files: Path) -> list[int]:
    return [
        json.loads(line)["time_ms"] for file in files for line in file.read_bytes().splitlines()
    ]


def files_of(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


async def test_lines_are_json_that_only_the_owner_reads(tmp_path: Path) -> None:
    """Also with characters that are no UTF-8; a restart goes on at the end."""
    path = tmp_path / "audit.json"
    for first in (0, 5):
        file = audit_file(path, Metrics())
        await file.start()
        for number in range(first, first + 5):
            file.write(event(number))
        await file.stop(1.0)
    assert numbers(path) == list(range(10))
    assert path.stat().st_mode & 0o777 == 0o600


async def test_files_are_bounded_in_size_and_number(tmp_path: Path) -> None:
    """The newest lines are in FILE, those before in FILE.1 and FILE.2; the oldest are gone."""
    path, metrics = tmp_path / "audit.json", Metrics()
    file = audit_file(path, metrics, max_bytes=300)
    await file.start()
    for number in range(100):
        file.write(event(number))
    await file.stop(1.0)
    files = files_of(tmp_path)
    assert [each.name for each in files] == ["audit.json", "audit.json.1", "audit.json.2"]
    assert all(each.stat().st_size <= 300 for each in files)
    kept = numbers(files[2], files[1], files[0])
    assert kept == list(range(100 - len(kept), 100))


async def test_what_finds_no_room_is_counted(tmp_path: Path) -> None:
    """A file that is not open yet holds a bounded number of lines."""
    metrics = Metrics()
    file = audit_file(tmp_path / "audit.json", metrics)
    for number in range(10_003):
        file.write(event(number))
    assert b"strata_audit_file_dropped_total 3.0" in metrics.render()
    await file.start()
    await file.stop(5.0)
    assert len(numbers(tmp_path / "audit.json")) == 10_000


async def test_a_file_that_cannot_be_written_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await audit_file(tmp_path / "none" / "audit.json", Metrics()).start()
