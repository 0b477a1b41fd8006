"""Power loss at every boundary, refused writes and failed syncs, rot at every byte."""

from __future__ import annotations

import errno
import random
from collections.abc import Sequence
from typing import Any

import pytest

from strata_seglog.errors import (
    CorruptFrame,
    Corruption,
    DiskFull,
    LogError,
    LogFailed,
    WriteFailed,
)
from strata_seglog.frames import Frame
from strata_seglog.verify import verify_log
from strata_testing.simulated_disk import Keep, SimulatedDisk
from tests.stages import examples

# The kit is a fixture of this folder's conftest.py; its helpers have no importable name.
Kit = Any


def check_recovered(
    kit: Kit, disk: SimulatedDisk, acked: Any, in_flight: Sequence[Frame], why: str
) -> None:
    """Assert that a disk holds what was acked and at most a prefix of what was in flight."""
    log = kit.open(disk)
    recovered = kit.state_of(log)
    allowed = [acked.copy().apply(in_flight[:count]).state() for count in range(len(in_flight) + 1)]
    assert recovered in allowed, why
    log.close()
    again = kit.open(disk)
    assert kit.state_of(again) == recovered, f"{why}: differs when opened once more"
    again.close()


@pytest.mark.parametrize("seed", range(4))
def test_power_loss_at_every_call(kit: Kit, seed: int) -> None:
    """Whenever the power goes, whatever it keeps: nothing synced is lost, nothing is invented."""
    disk, model, workload = SimulatedDisk(seed), kit.Model(), kit.Workload(seed)
    in_flight: list[Frame] = []
    calls = 0

    def lose_power(operation: str, name: str) -> None:
        nonlocal calls
        if operation not in ("write", "sync", "sync_folder", "allocate", "open"):
            return
        calls += 1
        for number, keep in enumerate((Keep.NONE, Keep.ALL, Keep.ANY, Keep.ANY)):
            copy = disk.snapshot(seed * 1_000_003 + calls * 7 + number)
            copy.power_loss(keep)
            why = f"seed {seed}, call {calls} ({operation} {name}), keep {keep.value}"
            check_recovered(kit, copy, model, in_flight, why)

    disk.on_call = lose_power
    log = kit.open(disk, segment_bytes=8 * 1024)
    kit.segment_bytes = 8 * 1024
    for _ in range(40):
        in_flight = workload.batch(model)
        log.write_and_sync(in_flight)
        model.apply(in_flight)
        in_flight = []
    assert calls > 50
    assert len(log.segments()) > 2


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("operation", ["write", "allocate"])
def test_every_write_may_be_refused(kit: Kit, operation: str, error: int) -> None:
    """A refused write raises its type, leaves no trace, and the log goes on."""
    expected = DiskFull if error == errno.ENOSPC else WriteFailed
    refusals = 0
    for nth in range(1, 60):
        disk, model, workload = SimulatedDisk(nth), kit.Model(), kit.Workload(7)
        log = kit.open(disk)
        disk.fail(operation, error, nth=nth, times=1 + nth % 3)
        for _ in range(40):
            frames = workload.batch(model)
            try:
                log.write_and_sync(frames)
            except LogError as refused:
                assert type(refused) is expected, nth
                refusals += 1
            else:
                model.apply(frames)
            assert kit.state_of(log) == model.state(), nth
        disk.power_loss(Keep.NONE)
        after = kit.open(disk)
        assert kit.state_of(after) == model.state(), nth
        after.close()
        if operation == "allocate" and nth > 4:
            break
    assert refusals >= (50 if operation == "write" else 2)


def test_a_refused_write_never_comes_back(kit: Kit) -> None:
    """Frames of a refused write are not found behind a shorter one written in their place."""
    for seed in range(40):
        disk, model = SimulatedDisk(seed), kit.Model()
        log = kit.open(disk)
        kit.fill(log, 1, range(1, 4))
        model.apply(kit.entry(1, index, 1, b"%d x" % index) for index in range(1, 4))
        disk.fail("write", errno.ENOSPC)
        with pytest.raises(DiskFull):
            log.write_and_sync([kit.entry(1, index, 2, b"refused" * 9) for index in range(4, 30)])
        # As long as the refused ones, so that a stale header would stand at the right place.
        accepted = [kit.entry(1, 4, 3, b"accept!" * 9)]
        log.write_and_sync(accepted)
        model.apply(accepted)
        disk.power_loss(Keep.ANY)
        after = kit.open(disk)
        assert kit.state_of(after) == model.state(), seed
        after.close()


def test_a_write_without_sync_is_rewound_too(kit: Kit) -> None:
    """A refused write takes back what was written since the last sync, and says where it stands."""
    disk = SimulatedDisk()
    log = kit.open(disk)
    kit.fill(log, 1, [1])
    synced = log.synced_position
    log.write([kit.entry(1, 2)])
    disk.fail("write", errno.ENOSPC)
    with pytest.raises(DiskFull):
        log.write([kit.entry(1, 3)])
    assert log.end_position == log.synced_position == synced
    log.sync()
    assert log.entry(1, 2) is None
    log.write_and_sync([kit.entry(1, 2)])
    assert log.entry(1, 2).payload == b"1/1/2"
    log.close()


def test_a_full_disk_refuses_and_recovers(kit: Kit) -> None:
    """With no room for another segment writes raise DiskFull; freeing one makes room again."""
    disk = SimulatedDisk(capacity_bytes=3 * kit.segment_bytes + 100)
    log = kit.open(disk)
    index = 0
    with pytest.raises(DiskFull):
        while True:
            kit.fill(log, 1, [index + 1], size=500)
            index += 1
    for _ in range(3):
        with pytest.raises(DiskFull):
            kit.fill(log, 1, [index + 1])
    assert log.entry(1, index).payload.startswith(b"%d " % index)
    assert log.free_before({1: index - 1})
    kit.fill(log, 1, [index + 1])
    assert log.replicas()[1].last_index == index + 1
    log.close()


@pytest.mark.parametrize("operation", ["sync", "sync_folder"])
def test_a_failed_sync_is_final(kit: Kit, operation: str) -> None:
    """After a sync error every call that writes raises LogFailed, and nothing acked is lost."""
    failures = 0
    for nth in range(1, 30):
        disk, model, workload = SimulatedDisk(nth), kit.Model(), kit.Workload(nth)
        log = kit.open(disk)
        disk.fail(operation, errno.EIO, nth=nth)
        frames: list[Frame] = []
        try:
            for _ in range(60):
                frames = workload.batch(model)
                log.write_and_sync(frames)
                model.apply(frames)
        except LogFailed:
            failures += 1
            with pytest.raises(LogFailed):
                log.sync()
            with pytest.raises(LogFailed):
                log.write([kit.entry(1, 1)])
            with pytest.raises(LogFailed):
                log.free_before({})
        log.close()
        disk.power_loss(Keep.ANY)
        check_recovered(kit, disk, model, frames, f"{operation} {nth}")
    assert failures >= (25 if operation == "sync" else 2)


def _filled(kit: Kit, seed: int) -> tuple[SimulatedDisk, Any]:
    """Return the disk of a cleanly closed log of three segments, and its model."""
    disk, model, workload = SimulatedDisk(seed), kit.Model(), kit.Workload(seed)
    log = kit.open(disk)
    while len(log.segments()) < 3 or log.segments()[-1].used_bytes < 4_000:
        frames = workload.batch(model)
        log.write_and_sync(frames)
        model.apply(frames)
    log.close()
    return disk, model


def _live_bytes(kit: Kit, disk: SimulatedDisk) -> list[tuple[str, int]]:
    """Return (name, byte) of all bytes that mean something, the closing mark left out."""
    log = kit.open(disk.snapshot(0))
    places = []
    for segment in log.segments():
        end = segment.used_bytes if segment.sealed else segment.used_bytes - 88
        places += [(segment.name, byte) for byte in range(end)]
        if segment.sealed:
            places += [(segment.name, segment.file_bytes - 1 - byte) for byte in range(24)]
    log.close()
    return places


def _never_served(log: Any, model: Any) -> None:
    """Assert that every entry read is right or refused.

    Where the header of a superseding frame is lost, the one before may show up: it is what was
    written once, and the replica is damaged.
    """
    for replica_id, entries in model.entries.items():
        for index, live in entries.items():
            try:
                stored = log.entry(replica_id, index)
            except CorruptFrame:
                continue
            if stored is None:
                continue
            shown = (stored.term, stored.payload)
            assert shown in model.written[replica_id, index]
            assert shown == live or log.replicas()[replica_id].damaged


def test_rot_is_found_and_not_served(kit: Kit) -> None:
    """A flipped bit in any live byte is reported by start or scrub and by verify, never served."""
    seed = 5
    disk, model = _filled(kit, seed)
    chance = random.Random(seed)
    places = _live_bytes(kit, disk)
    # The first frames, the last bytes of each segment, and a sample of the rest.
    edge, others = examples(60, 400), examples(120, 500)
    for name, byte in places[:edge] + places[-edge:] + chance.sample(places, others):
        rotten = disk.snapshot(0)
        rotten.flip(name, byte, chance.randrange(8))
        found: list[Corruption] = []
        verified = verify_log(rotten)
        assert not verified.ok, (name, byte)
        log = kit.open(rotten, found.append)
        _never_served(log, model)
        log.scrub_step(10**9)
        assert found, (name, byte)
        _never_served(log, model)
        log.close()


def test_rot_while_running_is_found_and_not_served(kit: Kit) -> None:
    """A bit that flips under an open log is caught by reads and by the scrub."""
    seed = 6
    disk, model = _filled(kit, seed)
    chance = random.Random(seed)
    for name, byte in chance.sample(_live_bytes(kit, disk), examples(100, 300)):
        rotten = disk.snapshot(0)
        found: list[Corruption] = []
        log = kit.open(rotten, found.append)
        rotten.flip(name, byte, chance.randrange(8))
        _never_served(log, model)
        while not log.scrub_step(3_000).finished:
            pass
        assert found, (name, byte)
        for corruption in found:
            for replica_id in corruption.replica_ids or ():
                assert log.replicas()[replica_id].damaged
        log.close()


def test_a_clean_log_verifies(kit: Kit) -> None:
    """Verify finds nothing wrong in a good log and sees what the log shows; it writes nothing."""
    disk, model = _filled(kit, 8)
    disk.on_call = lambda operation, name: _only_reads(operation)
    report = verify_log(disk)
    assert report.ok
    assert not report.torn_tail
    assert {key: each.last_index for key, each in report.replicas.items()} == {
        key: max(entries) for key, entries in model.entries.items()
    }


def _only_reads(operation: str) -> None:
    assert operation in ("open", "read")


@pytest.mark.parametrize("is_cut_off", [False, True])
def test_a_log_without_room_for_its_next_segment_opens(kit: Kit, is_cut_off: bool) -> None:
    """It is read, and goes on once there is room; a segment whose making was cut off is no end."""
    disk = SimulatedDisk(1)
    log = kit.open(disk)
    index = 0
    with pytest.raises(DiskFull):
        while True:
            index += 1
            if index == 2:
                disk.resize(disk.used_bytes())
            log.write_and_sync([kit.entry(1, index, payload=bytes(100))])
    last = log.end_position
    (sealed,) = log.segments()[:1]
    assert sealed.sealed
    if is_cut_off:
        file = disk.open(f"{last:020d}.log", create=True)
        file.close()
        disk.sync_folder()
    disk.power_loss(Keep.NONE)
    log = kit.open(disk)
    assert (log.end_position, log.replica(1).last_index) == (last, index - 1)
    assert log.entry(1, index - 1).payload == bytes(100)
    with pytest.raises(DiskFull):
        log.write_and_sync([kit.entry(1, index)])
    disk.resize(1 << 30)
    log.write_and_sync([kit.entry(1, index)])
    log.close()
    log = kit.open(disk)
    assert log.replica(1).last_index == index
    assert len(log.segments()) == 2
