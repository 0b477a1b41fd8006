"""Reading the CommitLog: entries by index, frames by position, checked on the way out.

Invariant: every returned byte was checked against its CRC (rule 31; for a slice, the header's CRC);
a bad frame is reported once and never returned.

Threads: `recent` may be called anywhere, the event loop included, since it does no I/O and takes no
lock. `replicas`, `segments` and the positions do no I/O. All other methods read the disk; any
thread except the event loop's may call them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

from strata_runtime.metrics import Metrics
from strata_seglog.checkpoints import Walked, part_positions
from strata_seglog.errors import CorruptFrame, Corruption, MissingEntry, ReadFailed
from strata_seglog.footer import NO_CHECKPOINT, Contents
from strata_seglog.frames import HEADER_BYTES, NO_REPLICA, FrameKind, Header, StoredFrame
from strata_seglog.index import LogIndex, ReplicaLog
from strata_seglog.options import LogOptions
from strata_seglog.ports import Disk, DiskFile
from strata_seglog.recent import RecentRing
from strata_seglog.recovery import blame
from strata_seglog.retention import IsNeeded, entries_to_keep
from strata_seglog.scrub import Scrubber, ScrubResult, corruption_among
from strata_seglog.sealed import ContentsCache, read_sealed
from strata_seglog.segments import OpenFiles, Segment, SegmentInfo, segment_name
from strata_seglog.walk import Gap, read_frame, read_frames, read_header, walk

# Entries that are looked up at once.
_RUN_ENTRIES = 1024
_REPORTED_MAX = 10_000


class View(NamedTuple):
    """The segments as far as they are durable: what readers may see, replaced as one."""

    sealed: tuple[Segment, ...]
    active: Segment

    def all(self) -> tuple[Segment, ...]:
        """Return all segments, oldest first."""
        return (*self.sealed, self.active)


class CommitLogReader:
    """The reading side of a CommitLog.

    Args:
        disk: the folder.
        options: limits.
        report: gets what is found damaged, in the thread that found it.
        metrics: where to count.

    Attributes:
        is_damaged: damage was found since the start; `replicas` tells whose.
    """

    def __init__(
        self,
        disk: Disk,
        options: LogOptions,
        report: Callable[[Corruption], None],
        *,
        metrics: Metrics,
    ) -> None:
        self.is_damaged = False
        self._report = report
        self._reported: set[int] = set()
        self._labels = {"log": options.name}
        self._corruptions = metrics.counter("strata_log_corruptions_total")
        self._scrubbed_bytes = metrics.counter("strata_log_scrubbed_bytes_total")
        self._files = OpenFiles(disk, options.open_files)
        self._cache = ContentsCache(
            self._read_contents,
            limit_segments=options.footer_cache_segments,
            limit_bytes=options.footer_cache_bytes,
        )
        self._ring = RecentRing(options.recent_bytes)
        self._index = LogIndex()
        self._view = View((), Segment(0, 0))
        self._scrubber = Scrubber(self._files, self._corruption_of, lambda: self._view.all())

    def entry(self, replica_id: int, index: int) -> StoredFrame | None:
        """Return a live entry, from memory or disk; None: the log has none of that index.

        Raises:
            CorruptFrame: it is damaged.
            ReadFailed: the disk could not read it.
        """
        recent = self._ring.find(replica_id, index)
        if recent is not None:
            return recent.stored()
        location = self._expect(replica_id, index)
        while location is not None:
            frame = self._read(*location)
            if frame is not None:
                return frame
            location = self._moved(replica_id, index, location)
        return None

    def recent(self, replica_id: int, index: int) -> bytes | None:
        """Return an entry's payload if it is in memory: no I/O, no lock."""
        recent = self._ring.find(replica_id, index)
        return None if recent is None else recent.whole()

    def read_slice(self, replica_id: int, index: int, offset: int, length: int) -> bytes:
        """Return part of an entry's payload, fewer bytes at its end.

        From the disk only the header's CRC is checked: the caller checks that of the part.

        Raises:
            MissingEntry: the log has no such entry.
            CorruptFrame: its header is damaged.
            ReadFailed: the disk could not read it.
        """
        recent = self._ring.find(replica_id, index)
        if recent is not None:
            return recent.piece(offset, length)
        location = self._expect(replica_id, index)
        while location is not None:
            try:
                return self._slice(location, offset, length)
            except MissingEntry:
                location = self._moved(replica_id, index, location)
        raise MissingEntry(f"replica {replica_id} has no entry {index}")

    def oldest_live_bytes(self, is_needed: IsNeeded, limit_bytes: int) -> int:
        """Return what relocation of the oldest sealed segment would copy, in bytes of frames.

        Args:
            is_needed: says of (replica id, index) whether the entry is still wanted.
            limit_bytes: counting ends once this is passed.

        Raises:
            CorruptFrame, ReadFailed: a header cannot be read.
        """
        sealed = self._view.sealed
        if not sealed:
            return 0
        live_bytes = 0
        contents = self._cache.get(sealed[0].base)
        for _, offset in entries_to_keep(contents, self._index, self._locate, is_needed):
            with self._reading(contents.base) as file:
                header = read_header(file, segment_name(contents.base), contents.base, offset)
            live_bytes += HEADER_BYTES + header.payload_bytes
            if live_bytes > limit_bytes:
                break
        return live_bytes

    def entries(
        self, replica_id: int, first: int, last: int, max_bytes: int
    ) -> Iterator[StoredFrame]:
        """Yield entries `first` to `last` up to the first that is missing.

        They end after `max_bytes` of payload; one is always yielded.

        Raises:
            CorruptFrame, ReadFailed: as `entry`.
        """
        while first <= last:
            begin = first
            for frame in self._next_entries(replica_id, first, last):
                yield frame
                first += 1
                max_bytes -= len(frame.payload)
                if max_bytes <= 0:
                    return
            if first == begin:
                return

    def _next_entries(self, replica_id: int, first: int, last: int) -> Iterator[StoredFrame]:
        """Yield entries from memory, or those that follow each other in one segment."""
        recent = self._ring.find(replica_id, first)
        if recent is not None:
            yield recent.stored()
            return
        last = min(last, first + _RUN_ENTRIES - 1)
        freed = None
        while (found := self._run_of(replica_id, first, last)) is not None and found[0] != freed:
            base, offsets, terms = found
            index = first
            try:
                with self._reading(base, replica_id) as file:
                    frames = read_frames(file, segment_name(base), base, offsets)
                    for term, (header, payload) in zip(terms, frames, strict=False):
                        _Expected(replica_id, index, term).check(header, segment_name(base))
                        yield header.with_payload(payload)
                        index += 1
            except MissingEntry:
                freed = base
            if index > first or freed is None:
                # The rest is looked up anew.
                return

    def term(self, replica_id: int, index: int) -> int | None:
        """Return the term of a live entry; None: there is none. No I/O: steps of raft ask."""
        return self._index.term(replica_id, index)

    def runs(self, replica_id: int) -> list[tuple[int, int]]:
        """Return first and last index of each run of live entries, ascending; no I/O.

        The last one ends at `ReplicaLog.last_index`; holes are where relocation left entries out.
        """
        merged: list[tuple[int, int]] = []
        with self._index.lock:
            state = self._index.replicas.get(replica_id)
            runs = [] if state is None or state.removed else [run for _, run in state.live_runs()]
        for first, last in sorted((max(first, 1), last) for first, last in runs if last):
            if merged and first <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(merged[-1][1], last))
            else:
                merged.append((first, last))
        return merged

    def indexes_of_kind(self, replica_id: int, entry_kind: int) -> list[int]:
        """Return the indexes of a replica's live entries of a kind, ascending.

        Only footers are read, so this costs little for kinds that are rare.

        Raises:
            ReadFailed: the disk could not read a footer.
        """
        return self._index.indexes_of_kind(replica_id, entry_kind, self._cache.get)

    def scan(self, from_position: int | None = None) -> Iterator[StoredFrame]:
        """Yield all durable frames in log order, superseded ones too, footers and marks not.

        Args:
            from_position: position of a frame or of a segment; default: the oldest.

        Raises:
            CorruptFrame: at the first that is damaged; to go on, ask from the next one.
            ReadFailed: the disk could not read.
        """
        for segment, item in self._walk_from(0 if from_position is None else from_position):
            if isinstance(item, Gap):
                self._found(self._corruption_of(segment, item))
                raise CorruptFrame(item.position, segment.name, item.reason)
            if item[0].replica_id != NO_REPLICA:
                yield item[0].with_payload(item[1])

    def read_at(self, position: int) -> StoredFrame:
        """Return the frame whose header is at a log position.

        Raises:
            CorruptFrame: there is no good frame.
            ReadFailed: the disk could not read it.
            MissingEntry: the position is not in the log.
        """
        segments = self._view.all()
        at = bisect_right(segments, position, key=_base_of) - 1
        if at < 0 or position >= segments[at].end:
            raise MissingEntry(f"position {position} is not in the log")
        base = segments[at].base
        frame = self._read(base, position - base, None)
        if frame is None:
            raise MissingEntry(f"position {position} is not in the log any more")
        return frame

    def checkpoints(self, replica_id: int) -> list[int]:
        """Return the positions of the newest complete set of checkpoint frames, in order.

        Empty: there is none. Damage between its parts is another replica's, or a part is missing.

        Raises:
            CorruptFrame, ReadFailed: the set cannot be read, or a part was given up.
        """
        state = self._index.replicas.get(replica_id)
        if state is None or state.removed or state.checkpoint == NO_CHECKPOINT:
            return []
        return part_positions(
            self._walk_from(state.checkpoint),
            replica_id,
            state.checkpoint,
            lambda segment, gap: self._found(self._corruption_of(segment, gap)),
        )

    @property
    def first_position(self) -> int:
        """Log position of the oldest segment."""
        return self._view.all()[0].base

    @property
    def synced_position(self) -> int:
        """Log position below which everything is durable and readable."""
        return self._view.active.end

    def replica(self, replica_id: int) -> ReplicaLog | None:
        """Return what the log holds of a replica; None: nothing."""
        with self._index.lock:
            state = self._index.replicas.get(replica_id)
            return None if state is None else state.summary()

    def replicas(self) -> dict[int, ReplicaLog]:
        """Return what the log holds, by replica id."""
        with self._index.lock:
            return {key: state.summary() for key, state in self._index.replicas.items()}

    def segments(self) -> list[SegmentInfo]:
        """Return all segments, oldest first."""
        ranges: dict[int, dict[int, tuple[int, int]]] = {}
        with self._index.lock:
            for replica_id, state in self._index.replicas.items():
                for base, (first, last) in state.live_runs():
                    held = ranges.setdefault(base, {})
                    low, high = held.get(replica_id, (first, last))
                    held[replica_id] = min(low, first), max(high, last)
        return [
            SegmentInfo(
                segment.name,
                segment.base,
                segment.end,
                segment.sealed,
                segment.used,
                segment.capacity,
                ranges.get(segment.base, {}),
            )
            for segment in self._view.all()
        ]

    def scrub_step(self, max_bytes: int) -> ScrubResult:
        """Check the CRCs of the next `max_bytes` of the log; one thread at a time.

        Damage is reported, and marks the replicas that lost something live.

        Raises:
            ReadFailed: the disk could not read; the next step tries again.
        """
        try:
            result = self._scrubber.step(max_bytes)
        except OSError as error:
            raise ReadFailed(f"scrub: {error.strerror or error}") from error
        self._scrubbed_bytes.add(result.read_bytes, self._labels)
        for corruption in result.corruptions:
            self._found(corruption)
        return result

    def _locate(self, replica_id: int, index: int) -> tuple[int, int] | None:
        try:
            return self._index.locate(replica_id, index, self._cache.get)
        except MissingEntry:
            return None  # Its segment was freed meanwhile.

    def _expect(self, replica_id: int, index: int) -> _Place | None:
        """Return (segment base, offset, what must stand there) of a live entry."""
        try:
            found = self._index.locate_with_term(replica_id, index, self._cache.get)
        except MissingEntry:
            return None  # Its segment was freed meanwhile.
        if found is None:
            return None
        base, at, term = found
        return base, at, _Expected(replica_id, index, term)

    def _moved(self, replica_id: int, index: int, freed: _Place) -> _Place | None:
        """Return the copy of an entry whose segment was freed; None: it was not copied.

        An entry is copied before its segment goes: a reader may have found it just before.
        """
        place = self._expect(replica_id, index)
        return None if place is None or place[0] == freed[0] else place

    def _run_of(
        self, replica_id: int, first: int, last: int
    ) -> tuple[int, list[int], list[int]] | None:
        """Return (segment base, offsets, terms) of entries that follow each other there."""
        try:
            return self._index.locate_run(replica_id, first, last, self._cache.get)
        except MissingEntry:
            return None  # Its segment was freed meanwhile.

    def _slice(self, place: _Place, offset: int, length: int) -> bytes:
        base, at, expected = place
        with self._reading(base, expected.replica_id) as file:
            header = read_header(file, segment_name(base), base, at)
            expected.check(header, segment_name(base))
            length = max(0, min(length, header.payload_bytes - offset))
            return file.read(at + HEADER_BYTES + offset, length)

    def _read(self, base: int, offset: int, expected: _Expected | None) -> StoredFrame | None:
        """Read a frame, compare it with what it must be; None: its segment was freed."""
        name = segment_name(base)
        try:
            with self._reading(base, None if expected is None else expected.replica_id) as file:
                header, payload = read_frame(file, name, base, offset)
                if expected is not None:
                    expected.check(header, name)
        except MissingEntry:
            return None
        return header.with_payload(payload)

    @contextmanager
    def _reading(self, base: int, replica_id: int | None = None) -> Iterator[DiskFile]:
        """Open a segment for reading; what goes wrong inside is typed and reported."""
        name = segment_name(base)
        try:
            with self._files.use(name) as file:
                yield file
        except FileNotFoundError as error:
            raise MissingEntry(f"{name} was freed") from error
        except OSError as error:
            raise ReadFailed(f"{name}: {error.strerror or error}") from error
        except CorruptFrame as error:
            owners = () if replica_id is None else (replica_id,)
            self._found(Corruption(name, error.position, error.reason, owners))
            raise

    def _read_contents(self, base: int) -> Contents:
        sealed = self._view.sealed
        at = bisect_right(sealed, base, key=_base_of) - 1
        if at < 0 or sealed[at].base != base:
            raise MissingEntry(f"{segment_name(base)} was freed")
        with self._reading(base) as file:
            reading = read_sealed(file, sealed[at])
        for corruption in reading.corruptions:
            self._found(corruption)
        return reading.contents

    def _corruption_of(self, segment: Segment, gap: Gap) -> Corruption:
        corruption = corruption_among(segment, gap, self._index, self._cache.get)
        if gap.header is not None:
            return corruption
        # No row tells of checkpoint frames.
        owners = {*(corruption.replica_ids or ())}
        for replica_id, state in list(self._index.replicas.items()):
            if state.checkpoint <= gap.position and not self._has_checkpoint(replica_id):
                owners.add(replica_id)
        return replace(corruption, replica_ids=tuple(sorted(owners)))

    def _has_checkpoint(self, replica_id: int) -> bool:
        """Tell whether the newest checkpoint of a replica is whole, or it has none.

        Raises:
            ReadFailed: the disk could not read.
        """
        state = self._index.replicas.get(replica_id)
        if state is None or state.removed or state.checkpoint == NO_CHECKPOINT:
            return True
        try:
            walked = self._walk_from(state.checkpoint)
            part_positions(walked, replica_id, state.checkpoint, lambda segment, gap: None)
        except CorruptFrame:
            return False
        except MissingEntry:
            pass  # A newer one is there.
        return True

    def _walk_from(self, start: int) -> Iterator[Walked]:
        """Yield each frame from a log position on, or a gap, and the segment that it is in."""
        for segment in self._view.all():
            if segment.end <= start:
                continue
            with self._reading(segment.base) as file:
                for item in walk(file, segment.base, max(start - segment.base, 0), segment.used):
                    yield segment, item

    def _found(self, corruption: Corruption) -> None:
        """Count, remember and report damage, once per position."""
        if corruption.position in self._reported:
            return
        self.is_damaged = True
        if len(self._reported) < _REPORTED_MAX:
            self._reported.add(corruption.position)
        self._corruptions.add(1, self._labels)
        self._note(corruption)
        self._report(blame(self._index, corruption))

    def _note(self, corruption: Corruption) -> None:
        """Remember damage beyond the end of the process; a log that only reads does not."""


def _base_of(segment: Segment) -> int:
    return segment.base


@dataclass(frozen=True, slots=True)
class _Expected:
    """The entry that a footer says stands somewhere: checksums alone do not tell whose it is."""

    replica_id: int
    index: int
    term: int

    def check(self, header: Header, segment: str) -> None:
        """Raise CorruptFrame unless a frame is this entry."""
        found = (header.kind, header.replica_id, header.index, header.term)
        if found != (FrameKind.ENTRY, self.replica_id, self.index, self.term):
            raise CorruptFrame(header.position, segment, f"not {self} of its footer")

    def __str__(self) -> str:
        return f"entry {self.index} of term {self.term} of replica {self.replica_id}"


_Place = tuple[int, int, _Expected]
"""(segment base, offset in the segment, what must stand there)."""
