"""Room ahead of the writer: zeros, the next segment, and what happens if that fails."""

from __future__ import annotations

import errno
import threading
from typing import Any

import pytest

from strata_seglog.errors import LogFailed
from strata_seglog.prepare import Preparer
from strata_seglog.segments import Segment, segment_name
from strata_testing.simulated_disk import Keep, SimulatedDisk

Kit = Any
MIB = 1024 * 1024


class ConcurrentDisk(SimulatedDisk):
    """A simulated disk that lets the log use its thread."""

    def is_concurrent(self) -> bool:
        return True


def test_the_next_segment_is_made_ahead() -> None:
    """A segment that was asked for is there, durable and zeroed at its beginning, when taken."""
    disk = ConcurrentDisk()
    preparer = Preparer(disk, 8 * MIB, 3 * MIB)
    preparer.request_next(4096)
    preparer.request_next(4096)
    file, zeroed = preparer.take_next(4096)
    assert zeroed == 3 * MIB
    assert file.size() == 8 * MIB
    preparer.close()
    disk.power_loss(Keep.NONE)
    assert disk.names() == [segment_name(4096)]
    assert disk.open(segment_name(4096), create=False).size() == 8 * MIB


def test_a_segment_nobody_asked_for_is_made_when_taken() -> None:
    """Without a request, or in a simulation, taking makes it."""
    for disk in (ConcurrentDisk(), SimulatedDisk()):
        preparer = Preparer(disk, MIB, MIB)
        if not disk.is_concurrent():
            preparer.request_next(0)
        file, zeroed = preparer.take_next(0)
        assert (file.size(), zeroed) == (MIB, 0)
        preparer.close()


def test_a_segment_that_could_not_be_made_ahead_is_tried_again() -> None:
    """No room ahead of time is no failure: it shows when the segment is needed, if still so."""
    disk = ConcurrentDisk()
    preparer = Preparer(disk, MIB, MIB)
    disk.fail("allocate", errno.ENOSPC, times=2)
    preparer.request_next(0)
    with pytest.raises(OSError) as caught:
        preparer.take_next(0)
    assert caught.value.errno == errno.ENOSPC
    assert disk.names() == []
    assert preparer.take_next(0)[0].size() == MIB
    preparer.close()


def test_zeros_stay_ahead_of_what_is_claimed() -> None:
    """Zeros are written up to the limit ahead, above the claim only, and never over the trailer."""
    disk = ConcurrentDisk()
    written: list[str] = []
    disk.open(segment_name(0), create=True).allocate(4 * MIB)
    handle = disk.open(segment_name(0), create=False)
    handle.write(0, [b"x" * 4 * MIB])
    disk.on_call = lambda operation, _: written.append(operation)
    preparer = Preparer(disk, 4 * MIB, 8 * MIB)
    segment = Segment(0, 4 * MIB, used=10_000)
    preparer.follow(segment, segment.used)
    # The thread has done all it may when it has made what it was asked for after that.
    preparer.request_next(4 * MIB)
    preparer.take_next(4 * MIB)
    preparer.close()
    data = handle.read(0, 4 * MIB)
    start = 3 * 4096
    assert data[:start] == b"x" * start
    assert data[start:-24] == bytes(4 * MIB - 24 - start)
    assert data[-24:] == b"x" * 24


def test_a_failed_sync_in_the_background_is_final(kit: Kit) -> None:
    """The thread's sync error may have been about the writer's bytes: the log ends."""
    disk = ConcurrentDisk()

    def fail_in_thread(operation: str, _: str) -> None:
        if operation == "sync" and threading.current_thread().name == "log-prepare":
            raise OSError(errno.EIO, "I/O error")

    disk.on_call = fail_in_thread
    log = kit.open(disk)
    log._tail._preparer._thread.join(10)
    with pytest.raises(LogFailed):
        log.write([kit.entry(1, 1)])
    with pytest.raises(LogFailed):
        log.sync()
    log.close()


def test_what_is_written_over_zeros_stays(kit: Kit) -> None:
    """With the thread at work between all writes, what was written reads back after a restart."""
    disk = ConcurrentDisk(4)
    model, workload = kit.Model(), kit.Workload(4)
    log = kit.open(disk, zero_ahead_bytes=6_000)
    for _ in range(200):
        frames = workload.batch(model)
        log.write_and_sync(frames)
        model.apply(frames)
    log.close()
    disk.power_loss(Keep.ANY)
    log = kit.open(disk)
    assert kit.state_of(log) == model.state()
    log.close()
