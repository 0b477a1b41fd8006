"""Where a process writes its audit trail: one JSON object per line, in files of bounded size.

Writers wait for nothing: lines wait in a bounded queue for a thread. A line that finds no room, or
that the disk refuses, is dropped and counted. Values never hold a secret; writers see to that.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Protocol

from strata_runtime.errors import one_line
from strata_runtime.logs import get_logger
from strata_runtime.metrics import Metrics, MetricSpec

AuditEvent = Mapping[str, str | int]
"""One event; `time_ms`, `event` and `outcome` are always there."""

METRICS = (
    MetricSpec(
        "strata_audit_file_lines_total", "counter", "1", "Lines written to node.audit_file."
    ),
    MetricSpec(
        "strata_audit_file_dropped_total",
        "counter",
        "1",
        "Lines that node.audit_file lost: too many waited, or the disk refused them.",
    ),
    MetricSpec("strata_audit_file_waiting", "gauge", "1", "Lines that wait to be written to it."),
    MetricSpec("strata_audit_file_waiting_maximum", "gauge", "1", "Most lines that may wait."),
)

_MAX_WAITING_LINES = 10_000


class AuditSink(Protocol):
    """Takes events; it neither waits nor raises, and counts what it drops."""

    def write(self, event: AuditEvent) -> None:
        """Take an event."""


class NoAuditSink:
    """An `AuditSink` that keeps nothing."""

    def write(self, event: AuditEvent) -> None:
        """See `AuditSink`."""


class AuditFile:
    """An `AuditSink` and a `Service`: FILE, and FILE.1, FILE.2 and so on, the newest first.

    Args:
        path: of the file; its folder must exist.
        max_bytes: of one file.
        max_files: that are kept, the one that is written included.
        metrics: lines written and dropped.
    """

    name = "audit file"

    def __init__(self, path: Path, *, max_bytes: int, max_files: int, metrics: Metrics) -> None:
        metrics.declare(METRICS)
        self._path = path
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._lines: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._is_stopping = False
        self._thread: threading.Thread | None = None
        self._file: IO[bytes] | None = None
        self._lines_total = metrics.counter("strata_audit_file_lines_total")
        self._dropped_total = metrics.counter("strata_audit_file_dropped_total")
        metrics.gauge("strata_audit_file_waiting", lambda: len(self._lines))
        metrics.gauge("strata_audit_file_waiting_maximum", lambda: _MAX_WAITING_LINES)
        self._logger = get_logger("audit")

    def write(self, event: AuditEvent) -> None:
        """See `AuditSink`."""
        line = json.dumps(event, ensure_ascii=False).encode(errors="replace") + b"\n"
        with self._changed:
            if len(self._lines) < _MAX_WAITING_LINES:
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
        self._thread = threading.Thread(target=self._run, name="audit file", daemon=True)
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
                self._logger.warning(
                    "audit line lost", file=str(self._path), reason=one_line(error)
                )
            else:
                self._lines_total.add(1)

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
