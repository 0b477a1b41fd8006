"""The contract of `strata_seglog.ports.Disk`, over every adapter."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from strata_seglog.ports import Disk
from strata_seglog.real_disk import RealDisk
from strata_testing.simulated_disk import SimulatedDisk


@pytest.fixture(params=["real", "simulated"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    if request.param == "real":
        return RealDisk(tmp_path / "log")
    return SimulatedDisk(seed=1)


def test_a_new_folder_is_empty(disk: Disk) -> None:
    """A folder that nobody used has no names."""
    assert disk.names() == []


def test_names_are_sorted(disk: Disk) -> None:
    """Files are listed by name, whatever the order of their making."""
    for name in ("b", "c", "a"):
        disk.open(name, create=True).close()
    assert disk.names() == ["a", "b", "c"]


def test_create_fails_if_the_file_exists(disk: Disk) -> None:
    """`create` never opens somebody else's file."""
    disk.open("a", create=True).close()
    with pytest.raises(FileExistsError):
        disk.open("a", create=True)


def test_open_fails_if_the_file_is_missing(disk: Disk) -> None:
    """Opening without `create` never makes a file."""
    with pytest.raises(FileNotFoundError):
        disk.open("a", create=False)
    assert disk.names() == []


def test_buffers_are_written_one_after_another(disk: Disk) -> None:
    """A write of several buffers reads back as their join, more buffers than one call takes too."""
    file = disk.open("a", create=True)
    buffers = [bytes([number % 251]) * (number % 5) for number in range(3000)]
    file.write(10, [b"begin", bytearray(b"-"), memoryview(b"middle")])
    file.write(100, buffers)
    assert file.read(10, 12) == b"begin-middle"
    assert file.read(100, 100_000) == b"".join(buffers)
    file.close()


def test_reading_stops_at_the_end(disk: Disk) -> None:
    """Fewer bytes than asked come only at the end of the file; beyond it, none."""
    file = disk.open("a", create=True)
    file.write(0, [b"0123456789"])
    assert file.read(8, 5) == b"89"
    assert file.read(10, 5) == b""
    assert file.read(99, 5) == b""
    file.close()


def test_what_was_never_written_is_zero(disk: Disk) -> None:
    """Preallocated bytes and holes read as zeros, and `allocate` never shortens."""
    file = disk.open("a", create=True)
    file.allocate(10_000)
    file.write(9_000, [b"x"])
    file.allocate(100)
    assert file.size() == 10_000
    assert file.read(0, 10_000) == bytes(9_000) + b"x" + bytes(999)
    file.close()


def test_truncate_cuts_and_extends_with_zeros(disk: Disk) -> None:
    """Bytes cut off do not come back when the file grows again."""
    file = disk.open("a", create=True)
    file.write(0, [b"x" * 9_000])
    file.truncate(5_000)
    assert file.size() == 5_000
    file.truncate(9_000)
    assert file.read(4_998, 10) == b"xx" + bytes(8)
    file.close()


def test_two_handles_see_one_file(disk: Disk) -> None:
    """A reader's handle sees what the writer's wrote, before any sync."""
    writer = disk.open("a", create=True)
    reader = disk.open("a", create=False)
    writer.write(0, [b"hello"])
    assert reader.read(0, 5) == b"hello"
    writer.close()
    assert reader.read(0, 5) == b"hello"
    reader.close()


def test_a_deleted_file_is_gone_but_for_its_handles(disk: Disk) -> None:
    """A name vanishes at once; who has the file open goes on reading it."""
    file = disk.open("a", create=True)
    file.write(0, [b"hello"])
    file.sync()
    disk.delete("a")
    disk.sync_folder()
    assert disk.names() == []
    assert file.read(0, 5) == b"hello"
    file.close()
    with pytest.raises(FileNotFoundError):
        disk.delete("a")


def test_space_is_what_there_is(disk: Disk) -> None:
    """Free bytes are part of the total."""
    space = disk.space()
    assert 0 < space.free_bytes <= space.total_bytes


def test_more_than_there_is_is_refused(disk: Disk) -> None:
    """Allocating more than the file system holds raises ENOSPC (or says the file is too long)."""
    file = disk.open("a", create=True)
    with pytest.raises(OSError) as caught:
        file.allocate(1 << 60)
    assert caught.value.errno in (errno.ENOSPC, errno.EFBIG)
    file.close()
