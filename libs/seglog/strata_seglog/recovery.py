"""State of the folder when the log is opened: recovery reads and changes nothing.

Bounded time: of a sealed segment only trailer and footer are read; only the last segment that
holds a frame, if it is not sealed, is read whole.

Invariant used throughout: a segment takes its first frame only after the previous segment was
sealed and synced. So an unsealed segment with frames after it is corrupt, and a bad frame there is
never a torn tail.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from strata_seglog.errors import Corruption
from strata_seglog.footer import Contents
from strata_seglog.frames import FrameKind, Header
from strata_seglog.index import LogIndex, LogReplica
from strata_seglog.ports import Disk, DiskFile
from strata_seglog.sealed import corruption_of, read_footer, read_sealed
from strata_seglog.segments import OpenFiles, Segment, segment_names
from strata_seglog.walk import Gap, find_header, walk


@dataclass(slots=True)
class Recovered:
    """Result of a recovery.

    Attributes:
        index: every frame, rule 9 applied.
        sealed: sealed segments, in log order.
        active: where writing goes on, at `active.used`; None: a new segment is needed.
        leftovers: segments that were prepared and never used.
        corruptions: damage found on the way, owners filled in.
        torn: bytes after the end of the log that look like frames or parts of them.
        open_checkpoints: of sealed segments without a good footer, by base: the checkpoints that
            were open before them (`LogIndex.open_checkpoints`).
    """

    index: LogIndex
    sealed: list[Segment] = field(default_factory=list)
    active: Segment | None = None
    leftovers: list[Segment] = field(default_factory=list)
    corruptions: list[Corruption] = field(default_factory=list)
    torn: bool = False
    open_checkpoints: dict[int, dict[int, tuple[int, int]]] = field(default_factory=dict)

    @property
    def next_base(self) -> int:
        """Log position of a segment after the last one."""
        last = self.active or (self.sealed[-1] if self.sealed else None)
        return last.base + last.capacity if last else 0


def recover(
    disk: Disk, files: OpenFiles, *, on_sealed: Callable[[Contents], None] | None = None
) -> Recovered:
    """Read the folder.

    Args:
        disk: the folder.
        files: through which segments are opened.
        on_sealed: gets the contents of every sealed segment, in log order (to cache them).

    Raises:
        OSError: the disk cannot be read.
    """
    segments = _list_segments(disk, files)
    found = Recovered(LogIndex())
    last = _last_with_frames(segments, files)
    for number, segment in enumerate(segments[: last + 1]):
        _check_follows(segments, number, found)
        with files.use(segment.name) as file:
            reading = read_footer(file, segment)
            if reading is None and number == last:
                _read_active(file, segment, found)
                break
            if reading is None:
                before = found.open_checkpoints[segment.base] = found.index.open_checkpoints()
                reading = read_sealed(file, segment, before)
        segment.sealed, segment.used = True, reading.used
        found.sealed.append(segment)
        found.corruptions.extend(reading.corruptions)
        found.index.add_sealed(reading.contents)
        if on_sealed is not None:
            on_sealed(reading.contents)
    unused = segments[last + 1 :]
    if found.active is None and unused:
        found.active = unused.pop(0)
        found.index.begin_segment(found.active.base)
    found.leftovers = unused
    found.corruptions = [blame(found.index, each) for each in found.corruptions]
    return found


def blame(index: LogIndex, corruption: Corruption) -> Corruption:
    """Mark the replicas that lost something as damaged; fill them in where nobody knows whose.

    Any thread may call, also while the writer looks at all replicas.
    """
    owners = corruption.replica_ids
    with index.lock:
        if owners is None:
            owners = tuple(each.replica_id for each in index.replicas.values() if not each.removed)
        unknown = [replica_id for replica_id in owners if replica_id not in index.replicas]
        if unknown:
            # A replica whose only frame is unreadable is known by its header alone. In a copy:
            # the writer goes through the replicas without the lock.
            added = {replica_id: LogReplica(replica_id, 0) for replica_id in unknown}
            index.replicas = {**index.replicas, **added}
        for replica_id in owners:
            state = index.replicas[replica_id]
            state.damaged = state.damaged or str(corruption)
    return replace(corruption, replica_ids=owners)


def _list_segments(disk: Disk, files: OpenFiles) -> list[Segment]:
    segments = []
    for name in segment_names(disk):
        with files.use(name) as file:
            segments.append(Segment(int(name[:20]), file.size()))
    return segments


def _last_with_frames(segments: list[Segment], files: OpenFiles) -> int:
    for number in range(len(segments) - 1, -1, -1):
        segment = segments[number]
        with files.use(segment.name) as file:
            if (
                read_footer(file, segment) is not None
                or find_header(file, segment.base, 0, segment.capacity) is not None
            ):
                return number
    return -1


def _check_follows(segments: list[Segment], number: int, found: Recovered) -> None:
    if number == 0:
        return
    before, segment = segments[number - 1], segments[number]
    expected = before.base + before.capacity
    if segment.base != expected:
        found.corruptions.append(
            Corruption(segment.name, expected, "bytes are missing before this segment", None)
        )


def _read_active(file: DiskFile, segment: Segment, found: Recovered) -> None:
    """Read the last segment up to where the log ends by rule 7."""
    found.active = segment
    found.index.begin_segment(segment.base)
    durable: int | None = None
    for item in walk(file, segment.base, 0, segment.capacity):
        if not isinstance(item, Gap):
            header, payload = item
            if header.kind == FrameKind.FOOTER:
                # Sealing did not get as far as the trailer; it will be done again.
                found.torn = True
                return
            _add(found.index, header, payload)
            segment.used = header.end - segment.base
            continue
        if durable is None:
            durable = _durable_later(file, segment, item)
        if item.position >= durable or item.next_position is None:
            found.torn = found.torn or item.header is not None or item.next_position is not None
            return
        found.corruptions.append(corruption_of(segment, item))
        if item.header is not None and item.header.kind == FrameKind.ENTRY:
            _add(found.index, item.header, b"")
        segment.used = item.next_position - segment.base


def _durable_later(file: DiskFile, segment: Segment, gap: Gap) -> int:
    """Return what later frames of the segment say was durable; 0: there are none."""
    durable = 0
    if gap.next_position is not None:
        for item in walk(file, segment.base, gap.next_position - segment.base, segment.capacity):
            header = item.header if isinstance(item, Gap) else item[0]
            if header is not None:
                durable = max(durable, header.synced_before)
    return durable


def _add(index: LogIndex, header: Header, payload: bytes) -> None:
    index.add(
        header.kind,
        header.replica_id,
        header.raft_group,
        header.term,
        header.index,
        header.entry_kind,
        header.flags,
        header.position,
        (payload,),
    )
