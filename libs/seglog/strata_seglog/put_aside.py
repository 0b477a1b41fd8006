"""A removed replica is put aside by its segments, and taken back from them (rule 32).

Sealed segments never change. So hard links to the segments that contain frames of a replica keep
the replica, at no cost until the log frees these segments; the linked files are a log that can be
read by itself (`ClosedLog`). Taking the replica back writes its live entries at the end of the log,
and then a closing frame. Until that frame is durable the replica id has ended, and the entries
written before it do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Self

from strata_runtime.metrics import Metrics
from strata_seglog.errors import CorruptFrame, Corruption, MissingEntry
from strata_seglog.frames import Frame, FrameKind, StoredFrame, hard_state_frame, payload_bytes
from strata_seglog.log import CommitLog
from strata_seglog.options import LogOptions
from strata_seglog.ports import Disk
from strata_seglog.reader import CommitLogReader, View
from strata_seglog.recovery import recover
from strata_seglog.segments import Segment

# Limit of one write, unless one frame alone has more; it fits into the smallest segment.
_WRITE_BYTES = 2 * 1024 * 1024
_READ_BYTES = 4 * 1024 * 1024


class ClosedLog(CommitLogReader):
    """A log that no process writes to, opened for reading only."""

    @classmethod
    def open(cls, disk: Disk, options: LogOptions, *, report: Callable[[Corruption], None]) -> Self:
        """Read what is in the folder.

        Args:
            disk: the folder.
            options: limits of reading.
            report: gets what is found damaged.

        Raises:
            OSError: the folder could not be read.
        """
        log = cls(disk, options, report, metrics=Metrics.disabled())
        found = recover(disk, log._files, on_sealed=log._cache.put)
        log._index = found.index
        log._view = View(tuple(found.sealed), found.active or Segment(found.next_base, 0))
        for corruption in found.corruptions:
            log._found(corruption)
        return log

    def close(self) -> None:
        """Release all handles."""
        self._files.close()


def segments_of(log: CommitLog, replica_id: int) -> list[str]:
    """Return the names of sealed segments that together hold all that there is of a replica.

    The active segment is sealed if it has entries of it. Belongs to the writer thread; the
    replica writes nothing any more.

    Raises:
        DiskFull, WriteFailed, LogFailed: the segment could not be sealed.
    """
    state = log.sealed_state(replica_id)
    if state is None or state.removed or not state.summary().first_index or state.is_void():
        return []
    first = min(state.checkpoint, *(base for base, _ in state.live_runs()))
    return [
        segment.name
        for segment in log.segments()
        if segment.sealed and segment.first_position + segment.file_bytes > first
    ]


HardState = tuple[int, int, int]
"""Term, vote and commit index."""


def take_back(
    log: CommitLog,
    source: ClosedLog,
    replica_id: int,
    hard_state: HardState,
    *,
    write_bytes: int = _WRITE_BYTES,
) -> int:
    """Write what a source has of a replica into a log, as the same replica; return the entries.

    One that is in the log already, and has not ended, is left as it is.

    Args:
        log: that gets it.
        source: has it.
        replica_id: of the replica.
        hard_state: the one it had last.
        write_bytes: of one write; a fraction of a segment.

    Raises:
        CorruptFrame, MissingEntry, ReadFailed: the source is damaged; the replica id stays ended.
        DiskFull, WriteFailed, LogFailed: the log took it not; to be done again.
    """
    known = log.replicas().get(replica_id)
    if known is not None and not known.removed:
        return 0
    held = source.replicas()[replica_id]
    if held.damaged:
        raise CorruptFrame(0, "", held.damaged)
    raft_group, entries = held.raft_group, 0
    if known is None:
        # Else a part of it would count, should this be cut off.
        log.write_and_sync([Frame(FrameKind.REMOVED, replica_id, raft_group, 0, 0)])
    some: list[Frame] = []
    size_bytes = 0
    for frame in _frames(source, replica_id):
        size = payload_bytes(frame)
        if some and size_bytes + size > write_bytes:
            log.write_and_sync(some)
            some, size_bytes = [], 0
        some.append(frame)
        size_bytes += size
        entries += frame.kind == FrameKind.ENTRY
    some.append(hard_state_frame(replica_id, raft_group, *hard_state))
    log.write_and_sync(some)
    log.write_and_sync([Frame(FrameKind.RETURNED, replica_id, raft_group, 0, 0)])
    return entries


def _frames(source: ClosedLog, replica_id: int) -> Iterator[Frame]:
    """Yield live entries by index, then the newest whole checkpoint."""
    for first, last in source.runs(replica_id):
        at = first
        while at <= last:
            begin = at
            for stored in source.entries(replica_id, at, last, _READ_BYTES):
                yield _copy(stored)
                at = stored.index + 1
            if at == begin:
                raise MissingEntry(f"entry {at} of replica {replica_id} is not there")
    for position in source.checkpoints(replica_id):
        yield _copy(source.read_at(position))


def _copy(stored: StoredFrame) -> Frame:
    return Frame(
        stored.kind,
        stored.replica_id,
        stored.raft_group,
        stored.term,
        stored.index,
        stored.entry_kind,
        payload=(stored.payload,),
    )
