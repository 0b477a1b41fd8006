"""Finds the losses of a damaged CommitLog that no process has open, and repairs the log.

Three steps, so that a crash at any point leaves a log that can be repaired again: `OfflineLog`
reads and changes nothing; the caller appends frames that replace the lost ones (copies with the
same index, flagged as moved, so the look-up finds them instead of the damaged frames); `fill` then
turns damaged bytes into hole frames and seals again the segments that lost their footers. Good
frames are never overwritten.

The meaning of an entry is known only to the caller.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from strata_runtime.metrics import Metrics
from strata_seglog.errors import LogError
from strata_seglog.footer import TRAILER_BYTES, Contents, decode_trailer, encode_trailer
from strata_seglog.frames import (
    HEADER_BYTES,
    NO_REPLICA,
    Frame,
    FrameKind,
    Header,
    encode_frames,
    hole_frame,
)
from strata_seglog.options import LogOptions
from strata_seglog.ports import Disk, DiskFile
from strata_seglog.reader import CommitLogReader, View
from strata_seglog.recovery import recover
from strata_seglog.sealed import OpenCheckpoints, add_frame, read_footer
from strata_seglog.segments import Segment
from strata_seglog.walk import Gap, walk

# Longest hole frame: whoever reads one holds it in memory.
_HOLE_BYTES = 4 * 1024 * 1024


class RepairError(LogError):
    """The log cannot be made whole."""


@dataclass(frozen=True, slots=True)
class DamagedEntry:
    """An entry whose frame is damaged.

    Attributes:
        replica_id, raft_group, index, term, entry_kind: from header, footer or neighbours.
        payload: its bytes as they are, not to be trusted; empty: not known where they are.
        lost: no other copy of it stands in the log.
    """

    replica_id: int
    raft_group: int
    index: int
    term: int
    entry_kind: int = 0
    payload: bytes = b""
    lost: bool = True


@dataclass(slots=True)
class Damage:
    """A run of damaged bytes.

    Attributes:
        segment: file name.
        position, end: log positions of the first byte and behind the last one; both the same if
            only the footer can tell and it is damaged too.
        reason: what does not fit.
        header: of the frame, if that is good.
        entries: what stood there, as far as it can be known.
        suspects: replicas whose newest entries may have stood there too.
    """

    segment: str
    position: int
    end: int
    reason: str
    header: Header | None
    entries: list[DamagedEntry] = field(default_factory=list)
    suspects: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.segment}: {self.position} to {self.end}: {self.reason}"


class OfflineLog(CommitLogReader):
    """A log as it stands on the disk; nothing is changed.

    Attributes:
        segment_bytes: length of its longest segment.
        open_checkpoints: see `Recovered`.
    """

    def __init__(self, disk: Disk) -> None:
        """Read the folder.

        Raises:
            OSError: the disk cannot be read.
            RepairError: a segment is missing.
        """
        super().__init__(
            disk, LogOptions(recent_bytes=0), lambda _: None, metrics=Metrics.disabled()
        )
        found = recover(disk, self._files, on_sealed=self._cache.put)
        sealed = found.sealed
        for before, segment in zip(sealed, [*sealed[1:], found.active], strict=False):
            if segment is not None and before.base + before.capacity != segment.base:
                raise RepairError(
                    f"log positions {before.base + before.capacity} to {segment.base} are missing: "
                    "put the segment files back"
                )
        self._index = found.index
        self.open_checkpoints = found.open_checkpoints
        self._view = View(tuple(sealed), found.active or Segment(found.next_base, 0))
        self.segment_bytes = max((each.capacity for each in self._view.all()), default=0)

    def close(self) -> None:
        """Release the handles."""
        self._files.close()

    def damages(self) -> list[Damage]:
        """Read everything; return the damaged runs of bytes, in log order."""
        search = _Search(self)
        for segment in self._view.all():
            with self._files.use(segment.name) as file:
                search.segment(file, segment, self._frames_end(file, segment))
        return search.finish()

    def unsealed(self) -> list[Segment]:
        """Return the sealed segments whose footer or trailer is damaged."""
        bad = []
        for segment in self._view.sealed:
            with self._files.use(segment.name) as file:
                if read_footer(file, segment) is None:
                    bad.append(segment)
        return bad

    def checkpoint_index(self, replica_id: int) -> int | None:
        """Return the index of the replica's newest checkpoint, 0 if it has none; None: damaged."""
        try:
            frames = [self.read_at(position) for position in self.checkpoints(replica_id)]
        except LogError:
            return None
        return frames[0].index if frames else 0

    def rows_between(self, segment: Segment, start: int, end: int) -> list[DamagedEntry] | None:
        """Return the entries that the footer lists between two offsets; None: no footer."""
        if not segment.sealed:
            return None
        with self._files.use(segment.name) as file:
            reading = read_footer(file, segment)
        if reading is None:
            return None
        found = []
        for section in reading.contents.sections.values():
            columns = section.columns
            for row, offset in enumerate(columns.offsets):
                if start <= offset < end:
                    index = columns.indexes[row]
                    lost = self._locate(section.replica_id, index) == (segment.base, offset)
                    found.append(
                        DamagedEntry(
                            section.replica_id,
                            section.raft_group,
                            index,
                            columns.terms[row],
                            columns.entry_kind(row),
                            lost=lost,
                        )
                    )
        return found

    def is_live_at(self, replica_id: int, index: int, position: int) -> bool:
        """Whether look-ups of an entry lead to this position."""
        location = self._locate(replica_id, index)
        return location is not None and sum(location) == position

    def is_missing(self, replica_id: int, index: int) -> bool:
        """Whether the log has no copy of an entry that it should have."""
        state = self._index.replicas.get(replica_id)
        return (
            state is not None
            and index <= state.last_index
            and self._locate(replica_id, index) is None
        )

    def _frames_end(self, file: DiskFile, segment: Segment) -> int:
        """Return the offset up to which frames may stand."""
        if not segment.sealed or read_footer(file, segment) is not None:
            return segment.used
        at = segment.capacity - TRAILER_BYTES
        trailer = decode_trailer(file.read(at, TRAILER_BYTES))
        return at if trailer is None else trailer[0]


class _Search:
    """Goes through the log once and says of every damaged run what stood there."""

    def __init__(self, log: OfflineLog) -> None:
        self._log = log
        self._damages: list[Damage] = []
        # Without header and footer: what stood there shows in the indexes that follow.
        self._nameless: list[Damage] = []
        # Replica id -> header of its newest entry that superseded, so far.
        self._last: dict[int, Header] = {}
        # Replica id -> damaged runs found before its newest entry.
        self._seen: dict[int, int] = {}

    def segment(self, file: DiskFile, segment: Segment, end: int) -> None:
        for item in walk(file, segment.base, 0, end):
            header = item.header if isinstance(item, Gap) else item[0]
            if header is not None and header.kind == FrameKind.FOOTER:
                return
            if not isinstance(item, Gap):
                self._frame(item[0])
            elif item.next_position is not None or end < segment.capacity - TRAILER_BYTES:
                self._gap(file, segment, item, end)
            else:
                # Footer, trailer and perhaps the frames before them: nothing says which.
                at = item.position
                self._nameless.append(Damage(segment.name, at, at, item.reason, None))
                self._damages.append(self._nameless[-1])

    def finish(self) -> list[Damage]:
        replicas = self._log.replicas()
        for number, damage in enumerate(self._nameless):
            damage.suspects = tuple(
                replica_id
                for replica_id, replica in replicas.items()
                if not replica.removed and self._seen.get(replica_id, 0) <= number
            )
        return self._damages

    def _frame(self, header: Header) -> None:
        if header.kind != FrameKind.ENTRY or header.moved:
            return
        replica_id = header.replica_id
        before = self._last.get(replica_id)
        if self._seen.get(replica_id, 0) < len(self._nameless):
            first = before.index + 1 if before is not None else 1
            if before is not None or self._log.first_position == 0:
                self._missing(header, first, before.term if before is not None else header.term)
        self._last[replica_id] = header
        self._seen[replica_id] = len(self._nameless)

    def _missing(self, header: Header, first: int, term: int) -> None:
        """Take in entries that should stand before `header` and do not."""
        known = {
            (each.replica_id, each.index) for damage in self._damages for each in damage.entries
        }
        for index in range(first, header.index):
            if (header.replica_id, index) not in known:
                lost = self._log.is_missing(header.replica_id, index)
                entry = DamagedEntry(header.replica_id, header.raft_group, index, term, lost=lost)
                self._nameless[-1].entries.append(entry)

    def _gap(self, file: DiskFile, segment: Segment, gap: Gap, end: int) -> None:
        stop = end if gap.next_position is None else gap.next_position - segment.base
        damage = Damage(segment.name, gap.position, segment.base + stop, gap.reason, gap.header)
        self._damages.append(damage)
        header, start = gap.header, gap.position - segment.base
        if header is not None:
            if header.kind == FrameKind.ENTRY:
                payload = file.read(start + HEADER_BYTES, header.payload_bytes)
                lost = self._log.is_live_at(header.replica_id, header.index, header.position)
                damage.entries.append(
                    DamagedEntry(
                        header.replica_id,
                        header.raft_group,
                        header.index,
                        header.term,
                        header.entry_kind,
                        payload,
                        lost,
                    )
                )
                self._frame(header)
            return
        rows = self._log.rows_between(segment, start, stop)
        if rows is None:
            self._nameless.append(damage)
        else:
            damage.entries += rows


def fill(
    disk: Disk,
    damages: Sequence[Damage],
    unsealed: Sequence[Segment],
    *,
    open_checkpoints: Mapping[int, OpenCheckpoints],
) -> None:
    """Turn damaged bytes into holes, then write the footers and trailers that are missing.

    To be called when frames that stand for what was lost are durable.

    Args:
        disk: the log's folder.
        damages: runs of bytes.
        unsealed: segments that get a footer.
        open_checkpoints: by the base of such a segment, the checkpoints begun before it.

    Raises:
        OSError: the disk refused; call it again.
    """
    for damage in damages:
        file = disk.open(damage.segment, create=False)
        try:
            base = int(damage.segment[:20])
            position = damage.position
            for frame in _holes(damage.end - position):
                buffers, _, position_after = encode_frames([frame], position, position)
                file.write(position - base, buffers)
                position = position_after
            file.sync()
        finally:
            file.close()
    for segment in unsealed:
        file = disk.open(segment.name, create=False)
        try:
            _seal(file, segment, open_checkpoints.get(segment.base, {}))
        finally:
            file.close()


def _holes(length: int) -> Iterator[Frame]:
    """Yield frames that fill `length` bytes exactly."""
    if not length:
        return
    if length < HEADER_BYTES:
        raise RepairError(f"{length} damaged bytes are no frame")
    while length > 2 * _HOLE_BYTES:
        yield hole_frame(_HOLE_BYTES)
        length -= _HOLE_BYTES
    yield hole_frame(length)


def _seal(file: DiskFile, segment: Segment, open_checkpoints: OpenCheckpoints) -> None:
    """Write the footer from the segment's frames, sync, then the trailer."""
    contents, used = Contents(segment.base), 0
    trailer_at = segment.capacity - TRAILER_BYTES
    for item in walk(file, segment.base, 0, trailer_at):
        header = item.header if isinstance(item, Gap) else item[0]
        if header is not None and header.kind == FrameKind.FOOTER:
            break
        if isinstance(item, Gap):
            if item.next_position is not None:
                raise RepairError(f"{segment.name}: at {item.position}: damage remains")
            break
        add_frame(contents, *item, open_checkpoints)
        used = item[0].end - segment.base
    footer = Frame(FrameKind.FOOTER, NO_REPLICA, 0, 0, 0, payload=contents.encode())
    position = segment.base + used
    buffers, _, end = encode_frames([footer], position, position)
    if end - segment.base > trailer_at:
        raise RepairError(f"{segment.name}: no room for a footer")
    file.write(used, buffers)
    file.sync()
    file.write(trailer_at, [encode_trailer(used, end - position)])
    file.sync()
