"""Faults, which only the simulated disk has."""

from __future__ import annotations

import errno

import pytest

from strata_testing.simulated_disk import PAGE_BYTES, Keep, SimulatedDisk


def test_a_power_loss_keeps_what_was_synced() -> None:
    """Synced bytes under synced names survive whatever the loss keeps of the rest."""
    for seed in range(50):
        disk = SimulatedDisk(seed)
        file = disk.open("a", create=True)
        file.write(0, [b"s" * 3 * PAGE_BYTES])
        file.sync()
        disk.sync_folder()
        file.write(3 * PAGE_BYTES, [b"u" * PAGE_BYTES])
        disk.power_loss(Keep.ANY)
        assert disk.open("a", create=False).read(0, 3 * PAGE_BYTES) == b"s" * 3 * PAGE_BYTES, seed


def test_a_power_loss_keeps_any_subset_of_unsynced_pages() -> None:
    """Over some seeds every combination of two unsynced pages is seen, torn pages too."""
    seen = set()
    for seed in range(300):
        disk = SimulatedDisk(seed)
        file = disk.open("a", create=True)
        file.allocate(2 * PAGE_BYTES)
        file.sync()
        disk.sync_folder()
        file.write(0, [b"u" * 2 * PAGE_BYTES])
        disk.power_loss()
        data = disk.open("a", create=False).read(0, 2 * PAGE_BYTES)
        seen.add(tuple(data[page * PAGE_BYTES :][:PAGE_BYTES].count(b"u") for page in (0, 1)))
    whole = {0, PAGE_BYTES}
    assert {(first, second) for first in whole for second in whole} <= seen
    assert any(0 < count < PAGE_BYTES for counts in seen for count in counts)


def test_none_and_all() -> None:
    """A power loss can be asked to keep nothing or all of the unsynced state."""
    for keep, expected in ((Keep.NONE, []), (Keep.ALL, ["a"])):
        disk = SimulatedDisk()
        disk.open("a", create=True).write(0, [b"x"])
        disk.power_loss(keep)
        assert disk.names() == expected


def test_an_unsynced_removal_may_come_back() -> None:
    """A removal is durable only after `sync_folder`."""
    disk = SimulatedDisk()
    disk.open("a", create=True).sync()
    disk.sync_folder()
    disk.delete("a")
    disk.power_loss(Keep.NONE)
    assert disk.names() == ["a"]


def test_handles_die_with_the_power() -> None:
    """A handle opened before the loss works no more."""
    disk = SimulatedDisk()
    file = disk.open("a", create=True)
    disk.power_loss(Keep.ALL)
    with pytest.raises(OSError):
        file.read(0, 1)


def test_the_nth_call_fails() -> None:
    """`fail` hits exactly the calls it names; a failing write may leave a prefix."""
    disk = SimulatedDisk(seed=3)
    file = disk.open("a", create=True)
    disk.fail("write", errno.ENOSPC, nth=2, times=2)
    file.write(0, [b"1"])
    for _ in range(2):
        with pytest.raises(OSError) as caught:
            file.write(1, [b"2" * 10])
        assert caught.value.errno == errno.ENOSPC
    file.write(1, [b"3"])
    assert file.read(0, 2) == b"13"


def test_a_flipped_bit_stays_flipped() -> None:
    """Rot is durable and hits one bit."""
    disk = SimulatedDisk()
    file = disk.open("a", create=True)
    file.write(0, [bytes(10)])
    file.sync()
    disk.sync_folder()
    disk.flip("a", 4, bit=3)
    disk.power_loss(Keep.NONE)
    assert disk.open("a", create=False).read(0, 10) == bytes(4) + b"\x08" + bytes(5)


def test_a_snapshot_goes_its_own_way() -> None:
    """A snapshot has the unsynced state too, and changes nothing in the original."""
    disk = SimulatedDisk()
    file = disk.open("a", create=True)
    file.write(0, [b"x"])
    copy = disk.snapshot(seed=9)
    copy.power_loss(Keep.NONE)
    assert copy.names() == []
    assert file.read(0, 1) == b"x"


def test_capacity_is_a_limit() -> None:
    """Growing beyond `capacity_bytes` raises ENOSPC and `space` tells before."""
    disk = SimulatedDisk(capacity_bytes=10_000)
    file = disk.open("a", create=True)
    file.allocate(6_000)
    assert disk.space().free_bytes == 4_000
    with pytest.raises(OSError) as caught:
        disk.open("b", create=True).write(0, [bytes(5_000)])
    assert caught.value.errno == errno.ENOSPC
