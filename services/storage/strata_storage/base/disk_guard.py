"""Limits on a filling disk: three marks (rule 11). Decides only; `node` measures and asks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from strata.storage.v1 import storage_pb2 as pb
from strata_seglog.ports import DiskSpace
from strata_storage.base.disk_quota import DiskUse
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
        refuse_appends_used_ratio: use of the whole disk above which appends are refused; 1: none.
    """

    interval_s: float = 1.0
    refuse_appends_free_bytes: int = 512 * 1024 * 1024
    refuse_most_free_bytes: int = 256 * 1024 * 1024
    stop_free_bytes: int = 64 * 1024 * 1024
    refuse_appends_used_ratio: float = 1.0


class DiskGuard:
    """Holds the mark that the last look gave."""

    __slots__ = ("_options", "mark", "space", "use")

    def __init__(self, options: DiskGuardOptions) -> None:
        self._options = options
        self.mark = DiskMark.NORMAL
        self.space = DiskSpace(0, 0)
        self.use = DiskUse()

    def observe(self, space: DiskSpace, use: DiskUse | None = None) -> DiskMark:
        """Take in how much room there is; return the mark now reached.

        Args:
            space: of the node.
            use: of the whole disk, and of the node's share; None: it is not measured.
        """
        self.use = use or DiskUse()
        is_warned = self.use.disk_used_ratio > self._options.refuse_appends_used_ratio
        self.space = space
        if space.free_bytes < self._options.stop_free_bytes:
            self.mark = DiskMark.STOP
        elif space.free_bytes < self._options.refuse_most_free_bytes:
            self.mark = DiskMark.REFUSE_ALL_BUT_ACKS
        elif space.free_bytes < self._options.refuse_appends_free_bytes or is_warned:
            self.mark = DiskMark.REFUSE_APPENDS
        else:
            self.mark = DiskMark.NORMAL
        return self.mark

    @property
    def is_low(self) -> bool:
        """Whether room is worth more work than usually."""
        return self.mark > DiskMark.NORMAL or self.use.excess_bytes > 0

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
