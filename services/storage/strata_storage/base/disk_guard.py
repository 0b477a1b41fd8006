"""Limits on a filling disk: three marks (rule 11). Decides only; `node` measures and asks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from strata.storage.v1 import storage_pb2 as pb
from strata_seglog.ports import DiskSpace
from strata_storage.base.errors import Refused


class DiskMark(IntEnum):
    """How full the disk is, by what it forbids."""

    NORMAL = 0
    REFUSE_APPENDS = 1
    REFUSE_ALL_BUT_ACKS = 2
    STOP = 3


@dataclass(frozen=True, slots=True)
class DiskGuardOptions:
    """Free bytes below which each mark is reached, and how often to look.

    Attributes:
        interval_s: time between two looks.
        refuse_appends_free_bytes: below it appends are refused.
        refuse_most_free_bytes: below it all but acks, releases and trims is refused.
        stop_free_bytes: below it nothing is accepted.
    """

    interval_s: float = 1.0
    refuse_appends_free_bytes: int = 512 * 1024 * 1024
    refuse_most_free_bytes: int = 256 * 1024 * 1024
    stop_free_bytes: int = 64 * 1024 * 1024


class DiskGuard:
    """Holds the mark that the last look gave."""

    __slots__ = ("_options", "mark", "space")

    def __init__(self, options: DiskGuardOptions) -> None:
        self._options = options
        self.mark = DiskMark.NORMAL
        self.space = DiskSpace(0, 0)

    def observe(self, space: DiskSpace) -> DiskMark:
        """Take in how much room there is; return the mark now reached."""
        self.space = space
        if space.free_bytes < self._options.stop_free_bytes:
            self.mark = DiskMark.STOP
        elif space.free_bytes < self._options.refuse_most_free_bytes:
            self.mark = DiskMark.REFUSE_ALL_BUT_ACKS
        elif space.free_bytes < self._options.refuse_appends_free_bytes:
            self.mark = DiskMark.REFUSE_APPENDS
        else:
            self.mark = DiskMark.NORMAL
        return self.mark

    def check(self, refused_from: DiskMark) -> None:
        """Let the caller pass unless the disk has reached the mark that forbids its work.

        Raises:
            Refused: OUTCOME_DISK_FULL.
        """
        if self.mark >= refused_from:
            raise Refused(
                pb.OUTCOME_DISK_FULL,
                f"{self.space.free_bytes} bytes are free on the disk: free space, or shorten the "
                "retention of topics",
            )
