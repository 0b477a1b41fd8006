"""Entries that are copied while they are read, and what damage says of checkpoints and footers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from strata_seglog.errors import Corruption
from strata_seglog.frames import Frame, FrameKind
from strata_seglog.log import CommitLog
from strata_seglog.options import LogOptions
from strata_seglog.real_disk import RealDisk
from strata_seglog.repair import OfflineLog, fill

REPLICA, OTHER = 7, 8
SEGMENT_BYTES = 256 * 1024


def opened(folder: Path, found: list[Corruption] | None = None) -> CommitLog:
    options = LogOptions(segment_bytes=SEGMENT_BYTES, recent_bytes=0, zero_ahead_bytes=0)
    report = (lambda _: None) if found is None else found.append
    return CommitLog.open(RealDisk(folder), options, report=report)


def entry(index: int, size_bytes: int = 20_000) -> Frame:
    return Frame(FrameKind.ENTRY, REPLICA, 1, 1, index, 0, 0, (bytes([index]) * size_bytes,))


def checkpoint_part(part: int, *, last: bool, size_bytes: int = 100_000) -> Frame:
    head = bytes([1, 1 if last else 0, 0, part])
    return Frame(FrameKind.CHECKPOINT, REPLICA, 1, 1, 3, payload=(head + bytes(size_bytes),))


def overwrite(path: Path, at: int, count: int = 1) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"\xff" * count)


def is_needed(_: int, index: int) -> bool:
    return index <= 3 or index > 20


READS: list[Callable[[CommitLog], Any]] = [
    lambda log: log.read_slice(REPLICA, 2, 0, 10),
    lambda log: getattr(log.entry(REPLICA, 2), "payload", b"")[:10],
    lambda log: next(iter(log.entries(REPLICA, 2, 2, 1))).payload[:10],
]


@pytest.mark.parametrize("read", READS)
def test_an_entry_whose_segment_is_freed_is_read_from_its_copy(
    tmp_path: Path, read: Callable[[CommitLog], bytes]
) -> None:
    """A reader that looked it up before the copy was made would fail the replica else."""
    log = opened(tmp_path)
    for index in range(1, 25):
        log.write_and_sync([entry(index)])
    use = log._files.use
    freed: list[str] = []

    def use_late(name: str) -> Any:
        if not freed and name == log.segments()[0].name:
            freed.append(name)
            while not log.relocate_step(is_needed, 1 << 20).freed:
                pass
        return use(name)

    with patch.object(log._files, "use", use_late):
        assert read(log) == bytes([2]) * 10
    assert freed and freed[0] != log.segments()[0].name
    log.close()


def test_a_checkpoint_outlives_the_footer_of_a_segment_that_it_goes_on_in(tmp_path: Path) -> None:
    """All its frames are good; without it, lost rows could not be rebuilt."""
    log = opened(tmp_path)
    log.write_and_sync([entry(1)])
    for part in range(4):
        log.write_and_sync([checkpoint_part(part, last=part == 3)])
    for index in range(2, 8):
        log.write_and_sync([entry(index, 50_000)])
    positions, segments = log.checkpoints(REPLICA), log.segments()
    log.close()
    assert len(positions) == 4
    (second,) = [
        each
        for each in segments[1:]
        if each.sealed and each.first_position <= positions[-1] < each.end_position
    ]
    overwrite(tmp_path / second.name, second.file_bytes - 24, 8)
    log = opened(tmp_path)
    assert log.checkpoints(REPLICA) == positions
    log.close()

    offline = OfflineLog(RealDisk(tmp_path))
    unsealed = offline.unsealed()
    assert [segment.name for segment in unsealed] == [second.name]
    fill(RealDisk(tmp_path), offline.damages(), unsealed, open_checkpoints=offline.open_checkpoints)
    offline.close()
    found: list[Corruption] = []
    log = opened(tmp_path, found)
    assert log.checkpoints(REPLICA) == positions
    assert found == []
    log.close()


@pytest.mark.parametrize("at", [10, 100], ids=["header", "payload"])
def test_a_damaged_checkpoint_is_its_replicas_whatever_byte_is_bad(tmp_path: Path, at: int) -> None:
    """Entries are freed on the strength of a checkpoint, so its loss must be known (rule 8)."""
    log = opened(tmp_path)
    log.write_and_sync([entry(1)])
    log.write_and_sync([checkpoint_part(0, last=True, size_bytes=3_000)])
    log.write_and_sync([entry(2)])
    (position,) = log.checkpoints(REPLICA)
    overwrite(tmp_path / log.segments()[0].name, position + at)
    assert not log.is_damaged
    log.scrub_step(1 << 20)
    assert log.is_damaged
    assert log.replicas()[REPLICA].damaged
    log.close()


@pytest.mark.parametrize("at", [10, 100], ids=["header", "payload"])
def test_damage_between_the_parts_of_a_checkpoint_is_not_its_replicas(
    tmp_path: Path, at: int
) -> None:
    """The parts are numbered: what lies between them does not take the checkpoint away."""
    log = opened(tmp_path)
    log.write_and_sync([checkpoint_part(0, last=False, size_bytes=3_000)])
    position = log.end_position
    log.write_and_sync([Frame(FrameKind.ENTRY, OTHER, 2, 1, 1, 0, 0, (bytes(3_000),))])
    log.write_and_sync([checkpoint_part(1, last=True, size_bytes=3_000)])
    positions = log.checkpoints(REPLICA)
    overwrite(tmp_path / log.segments()[0].name, position + at)
    log.scrub_step(1 << 20)
    assert log.checkpoints(REPLICA) == positions
    damaged = {each.replica_id for each in log.replicas().values() if each.damaged}
    assert damaged == {OTHER}
    log.close()


@pytest.mark.parametrize("step_bytes", [1, 60_000, 1 << 30])
def test_a_scrub_looks_at_every_trailer_however_long_its_steps_are(
    tmp_path: Path, step_bytes: int
) -> None:
    log = opened(tmp_path)
    for index in range(1, 25):
        log.write_and_sync([entry(index)])
    first = log.segments()[0]
    overwrite(tmp_path / first.name, first.file_bytes - 24, 8)
    found: list[Corruption] = []
    finished = False
    while not finished:
        result = log.scrub_step(step_bytes)
        found += result.corruptions
        finished = result.finished
    assert [(each.segment, each.reason) for each in found] == [(first.name, "footer or trailer")]
    log.close()
