"""Lines in files of bounded size: FILE, and FILE.1, FILE.2 and so on, the newest first.

Writers wait for nothing: lines wait in a bounded queue for a thread. A line that finds no room, or
that the disk refuses, is dropped and counted.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import IO

from strata_runtime.metric_kinds import BoundCounter, Counter

MAX_WAITING_LINES = 10_000
"""Most lines that wait for the thread of one file."""


class LineFile:
    """See the module docstring; a `Service`.

    Args:
        path: of the file; its folder must exist.
        max_bytes: of one file.
        max_files: that are kept, the one that is written included.
        written_total, dropped_total: count lines.
        on_lost: told in the file's thread of each error of the disk.
    """

    name = "line file"

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int,
        max_files: int,
        written_total: Counter | BoundCounter,
        dropped_total: Counter | BoundCounter,
        on_lost: Callable[[OSError], None],
    ) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._lines: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._is_stopping = False
        self._thread: threading.Thread | None = None
        self._file: IO[bytes] | None = None
        self._written_total = written_total
        self._dropped_total = dropped_total
        self._on_lost = on_lost

    @property
    def waiting(self) -> int:
        """Lines that wait to be written."""
        return len(self._lines)

    def write_line(self, line: bytes) -> None:
        """Take a line, with its end; it is dropped if too many wait."""
        with self._changed:
            if len(self._lines) < MAX_WAITING_LINES:
                self._lines.append(line)
                self._changed.notify()
                return
        self._dropped_total.add(1)

    async def start(self) -> None:
        """Open the file.

        Raises:
            OSError: it cannot be written.
        """
        self._file = self._open()
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()

    async def stop(self, grace_s: float) -> None:
        """Write what waits, for as long as the grace allows, and close the file."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.to_thread(thread.join, max(1.0, grace_s))

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._lines and not self._is_stopping:
                    self._changed.wait()
                lines, self._lines = self._lines, deque()
                ends = self._is_stopping and not lines
            if ends:
                break
            self._write_all(lines)
        if self._file is not None:
            self._file.close()

    def _write_all(self, lines: deque[bytes]) -> None:
        for line in lines:
            try:
                if self._file is None:
                    self._file = self._open()
                if self._file.tell() and self._file.tell() + len(line) > self._max_bytes:
                    self._rotate()
                self._file.write(line)
            except OSError as error:
                self._dropped_total.add(1)
                self._on_lost(error)
            else:
                self._written_total.add(1)

    def _open(self) -> IO[bytes]:
        descriptor = os.open(
            self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        file = os.fdopen(descriptor, "ab", buffering=0)
        file.seek(0, os.SEEK_END)
        return file

    def _rotate(self) -> None:
        """Rename the files by one number and begin a new one; the oldest goes."""
        assert self._file is not None
        self._file.close()
        self._file = None
        for number in range(self._max_files - 1, 0, -1):
            older = self._path if number == 1 else self._numbered(number - 1)
            if older.exists():
                older.replace(self._numbered(number))
        if self._max_files == 1:
            self._path.unlink()
        self._file = self._open()

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")
