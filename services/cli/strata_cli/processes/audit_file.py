"""The file of a process's audit trail, as its configuration names it."""

from __future__ import annotations

from pathlib import Path

from strata_cli.processes.standalone_config import NodeSection
from strata_runtime.audit import AuditFile
from strata_runtime.metrics import Metrics


def audit_files(node: NodeSection, metrics: Metrics) -> list[AuditFile]:
    """Return the file, to start before what writes to it; empty: none is configured."""
    if not node.audit_file:
        return []
    return [
        AuditFile(
            Path(node.audit_file),
            max_bytes=node.max_audit_file_bytes,
            max_files=node.max_audit_files,
            metrics=metrics,
        )
    ]
