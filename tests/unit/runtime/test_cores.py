"""Cores that a process may use: those of its affinity, within the limit of its container."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from strata_runtime.cores import usable_cores


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ("max 100000\n", 8),
        ("250000 100000\n", 3),
        ("50000 100000\n", 1),
        ("6400000 100000\n", 8),
        ("nonsense\n", 8),
        (None, 8),
    ],
    ids=["none", "rounded up", "half a core", "above", "unreadable", "no file"],
)
def test_a_container_s_limit_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str | None, expected: int
) -> None:
    """With eight cores in the affinity, and `cpu.max` of cgroup v2."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    file = tmp_path / "cpu.max"
    if limit is not None:
        file.write_text(limit)

    assert usable_cores(file) == expected
