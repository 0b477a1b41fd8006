"""Segment files: their names and open handles.

Invariant: a handle is closed only when nobody reads through it, so that a freed descriptor
number is never read by mistake.
"""

from __future__ import annotations

import errno
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from strata_seglog.ports import Disk, DiskFile

_NAME = re.compile(r"\d{20}\.log")


@dataclass(slots=True)
class Segment:
    """One file of the log.

    Attributes:
        base: log position of its first byte.
        capacity: length of the file; the next segment's base is `base + capacity`.
        used: offset after its last frame (the footer included).
        sealed: no frame is added any more.
    """

    base: int
    capacity: int
    used: int = 0
    sealed: bool = False

    @property
    def name(self) -> str:
        """File name."""
        return segment_name(self.base)

    @property
    def end(self) -> int:
        """Log position after its last frame."""
        return self.base + self.used


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """A segment as others see it.

    `replicas`: replica id -> (first, last) index of the entries in it that are live.
    `used_bytes`: its frames; `file_bytes`: what it takes on the disk.
    """

    name: str
    first_position: int
    end_position: int
    sealed: bool
    used_bytes: int
    file_bytes: int
    replicas: Mapping[int, tuple[int, int]]


def segment_name(base: int) -> str:
    """Return the file name of the segment whose first byte has log position `base`."""
    return f"{base:020d}.log"


def segment_names(disk: Disk) -> list[str]:
    """Return the names of all segments, in log order."""
    return [name for name in disk.names() if _NAME.fullmatch(name)]


@dataclass(slots=True)
class _Handle:
    file: DiskFile
    users: int = 0


class OpenFiles:
    """At most `limit` idle handles stay open; those in use are not counted.

    Invariant: each file is closed once, and never while somebody uses it: its descriptor may be
    another file's by then.
    """

    def __init__(self, disk: Disk, limit: int) -> None:
        self._is_closed = False
        self._disk = disk
        self._limit = limit
        self._lock = threading.Lock()
        self._handles: OrderedDict[str, _Handle] = OrderedDict()

    @contextmanager
    def use(self, name: str) -> Iterator[DiskFile]:
        """Give an open file that stays open within the block.

        Raises:
            FileNotFoundError: it was deleted.
            OSError: everything was closed.
        """
        with self._lock:
            if self._is_closed:
                raise OSError(errno.EBADF, "the log is closed", name)
            handle = self._handles.get(name)
            if handle is None:
                handle = self._handles[name] = _Handle(self._disk.open(name, create=False))
            handle.users += 1
            self._handles.move_to_end(name)
        try:
            yield handle.file
        finally:
            self._release(name, handle)

    def forget(self, name: str) -> None:
        """Close a deleted file as soon as it is unused."""
        with self._lock:
            handle = self._handles.pop(name, None)
            if handle is not None and handle.users == 0:
                handle.file.close()

    def close(self) -> None:
        """Close everything; a file that somebody uses at this moment when its user is done."""
        with self._lock:
            self._is_closed = True
            for handle in self._handles.values():
                if handle.users == 0:
                    handle.file.close()
            self._handles.clear()

    def _release(self, name: str, handle: _Handle) -> None:
        with self._lock:
            handle.users -= 1
            if handle.users == 0 and self._handles.get(name) is not handle:
                handle.file.close()
            idle = [key for key, each in self._handles.items() if each.users == 0]
            for key in idle[: max(0, len(self._handles) - self._limit)]:
                self._handles.pop(key).file.close()
