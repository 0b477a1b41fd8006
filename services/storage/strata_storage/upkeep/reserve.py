"""The ballast in use: room that a full disk gives back for what frees more (rule 11)."""

from __future__ import annotations

from strata_seglog.ballast import Ballast
from strata_storage.base.disk_guard import DiskGuardOptions, DiskMark


class Reserve:
    """Gives the ballast back when only trims, acks and hard states may be written; takes it again.

    Args:
        ballast: None: there is none.
        options: the marks.
    """

    def __init__(self, ballast: Ballast | None, options: DiskGuardOptions) -> None:
        self._ballast = ballast
        self._options = options
        self._is_given = False

    def follow(self, mark: DiskMark) -> None:
        """Do what a disk mark demands. Blocks.

        Raises:
            OSError: the file could not be deleted or made.
        """
        if self._ballast is None:
            return
        if mark >= DiskMark.REFUSE_ALL_BUT_ACKS:
            self._ballast.release()
            self._is_given = True
        elif mark == DiskMark.NORMAL:
            self._is_given = False
            self._ballast.restore(self._options.refuse_appends_free_bytes)

    def obeyed(self, mark: DiskMark) -> DiskMark:
        """Return the mark that proposals obey: a full disk is none while the ballast's room lasts.

        When that is used up too, the log says so (ENOSPC).
        """
        return min(mark, DiskMark.REFUSE_ALL_BUT_ACKS) if self._is_given else mark
