"""A removed replica is put aside by its segments, and taken back whole or not at all (rule 32)."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from strata_seglog.errors import CorruptFrame, LogError
from strata_seglog.frames import Frame, FrameKind, hard_state_frame
from strata_seglog.log import CommitLog
from strata_seglog.put_aside import ClosedLog, segments_of, take_back
from strata_seglog.real_disk import RealDisk
from strata_seglog.verify import verify_log

Kit = Any

SEGMENT_BYTES = 4096
HARD_STATE = (3, 7, 38)


def checkpoint(replica_id: int, parts: int) -> list[Frame]:
    return [
        Frame(
            FrameKind.CHECKPOINT,
            replica_id,
            replica_id * 10,
            1,
            9,
            payload=(struct.pack(">BBH", 1, int(part == parts - 1), part), b"part %d" % part),
        )
        for part in range(parts)
    ]


class Aside:
    """A log from which replica 7 was put aside; replica 1 goes on."""

    def __init__(self, kit: Kit, folder: Path) -> None:
        self.kit = kit
        self.log_folder = folder / "log"
        self.folder = folder / "removed"
        self.folder.mkdir(parents=True)
        log = self.open()
        # Sparse before 20: what relocation kept of older entries.
        kit.fill(log, 7, [3, 11], size=300)
        kit.fill(log, 1, range(1, 12), size=300)
        kit.fill(log, 7, range(20, 41), size=100)
        log.write_and_sync(checkpoint(7, 3))
        log.write_and_sync([kit.entry(7, 39, 2, b"another 39")])
        log.write_and_sync([hard_state_frame(7, 70, *HARD_STATE)])
        self.before = state(log)
        for name in segments_of(log, 7):
            os.link(self.log_folder / name, self.folder / name)
        log.write_and_sync([Frame(FrameKind.REMOVED, 7, 70, 0, 0)])
        kit.fill(log, 1, range(12, 60), size=300)
        self.freed = log.free_before({1: 59})
        log.close()

    def open(self) -> CommitLog:
        log: CommitLog = self.kit.open(RealDisk(self.log_folder), segment_bytes=SEGMENT_BYTES)
        return log

    def source(self, report: Callable[[object], None] | None = None) -> ClosedLog:
        def unexpected(corruption: object) -> None:
            raise AssertionError(corruption)

        return ClosedLog.open(
            RealDisk(self.folder), self.kit.options(), report=report or unexpected
        )

    def take_back(self, log: CommitLog) -> int:
        source = self.source()
        try:
            return take_back(log, source, 7, HARD_STATE, write_bytes=1000)
        finally:
            source.close()


def state(log: CommitLog) -> tuple[object, ...]:
    """Return all that a log has of replica 7."""
    held = log.replicas()[7]
    entries = {
        index: (found.term, found.payload)
        for first, last in log.runs(7)
        for index in range(first, last + 1)
        if (found := log.entry(7, index)) is not None
    }
    parts = [log.read_at(position).payload for position in log.checkpoints(7)]
    hard_state = (held.term, held.vote, held.commit)
    return held.raft_group, held.first_index, held.last_index, hard_state, entries, parts


@pytest.fixture
def aside(kit: Kit, tmp_path: Path) -> Aside:
    return Aside(kit, tmp_path)


def test_what_was_put_aside_comes_back(aside: Aside) -> None:
    """Entries, their terms, the checkpoint and the hard state, also after the log is reopened."""
    assert aside.freed, "the log has given up what the replica had"
    log = aside.open()
    # The end of the id may be freed as well: then nothing tells that it ever was.
    assert 7 not in log.replicas() or log.replicas()[7].removed
    assert aside.take_back(log) == len(aside.before[4])  # type: ignore[arg-type]
    assert state(log) == aside.before
    log.close()
    log = aside.open()
    assert state(log) == aside.before
    aside.kit.fill(log, 7, [40, 41])
    assert log.replicas()[7].last_index == 41
    log.close()
    assert verify_log(RealDisk(aside.log_folder)).ok


def test_a_replica_that_is_there_is_left_alone(aside: Aside) -> None:
    """A second time nothing is written."""
    log = aside.open()
    aside.take_back(log)
    end = log.end_position
    assert aside.take_back(log) == 0
    assert log.end_position == end
    log.close()


def test_a_replica_comes_back_whole_or_not_at_all(aside: Aside) -> None:
    """Cut off anywhere, the replica id stays ended; the next try brings all of it."""
    for writes in range(1, 40):
        log = aside.open()
        try:
            with stops_after(log, writes):
                aside.take_back(log)
        except Cut:
            log.close()
        else:
            log.close()
            break
        log = aside.open()
        assert 7 not in log.replicas() or log.replicas()[7].removed, f"cut off at {writes}"
        log.close()
    else:
        raise AssertionError("it never ended")
    assert writes > 2
    log = aside.open()
    assert state(log) == aside.before
    log.close()


def test_damage_is_found_before_anything_counts(aside: Aside) -> None:
    """A flipped byte in what was put aside: an error that names it, and no half replica."""
    inside = b"25 xxx"
    segment = next(file for file in aside.folder.iterdir() if inside in file.read_bytes())
    data = bytearray(segment.read_bytes())
    data[data.index(inside) + 4] ^= 1
    # The log may share the file: what is put aside is written anew.
    segment.unlink()
    segment.write_bytes(data)
    log = aside.open()
    source = aside.source(report=lambda corruption: None)
    with pytest.raises(CorruptFrame):
        take_back(log, source, 7, HARD_STATE, write_bytes=1000)
    source.close()
    assert 7 not in log.replicas() or log.replicas()[7].removed
    log.close()


def test_reading_what_was_put_aside_changes_nothing(aside: Aside) -> None:
    """It may share its files with a log that is in use."""
    before = {file.name: file.read_bytes() for file in aside.folder.iterdir()}
    source = aside.source()
    assert source.replicas()[7].last_index == aside.before[2]
    source.close()
    assert {file.name: file.read_bytes() for file in aside.folder.iterdir()} == before


def test_a_replica_without_entries_has_nothing_to_put_aside(kit: Kit, tmp_path: Path) -> None:
    """Nor has one that the log does not know, or whose log was truncated for a snapshot."""
    log = kit.open(RealDisk(tmp_path / "log"), segment_bytes=SEGMENT_BYTES)
    log.write_and_sync([hard_state_frame(5, 50, 1, 0, 0)])
    kit.fill(log, 6, range(1, 5))
    log.write_and_sync([kit.entry(6, 0, 4, b"void")])
    assert [segments_of(log, replica_id) for replica_id in (4, 5, 6)] == [[], [], []]
    log.close()


class Cut(LogError):
    """The power went."""


@contextmanager
def stops_after(log: CommitLog, writes: int) -> Iterator[None]:
    """Let a log write so often and no more."""
    write = log.write_and_sync
    left = writes

    def limited(frames: Sequence[Frame]) -> int:
        nonlocal left
        left -= 1
        if left < 0:
            raise Cut("no power")
        return write(frames)

    log.write_and_sync = limited  # type: ignore[method-assign]
    try:
        yield
    finally:
        log.write_and_sync = write  # type: ignore[method-assign]
