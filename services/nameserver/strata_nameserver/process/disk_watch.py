"""How full a nameserver's disk is, and space reserved for committed rows (rule 11).

A committed row must be applied: a row that finds no space stops the replica until its next start.
So changes are refused while there is still space for those under way, a leader hands over to a
nameserver with more space, and the ballast is released when another program goes on filling the
disk. Changes are accepted again once there is space and the ballast is whole.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from strata_multiraft.replica import MARK_FULL
from strata_runtime.errors import one_line
from strata_runtime.logs import get_logger
from strata_runtime.metrics import Metrics
from strata_seglog.ballast import Ballast
from strata_seglog.ports import Disk

_INTERVAL_S = 1.0
# Share of the bytes below which changes are refused: with less free, the ballast is deleted.
_LAST_SHARE = 4


class TakesDiskMark(Protocol):
    """The part of `strata_multiraft.MultiRaft` that is needed."""

    def set_disk_mark(self, mark: int) -> None:
        """Note how full this node's disk is, 0 to 3; to be called after every look."""


class DiskWatch:
    """See the module docstring.

    Args:
        disk: folder on the file system of log and rows.
        raft: obeys the mark.
        refuse_free_bytes: free room below which no change is taken.
        ballast_bytes: size of the ballast; 0: there is none.
        metrics: where the room shows.
    """

    def __init__(
        self,
        disk: Disk,
        raft: TakesDiskMark,
        refuse_free_bytes: int,
        *,
        ballast_bytes: int,
        metrics: Metrics,
    ) -> None:
        self._disk = disk
        self._raft = raft
        self._refuse_free_bytes = refuse_free_bytes
        self._ballast = Ballast(disk, ballast_bytes) if ballast_bytes else None
        self._unreadable = ""
        self.is_full = False
        self.free_bytes = 0
        metrics.gauge("strata_metadata_disk_full", lambda: int(self.is_full))
        metrics.gauge("strata_metadata_disk_free", lambda: self.free_bytes)
        self._logger = get_logger("nameserver")

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(_INTERVAL_S)
            await self.check()

    async def check(self) -> None:
        """Look at the disk, and let the raft group obey."""
        was_full = self.is_full
        try:
            self.is_full = await asyncio.to_thread(self._measure)
            self._unreadable = ""
        except OSError as error:
            if str(error) != self._unreadable:
                self._unreadable = str(error)
                self._logger.warning("room on the disk is not known", reason=one_line(error))
        if self.is_full != was_full:
            what = "changes are refused" if self.is_full else "changes are taken again"
            self._logger.warning("disk", what=what, free_bytes=self.free_bytes)
        self._raft.set_disk_mark(MARK_FULL if self.is_full else 0)

    def _measure(self) -> bool:
        """Return whether changes are to be refused; give the ballast back or take it again.

        Raises:
            OSError: the disk cannot be looked at, or the file not deleted or made.
        """
        ballast, refuse = self._ballast, self._refuse_free_bytes
        self.free_bytes = self._disk.space().free_bytes
        if ballast is None:
            return self.free_bytes < refuse
        if not ballast.is_held():
            return not ballast.restore(refuse)
        if self.free_bytes < refuse // _LAST_SHARE:
            ballast.release()
        return self.free_bytes < refuse
