"""Contents of a sealed segment, read from its footer, else from all its frames.

Both ways give the same contents; the second is slow and finds corrupt frames.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from strata_seglog.errors import CorruptFrame, Corruption
from strata_seglog.footer import NO_CHECKPOINT, TRAILER_BYTES, Contents, decode_trailer
from strata_seglog.frames import NO_REPLICA, FrameKind, Header
from strata_seglog.ports import DiskFile
from strata_seglog.segments import Segment
from strata_seglog.walk import Gap, read_frame, walk

OpenCheckpoints = Mapping[int, tuple[int, int]]
"""By replica id: position of the first part of a checkpoint that has not ended, and the next part.

A checkpoint may go on in the next segment.
"""

_NOTHING_OPEN = (NO_CHECKPOINT, -1)


@dataclass(slots=True)
class SealedReading:
    """Contents of a sealed segment, the offset after its last frame, and what is corrupt."""

    contents: Contents
    used: int
    corruptions: list[Corruption] = field(default_factory=list)


def read_footer(file: DiskFile, segment: Segment) -> SealedReading | None:
    """Read trailer and footer; None: one of them is not good (or not there)."""
    trailer = _read_trailer(file, segment)
    if trailer is None:
        return None
    try:
        header, payload = read_frame(file, segment.name, segment.base, trailer[0])
    except CorruptFrame:
        return None
    if header.kind != FrameKind.FOOTER:
        return None
    return SealedReading(Contents.decode(segment.base, payload), header.end - segment.base)


def read_sealed(
    file: DiskFile, segment: Segment, open_checkpoints: OpenCheckpoints | None = None
) -> SealedReading:
    """Read a segment that is known to be sealed.

    Args:
        file: of the segment.
        segment: how far it is used.
        open_checkpoints: begun in earlier segments; None: the caller wants no checkpoints.
    """
    return read_footer(file, segment) or _read_frames(file, segment, open_checkpoints or {})


def add_frame(
    contents: Contents, header: Header, payload: bytes, open_checkpoints: OpenCheckpoints
) -> None:
    """Note a stored frame in the contents of its segment."""
    if header.replica_id == NO_REPLICA:
        return
    is_new = header.replica_id not in contents.sections
    section = contents.section(header.replica_id, header.raft_group)
    if is_new:
        begun = open_checkpoints.get(header.replica_id, _NOTHING_OPEN)
        section.open_checkpoint, section.next_part = begun
    contents.add(
        section,
        header.kind,
        header.position,
        header.term,
        header.index,
        header.entry_kind,
        header.flags,
        (payload,),
    )


def corruption_of(segment: Segment, gap: Gap) -> Corruption:
    """Return what a gap in live bytes means: whose frame it was, if its header is good."""
    if gap.header is None:
        return Corruption(segment.name, gap.position, gap.reason, None)
    owners = () if gap.header.replica_id == NO_REPLICA else (gap.header.replica_id,)
    return Corruption(segment.name, gap.position, gap.reason, owners)


def _read_trailer(file: DiskFile, segment: Segment) -> tuple[int, int] | None:
    at = segment.capacity - TRAILER_BYTES
    return decode_trailer(file.read(at, TRAILER_BYTES)) if at >= 0 else None


def _read_frames(
    file: DiskFile, segment: Segment, open_checkpoints: OpenCheckpoints
) -> SealedReading:
    contents = Contents(segment.base)
    reading = SealedReading(contents, 0)
    end = segment.capacity - TRAILER_BYTES
    trailer = _read_trailer(file, segment)
    if trailer is None:
        reading.corruptions.append(Corruption(segment.name, segment.base + end, "no trailer"))
    else:
        # The footer follows the entries, whatever state it is in.
        end = trailer[0]
        reading.corruptions.append(Corruption(segment.name, segment.base + end, "footer"))
    for item in walk(file, segment.base, 0, end):
        if not isinstance(item, Gap):
            header, payload = item
            reading.used = header.end - segment.base
            if header.kind == FrameKind.FOOTER:
                break
            add_frame(contents, header, payload, open_checkpoints)
            continue
        reading.corruptions.append(corruption_of(segment, item))
        if item.header is not None and item.header.kind == FrameKind.ENTRY:
            # Indexed all the same: reading it says that it is corrupt, not that it is missing.
            add_frame(contents, item.header, b"", open_checkpoints)
    return reading


class ContentsCache:
    """Contents of sealed segments, those used last, within a number of segments and of bytes.

    A look-up reads the disk at most once per miss; any thread may call.
    """

    def __init__(
        self, read: Callable[[int], Contents], *, limit_segments: int, limit_bytes: int
    ) -> None:
        self._read = read
        self._limit_segments = limit_segments
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._contents: OrderedDict[int, Contents] = OrderedDict()
        self.held_bytes = 0

    def __len__(self) -> int:
        """Segments held."""
        return len(self._contents)

    def get(self, base: int) -> Contents:
        """Return the contents of the sealed segment that begins at `base`."""
        with self._lock:
            contents = self._contents.get(base)
            if contents is not None:
                self._contents.move_to_end(base)
                return contents
        contents = self._read(base)
        self.put(contents)
        return contents

    def put(self, contents: Contents) -> None:
        """Keep contents; those used least recently go when a limit is reached."""
        with self._lock:
            if contents.base not in self._contents:
                self._contents[contents.base] = contents
                self.held_bytes += contents.payload_bytes
            while len(self._contents) > 1 and (
                len(self._contents) > self._limit_segments or self.held_bytes > self._limit_bytes
            ):
                _, oldest = self._contents.popitem(last=False)
                self.held_bytes -= oldest.payload_bytes

    def forget(self, base: int) -> None:
        """Drop a segment that was freed."""
        with self._lock:
            contents = self._contents.pop(base, None)
            if contents is not None:
                self.held_bytes -= contents.payload_bytes
