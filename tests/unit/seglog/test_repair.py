"""Making a damaged log whole again: what is found, what is filled, what is never touched."""

from __future__ import annotations

import random
from typing import Any

import pytest

from strata_seglog.frames import FLAG_MOVED, HEADER_BYTES, Frame, FrameKind
from strata_seglog.repair import Damage, DamagedEntry, OfflineLog, RepairError, fill
from strata_seglog.segments import Segment
from strata_seglog.verify import dump_log, verify_log
from strata_testing.simulated_disk import SimulatedDisk

Kit = Any
LAST = 59


def log_of_two(kit: Kit) -> SimulatedDisk:
    """Return the disk of a closed log of several segments that two replicas write in turn."""
    disk = SimulatedDisk()
    log = kit.open(disk, segment_bytes=4096)
    for index in range(1, LAST + 1):
        kit.fill(log, 1, [index], size=100)
        kit.fill(log, 2, [index], size=40)
    log.close()
    return disk


def examine(disk: SimulatedDisk) -> tuple[list[Damage], list[Segment]]:
    """Return what is damaged and which segments need a footer."""
    log = OfflineLog(disk)
    try:
        return log.damages(), log.unsealed()
    finally:
        log.close()


def mend(kit: Kit, disk: SimulatedDisk) -> list[DamagedEntry]:
    """Put a stand-in for every lost entry, then fill; return the lost ones."""
    damages, unsealed = examine(disk)
    lost = [entry for damage in damages for entry in damage.entries if entry.lost]
    log = kit.open(disk, report=lambda _: None, segment_bytes=4096)
    log.write_and_sync(
        [
            Frame(
                FrameKind.ENTRY,
                each.replica_id,
                each.raft_group,
                each.term,
                each.index,
                flags=FLAG_MOVED,
                payload=(b"stand-in",),
            )
            for each in lost
        ]
        or [kit.entry(3, 1)]
    )
    log.close()
    fill(disk, damages, unsealed, open_checkpoints={})
    return lost


def test_a_log_that_is_whole_has_nothing_to_repair(kit: Kit) -> None:
    """No damage, no segment without a footer."""
    assert examine(log_of_two(kit)) == ([], [])


@pytest.mark.parametrize("seed", range(30))
def test_whatever_is_flipped_all_other_entries_stay(kit: Kit, seed: int) -> None:
    """Entries are lost only where bytes were flipped; the log is clean afterwards."""
    print(f"seed {seed}")
    chance, disk = random.Random(seed), log_of_two(kit)
    frames = list(dump_log(disk))
    hit: set[tuple[object, object]] = set()
    for _ in range(chance.randint(1, 4)):
        # Not the newest frames: damage there is a torn tail (rule 7).
        frame = chance.choice(frames[:-8])
        position = int(frame["position"])
        at = chance.randrange(HEADER_BYTES + int(frame["payload_bytes"]))
        name = str(frame["segment"])
        disk.flip(name, position - int(name[:20]) + at, chance.randrange(8))
        if frame["kind"] == "entry":
            hit.add((frame["replica_id"], frame["index"]))
    lost = mend(kit, disk)
    assert {(each.replica_id, each.index) for each in lost} == hit
    report = verify_log(disk)
    assert report.ok, report.corruptions
    assert examine(disk) == ([], [])
    log = kit.open(disk, segment_bytes=4096)
    for replica_id in (1, 2):
        assert log.runs(replica_id) == [(1, LAST)]
        for index in range(1, LAST + 1):
            payload = log.entry(replica_id, index).payload
            if (replica_id, index) in hit:
                assert payload == b"stand-in"
            else:
                assert payload.startswith(b"%d x" % index)
    log.close()


@pytest.mark.parametrize("what", ["footer", "trailer", "both"])
def test_a_segment_without_footer_gets_it_back(kit: Kit, what: str) -> None:
    """Footer and trailer are written from the frames; nothing is lost."""
    disk = log_of_two(kit)
    footer = next(each for each in dump_log(disk) if each["kind"] == "footer")
    name = str(footer["segment"])
    if what in ("footer", "both"):
        disk.flip(name, int(footer["position"]) - int(name[:20]) + HEADER_BYTES + 9)
    if what in ("trailer", "both"):
        disk.flip(name, 4096 - 5)
    assert not verify_log(disk).ok
    assert [each.name for each in examine(disk)[1]] == [name]
    assert mend(kit, disk) == []
    assert verify_log(disk).ok
    log = kit.open(disk, segment_bytes=4096)
    assert log.runs(1) == [(1, LAST)]
    log.close()


def test_the_newest_entries_of_a_replica_may_have_stood_in_a_nameless_gap(kit: Kit) -> None:
    """A gap without header behind which a replica has nothing names it as a suspect."""
    disk = SimulatedDisk()
    log = kit.open(disk)
    kit.fill(log, 1, [1, 2])
    kit.fill(log, 2, [1])
    kit.fill(log, 1, [3, 4])
    log.close()
    second = [each for each in dump_log(disk) if each["kind"] == "entry"][2]
    disk.flip(str(second["segment"]), int(second["position"]) + 1)
    (damage,), _ = examine(disk)
    assert damage.entries == []
    # The log knows nothing at all of replica 2 now; replica 1 goes on behind the gap.
    assert damage.suspects == ()
    disk = SimulatedDisk()
    log = kit.open(disk)
    kit.fill(log, 2, [1])
    kit.fill(log, 1, [1])
    kit.fill(log, 2, [2])
    kit.fill(log, 1, [2])
    log.close()
    third = [each for each in dump_log(disk) if each["kind"] == "entry"][2]
    disk.flip(str(third["segment"]), int(third["position"]) + 1)
    (damage,), _ = examine(disk)
    assert (damage.entries, damage.suspects) == ([], (2,))


def test_a_missing_segment_is_refused(kit: Kit) -> None:
    """Nothing is made up in its place."""
    disk = log_of_two(kit)
    disk.delete(disk.names()[1])
    with pytest.raises(RepairError, match="put the segment files back"):
        OfflineLog(disk)


def test_what_relocation_would_copy_is_counted_up_to_a_limit(kit: Kit) -> None:
    """Bytes of frames of needed entries in the oldest segment, and none of the others."""
    disk = log_of_two(kit)
    log = kit.open(disk, segment_bytes=4096)
    _, last = log.segments()[0].replicas[1]
    one = log.oldest_live_bytes(lambda *entry: entry == (1, 1), 10_000)
    assert one == HEADER_BYTES + len(log.entry(1, 1).payload)
    everything = log.oldest_live_bytes(lambda *_: True, 10_000)
    assert one * last < everything < 4096
    assert one < log.oldest_live_bytes(lambda *_: True, one) < 3 * one
    assert log.oldest_live_bytes(lambda *_: False, 10_000) == 0
    log.close()
