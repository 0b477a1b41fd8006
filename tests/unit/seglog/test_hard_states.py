"""Hard states outlive their segments, also when a power loss tore their copies (rules 7 and 10)."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from strata_seglog.errors import DiskFull
from strata_seglog.frames import HARD_STATE_FRAME_BYTES, FrameKind, hard_state_frame
from strata_seglog.log import CommitLog, LogOptions
from strata_testing.simulated_disk import Keep, SimulatedDisk

# The kit is a fixture of this folder's conftest.py; its helpers have no importable name.
Kit = Any

REPLICAS = range(1, 21)
STATES = [hard_state_frame(each, each, 5, 7, 0) for each in REPLICAS]
OPTIONS = LogOptions(segment_bytes=16 * 1024, zero_ahead_bytes=0)
# Copies of a new segment's begin that reach the disk, and a piece of the next one.
KEPT_BYTES = 6 * HARD_STATE_FRAME_BYTES + 10


def opened(disk: SimulatedDisk) -> CommitLog:
    return CommitLog.open(disk, OPTIONS, report=lambda corruption: pytest.fail(str(corruption)))


def votes(log: CommitLog) -> set[int]:
    """Return the replicas that still know their vote."""
    return {each.replica_id for each in log.replicas().values() if (each.term, each.vote) == (5, 7)}


def torn(kit: Kit) -> tuple[SimulatedDisk, CommitLog, int]:
    """A log whose newest segment begins with some hard states only, and the last index in it."""
    disk = SimulatedDisk()
    log = opened(disk)
    log.write_and_sync(STATES)
    index = 0
    while len(log.segments()) == 1:
        index += 1
        log.write([kit.entry(1, index, payload=bytes(500))])
        if len(log.segments()) == 1:
            log.sync()
    # The first write to the new segment is not synced: power fails, and a part of it is there.
    name = log.segments()[1].name
    with_begin = disk.snapshot(0)
    with_begin.power_loss(Keep.NONE)
    file, source = with_begin.open(name, create=False), disk.open(name, create=False)
    file.write(0, [source.read(0, KEPT_BYTES)])
    file.sync()
    recovered = opened(with_begin)
    assert recovered.segments()[1].used_bytes == 6 * HARD_STATE_FRAME_BYTES
    assert votes(recovered) == set(REPLICAS)
    return with_begin, recovered, index - 1


@pytest.mark.parametrize("writes_first", [True, False])
def test_hard_states_that_a_power_loss_tore_are_written_before_others_are_freed(
    kit: Kit, writes_first: bool
) -> None:
    """Whether something is written in between, or the older segments go at once."""
    disk, log, last = torn(kit)
    if writes_first:
        log.write_and_sync([kit.entry(1, last + 1)])
    assert log.free_before(dict.fromkeys(REPLICAS, last + 1))
    disk.power_loss(Keep.NONE)
    log = opened(disk)
    assert len(log.segments()) == 1
    assert votes(log) == set(REPLICAS)


def test_nothing_is_freed_while_there_is_no_room_for_hard_states(kit: Kit) -> None:
    """The disk gets room later: then they are written, and the segment goes."""
    disk, log, last = torn(kit)
    disk.fail("write", errno.ENOSPC)
    with pytest.raises(DiskFull):
        log.free_before(dict.fromkeys(REPLICAS, last + 1))
    assert len(log.segments()) == 2
    disk.heal()
    assert log.free_before(dict.fromkeys(REPLICAS, last + 1))
    disk.power_loss(Keep.NONE)
    assert votes(opened(disk)) == set(REPLICAS)


def test_a_whole_segment_gets_no_second_copies(kit: Kit) -> None:
    """A clean start writes nothing, and nor does what is freed after it."""
    disk = SimulatedDisk()
    log = opened(disk)
    log.write_and_sync(STATES)
    index = 0
    while len(log.segments()) == 1:
        index += 1
        log.write_and_sync([kit.entry(1, index, payload=bytes(500))])
    log.close()
    log = opened(disk)
    before = log.end_position
    assert log.free_before(dict.fromkeys(REPLICAS, index))
    assert log.end_position == before
    log.write_and_sync([kit.entry(1, index + 1)])
    kinds = [frame.kind for frame in log.scan(before)]
    assert kinds == [FrameKind.ENTRY]
