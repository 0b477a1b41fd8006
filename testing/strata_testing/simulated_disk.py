"""A disk in memory that fails like a real disk, from a seed.

Model:
- Bytes are durable after `sync`, names after `sync_folder`. A power loss keeps of the rest any
  subset of 4 KiB pages, each as it was after any of its writes, some torn between 512-byte
  sectors; files made or deleted since the last `sync_folder` may be there or not.
- A write that fails may have written a prefix.
- Preallocated space costs no memory: only pages that were written are held.

It does not know what is stored.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from strata_seglog.ports import Buffer, DiskFile, DiskSpace

PAGE_BYTES = 4096
_SECTOR_BYTES = 512
_ZERO_PAGE = bytes(PAGE_BYTES)
# Versions of one unsynced page that a power loss chooses from.
_VERSIONS_MAX = 4


class Keep(Enum):
    """The part of the unsynced state that a power loss keeps."""

    NONE = "none"
    ANY = "any"
    ALL = "all"


@dataclass(slots=True)
class _Inode:
    """A file's content: pages as they are now, and as they would be after a power loss."""

    size: int = 0
    pages: dict[int, bytes] = field(default_factory=dict)
    synced_size: int = 0
    synced_pages: dict[int, bytes] = field(default_factory=dict)
    # Unsynced pages -> contents they had since the last sync, oldest first.
    dirty: dict[int, list[bytes]] = field(default_factory=dict)

    def copy(self) -> _Inode:
        return _Inode(
            self.size,
            dict(self.pages),
            self.synced_size,
            dict(self.synced_pages),
            {page: list(versions) for page, versions in self.dirty.items()},
        )

    def put(self, page: int, content: bytes) -> None:
        self.pages[page] = content
        versions = self.dirty.setdefault(page, [])
        versions.append(content)
        del versions[:-_VERSIONS_MAX]

    def sync(self) -> None:
        for page in self.dirty:
            content = self.pages.get(page)
            if content is None:
                self.synced_pages.pop(page, None)
            else:
                self.synced_pages[page] = content
        self.synced_size = self.size
        self.dirty.clear()

    def lose_power(self, keep: Keep, chance: random.Random) -> None:
        if keep is Keep.ALL or (keep is Keep.ANY and chance.random() < 0.5):
            self.synced_size = self.size
        for page, versions in self.dirty.items():
            before = self.synced_pages.get(page, _ZERO_PAGE)
            if keep is Keep.ALL:
                before = versions[-1]
            elif keep is Keep.ANY:
                before = _torn(before, chance.choice([before, *versions]), chance)
            self.synced_pages[page] = before
        last = (self.synced_size + PAGE_BYTES - 1) // PAGE_BYTES
        self.synced_pages = {
            page: content
            for page, content in self.synced_pages.items()
            if page < last and content != _ZERO_PAGE
        }
        self.size, self.pages = self.synced_size, dict(self.synced_pages)
        self.dirty.clear()


def _torn(before: bytes, after: bytes, chance: random.Random) -> bytes:
    if before == after or chance.random() < 0.75:
        return after
    at = _SECTOR_BYTES * chance.randrange(1, PAGE_BYTES // _SECTOR_BYTES)
    return after[:at] + before[at:]


@dataclass(slots=True)
class _Fault:
    error: int
    skip: int
    times: int


class SimulatedDisk:
    """One folder in memory.

    Args:
        seed: of every choice it makes.
        capacity_bytes: files together may not be longer; more raises ENOSPC.

    Attributes:
        on_call: called before each operation with its name ("open", "write", "sync", "read",
            "allocate", "truncate", "delete", "sync_folder") and the file's; may wait (a slow
            disk), take a `snapshot`, or raise.
    """

    def __init__(self, seed: int = 0, *, capacity_bytes: int = 1 << 40) -> None:
        self.on_call: Callable[[str, str], None] | None = None
        self._chance = random.Random(seed)  # noqa: S311 (a simulation)
        self._capacity_bytes = capacity_bytes
        self._lock = threading.RLock()
        self._names: dict[str, _Inode] = {}
        self._synced_names: dict[str, _Inode] = {}
        self._faults: dict[str, _Fault] = {}
        # Raised by a power loss: handles of before are dead.
        self.boots = 0

    # Faults.

    def power_loss(self, keep: Keep = Keep.ANY) -> None:
        """Lose what was not synced, all handles, and the faults that were set."""
        with self._lock:
            names = {}
            for name in sorted(self._names.keys() | self._synced_names.keys()):
                now, synced = self._names.get(name), self._synced_names.get(name)
                kept = synced
                if keep is Keep.ALL or (keep is Keep.ANY and self._chance.random() < 0.5):
                    kept = now
                if kept is not None:
                    names[name] = kept
            for inode in names.values():
                inode.lose_power(keep, self._chance)
            self._names, self._synced_names = names, dict(names)
            self._faults.clear()
            self.boots += 1

    def fail(self, operation: str, error: int, nth: int = 1, times: int = 1) -> None:
        """Let the `nth` call of `operation` from now on fail with errno `error`, `times` times."""
        self._faults[operation] = _Fault(error, nth - 1, times)

    def heal(self) -> None:
        """Take back every `fail`."""
        self._faults.clear()

    def flip(self, name: str, byte: int, bit: int = 0) -> None:
        """Turn one bit of a file over, durably, as rot does."""
        with self._lock:
            inode = self._names[name]
            page, at = divmod(byte, PAGE_BYTES)
            content = bytearray(inode.pages.get(page, _ZERO_PAGE))
            content[at] ^= 1 << bit
            inode.pages[page] = inode.synced_pages[page] = bytes(content)

    def rot(self, chance: random.Random) -> tuple[str, int] | None:
        """Turn one bit of what was ever written over; return where, None if there is nothing."""
        with self._lock:
            written = [
                (name, page)
                for name, inode in sorted(self._names.items())
                for page in sorted(inode.synced_pages)
            ]
        if not written:
            return None
        name, page = chance.choice(written)
        byte = page * PAGE_BYTES + chance.randrange(PAGE_BYTES)
        self.flip(name, byte, chance.randrange(8))
        return name, byte

    def resize(self, capacity_bytes: int) -> None:
        """Give or take room; files stay as they are."""
        self._capacity_bytes = capacity_bytes

    def used_bytes(self) -> int:
        """Return the length of all files together."""
        with self._lock:
            return sum(inode.size for inode in self._names.values())

    def snapshot(self, seed: int) -> SimulatedDisk:
        """Return a disk in the same state, unsynced state included, with choices of its own."""
        with self._lock:
            copy = SimulatedDisk(seed, capacity_bytes=self._capacity_bytes)
            copies: dict[int, _Inode] = {}
            for source, target in (
                (self._names, copy._names),
                (self._synced_names, copy._synced_names),
            ):
                for name, inode in source.items():
                    target[name] = copies.setdefault(id(inode), inode.copy())
            return copy

    # The port.

    def names(self) -> list[str]:
        """Return the names of the files in the folder, sorted."""
        return sorted(self._names)

    def open(self, name: str, *, create: bool) -> DiskFile:
        """Open for reading and writing; `create` fails if the file exists."""
        self._called("open", name)
        with self._lock:
            if create and name in self._names:
                raise _os_error(errno.EEXIST)
            if not create and name not in self._names:
                raise _os_error(errno.ENOENT)
            if create:
                self._names[name] = _Inode()
            return SimulatedFile(self, name, self._names[name])

    def delete(self, name: str) -> None:
        """Remove a file; durable after `sync_folder`. Open handles go on reading it."""
        self._called("delete", name)
        with self._lock:
            if self._names.pop(name, None) is None:
                raise _os_error(errno.ENOENT)

    def sync_folder(self) -> None:
        """Make creations and removals durable."""
        self._called("sync_folder", "")
        with self._lock:
            self._synced_names = dict(self._names)

    def space(self) -> DiskSpace:
        """Return what `capacity_bytes` leaves."""
        with self._lock:
            free_bytes = max(0, self._capacity_bytes - self.used_bytes())
            return DiskSpace(free_bytes, self._capacity_bytes)

    def is_concurrent(self) -> bool:
        """No: what happens must depend on the seed alone."""
        return False

    def _called(self, operation: str, name: str) -> None:
        if self.on_call is not None:
            self.on_call(operation, name)
        with self._lock:
            fault = self._faults.get(operation)
            if fault is None:
                return
            if fault.skip > 0:
                fault.skip -= 1
                return
            fault.times -= 1
            if fault.times == 0:
                del self._faults[operation]
            raise _os_error(fault.error)

    def _need_room(self, inode: _Inode, size: int) -> None:
        if size - inode.size > self.space().free_bytes:
            raise _os_error(errno.ENOSPC)


class SimulatedFile:
    """A handle; dead after a power loss."""

    __slots__ = ("_boot", "_closed", "_disk", "_inode", "_name")

    def __init__(self, disk: SimulatedDisk, name: str, inode: _Inode) -> None:
        self._disk = disk
        self._name = name
        self._inode = inode
        self._boot = disk.boots
        self._closed = False

    def write(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Write all buffers at `position`; if it fails, perhaps some first pages of them."""
        data = b"".join(buffers)
        try:
            self._check("write")
        except OSError:
            with self._disk._lock:
                self._put(position, data[: self._disk._chance.randrange(len(data) + 1)])
            raise
        with self._disk._lock:
            self._disk._need_room(self._inode, position + len(data))
            self._put(position, data)

    def sync(self) -> None:
        """Make written bytes durable."""
        self._check("sync")
        with self._disk._lock:
            self._inode.sync()

    def read(self, position: int, length: int) -> bytes:
        """Return `length` bytes, fewer only at the end of the file."""
        self._check("read")
        with self._disk._lock:
            end = min(position + length, self._inode.size)
            if end <= position:
                return b""
            first, last = position // PAGE_BYTES, (end - 1) // PAGE_BYTES
            pages = self._inode.pages
            data = b"".join(pages.get(page, _ZERO_PAGE) for page in range(first, last + 1))
            start = position - first * PAGE_BYTES
            return data[start : start + end - position]

    def allocate(self, length: int) -> None:
        """Make the file at least `length` long, zero filled."""
        self._check("allocate")
        with self._disk._lock:
            self._disk._need_room(self._inode, length)
            self._inode.size = max(self._inode.size, length)

    def truncate(self, length: int) -> None:
        """Cut or extend the file to `length`."""
        self._check("truncate")
        with self._disk._lock:
            inode = self._inode
            self._disk._need_room(inode, length)
            if length < inode.size:
                page, at = divmod(length, PAGE_BYTES)
                for number in [each for each in inode.pages if each > page]:
                    inode.put(number, _ZERO_PAGE)
                if page in inode.pages:
                    inode.put(page, inode.pages[page][:at].ljust(PAGE_BYTES, b"\0"))
            inode.size = length

    def size(self) -> int:
        """Return the file's length in bytes."""
        return self._inode.size

    def close(self) -> None:
        """Release the handle; the file stays."""
        self._closed = True

    def _check(self, operation: str) -> None:
        self._disk._called(operation, self._name)
        if self._closed:
            raise _os_error(errno.EBADF)
        if self._boot != self._disk.boots:
            raise _os_error(errno.ESTALE)

    def _put(self, position: int, data: bytes) -> None:
        """Write into the pages."""
        inode = self._inode
        at = 0
        while at < len(data):
            page, start = divmod(position + at, PAGE_BYTES)
            piece = data[at : at + PAGE_BYTES - start]
            old = inode.pages.get(page, _ZERO_PAGE)
            inode.put(page, old[:start] + piece + old[start + len(piece) :])
            at += len(piece)
        inode.size = max(inode.size, position + len(data))


def _os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
