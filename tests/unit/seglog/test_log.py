"""The CommitLog's own behaviour: reading, segments, damage, limits, threads."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import pytest

from strata_runtime.metrics import Metrics
from strata_seglog.errors import (
    CorruptFrame,
    Corruption,
    DiskFull,
    LogFailed,
    MissingEntry,
    ReadFailed,
    WriteTooLarge,
)
from strata_seglog.frames import Frame, FrameKind
from strata_seglog.index import LogIndex, LogReplica
from strata_seglog.log import CommitLog, LogOptions
from strata_seglog.metrics import METRICS
from strata_seglog.real_disk import RealDisk
from strata_seglog.recent import ENTRY_OVERHEAD_BYTES
from strata_seglog.recovery import blame
from strata_seglog.verify import dump_log, verify_log
from strata_testing.simulated_disk import Keep, SimulatedDisk

Kit = Any


def test_frames_are_readable_after_sync_only(kit: Kit) -> None:
    """Frames that are written and not synced are in no reader's sight."""
    log = kit.open(SimulatedDisk())
    log.write([kit.entry(1, 1)])
    assert log.entry(1, 1) is None
    assert log.recent(1, 1) is None
    assert log.replicas() == {}
    assert log.sync() == log.end_position
    assert log.recent(1, 1) == b"1/1/1"
    log.close()


def test_a_new_suffix_ends_the_old_one(kit: Kit) -> None:
    """Rule 9: an entry of index i ends all with index >= i, in memory, on disk, over segments."""
    disk = SimulatedDisk()
    log = kit.open(disk, segment_bytes=4096)
    kit.fill(log, 1, range(1, 40), size=300)
    kit.fill(log, 2, [1])
    assert len(log.segments()) > 2
    log.write_and_sync([kit.entry(1, 3, term=2)])
    for _ in range(2):
        assert log.replicas()[1].last_index == 3
        assert log.replicas()[1].last_term == 2
        assert log.entry(1, 3).payload == b"1/2/3"
        assert log.entry(1, 2).payload.startswith(b"2 x")
        for index in (4, 20, 39):
            assert log.entry(1, index) is None
            assert log.recent(1, index) is None
        log.close()
        log = kit.open(disk, segment_bytes=4096)
    log.close()


def test_reading_from_memory_and_disk_is_the_same(kit: Kit) -> None:
    """An entry, its payload and a slice of it do not depend on where they come from."""
    disk = SimulatedDisk()
    log = kit.open(disk)
    frame = kit.entry(1, 1, 7, b"0123456789")
    log.write_and_sync([frame])
    from_memory = log.entry(1, 1)
    slices = [(0, 10), (2, 3), (1, 99), (10, 5), (0, 0), (3, 7)]
    memory_slices = [log.read_slice(1, 1, *piece) for piece in slices]
    position = from_memory.position
    log.close()
    log = kit.open(disk)
    assert log.recent(1, 1) is None
    assert log.entry(1, 1) == from_memory == log.read_at(position)
    assert [log.read_slice(1, 1, *piece) for piece in slices] == memory_slices
    assert memory_slices[:3] == [b"0123456789", b"234", b"123456789"]
    with pytest.raises(MissingEntry):
        log.read_slice(1, 2, 0, 1)
    log.close()


def test_the_recent_ring_is_bounded(kit: Kit) -> None:
    """The ring holds the newest entries in memory that is limited, what is beside them included."""
    log = kit.open(SimulatedDisk(), recent_bytes=10 * (100 + ENTRY_OVERHEAD_BYTES))
    for index in range(1, 30):
        log.write_and_sync([kit.entry(1, index, 1, b"x" * 100)])
    held = [index for index in range(1, 30) if log.recent(1, index) is not None]
    assert held == list(range(20, 30))
    assert log.entry(1, 1).payload == b"x" * 100
    log.close()


def test_an_entry_is_in_memory_once(kit: Kit) -> None:
    """Once somebody read it whole, the buffers that it was written from are let go."""
    log = kit.open(SimulatedDisk(), recent_bytes=1_000_000)
    buffers = (b"a" * 100, b"b" * 50)
    log.write_and_sync([Frame(FrameKind.ENTRY, 1, 1, 1, 1, payload=buffers)])
    held = log._ring.find(1, 1)
    assert held is not None
    assert list(held.frame.payload) == list(buffers)
    assert log.recent(1, 1) == b"".join(buffers)
    assert list(held.frame.payload) == [b"".join(buffers)]
    assert log.read_slice(1, 1, 90, 20) == b"a" * 10 + b"b" * 10
    assert log.entry(1, 1).payload == b"".join(buffers)
    log.close()


def test_terms_of_old_entries_are_known_without_the_disk(kit: Kit) -> None:
    """Steps of raft ask for them on the event loop: no footer is read, whatever is cached."""
    disk = SimulatedDisk()
    small = {"segment_bytes": 4096, "recent_bytes": 0, "footer_cache_segments": 1}
    log = kit.open(disk, **small)
    wanted: dict[int, int] = {}
    for term in (1, 2, 5):
        for index in range(max(wanted, default=0) + 1, max(wanted, default=0) + 40):
            log.write_and_sync([kit.entry(1, index, term, b"x" * 100)])
            wanted[index] = term
    log.write_and_sync([kit.entry(1, 100, 6, b"new leader")])
    wanted = {index: term for index, term in wanted.items() if index < 100} | {100: 6}
    for _ in range(2):
        assert len(log.segments()) > 4
        disk.on_call = lambda operation, name: pytest.fail(f"{operation} of {name}")
        assert {index: log.term(1, index) for index in wanted} == wanted
        assert (log.term(1, 101), log.term(1, 0), log.term(2, 1)) == (None, None, None)
        disk.on_call = None
        log.close()
        log = kit.open(disk, **small)
    log.close()


def test_a_frame_of_another_replica_is_not_served(kit: Kit) -> None:
    """A footer that leads to a good frame of somebody else, or of another term, is corrupt."""
    disk = SimulatedDisk()
    found: list[Corruption] = []
    log = kit.open(disk, found.append, segment_bytes=4096, recent_bytes=0)
    for index in range(1, 20):
        log.write_and_sync([kit.entry(1, index, 1, b"mine" * 30), kit.entry(2, index, 1, b"his")])
    base = log.segments()[0].first_position
    mine, his = (log._cache.get(base).sections[replica].columns for replica in (1, 2))
    mine.offsets[0] = his.offsets[0]
    for read in (
        lambda: log.entry(1, 1),
        lambda: log.read_slice(1, 1, 0, 3),
        lambda: list(log.entries(1, 1, 1, 100)),
    ):
        with pytest.raises(CorruptFrame, match="not entry 1 of term 1 of replica 1"):
            read()
    his.terms[1] = 9
    with pytest.raises(CorruptFrame, match="not entry 2 of term 9 of replica 2"):
        log.entry(2, 2)
    log.close()


def test_damage_is_noted_while_the_writer_looks_at_all_replicas() -> None:
    """A reader that finds damage of an unknown replica does not disturb who goes through them."""
    index = LogIndex()
    index.replicas = {number: LogReplica(number, number) for number in (1, 2)}
    seen = []
    for number, state in enumerate(index.replicas.values()):
        blame(index, Corruption("0.log", 0, "payload checksum", (100 + number,)))
        seen.append(state.replica_id)
    assert seen == [1, 2]
    assert set(index.replicas) == {1, 2, 100, 101}
    assert index.replicas[100].damaged


def test_the_end_is_one_value_that_any_thread_may_read(kit: Kit) -> None:
    """Over writes, seals and new segments it only rises, whenever somebody looks."""
    disk = SimulatedDisk()
    log = kit.open(disk, segment_bytes=4096)
    seen = [log.end_position]
    disk.on_call = lambda operation, name: seen.append(log.end_position)
    kit.fill(log, 1, range(1, 100), size=200)
    disk.on_call = None
    assert seen == sorted(seen)
    assert log.end_position == log.synced_position > 5 * 4096
    log.close()


def test_entries_stop_at_bytes_and_gaps(kit: Kit) -> None:
    """A range ends after `max_bytes`, at least one entry later, and where the log ends."""
    log = kit.open(SimulatedDisk())
    for index in range(1, 11):
        log.write_and_sync([kit.entry(1, index, 1, b"x" * 100)])
    assert [frame.index for frame in log.entries(1, 3, 8, 10_000)] == [3, 4, 5, 6, 7, 8]
    assert [frame.index for frame in log.entries(1, 3, 8, 250)] == [3, 4, 5]
    assert [frame.index for frame in log.entries(1, 3, 8, 0)] == [3]
    assert [frame.index for frame in log.entries(1, 9, 99, 10_000)] == [9, 10]
    assert list(log.entries(1, 11, 99, 10_000)) == []
    log.close()


def test_scan_gives_all_frames_in_order(kit: Kit) -> None:
    """A scan shows superseded frames too, footers and marks not, from any position on."""
    disk = SimulatedDisk()
    log = kit.open(disk, segment_bytes=4096)
    kit.fill(log, 1, [1, 2, 3, 2, *range(3, 30)], size=200)
    log.mark()
    frames = list(log.scan())
    assert [frame.index for frame in frames] == [1, 2, 3, 2, *range(3, 30)]
    positions = [frame.position for frame in frames]
    assert positions == sorted(positions)
    assert [frame.index for frame in log.scan(frames[10].position)] == list(range(9, 30))
    log.close()


def test_a_write_that_cannot_fit_is_refused_whole(kit: Kit) -> None:
    """More than a segment takes, or too long a frame, raises and writes nothing."""
    log = kit.open(SimulatedDisk(), max_frame_bytes=2_000)
    with pytest.raises(WriteTooLarge):
        log.write([kit.entry(1, 1, 1, b"x" * 2_001)])
    with pytest.raises(WriteTooLarge):
        log.write([kit.entry(1, index, 1, b"x" * 2_000) for index in range(1, 9)])
    assert log.end_position == 0
    kit.fill(log, 1, [1])
    log.close()


def test_a_removed_replica_is_gone(kit: Kit) -> None:
    """After a `removed` frame the replica has no entries, also after a restart."""
    disk = SimulatedDisk()
    log = kit.open(disk)
    kit.fill(log, 1, [1, 2])
    log.write_and_sync([Frame(FrameKind.REMOVED, 1, 10, 0, 0)])
    for _ in range(2):
        assert log.replicas()[1].removed
        assert log.replicas()[1].last_index == 0
        assert log.entry(1, 1) is None
        log.close()
        log = kit.open(disk)
    log.close()


def test_damage_before_a_torn_tail_names_the_replica(kit: Kit) -> None:
    """A bad payload with a good header damages that replica alone; the others are whole."""
    disk = SimulatedDisk()
    log = kit.open(disk)
    for index in range(1, 4):
        log.write_and_sync([kit.entry(1, index), kit.entry(2, index)])
    position = log.entry(1, 2).position
    log.close()
    disk.flip("00000000000000000000.log", position + 72)
    found: list[Corruption] = []
    log = kit.open(disk, found.append)
    assert [(each.position, each.replica_ids) for each in found] == [(position, (1,))]
    assert log.replicas()[1].damaged
    assert not log.replicas()[2].damaged
    assert log.replicas()[1].last_index == 3
    with pytest.raises(CorruptFrame):
        log.entry(1, 2)
    log.close()


def test_a_lost_header_damages_everybody(kit: Kit) -> None:
    """When nobody knows whose frame is lost, no replica of this log may vote."""
    disk = SimulatedDisk()
    log = kit.open(disk)
    for index in range(1, 4):
        log.write_and_sync([kit.entry(1, index), kit.entry(2, index)])
    position = log.entry(1, 2).position
    log.close()
    disk.flip("00000000000000000000.log", position + 30)
    found: list[Corruption] = []
    log = kit.open(disk, found.append)
    assert [each.replica_ids for each in found] == [(1, 2)]
    assert all(replica.damaged for replica in log.replicas().values())
    log.close()


def test_damage_to_the_last_write_is_told_from_a_torn_tail_after_a_mark(kit: Kit) -> None:
    """Without a mark a bad last frame is cut; with one it is corruption."""
    for marked in (False, True):
        disk = SimulatedDisk()
        log = kit.open(disk)
        kit.fill(log, 1, [1, 2])
        position = log.entry(1, 2).position
        if marked:
            log.mark()
        disk.power_loss(Keep.NONE)
        disk.flip("00000000000000000000.log", position + 72)
        found: list[Corruption] = []
        log = kit.open(disk, found.append)
        assert len(found) == marked
        assert log.replicas()[1].last_index == 1 + marked
        log.close()


def test_a_lost_footer_is_read_from_the_frames(kit: Kit) -> None:
    """A sealed segment without footer or trailer serves all entries, is reported, harms nobody."""
    for at_end in (1, 3_000):
        disk = SimulatedDisk()
        log = kit.open(disk, segment_bytes=4096)
        kit.fill(log, 1, range(1, 30), size=100)
        sealed = log.segments()[0]
        log.close()
        byte = 4095 - at_end if at_end == 1 else sealed.used_bytes - 5
        disk.flip(sealed.name, byte)
        found: list[Corruption] = []
        log = kit.open(disk, found.append)
        assert [(each.segment, each.replica_ids) for each in found] == [(sealed.name, ())]
        assert [frame.index for frame in log.entries(1, 1, 99, 1 << 20)] == list(range(1, 30))
        assert not log.replicas()[1].damaged
        log.close()


def test_a_missing_segment_is_damage(kit: Kit) -> None:
    """A hole between segments is reported and damages the replicas."""
    disk = SimulatedDisk()
    log = kit.open(disk, segment_bytes=4096)
    kit.fill(log, 1, range(1, 60), size=200)
    log.close()
    disk.delete(disk.names()[1])
    found: list[Corruption] = []
    log = kit.open(disk, found.append)
    assert log.replicas()[1].damaged
    assert len(found) == 1
    log.close()


def test_a_read_error_is_typed_and_passes(kit: Kit) -> None:
    """EIO on a read raises ReadFailed, marks nothing as damaged, and the next read may succeed."""
    disk = SimulatedDisk()
    log = kit.open(disk, recent_bytes=0)
    kit.fill(log, 1, [1])
    disk.fail("read", errno.EIO)
    with pytest.raises(ReadFailed):
        log.entry(1, 1)
    assert log.entry(1, 1).payload == b"1 x"
    disk.fail("read", errno.EIO)
    with pytest.raises(ReadFailed):
        log.scrub_step(100)
    assert log.scrub_step(100).finished
    log.close()


def test_opening_reads_sealed_segments_by_their_footers(kit: Kit) -> None:
    """Opening reads little of a sealed segment, however many there are (bounded time)."""
    disk = SimulatedDisk()
    log = kit.open(disk, segment_bytes=64 * 1024)
    kit.fill(log, 1, range(1, 400), size=1_000)
    log.close()
    sealed = {segment.name for segment in log.segments() if segment.sealed}
    reads = dict.fromkeys(sealed, 0)

    def count(operation: str, name: str) -> None:
        if operation == "read" and name in reads:
            reads[name] += 1

    disk.on_call = count
    log = kit.open(disk)
    assert len(sealed) >= 5
    # Trailer, footer's header, footer's payload; the last one is looked at twice.
    assert max(reads.values()) <= 6
    log.close()


def test_verify_and_dump_tell_of_every_frame(kit: Kit) -> None:
    """The command line's view: counts by kind, and one item per frame with its fields."""
    disk = SimulatedDisk()
    log = kit.open(disk, segment_bytes=4096)
    kit.fill(log, 1, range(1, 30), size=100)
    log.close()
    report = verify_log(disk)
    assert report.frames["entry"] == 29
    assert report.segments == report.frames["footer"] + 1
    dumped = list(dump_log(disk))
    assert len(dumped) == sum(report.frames.values())
    assert dumped[4]["index"] == 5
    assert dumped[4]["kind"] == "entry"
    disk.flip("00000000000000000000.log", 80)
    assert [item["damaged"] for item in dump_log(disk) if "damaged" in item] == ["payload checksum"]


def test_metrics_show_what_happens(kit: Kit) -> None:
    """Frames and bytes are counted by log, limits stand beside what is used."""
    metrics = Metrics(METRICS)
    options = LogOptions(segment_bytes=4096, recent_bytes=1_000, name="test")
    log = CommitLog.open(SimulatedDisk(), options, report=lambda _: None, metrics=metrics)
    log.write_and_sync([kit.entry(1, 1, 1, b"x" * 28)])
    metrics.read_gauges()
    text = metrics.render().decode()
    for line in (
        'strata_log_frames_total{log="test"} 1.0',
        'strata_log_written_bytes_total{log="test"} 100.0',
        f'strata_log_recent_bytes{{log="test"}} {28 + ENTRY_OVERHEAD_BYTES}.0',
        'strata_log_recent_limit_bytes{log="test"} 1000.0',
        'strata_log_segments{log="test"} 1.0',
        'strata_log_sync_ms_count{log="test"} 1.0',
    ):
        assert line in text
    log.close()
    metrics.close()


def test_readers_and_writer_work_at_once_on_a_real_disk(tmp_path: Path) -> None:
    """While one thread writes, frees and rolls, others read right bytes or nothing."""
    options = LogOptions(segment_bytes=256 * 1024, recent_bytes=20_000, zero_ahead_bytes=64 * 1024)
    damage: list[Corruption] = []
    log = CommitLog.open(RealDisk(tmp_path), options, report=damage.append)
    failures: list[str] = []
    done = threading.Event()
    last = 0

    def read(step: int) -> None:
        at = 1
        while not done.is_set():
            at = at + step if at + step <= last else max(1, last - 300)
            stored = log.entry(1, at)
            if stored is not None and stored.payload != b"%d " % at + b"y" * 1_000:
                failures.append(f"entry {at}: {stored.payload[:20]!r}")
            log.scrub_step(20_000) if step == 1 else log.replicas()

    readers = [threading.Thread(target=read, args=(step,)) for step in (1, 7)]
    for reader in readers:
        reader.start()
    for index in range(1, 1_500):
        body = (b"%d " % index, b"y" * 1_000)
        log.write_and_sync([Frame(FrameKind.ENTRY, 1, 10, 1, index, payload=body)])
        last = index
        if index % 200 == 0:
            log.free_before({1: index - 400})
    done.set()
    for reader in readers:
        reader.join()
    log.close()
    assert failures == []
    assert damage == []
    again = CommitLog.open(RealDisk(tmp_path), options, report=damage.append)
    assert again.replicas()[1].last_index == 1_499
    assert [frame.index for frame in again.entries(1, 1_300, 1_499, 1 << 30)] == list(
        range(1_300, 1_500)
    )
    again.close()
    assert damage == []


def test_a_log_that_cannot_open_leaves_nothing_open(kit: Kit) -> None:
    """When opening fails the error is typed, handles are released, and a later try succeeds."""
    disk = SimulatedDisk(capacity_bytes=1_000)
    with pytest.raises(DiskFull):
        kit.open(disk)
    assert disk.names() == []
    disk = SimulatedDisk()
    disk.fail("sync_folder", errno.EIO)
    with pytest.raises(LogFailed):
        kit.open(disk)
    log = kit.open(disk)
    kit.fill(log, 1, [1])
    log.close()
