"""Damage that was found once is known after a start, until it is repaired or freed (rule 8)."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from strata_seglog.damage_notes import NAME, DamageNotes
from strata_seglog.frames import FLAG_MOVED, HEADER_BYTES, Frame, FrameKind
from strata_seglog.repair import OfflineLog, fill
from strata_testing.simulated_disk import Keep, SimulatedDisk

Kit = Any
LAST, LOST = 200, 11


def damaged(kit: Kit) -> SimulatedDisk:
    """A disk with an entry of replica 1 in the first segment that a flipped bit took."""
    disk = SimulatedDisk()
    log = kit.open(disk, recent_bytes=0)
    at = 0
    for index in range(1, LAST + 1):
        if index == LOST:
            at = log.end_position + HEADER_BYTES + 3
        kit.fill(log, 1, [index], size=100)
        kit.fill(log, 2, [index], size=40)
    assert at < log.segments()[0].end_position
    log.close()
    disk.flip(log.segments()[0].name, at)
    return disk


def opened(kit: Kit, disk: SimulatedDisk) -> Any:
    return kit.open(disk, lambda _: None, recent_bytes=0)


def who_is_damaged(log: Any) -> set[int]:
    return {each.replica_id for each in log.replicas().values() if each.damaged}


def scrub(log: Any) -> None:
    while not log.scrub_step(1 << 20).finished:
        pass


def test_a_start_knows_what_a_scrub_found(kit: Kit) -> None:
    """Footers do not tell; without the scrub nothing is known, and nothing is written."""
    disk = damaged(kit)
    log = opened(kit, disk)
    assert who_is_damaged(log) == set()
    assert NAME not in disk.names()
    scrub(log)
    assert who_is_damaged(log) == {1}
    for _ in range(2):
        disk.power_loss(Keep.NONE)
        log = opened(kit, disk)
        assert who_is_damaged(log) == {1}


def test_damage_that_was_repaired_is_forgotten(kit: Kit) -> None:
    """The place holds a hole frame then."""
    disk = damaged(kit)
    log = opened(kit, disk)
    scrub(log)
    stand_in = Frame(FrameKind.ENTRY, 1, 0, 1, LOST, flags=FLAG_MOVED, payload=(b"stand-in",))
    log.write_and_sync([stand_in])
    log.close()
    offline = OfflineLog(disk)
    damages, unsealed = offline.damages(), offline.unsealed()
    offline.close()
    fill(disk, damages, unsealed, open_checkpoints={})
    log = opened(kit, disk)
    assert who_is_damaged(log) == set()
    assert NAME not in disk.names()


def test_damage_in_a_segment_that_is_gone_is_forgotten(kit: Kit) -> None:
    """Nobody needs the entry any more."""
    disk = damaged(kit)
    log = opened(kit, disk)
    scrub(log)
    assert log.free_before({1: LAST, 2: LAST})
    log.close()
    log = opened(kit, disk)
    assert who_is_damaged(log) == set()
    assert NAME not in disk.names()


def test_a_disk_that_takes_no_note_takes_it_later(kit: Kit) -> None:
    """The damage counts all the same until the end of the process."""
    disk = damaged(kit)
    log = opened(kit, disk)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(disk, "open", _refused)
        DamageNotes(disk).add("00000000000000000000.log", 7)
    assert NAME not in disk.names()
    scrub(log)
    assert who_is_damaged(log) == {1}
    assert NAME in disk.names()


def test_a_torn_line_counts_as_none() -> None:
    """Lines before and behind it are read."""
    disk = SimulatedDisk()
    notes = DamageNotes(disk)
    names = [f"{base:020d}.log" for base in (0, 4096, 8192)]
    for name in names:
        notes.add(name, 17)
        notes.add(name, 17)
    file = disk.open(NAME, create=False)
    line_bytes = file.size() // 3
    file.write(line_bytes + 30, [b"?"])
    file.truncate(3 * line_bytes - 1)
    again = DamageNotes(disk)
    assert again.load() == [(names[0], 17)]
    again.add(names[2], 18)
    assert DamageNotes(disk).load() == [(names[0], 17), (names[2], 18)]


def _refused(*_: object, **__: object) -> Any:
    raise OSError(errno.ENOSPC, "no room")
