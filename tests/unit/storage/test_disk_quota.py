"""A node's share of its disk: RIP-31's arithmetic, and what the marks make of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from strata_seglog.ports import DiskSpace
from strata_storage.base.config import StorageConfig
from strata_storage.base.disk_guard import DiskGuard, DiskGuardOptions, DiskMark
from strata_storage.base.disk_quota import DiskQuotaOptions, DiskUse, QuotaDisk, disk_use

GB = 1 << 30


@pytest.mark.parametrize(
    ("free_gb", "used_gb", "options", "excess_gb"),
    [
        # Half a disk of 100 GB, of which 80 % are 40 GB.
        (60, 40, DiskQuotaOptions(0.5), 0),
        (59, 41, DiskQuotaOptions(0.5), 1),
        (50, 50, DiskQuotaOptions(0.5, 0.6), 20),
        # A node alone on its disk has no logical partition.
        (5, 95, DiskQuotaOptions(1.0, 0.8), 0),
        # The whole disk counts whoever fills it.
        (10, 5, DiskQuotaOptions(0.5, 0.8, 0.85), 5),
        (15, 5, DiskQuotaOptions(0.5, 0.8, 0.85), 0),
        # The larger excess counts.
        (10, 48, DiskQuotaOptions(0.5, 0.8, 0.85), 8),
    ],
)
def test_what_leaves_early(
    free_gb: int, used_gb: int, options: DiskQuotaOptions, excess_gb: int
) -> None:
    """Used above quota * threshold, or the disk fuller than its ratio."""
    found = disk_use(DiskSpace(free_gb * GB, 100 * GB), used_gb * GB, options)

    assert found.excess_bytes == excess_gb * GB
    assert found.quota_bytes == int(100 * GB * options.quota_ratio)
    assert found.used_bytes == used_gb * GB
    assert found.disk_used_ratio == (100 - free_gb) / 100


def test_log_and_rows_count(tmp_path: Path) -> None:
    """The CommitLog's files and those of the rows; the room is that of the share."""
    log, rows = tmp_path / "log", tmp_path / "state"
    rows.mkdir()
    disk = QuotaDisk(log, [rows, tmp_path / "nothing"], DiskQuotaOptions(0.5))
    whole = disk.space().total_bytes
    assert disk.use.used_bytes == 0
    (log / "1.log").write_bytes(bytes(1_000))
    (rows / "1.sst").write_bytes(bytes(500))
    space = disk.space()

    assert disk.use.used_bytes == 1_500
    assert space.total_bytes == disk.use.quota_bytes == whole
    assert space.free_bytes <= disk.use.quota_bytes - 1_500


def test_a_full_share_is_a_full_disk(tmp_path: Path) -> None:
    """The other nodes on the disk keep their room."""
    (tmp_path / "1.log").write_bytes(bytes(100_000))
    disk = QuotaDisk(tmp_path, [], DiskQuotaOptions(1e-12))
    guard = DiskGuard(DiskGuardOptions())

    assert disk.space().free_bytes == 0
    assert guard.observe(disk.space()) is DiskMark.STOP


def test_the_whole_disk_can_refuse_appends() -> None:
    """Above the warning ratio; acks and trims go on."""
    guard = DiskGuard(DiskGuardOptions(1.0, 10, 5, 1, refuse_appends_used_ratio=0.9))
    room = DiskSpace(100, 1_000)

    assert guard.observe(room, DiskUse(disk_used_ratio=0.90)) is DiskMark.NORMAL
    full = DiskUse(disk_used_ratio=0.91)
    assert guard.observe(room, full) is DiskMark.REFUSE_APPENDS
    assert guard.observe(DiskSpace(4, 1_000), full) is DiskMark.REFUSE_ALL_BUT_ACKS
    assert DiskGuard(DiskGuardOptions(1.0, 10, 5, 1)).observe(room, full) is DiskMark.NORMAL


def test_the_configuration_reaches_the_parts() -> None:
    """All four keys; the defaults change nothing."""
    config = StorageConfig(
        disk_quota_ratio=0.2,
        logical_disk_clean_ratio=0.7,
        disk_clean_ratio=0.8,
        disk_warning_ratio=0.9,
    )
    assert config.options().quota == DiskQuotaOptions(0.2, 0.7, 0.8)
    assert config.options().disk.refuse_appends_used_ratio == 0.9
    none = disk_use(DiskSpace(0, 100), 100, StorageConfig().options().quota)
    assert none == DiskUse(100, 100, 1.0, 0)
