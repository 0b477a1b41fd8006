"""A storage node's share of its disk, by the arithmetic of RIP-31.

    quota     = size of the disk * disk_quota_ratio
    used      = CommitLog + consume queue and index (the rows)
    too much  = used above quota * logical_disk_clean_ratio, where the node has a part of the disk,
                or the whole disk fuller than disk_clean_ratio

Too much leaves early, the oldest messages first. Above its quota a node refuses appends as
on a full disk, and so it does while the whole disk is fuller than disk_warning_ratio. So several
nodes share a disk, and one of them cannot take the room of the others.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from strata_seglog.ports import Disk, DiskSpace
from strata_seglog.real_disk import RealDisk


@dataclass(frozen=True, slots=True)
class DiskQuotaOptions:
    """See the module docstring.

    Attributes:
        quota_ratio: the node's share of the disk, in (0, 1].
        logical_clean_ratio: share of the quota above which the oldest messages leave early.
        clean_ratio: use of the whole disk above which they do; 1: never.
    """

    quota_ratio: float = 1.0
    logical_clean_ratio: float = 0.8
    clean_ratio: float = 1.0


@dataclass(frozen=True, slots=True)
class DiskUse:
    """Result of one look at the disk.

    Attributes:
        used_bytes: of CommitLog, consume queue and index.
        quota_bytes: the node's share.
        disk_used_ratio: use of the whole disk, by anybody.
        excess_bytes: that should leave early; 0: none.
    """

    used_bytes: int = 0
    quota_bytes: int = 0
    disk_used_ratio: float = 0.0
    excess_bytes: int = 0


def disk_use(disk: DiskSpace, used_bytes: int, options: DiskQuotaOptions) -> DiskUse:
    """Return the use of a disk, and of a node's share of it."""
    quota_bytes = int(disk.total_bytes * options.quota_ratio)
    taken_bytes = disk.total_bytes - disk.free_bytes
    ratio = taken_bytes / disk.total_bytes if disk.total_bytes else 0.0
    excess_bytes = taken_bytes - int(disk.total_bytes * options.clean_ratio)
    if options.quota_ratio < 1:
        # A node alone on its disk has no logical partition: the disk's own ratios count.
        allowed_bytes = int(quota_bytes * options.logical_clean_ratio)
        excess_bytes = max(excess_bytes, used_bytes - allowed_bytes)
    return DiskUse(used_bytes, quota_bytes, ratio, max(0, excess_bytes))


class QuotaDisk(RealDisk):
    """The log's folder on a disk of which the node has a share; `space` is that of the share.

    Attributes:
        use: as of the last `space`.

    Args:
        folder: of the log.
        others: further folders whose files count.
        options: the share.
    """

    def __init__(self, folder: Path, others: Sequence[Path], options: DiskQuotaOptions) -> None:
        super().__init__(folder)
        self._counted = (folder, *others)
        self._quota = options
        self.use = DiskUse()

    def space(self) -> DiskSpace:
        """Return the bytes that the node may still write, and its quota."""
        disk = super().space()
        use = self.use = disk_use(disk, sum(map(_bytes_in, self._counted)), self._quota)
        left_bytes = max(0, use.quota_bytes - use.used_bytes)
        return DiskSpace(min(disk.free_bytes, left_bytes), use.quota_bytes)


def use_of(disk: Disk) -> DiskUse:
    """Return what the last look at a disk found; of a disk without shares nothing."""
    return disk.use if isinstance(disk, QuotaDisk) else DiskUse()


def _bytes_in(folder: Path) -> int:
    """Return the size of the files in a folder, without those of folders in it."""
    found = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    found += entry.stat(follow_symlinks=False).st_size
                except FileNotFoundError:
                    continue  # deleted meanwhile
    except FileNotFoundError:
        return 0
    return found
