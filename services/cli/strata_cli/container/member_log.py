"""Logs of members with `member.isolate_log`: a folder of its own for each of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from strata_cli.container.config import ContainerSection
from strata_cli.container.files import MemberFile
from strata_runtime.errors import one_line
from strata_runtime.line_file import LineFile
from strata_runtime.logs import get_logger
from strata_runtime.member_logs import TakeLine
from strata_runtime.metrics import Metrics

LOG_FILE = "strata.log"
_CLOSE_GRACE_S = 2.0


class MemberLogs:
    """The files of all members; they stay open while the container runs.

    Args:
        folder: with a folder per member.
        section: size and number of files.
        metrics: lines written and lost.
    """

    def __init__(self, folder: Path, section: ContainerSection, metrics: Metrics) -> None:
        self._folder = folder
        self._section = section
        self._written_total = metrics.counter("strata_container_log_lines_total")
        self._dropped_total = metrics.counter("strata_container_log_dropped_total")
        self._files: dict[str, LineFile] = {}
        self._log = get_logger("container")

    async def open(self, file: MemberFile) -> TakeLine | None:
        """Return what takes the lines of a member; None: the disk refuses its folder."""
        known = self._files.get(file.name)
        if known is not None:
            return known.write_line
        path = self._folder / file.name / LOG_FILE
        labels = {"member": file.name}
        lines = LineFile(
            path,
            max_bytes=self._section.max_log_file_bytes,
            max_files=self._section.max_log_files,
            written_total=self._written_total.bound(labels),
            dropped_total=self._dropped_total.bound(labels),
            on_lost=lambda error: self._lost(path, error),
        )
        try:
            await asyncio.to_thread(path.parent.mkdir, parents=True, exist_ok=True)
            await lines.start()
        except OSError as error:
            # A member with its lines in the container's log is better than none.
            self._lost(path, error)
            return None
        self._files[file.name] = lines
        return lines.write_line

    async def forget(self, name: str) -> None:
        """Write what waits of a member that has gone, and close its file."""
        lines = self._files.pop(name, None)
        if lines is not None:
            await lines.stop(_CLOSE_GRACE_S)

    async def close(self) -> None:
        """Write what waits and close all files."""
        files, self._files = self._files, {}
        for lines in files.values():
            await lines.stop(_CLOSE_GRACE_S)

    def _lost(self, path: Path, error: OSError) -> None:
        self._log.warning("line of a member's log lost", file=str(path), reason=one_line(error))
