"""Each sync has a test that fails without it: what a power loss or a killed process must not undo.

A killed process leaves everything that it wrote in the disk's cache; a power loss takes any of what
was not synced, page by page and name by name.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from strata_seglog import real_disk
from strata_seglog.ballast import Ballast
from strata_seglog.errors import Corruption, WriteFailed
from strata_seglog.footer import TRAILER_BYTES, decode_trailer
from strata_seglog.log import CommitLog
from strata_seglog.real_disk import RealDisk
from strata_seglog.repair import OfflineLog, fill
from strata_seglog.sealed import read_footer
from strata_seglog.segments import Segment
from strata_testing.simulated_disk import Keep, SimulatedDisk

Kit = Any
SEGMENT_BYTES = 64 * 1024
# With its header an entry takes exactly two pages and a bit, so that pages are kept apart.
PAYLOAD_BYTES = 9_000
SEEDS = 40


class KilledError(Exception):
    """The process died here."""


def indexes(log: CommitLog) -> list[int]:
    held = log.replica(1)
    return [] if held is None else list(range(max(held.first_index, 1), held.last_index + 1))


def payloads(log: CommitLog) -> list[bytes]:
    return [log.entry(1, index).payload for index in indexes(log)]  # type: ignore[union-attr]


def power_losses(disk: SimulatedDisk) -> Iterator[SimulatedDisk]:
    """Yield copies of the disk that lost power now, each with other pages and names."""
    for seed in range(SEEDS):
        copy = disk.snapshot(seed)
        copy.power_loss(Keep.ANY)
        yield copy


def test_what_opening_found_is_durable_before_it_counts(kit: Kit) -> None:
    """Bytes that a killed process wrote and did not sync are found, so they must stay."""
    disk = SimulatedDisk()
    log = kit.open(disk)
    log.write_and_sync([kit.entry(1, 1)])
    log.write([kit.entry(1, 2), kit.entry(1, 3)])
    reborn = kit.open(disk)
    assert indexes(reborn) == [1, 2, 3]
    disk.power_loss(Keep.NONE)
    assert indexes(kit.open(disk)) == [1, 2, 3]


def test_a_segment_that_opening_found_keeps_its_name(kit: Kit) -> None:
    """A process that died between making a segment and syncing the folder leaves a loose name."""
    disk = SimulatedDisk()

    def die(operation: str, name: str) -> None:
        if operation == "sync_folder":
            raise KilledError

    disk.on_call = die
    with pytest.raises(KilledError):
        kit.open(disk)
    disk.on_call = None
    log = kit.open(disk)
    log.write_and_sync([kit.entry(1, 1)])
    disk.power_loss(Keep.NONE)
    assert indexes(kit.open(disk)) == [1]


def test_the_leftovers_of_a_torn_write_are_gone_before_the_next_write(kit: Kit) -> None:
    """Else a new frame that is as long as the lost one makes the old ones behind it live again."""
    found_torn = 0
    for seed in range(SEEDS):
        disk = SimulatedDisk(seed)
        log = kit.open(disk, segment_bytes=SEGMENT_BYTES)
        log.write_and_sync([kit.entry(1, 1)])
        log.write([kit.entry(1, index, 1, b"old" + bytes(PAYLOAD_BYTES)) for index in (2, 3, 4)])
        disk.power_loss(Keep.ANY)
        second = kit.open(disk, segment_bytes=SEGMENT_BYTES)
        before = payloads(second)
        found_torn += len(before) == 1
        new = kit.entry(1, len(before) + 1, 2, b"new" + bytes(PAYLOAD_BYTES))
        second.write([new])
        for lost in power_losses(disk):
            assert payloads(kit.open(lost)) in (before, [*before, b"".join(new.payload)])
    assert found_torn > 5


def test_a_refused_write_is_gone_before_the_next_write(kit: Kit) -> None:
    """The same for what stands behind the end because the disk refused the rest of it."""
    refused_some = 0
    for seed in range(SEEDS):
        disk = SimulatedDisk(seed)
        log = kit.open(disk, segment_bytes=SEGMENT_BYTES)
        log.write_and_sync([kit.entry(1, 1)])
        disk.fail("write", errno.EIO)
        with pytest.raises(WriteFailed):
            log.write(
                [kit.entry(1, index, 1, b"old" + bytes(PAYLOAD_BYTES)) for index in (2, 3, 4)]
            )
        new = kit.entry(1, 2, 2, b"new" + bytes(PAYLOAD_BYTES))
        log.write([new])
        before = payloads(log)
        for lost in power_losses(disk):
            held = payloads(kit.open(lost))
            assert held in (before, [*before, b"".join(new.payload)])
            refused_some += held != before
    assert refused_some > 5


def test_segments_vanish_in_their_order(kit: Kit) -> None:
    """A power loss brings back the newest of those that were freed, never an older one alone."""
    disk = SimulatedDisk()
    log = kit.open(disk, segment_bytes=4096)
    kit.fill(log, 1, range(1, 60), size=200)
    assert len(log.free_before({1: 60})) > 3
    names = set(disk.names())
    for lost in power_losses(disk):
        assert set(lost.names()) >= names
        assert indexes(kit.open(lost, segment_bytes=4096))[-1] == 59

    deleted: list[SimulatedDisk] = []

    def keep_picture(operation: str, name: str) -> None:
        if operation == "delete":
            deleted.append(disk.snapshot(len(deleted)))

    kit.fill(log, 1, range(60, 120), size=200)
    disk.on_call = keep_picture
    assert len(log.free_before({1: 119})) > 3
    for picture in deleted:
        for lost in power_losses(picture):
            # Corruption ("bytes are missing before this segment") would fail this.
            assert indexes(kit.open(lost, segment_bytes=4096))[-1] == 119


def test_a_mark_covers_what_was_written_before_it(kit: Kit) -> None:
    """Damage to the last write is told from a torn tail though nobody had synced it yet."""
    disk = SimulatedDisk()
    log = kit.open(disk)
    log.write([kit.entry(1, 1, 1, b"x" * 100)])
    log.mark()
    disk.flip(disk.names()[0], 100)
    found: list[Corruption] = []
    kit.open(disk, found.append)
    assert [each.replica_ids for each in found] == [(1,)]


def test_the_ballast_is_taken_and_given_back_durably() -> None:
    """After a power loss there is what the caller was told."""
    disk = SimulatedDisk(capacity_bytes=10_000)
    ballast = Ballast(disk, 6_000)
    assert ballast.restore()
    disk.power_loss(Keep.NONE)
    assert Ballast(disk, 6_000).is_held()
    Ballast(disk, 6_000).release()
    disk.power_loss(Keep.NONE)
    assert disk.names() == []


def damaged_log(kit: Kit, flips: Callable[[CommitLog], list[int]]) -> SimulatedDisk:
    """Return the disk of a log of several segments; bits of the first one are turned over."""
    disk = SimulatedDisk()
    log = kit.open(disk, segment_bytes=SEGMENT_BYTES)
    kit.fill(log, 1, range(1, 1_500), size=100)
    log.close()
    for byte in flips(log):
        disk.flip(disk.names()[0], byte)
    return disk


def mend(disk: SimulatedDisk) -> None:
    log = OfflineLog(disk)
    damages, unsealed = log.damages(), log.unsealed()
    log.close()
    assert damages or unsealed
    fill(disk, damages, unsealed, open_checkpoints=log.open_checkpoints)


def test_what_repair_filled_stays_filled(kit: Kit) -> None:
    """A hole that repair reported as filled is filled after a power loss too."""
    disk = damaged_log(kit, lambda log: [300])
    mend(disk)
    disk.power_loss(Keep.NONE)
    log = OfflineLog(disk)
    assert log.damages() == []
    log.close()


def test_a_segment_that_repair_sealed_stays_sealed(kit: Kit) -> None:
    """Footer and trailer are there after a power loss; never a trailer that leads to no footer."""
    trailer_at = SEGMENT_BYTES - TRAILER_BYTES
    disk = damaged_log(kit, lambda log: [log.segments()[0].used_bytes - 5_000, trailer_at])
    pictures: list[SimulatedDisk] = []
    disk.on_call = lambda operation, name: pictures.append(disk.snapshot(len(pictures)))
    mend(disk)
    disk.on_call = None
    for picture in pictures:
        for lost in power_losses(picture):
            segment = Segment(0, SEGMENT_BYTES)
            file = lost.open(segment.name, create=False)
            trailer = decode_trailer(file.read(trailer_at, TRAILER_BYTES))
            assert trailer is None or read_footer(file, segment) is not None
    disk.power_loss(Keep.NONE)
    log = OfflineLog(disk)
    assert log.unsealed() == []
    log.close()


def test_a_real_disk_asks_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here can cut the power of a real disk: its calls are fdatasync and fsync."""
    calls: list[tuple[str, str]] = []

    def note(name: str, real: Callable[[int], None], descriptor: int) -> None:
        calls.append((name, Path(f"/proc/self/fd/{descriptor}").readlink().name))
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", partial(note, "fdatasync", os.fdatasync))
    monkeypatch.setattr(os, "fsync", partial(note, "fsync", os.fsync))
    disk = RealDisk(tmp_path)
    file = disk.open("a", create=True)
    file.write(0, [b"x"])
    assert calls == []
    file.sync()
    disk.sync_folder()
    assert calls == [("fdatasync", "a"), ("fsync", tmp_path.name)]
    file.close()


def test_a_new_folder_is_durable_before_anything_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each folder that was made is synced in the one above it; one that was there is not."""
    synced: list[Path] = []
    monkeypatch.setattr(real_disk, "sync_folder", synced.append)
    RealDisk(tmp_path / "data" / "log")
    assert synced == [tmp_path, tmp_path / "data"]
    RealDisk(tmp_path / "data" / "log")
    assert len(synced) == 2
