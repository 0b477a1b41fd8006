"""Syncs that the kernel is asked for: no test can cut the power of a real disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest


def note_syncs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of files and folders that are synced from now on, as it happens."""
    synced: list[str] = []

    def noting(real: Callable[[int], None]) -> Callable[[int], None]:
        def sync(descriptor: int) -> None:
            synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
            real(descriptor)

        return sync

    monkeypatch.setattr(os, "fsync", noting(os.fsync))
    monkeypatch.setattr(os, "fdatasync", noting(os.fdatasync))
    return synced
