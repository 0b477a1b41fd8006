"""The end of the log: the only module that writes.

Invariants:
- A segment takes its first frame only after the previous segment was sealed and synced.
- A write that failed leaves bytes behind; they are overwritten with zeros and synced before the
  next write (rule 7), so recovery never finds anything of a refused write.
- A failed sync is final: every later call raises `LogFailed`.

It does not know replicas or indexes. One thread uses it.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

from strata_seglog.errors import DiskFull, LogError, LogFailed, WriteFailed
from strata_seglog.footer import TRAILER_BYTES, encode_trailer
from strata_seglog.ports import Buffer, Disk, DiskFile
from strata_seglog.prepare import Preparer
from strata_seglog.segments import Segment, segment_name
from strata_seglog.walk import CHUNK_BYTES, nonzero_chunks

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})


def refusal(error: OSError, what: str) -> LogError:
    """Return the typed error for a write that the disk refused."""
    kind = DiskFull if error.errno in _NO_ROOM else WriteFailed
    return kind(f"{what}: {error.strerror or error}")


class Tail:
    """The active segment and the step to the next one."""

    def __init__(self, disk: Disk, preparer: Preparer) -> None:
        self._disk = disk
        self._preparer = preparer
        self._file: DiskFile | None = None
        self.segment = Segment(0, 0, sealed=True)
        # Offset in the segment below which everything is durable.
        self.synced = 0
        # Log position where the next frame goes: one value, so that any thread may read it.
        self.end_position = 0
        # Ranges of the segment that hold bytes of refused writes.
        self._dirty: list[tuple[int, int]] = []
        self._failure: LogFailed | None = None

    @property
    def synced_position(self) -> int:
        """Log position below which everything is durable."""
        segment = self.segment
        return segment.base + (segment.capacity if segment.sealed else self.synced)

    @property
    def failed(self) -> bool:
        """Whether a sync has failed, here or in the background."""
        return (self._failure or self._preparer.failure) is not None

    @property
    def is_dirty(self) -> bool:
        """Whether bytes of a refused write stand behind the end."""
        return bool(self._dirty)

    def check(self) -> None:
        """Raise `LogFailed` if a sync has failed."""
        failure = self._failure or self._preparer.failure
        if failure is not None:
            raise failure

    def resume(self, segment: Segment, capacity: int) -> None:
        """Go on in a segment that recovery found: what follows its end is zeroed, all is synced.

        Args:
            segment: the last one; `used` is where the log ends.
            capacity: length that it gets if it is empty and shorter (its making was cut off).

        Raises:
            DiskFull, WriteFailed: it could not be zeroed or preallocated.
            LogFailed: it could not be synced.
        """
        file = self._disk.open(segment.name, create=False)
        self._file, self.segment = file, segment
        if segment.used == 0 and segment.capacity < capacity:
            try:
                file.allocate(capacity)
            except OSError as error:
                raise refusal(error, f"{segment.name}: preallocation") from error
            segment.capacity = capacity
        self._dirty = [
            (offset, offset + length)
            for offset, length in nonzero_chunks(file, segment.used, segment.capacity)
        ]
        self._zero_dirty()
        self._sync_file(file)
        self._sync_folder()
        self.synced = segment.used
        self._set_end()
        self._preparer.follow(segment, segment.used)

    def stand_behind(self, sealed: Segment) -> None:
        """Stand at the end of the last sealed segment: there is no room for another one."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self.segment = sealed
        self._set_end()

    def write(self, buffers: Sequence[Buffer], length: int) -> None:
        """Write `length` bytes at the end.

        Raises:
            DiskFull, WriteFailed: everything after `synced_position` is gone.
        """
        file = self._open_file()
        if self._dirty:
            self._clean()
        end = self.segment.used + length
        self._preparer.claim(end)
        try:
            file.write(self.segment.used, buffers)
        except OSError as error:
            raise self._rewind(end, error) from error
        self.segment.used = end
        self._set_end()

    def sync(self) -> None:
        """Make everything written durable.

        Raises:
            LogFailed: final.
        """
        if self.synced < self.segment.used:
            self._sync_file(self._open_file())
            self.synced = self.segment.used
            if self.segment.used > self.segment.capacity // 2:
                self._preparer.request_next(self.segment.base + self.segment.capacity)

    def seal(self, footer: Sequence[Buffer], length: int) -> None:
        """Write footer frame and trailer of a segment that is synced, and sync.

        Raises:
            DiskFull, WriteFailed: the segment is not sealed; try again.
            LogFailed: final.
        """
        file = self._open_file()
        if self._dirty:
            self._clean()
        segment, at = self.segment, self.segment.used
        trailer_at = segment.capacity - TRAILER_BYTES
        self._preparer.claim(segment.capacity)
        try:
            file.write(trailer_at, [encode_trailer(at, length)])
        except OSError as error:
            self._dirty.append((trailer_at, segment.capacity))
            raise refusal(error, f"{segment.name}: trailer") from error
        try:
            self.write(footer, length)
        except LogError:
            self._dirty.append((trailer_at, segment.capacity))
            raise
        self.sync()
        segment.sealed = True
        self._set_end()

    def advance(self, base: int, capacity: int) -> None:
        """Begin the segment at `base`.

        Raises:
            DiskFull, WriteFailed: there is no new segment; try again.
            LogFailed: final.
        """
        try:
            file, zeroed = self._preparer.take_next(base)
        except OSError as error:
            raise refusal(error, f"{segment_name(base)}: preallocation") from error
        except LogFailed as failure:
            self._failure = failure
            raise
        if self._file is not None:
            self._file.close()
        self._file, self.segment, self.synced = file, Segment(base, capacity), 0
        self._set_end()
        self._preparer.follow(self.segment, zeroed)

    def delete(self, name: str) -> None:
        """Delete a segment, durably, so that segments always vanish in the order of this call.

        Raises:
            WriteFailed: the disk refused.
            LogFailed: the folder could not be synced; final.
        """
        try:
            self._disk.delete(name)
        except OSError as error:
            raise refusal(error, f"{name}: delete") from error
        self._sync_folder()

    def close(self) -> None:
        """Release the handles."""
        self._preparer.close()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _set_end(self) -> None:
        segment = self.segment
        self.end_position = segment.base + (segment.capacity if segment.sealed else segment.used)

    def _open_file(self) -> DiskFile:
        self.check()
        if self._file is None:
            raise LogFailed("the log is closed")
        return self._file

    def _rewind(self, end: int, error: OSError) -> LogError:
        self._dirty.append((self.synced, end))
        self.segment.used = self.synced
        self._set_end()
        return refusal(error, f"{self.segment.name} at {self.synced}")

    def _clean(self) -> None:
        self._zero_dirty()
        self._sync_file(self._open_file())

    def _zero_dirty(self) -> None:
        file = self._open_file()
        zeros = bytes(CHUNK_BYTES)
        while self._dirty:
            start, end = self._dirty[-1]
            try:
                for offset in range(start, end, CHUNK_BYTES):
                    file.write(offset, [zeros[: min(CHUNK_BYTES, end - offset)]])
            except OSError as error:
                raise refusal(error, f"{self.segment.name}: zeroing at {start}") from error
            self._dirty.pop()

    def _sync_file(self, file: DiskFile) -> None:
        try:
            file.sync()
        except OSError as error:
            raise self._fail(f"{self.segment.name}: sync: {error.strerror or error}") from error

    def _sync_folder(self) -> None:
        try:
            self._disk.sync_folder()
        except OSError as error:
            raise self._fail(f"folder: sync: {error.strerror or error}") from error

    def _fail(self, text: str) -> LogFailed:
        self._failure = LogFailed(text)
        return self._failure
