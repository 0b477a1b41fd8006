"""Ports of the CommitLog: what it needs from a disk.

Adapters: `real_disk.RealDisk` and the simulated disk of tests, under one contract suite
(`tests/contract/test_disk.py`). Every call blocks and may raise `OSError`; the log runs them in
its own thread. Names are plain file names inside one folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """Free and total bytes of the file system that holds the folder."""

    free_bytes: int
    total_bytes: int


class DiskFile(Protocol):
    """One open file. Positions are byte offsets from its start."""

    def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Write all buffers one after another at `position`, whole or raise `OSError`."""

    def sync(self) -> None:
        """Make written bytes durable (fdatasync). An `OSError` here is final (rule 7)."""

    def read(self, position: int, length: int) -> bytes:
        """Return `length` bytes, fewer only at the end of the file."""

    def allocate(self, length: int) -> None:
        """Reserve blocks so that the file is at least `length` long, zero filled."""

    def truncate(self, length: int) -> None:
        """Cut or extend the file to `length`."""

    def size(self) -> int:
        """Return the file's length in bytes."""

    def close(self) -> None:
        """Release the handle; the file stays."""


class Disk(Protocol):
    """One folder."""

    def names(self) -> list[str]:
        """Return the names of the files in the folder, sorted."""

    def open(self, name: str, *, create: bool) -> DiskFile:
        """Open for reading and writing; `create` makes a new file and fails if it exists."""

    def delete(self, name: str) -> None:
        """Remove a file; durable after `sync_folder`."""

    def sync_folder(self) -> None:
        """Make creations and removals durable."""

    def space(self) -> DiskSpace:
        """Return how much room there is."""

    def is_concurrent(self) -> bool:
        """Whether work in a second thread gains time; False: all is done in the caller's."""
