"""Segments that go, how the oldest is emptied, and what a checkpoint pins (rules 6 and 10)."""

from __future__ import annotations

import struct
from typing import Any

from strata_seglog.frames import FLAG_MOVED, Frame, FrameKind, hard_state_frame
from strata_testing.simulated_disk import SimulatedDisk

Kit = Any


def checkpoint_part(replica_id: int, part: int, *, last: bool, size: int = 40) -> Frame:
    """Return a checkpoint frame; the head is all that the log reads of it."""
    head = struct.pack(">BBH", 1, int(last), part)
    return Frame(FrameKind.CHECKPOINT, replica_id, 0, 1, 9, payload=(head, b"c" * size))


def test_hard_states_survive_the_freeing_of_segments(kit: Kit) -> None:
    """The last hard state of an idle replica outlives the segment it was written in."""
    disk = SimulatedDisk()
    log = kit.open(disk, segment_bytes=4096)
    log.write_and_sync([hard_state_frame(5, 50, 3, 2, 1), hard_state_frame(5, 50, 4, 5, 1)])
    kit.fill(log, 1, range(1, 60), size=200)
    freed = log.free_before({1: 59})
    assert "00000000000000000000.log" in freed
    log.close()
    log = kit.open(disk, segment_bytes=4096)
    replica = log.replicas()[5]
    assert (replica.term, replica.vote, replica.commit) == (4, 5, 1)
    log.close()


def test_free_before_keeps_what_is_needed(kit: Kit) -> None:
    """Segments go oldest first while all their entries are below the low index of each replica."""
    disk = SimulatedDisk()
    log = kit.open(disk, segment_bytes=4096)
    kit.fill(log, 2, [1])
    kit.fill(log, 1, range(1, 60), size=200)
    names = [segment.name for segment in log.segments()]
    assert log.free_before({1: 60}) == [], "a replica that is not named pins what it has"
    assert log.free_before({1: 60, 2: 1}) == []
    assert log.free_before({1: 60, 2: 2}) == names[:-1], "the active segment never goes"
    assert disk.names() == names[-1:]
    assert log.entry(1, 1) is None
    assert log.entry(1, 59) is not None
    assert log.replicas()[1].first_index == log.segments()[0].replicas[1][0]
    log.close()


def test_superseded_entries_pin_nothing(kit: Kit) -> None:
    """A segment whose entries a later one ended may go, whatever the low index."""
    log = kit.open(SimulatedDisk(), segment_bytes=4096)
    kit.fill(log, 1, range(1, 60), size=200)
    log.write_and_sync([kit.entry(1, 1, term=2)])
    names = [segment.name for segment in log.segments()]
    assert log.free_before({1: 1}) == names[:-1]
    assert log.entry(1, 1).payload == b"1/2/1"
    log.close()


def test_relocation_frees_the_oldest_segment(kit: Kit) -> None:
    """Needed entries are copied with term and index, then the segment goes; others stay put."""
    disk = SimulatedDisk()
    log = kit.open(disk, segment_bytes=4096)
    kit.fill(log, 2, [1, 2])
    kit.fill(log, 1, range(1, 60), size=200)
    oldest = log.segments()[0]
    first, last = oldest.replicas[1]
    needed = {(2, 2), (1, first + 1), (1, last)}
    copied, freed = 0, ""
    while not freed:
        step = log.relocate_step(lambda *entry: entry in needed, 1)
        copied, freed = copied + step.copied_frames, step.freed
    assert (copied, freed) == (3, oldest.name)
    assert oldest.name not in disk.names()
    for _ in range(2):
        for replica_id, index in needed:
            stored = log.entry(replica_id, index)
            assert stored.flags == FLAG_MOVED
            assert stored.payload.startswith(b"%d x" % index)
        assert log.entry(1, first) is None
        assert log.entry(1, 59).flags == 0
        assert log.replicas()[1].last_index == 59
        assert log.replicas()[1].first_index == last
        log.close()
        log = kit.open(disk, segment_bytes=4096)
    log.close()


def test_steps_of_relocation_look_at_each_entry_once(kit: Kit) -> None:
    """A segment of a million entries is emptied in the writer's thread, while appends wait."""
    log = kit.open(SimulatedDisk(), segment_bytes=16_384)
    kit.fill(log, 1, range(1, 200), size=100)
    oldest = log.segments()[0]
    first, last = oldest.replicas[1]
    asked: list[int] = []

    def is_needed(replica_id: int, index: int) -> bool:
        asked.append(index)
        return index % 2 == 0

    steps = 0
    while not log.relocate_step(is_needed, 1).freed:
        steps += 1
    assert steps > 5
    assert asked == list(range(first, last + 1))
    for index in range(first, last + 1):
        assert (log.entry(1, index) is not None) == (index % 2 == 0)
    log.close()


def test_an_entry_that_is_truncated_between_steps_is_not_moved(kit: Kit) -> None:
    """It was found in one step, and left for the next one."""
    log = kit.open(SimulatedDisk(), segment_bytes=4096)
    kit.fill(log, 1, range(1, 40), size=100)

    def is_needed(replica_id: int, index: int) -> bool:
        return True

    log.relocate_step(is_needed, 1)
    log.write_and_sync([kit.entry(1, 2, term=9)])
    copied, freed = 0, ""
    while not freed:
        step = log.relocate_step(is_needed, 10_000)
        copied, freed = copied + step.copied_frames, step.freed
    assert copied == 0
    assert (log.entry(1, 1).term, log.entry(1, 2).term) == (1, 9)
    assert log.entry(1, 3) is None
    log.close()


def test_a_new_suffix_ends_moved_copies_too(kit: Kit) -> None:
    """A moved copy supersedes nothing, and is superseded as any earlier frame."""
    log = kit.open(disk := SimulatedDisk(), segment_bytes=4096)
    kit.fill(log, 1, range(1, 40), size=200)
    while not log.relocate_step(lambda *_: True, 10_000).freed:
        pass
    log.write_and_sync([kit.entry(1, 5, term=9)])
    for _ in range(2):
        assert log.entry(1, 4) is not None
        assert log.entry(1, 5).term == 9
        assert log.entry(1, 6) is None
        assert (log.replicas()[1].first_index, log.replicas()[1].last_index) == (1, 5)
        log.close()
        log = kit.open(disk, segment_bytes=4096)
    log.close()


def test_the_newest_complete_checkpoint_is_found(kit: Kit) -> None:
    """A set of parts counts when it is whole and in order, also while another is being written."""
    disk = SimulatedDisk()
    log = kit.open(disk)
    assert log.checkpoints(1) == []
    parts = [checkpoint_part(1, part, last=part == 2) for part in range(3)]
    log.write_and_sync([parts[0], kit.entry(1, 1), parts[1]])
    assert log.checkpoints(1) == []
    log.write_and_sync([parts[2]])
    whole = log.checkpoints(1)
    assert [log.read_at(position).kind for position in whole] == [FrameKind.CHECKPOINT] * 3
    log.write_and_sync([parts[0], parts[2]])
    assert log.checkpoints(1) == whole
    log.write_and_sync([parts[0], parts[1]])
    for _ in range(2):
        assert log.checkpoints(1) == whole
        log.close()
        log = kit.open(disk)
    log.write_and_sync([parts[2]])
    assert log.checkpoints(1)[0] > whole[-1]
    log.close()


def test_a_checkpoint_may_span_segments_and_pins_them(kit: Kit) -> None:
    """A set may end in a later segment; its segments stay until there is a newer set."""
    disk = SimulatedDisk()
    log = kit.open(disk, segment_bytes=4096)
    for part in range(6):
        kit.fill(log, 1, [part + 1], size=200)
        log.write_and_sync([checkpoint_part(1, part, last=part == 5, size=1_000)])
        if part == 3:
            log.close()
            log = kit.open(disk, segment_bytes=4096)
    kit.fill(log, 1, range(7, 60), size=200)
    log.close()
    log = kit.open(disk, segment_bytes=4096)
    assert [log.read_at(position).payload[3] for position in log.checkpoints(1)] == list(range(6))
    assert log.free_before({1: 99}) == []
    assert log.relocate_step(lambda *_: False, 1).waiting_for == (1,)
    log.write_and_sync([checkpoint_part(1, 0, last=True)])
    assert log.free_before({1: 99}) != []
    log.close()
