"""A file that reserves room, which is released when the disk is full (rule 11)."""

from __future__ import annotations

from strata_seglog.ports import Disk


class Ballast:
    """One preallocated file.

    Blocks; to be called in a thread. Every method may raise `OSError`.

    Args:
        disk: folder on the file system that it keeps room on.
        size_bytes: how much.
        name: of the file.
    """

    def __init__(self, disk: Disk, size_bytes: int, name: str = "ballast") -> None:
        self._disk = disk
        self._size_bytes = size_bytes
        self._name = name

    def is_held(self) -> bool:
        """Whether the room is taken, so that `release` gives some."""
        if self._name not in self._disk.names():
            return False
        file = self._disk.open(self._name, create=False)
        try:
            return file.size() >= self._size_bytes
        finally:
            file.close()

    def release(self) -> None:
        """Give the room back; nothing if it is not held."""
        if self._name in self._disk.names():
            self._disk.delete(self._name)
            self._disk.sync_folder()

    def restore(self, margin_bytes: int = 0) -> bool:
        """Take the room again if that leaves `margin_bytes` free.

        Returns:
            Whether it is held now.
        """
        if self.is_held():
            return True
        if self._disk.space().free_bytes < self._size_bytes + margin_bytes:
            return False
        self.release()  # A part of it, from a crash.
        file = self._disk.open(self._name, create=True)
        try:
            file.allocate(self._size_bytes)
            file.sync()
        finally:
            file.close()
        self._disk.sync_folder()
        return True
