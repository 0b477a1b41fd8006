"""The CommitLog: one append-only log shared by all raft groups of a node. It *is* the raft log.

Invariants:
- Group commit: the frames of one `write` are in one segment, are written with one `pwritev`, and
  become durable, indexed and readable together after the next `sync`.
- The remains of a refused write are never read and never recovered.
- Every segment begins with the hard state of every replica, so freeing one loses none. A power loss
  may tear that begin: the copies that are missing are written before anything else, or is freed.

Threads: methods defined here belong to the writer thread; `CommitLogReader` documents its own.

It does not know what a payload means, except for the part number of a checkpoint frame.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from strata_runtime.clock import Clock, SystemClock
from strata_runtime.metrics import Metrics
from strata_seglog.damage_notes import DamageNotes
from strata_seglog.errors import Corruption, DiskFull, WriteFailed, WriteTooLarge
from strata_seglog.footer import NO_CHECKPOINT, Contents, seal_bytes
from strata_seglog.frames import (
    HARD_STATE_FRAME_BYTES,
    HEADER_BYTES,
    NO_REPLICA,
    Frame,
    FrameKind,
    checkpoint_part,
    encode_frames,
    hard_state_frame,
    mark_frame,
    moved_copy,
    payload_bytes,
)
from strata_seglog.index import NO_SEGMENT, LogReplica, ReplicaLog
from strata_seglog.options import LogOptions
from strata_seglog.ports import Disk
from strata_seglog.prepare import Preparer
from strata_seglog.reader import CommitLogReader, View
from strata_seglog.recovery import recover
from strata_seglog.retention import (
    Emptying,
    IsNeeded,
    Relocation,
    checkpoint_owners,
    freeable_segments,
)
from strata_seglog.segments import Segment, SegmentInfo
from strata_seglog.tail import Tail
from strata_seglog.walk import Gap, walk

__all__ = ["CommitLog", "LogOptions", "Relocation", "ReplicaLog", "SegmentInfo"]


class CommitLog(CommitLogReader):
    """The log with its end; made by `CommitLog.open`."""

    def __init__(
        self,
        disk: Disk,
        options: LogOptions,
        report: Callable[[Corruption], None],
        *,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        super().__init__(disk, options, report, metrics=metrics)
        self._disk = disk
        self._notes = DamageNotes(disk)
        self._options = options
        self._clock = clock
        self._tail = Tail(disk, Preparer(disk, options.segment_bytes, options.zero_ahead_bytes))
        # Written and not yet synced: (frame, position).
        self._unsynced: list[tuple[Frame, int]] = []
        self._emptying: Emptying | None = None
        self._ends_in_mark = True
        # The active segment may lack hard states, since it was recovered.
        self._may_lack_hard_states = False
        self._written_frames = metrics.counter("strata_log_frames_total")
        self._written_bytes = metrics.counter("strata_log_written_bytes_total")
        self._refused_writes = metrics.counter("strata_log_refused_writes_total")
        self._sync_ms = metrics.histogram("strata_log_sync_ms")
        self._gauges = [
            metrics.gauge(name, self._gauge(read))
            for name, read in (
                ("strata_log_segments", lambda: len(self._view.all())),
                ("strata_log_used_bytes", lambda: sum(each.used for each in self._view.all())),
                ("strata_log_recent_bytes", lambda: self._ring.held_bytes),
                ("strata_log_recent_limit_bytes", lambda: options.recent_bytes),
                ("strata_log_footer_cache_bytes", lambda: self._cache.held_bytes),
                ("strata_log_footer_cache_limit_bytes", lambda: options.footer_cache_bytes),
            )
        ]

    @classmethod
    def open(
        cls,
        disk: Disk,
        options: LogOptions,
        *,
        report: Callable[[Corruption], None],
        metrics: Metrics | None = None,
        clock: Clock | None = None,
    ) -> CommitLog:
        """Recover what is in the folder and go on at its end.

        Args:
            disk: the folder; a new log is made in an empty one.
            options: limits.
            report: gets what is found damaged, now and later, in the thread that found it.
            metrics: where to count; default: nowhere.
            clock: to time syncs; default: the system's.

        Raises:
            DiskFull, WriteFailed: the end could not be made ready. A log that only lacks room for
                its next segment is opened all the same, and refuses writes until there is some.
            LogFailed: it could not be synced.
            OSError: the folder could not be read.
        """
        log = cls(
            disk,
            options,
            report,
            metrics=metrics or Metrics.disabled(),
            clock=clock or SystemClock(),
        )
        try:
            log._recover()
        except BaseException:
            log._release()
            raise
        return log

    def write(self, frames: Sequence[Frame]) -> int:
        """Write frames at the end; they count after `sync`.

        Returns:
            The log position after them.

        Raises:
            DiskFull, WriteFailed: nothing after `synced_position` is in the log any more, frames
                of earlier unsynced writes included; the log stays usable.
            WriteTooLarge: nothing was written.
            LogFailed: final.
        """
        self._tail.check()
        try:
            self._make_room(frames)
            if self._begins_with_hard_states():
                frames = [*self._carried_hard_states(), *frames]
            begin = self._tail.end_position
            buffers, positions, end = encode_frames(frames, begin, self._tail.synced_position)
            self._tail.write(buffers, end - begin)
        except (DiskFull, WriteFailed):
            self._unsynced.clear()
            self._refused_writes.add(1, self._labels)
            raise
        self._unsynced.extend(zip(frames, positions, strict=True))
        self._ends_in_mark = False
        return end

    def sync(self) -> int:
        """Make everything written durable and readable: one fdatasync.

        Returns:
            `synced_position`.

        Raises:
            LogFailed: final; the process must end (rule 7).
        """
        self._tail.check()
        if self._unsynced:
            before = self._tail.synced_position
            began_s = self._clock.monotonic_s()
            self._tail.sync()
            self._sync_ms.record((self._clock.monotonic_s() - began_s) * 1000, self._labels)
            self._written_frames.add(len(self._unsynced), self._labels)
            self._written_bytes.add(self._tail.synced_position - before, self._labels)
            self._publish()
        return self._tail.synced_position

    def write_and_sync(self, frames: Sequence[Frame]) -> int:
        """`write`, then `sync`, in one call: one hop to the writer thread (rule 30)."""
        self.write(frames)
        return self.sync()

    def mark(self) -> None:
        """Write down that everything is durable; to be called when nothing comes for a while.

        Until a later frame says so, damage to the last write cannot be told from a torn tail
        (rule 7). The rest of a refused write is deleted, too. `close` does it as well.

        Raises:
            DiskFull, WriteFailed, LogFailed: as `write_and_sync`.
        """
        if not self._ends_in_mark or self._tail.is_dirty:
            self.sync()
            self.write_and_sync([mark_frame()])
            self._ends_in_mark = True

    def close(self) -> None:
        """Mark the end and release all handles; no other call may be under way.

        Raises:
            LogFailed: the last sync failed.
        """
        try:
            if not self._tail.failed:
                self.mark()
        except (DiskFull, WriteFailed):
            pass  # The log is whole without the mark.
        finally:
            self._release()

    @property
    def end_position(self) -> int:
        """Log position after the last written frame; any thread may ask."""
        return self._tail.end_position

    # Upkeep.

    def sealed_state(self, replica_id: int) -> LogReplica | None:
        """Return what the index says of a replica; nothing of it is in the active segment then.

        That one is sealed if it has entries or checkpoints of it. Belongs to the writer thread.

        Raises:
            DiskFull, WriteFailed, LogFailed: the segment could not be sealed.
        """
        self._tail.check()
        state = self._index.replicas.get(replica_id)
        section = None if state is None else state.active
        if section is not None and (len(section.columns) or section.checkpoint != NO_CHECKPOINT):
            self._roll()
        return state

    def free_before(self, low: Mapping[int, int]) -> list[str]:
        """Delete the oldest sealed segments whose entries are all below `low` (rule 10).

        Replicas absent from `low` pin what they have; so does the newest checkpoint of each.
        Belongs to the writer thread.

        Returns:
            Names of the deleted segments.

        Raises:
            DiskFull, WriteFailed: the disk refused to delete, or to take hard states first.
            LogFailed: the folder could not be synced; final.
        """
        self._tail.check()
        freeable = freeable_segments(self._view.sealed, self._index, low)
        return [self._free(segment) for segment in freeable]

    def relocate_step(self, is_needed: IsNeeded, max_bytes: int) -> Relocation:
        """Copy needed entries of the oldest sealed segment to the end; free it when all are.

        Belongs to the writer thread. Copies have `FLAG_MOVED` and the same term and index. Steps
        with the same `is_needed` go on where the last one stopped.

        Args:
            is_needed: says of (replica id, index) whether the entry is still wanted; an entry that
                it says no to is wanted no more later.
            max_bytes: to write in this step, at most half a segment; one entry is always copied.

        Raises:
            CorruptFrame, ReadFailed: an entry cannot be copied; the segment stays.
            DiskFull, WriteFailed, LogFailed: as `write_and_sync`.
        """
        self._tail.check()
        if not self._view.sealed:
            return Relocation()
        oldest = self._view.sealed[0]
        owners = checkpoint_owners(oldest, self._index)
        if owners:
            return Relocation(waiting_for=owners)
        # A step that fails begins with the first entry again.
        emptying, self._emptying = self._emptying, None
        if emptying is None or not emptying.is_of(oldest.base, is_needed):
            contents = self._cache.get(oldest.base)
            emptying = Emptying(contents, self._index, locate=self._locate, is_needed=is_needed)
        copies: list[Frame] = []
        copied_bytes, written_bytes = 0, 0
        budget = min(max_bytes, self._options.segment_bytes // 2)
        for found in emptying:
            stored = self.entry(*found[0])
            if stored is None:
                continue
            written_bytes += HEADER_BYTES + len(stored.payload) + seal_bytes(1, 1)
            if copies and written_bytes > budget:
                self.write_and_sync(copies)
                emptying.leave(found)
                self._emptying = emptying
                return Relocation(len(copies), copied_bytes)
            copies.append(moved_copy(stored))
            copied_bytes += len(stored.payload)
        if copies:
            self.write_and_sync(copies)
        return Relocation(len(copies), copied_bytes, freed=self._free(oldest))

    # Inside.

    def _recover(self) -> None:
        found = recover(self._disk, self._files, on_sealed=self._cache.put)
        self._index = found.index
        self._view = View(tuple(found.sealed), Segment(found.next_base, 0))
        for corruption in found.corruptions:
            self._found(corruption)
        for segment in found.leftovers:
            self._tail.delete(segment.name)
            self._files.forget(segment.name)
        try:
            self._go_on(found.active, found.next_base)
        except DiskFull:
            if not found.sealed or (found.active is not None and found.active.used):
                raise
            self._stand_behind(found.sealed[-1], found.active)
        self._look_again()

    def _look_again(self) -> None:
        """See whether places that were damaged before the start still are; footers do not tell."""
        segments = {segment.name: segment for segment in self._view.sealed}
        places = self._notes.load()
        damaged = 0
        for name, position in places:
            segment = segments.get(name)
            if segment is None or position >= segment.base + segment.used:
                continue  # Freed, or the footer, which was read.
            with self._files.use(name) as file:
                offset = position - segment.base
                item = next(walk(file, segment.base, offset, segment.used), None)
            if isinstance(item, Gap):
                damaged += 1
                self._found(self._corruption_of(segment, item))
        if places and not damaged:
            self._notes.clear()

    def _note(self, corruption: Corruption) -> None:
        self._notes.add(corruption.segment, corruption.position)

    def _go_on(self, active: Segment | None, next_base: int) -> None:
        if active is None:
            self._begin_segment(next_base)
        else:
            self._tail.resume(active, self._options.segment_bytes)
            self._may_lack_hard_states = self._lacks_hard_states()
            self._ends_in_mark = active.used == 0
            self._show_active()

    def _stand_behind(self, sealed: Segment, empty: Segment | None) -> None:
        """Be open without a segment to write to: the next write makes it, once there is room.

        Room is freed by a node whose log is open: it deletes segments, and its ballast.
        """
        self._tail.stand_behind(sealed)
        if empty is not None:
            self._tail.delete(empty.name)
            self._files.forget(empty.name)
        self._index.active = Contents(NO_SEGMENT)
        self._view = View(self._view.sealed, Segment(self._tail.end_position, 0))

    def _release(self) -> None:
        self._tail.close()
        self._files.close()
        for gauge in self._gauges:
            gauge.close()

    def _make_room(self, frames: Sequence[Frame]) -> None:
        """Go on to the next segment unless the frames and later the footer fit into this one."""
        length = 0
        for frame in frames:
            size = payload_bytes(frame)
            if size > self._options.max_frame_bytes:
                raise WriteTooLarge(f"a payload of {size} bytes is above max_frame_bytes")
            if frame.kind == FrameKind.CHECKPOINT:
                checkpoint_part(frame.payload)
            length += HEADER_BYTES + size
        segment, replicas = self._tail.segment, len(self._index.replicas)
        unsynced = len(self._unsynced)
        seal = seal_bytes(
            replicas + unsynced + len(frames), self._index.active.rows + unsynced + len(frames)
        )
        carried = replicas * HARD_STATE_FRAME_BYTES
        if self._begins_with_hard_states():
            length += carried
        if not segment.sealed and segment.used + length + seal <= segment.capacity:
            return
        if not self._begins_with_hard_states():
            length += carried
        if length + seal_bytes(replicas + len(frames), len(frames)) > self._options.segment_bytes:
            raise WriteTooLarge(f"{length} bytes of frames do not fit into one segment")
        self._roll()

    def _roll(self) -> None:
        """Seal the active segment, unless that is done, and begin the next one."""
        self.sync()
        tail, index = self._tail, self._index
        if not tail.segment.sealed:
            position = tail.end_position
            footer = Frame(FrameKind.FOOTER, NO_REPLICA, 0, 0, 0, payload=index.active.encode())
            buffers, _, end = encode_frames([footer], position, tail.synced_position)
            tail.seal(buffers, end - position)
            self._cache.put(index.active)
            with index.lock:
                index.seal()
            sealed = (*self._view.sealed, tail.segment)
            self._view = View(sealed, Segment(tail.end_position, 0))
        self._begin_segment(tail.end_position)

    def _begin_segment(self, base: int) -> None:
        self._tail.advance(base, self._options.segment_bytes)
        with self._index.lock:
            self._index.begin_segment(base)
        self._show_active()

    def _show_active(self) -> None:
        segment = self._tail.segment
        active = Segment(segment.base, segment.capacity, self._tail.synced)
        self._view = View(self._view.sealed, active)

    def _begins_with_hard_states(self) -> bool:
        """Tell whether the next write to the active segment must carry the hard states."""
        return self._tail.segment.used == 0 or self._may_lack_hard_states

    def _lacks_hard_states(self) -> bool:
        """Tell whether a replica's hard state is durable in earlier segments only."""
        return any(
            state.has_hard_state
            and not state.removed
            and (state.active is None or not state.active.has_hard_state)
            for state in self._index.replicas.values()
        )

    def _carried_hard_states(self) -> list[Frame]:
        return [
            hard_state_frame(
                state.replica_id, state.raft_group, state.term, state.vote, state.commit
            )
            for state in self._index.replicas.values()
            if state.has_hard_state and not state.removed
        ]

    def _publish(self) -> None:
        """Make frames that are durable now readable."""
        add, ring = self._index.add, self._ring
        with self._index.lock:
            for frame, position in self._unsynced:
                superseded = add(
                    frame.kind,
                    frame.replica_id,
                    frame.raft_group,
                    frame.term,
                    frame.index,
                    frame.entry_kind,
                    frame.flags,
                    position,
                    frame.payload,
                )
                if superseded:
                    ring.forget(frame.replica_id, frame.index, superseded)
                if frame.kind == FrameKind.ENTRY and not frame.flags:
                    ring.put(frame, position)
        self._unsynced.clear()
        self._may_lack_hard_states = self._may_lack_hard_states and self._lacks_hard_states()
        self._show_active()

    def _free(self, segment: Segment) -> str:
        if self._may_lack_hard_states:
            self.write_and_sync(())
        # First the file, so that the oldest that is left on the disk is the oldest we know.
        self._tail.delete(segment.name)
        sealed = tuple(each for each in self._view.sealed if each is not segment)
        self._view = View(sealed, self._view.active)
        with self._index.lock:
            self._index.drop_segment(segment.base)
        self._emptying = None
        self._cache.forget(segment.base)
        self._files.forget(segment.name)
        return segment.name

    def _gauge(
        self, read: Callable[[], float]
    ) -> Callable[[], list[tuple[float, Mapping[str, str]]]]:
        return lambda: [(read(), self._labels)]
