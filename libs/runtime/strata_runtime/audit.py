"""Where a process writes its audit trail: one JSON object per line, in files of bounded size.

Writers wait for nothing: lines wait in a bounded queue for a thread. A line that finds no room, or
that the disk refuses, is dropped and counted. Values never hold a secret; writers see to that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from strata_runtime.errors import one_line
from strata_runtime.line_file import MAX_WAITING_LINES, LineFile
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


class AuditSink(Protocol):
    """Takes events; it neither waits nor raises, and counts what it drops."""

    def write(self, event: AuditEvent) -> None:
        """Take an event."""


class NoAuditSink:
    """An `AuditSink` that keeps nothing."""

    def write(self, event: AuditEvent) -> None:
        """See `AuditSink`."""


class AuditFile(LineFile):
    """An `AuditSink` and a `Service`: a `LineFile` of events.

    Args:
        path: of the file; its folder must exist.
        max_bytes: of one file.
        max_files: that are kept, the one that is written included.
        metrics: lines written and dropped.
    """

    name = "audit file"

    def __init__(self, path: Path, *, max_bytes: int, max_files: int, metrics: Metrics) -> None:
        metrics.declare(METRICS)
        logger = get_logger("audit")
        super().__init__(
            path,
            max_bytes=max_bytes,
            max_files=max_files,
            written_total=metrics.counter("strata_audit_file_lines_total"),
            dropped_total=metrics.counter("strata_audit_file_dropped_total"),
            on_lost=lambda error: logger.warning(
                "audit line lost", file=str(path), reason=one_line(error)
            ),
        )
        metrics.gauge("strata_audit_file_waiting", lambda: self.waiting)
        metrics.gauge("strata_audit_file_waiting_maximum", lambda: MAX_WAITING_LINES)

    def write(self, event: AuditEvent) -> None:
        """See `AuditSink`."""
        self.write_line(json.dumps(event, ensure_ascii=False).encode(errors="replace") + b"\n")
