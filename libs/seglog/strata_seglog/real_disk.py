"""A folder of a real file system as a `Disk`.

No mmap (rule 31): every read and write is a system call that releases the GIL.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from strata_runtime.files import sync_folder
from strata_seglog.ports import Buffer, DiskFile, DiskSpace

_BUFFERS_MAX = os.sysconf("SC_IOV_MAX")


class RealDisk:
    """One folder, made if it is not there: durably, so that no power loss takes it with its files.

    Args:
        folder: path; its parent must exist or be creatable.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        missing = [each for each in (folder, *folder.parents) if not each.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        for made in reversed(missing):
            # A folder may be writable and not readable: then it cannot be synced.
            with suppress(PermissionError):
                sync_folder(made.parent)

    def names(self) -> list[str]:
        """Return the names of the files in the folder, sorted."""
        return sorted(path.name for path in self._folder.iterdir() if path.is_file())

    def open(self, name: str, *, create: bool) -> DiskFile:
        """Open for reading and writing; `create` fails if the file exists."""
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0)
        return RealFile(os.open(self._folder / name, flags, 0o640))

    def delete(self, name: str) -> None:
        """Remove a file; durable after `sync_folder`."""
        (self._folder / name).unlink()

    def sync_folder(self) -> None:
        """Make creations and removals durable."""
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def space(self) -> DiskSpace:
        """Return the bytes that this user may still write, and all bytes."""
        stat = os.statvfs(self._folder)
        return DiskSpace(stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize)

    def is_concurrent(self) -> bool:
        """Yes: a real disk serves several threads at once."""
        return True


class RealFile:
    """One open file descriptor."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Write all buffers at `position`: as few system calls as the kernel allows."""
        for start in range(0, len(buffers), _BUFFERS_MAX):
            some = buffers[start : start + _BUFFERS_MAX]
            wanted = sum(map(len, some))
            written = os.pwritev(self._descriptor, some, position)
            if written < wanted:
                self._write_rest(position + written, b"".join(some)[written:])
            position += wanted

    def sync(self) -> None:
        """Make written bytes durable (fdatasync)."""
        os.fdatasync(self._descriptor)

    def read(self, position: int, length: int) -> bytes:
        """Return `length` bytes, fewer only at the end of the file."""
        data = os.pread(self._descriptor, length, position)
        while 0 < len(data) < length:
            more = os.pread(self._descriptor, length - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def allocate(self, length: int) -> None:
        """Reserve blocks, so that a later write changes no metadata and cannot lack room."""
        os.posix_fallocate(self._descriptor, 0, length)

    def truncate(self, length: int) -> None:
        """Cut or extend the file to `length`."""
        os.ftruncate(self._descriptor, length)

    def size(self) -> int:
        """Return the file's length in bytes."""
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        """Release the descriptor; the file stays."""
        os.close(self._descriptor)

    def _write_rest(self, position: int, rest: bytes) -> None:
        """Finish a write that the kernel cut short (a signal, a nearly full disk)."""
        view = memoryview(rest)
        while view:
            written = os.pwrite(self._descriptor, view, position)
            if written == 0:
                raise OSError(errno.EIO, "the disk took no bytes")
            position += written
            view = view[written:]
