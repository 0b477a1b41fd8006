"""Remains of a node after its tests: enough to see what happened, not what it preallocated."""

from __future__ import annotations

from pathlib import Path

LARGE_BYTES = 1 << 20
PROCESS_LOG = "log"


def free_disk(data_dir: Path) -> None:
    """Remove the large files of nodes that have ended: a run would fill a small disk with them."""
    for file in data_dir.rglob("*"):
        if file.is_file() and file.name != PROCESS_LOG and file.stat().st_size > LARGE_BYTES:
            file.unlink()
