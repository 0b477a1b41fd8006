"""The entry of index 0: what an install of a snapshot leaves in the log (rules 8 to 10)."""

from __future__ import annotations

from typing import Any

from strata_raft import EntryKind
from strata_seglog.frames import Frame, FrameKind
from strata_testing.simulated_disk import SimulatedDisk

Kit = Any


def void(replica_id: int, until: int) -> Frame:
    """Return the frame that voids a replica's log."""
    return Frame(FrameKind.ENTRY, replica_id, replica_id * 10, until, 0, payload=(b"floor",))


def test_a_truncated_log_begins_anew_at_any_index(kit: Kit) -> None:
    """Nothing before the void entry is found any more, in no segment, before and after opening."""
    disk = SimulatedDisk()
    log = kit.open(disk, segment_bytes=4096)
    kit.fill(log, 1, range(1, 60), size=200)
    kit.fill(log, 2, [1, 2])
    log.write_and_sync([void(1, 100)])
    assert log.replicas()[1].last_index == 0
    assert log.replicas()[1].void_until == 100
    log.write_and_sync([kit.entry(1, 90, term=3), kit.entry(1, 91, term=3)])
    kit.fill(log, 1, range(92, 130), size=200)
    for _ in range(2):
        replica = log.replicas()[1]
        assert (replica.first_index, replica.last_index) == (90, 129)
        assert replica.void_until == 100
        assert log.runs(1) == [(90, 129)]
        assert [log.entry(1, index) for index in (1, 59, 60, 89)] == [None] * 4
        assert log.recent(1, 59) is None
        assert (log.term(1, 90), log.term(1, 92), log.term(1, 59)) == (3, 1, None)
        assert log.entry(1, 0).payload == b"floor"
        assert log.replicas()[2].last_index == 2
        log.close()
        log = kit.open(disk, segment_bytes=4096)
    log.close()


def test_a_void_entry_stays_until_the_log_is_as_long_again(kit: Kit) -> None:
    """Entries that it ended pin nothing; the void entry pins, as it binds the replica."""
    log = kit.open(SimulatedDisk(), segment_bytes=4096)
    kit.fill(log, 1, range(1, 30), size=200)
    log.write_and_sync([void(1, 80)])
    kit.fill(log, 1, range(31, 79), size=200)
    void_segment = next(s for s in log.segments() if s.replicas.get(1, (1, 1))[0] == 0)
    freed = log.free_before({1: 79})
    assert freed
    assert all(name < void_segment.name for name in freed)
    kit.fill(log, 1, [79, 80])
    assert void_segment.name in log.free_before({1: 79})
    assert log.replicas()[1].last_index == 80
    log.close()


def test_entries_of_a_kind_are_found_without_reading_payloads(kit: Kit) -> None:
    """Live configuration entries of one replica, in sealed and active segments, ascending."""
    disk = SimulatedDisk()
    log = kit.open(disk, segment_bytes=4096)

    def configuration(index: int, term: int = 1) -> Frame:
        kind = EntryKind.CONFIGURATION
        return Frame(FrameKind.ENTRY, 1, 10, term, index, kind, payload=(b"c",))

    log.write_and_sync([configuration(1)])
    kit.fill(log, 1, range(2, 40), size=200)
    log.write_and_sync([configuration(40), configuration(41)])
    kit.fill(log, 2, range(1, 40), size=200)
    log.write_and_sync([kit.entry(1, 41, term=2), configuration(42, term=2)])
    for _ in range(2):
        assert log.indexes_of_kind(1, EntryKind.CONFIGURATION) == [1, 40, 42]
        assert log.indexes_of_kind(2, EntryKind.CONFIGURATION) == []
        assert log.indexes_of_kind(9, EntryKind.CONFIGURATION) == []
        log.close()
        log = kit.open(disk, segment_bytes=4096)
    log.close()
