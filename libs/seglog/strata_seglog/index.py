"""Index of every live entry: rule 9 over all segments.

Invariants:
- Segments are added in log order; the last one may be *active*: its contents grow.
- Look-ups search in the active segment, then in the table of the sealed ones, so they find exactly
  the entries that rule 9 leaves.
- The writer thread changes the index; other threads look up at the same time. Spans are
  immutable and their tuple is replaced, the active columns are read under `lock`.

It holds no columns of sealed segments: `load` reads them from their footers.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from strata_seglog.columns import NO_CUT, EntryColumns
from strata_seglog.footer import NO_CHECKPOINT, Contents, FooterSection
from strata_seglog.frames import FLAG_MOVED, NO_REPLICA, FrameKind
from strata_seglog.spans import ReplicaSpan, Run, SpanTable

VOID_INDEX = 0
"""Index of the entry that voids a replica's log (raft's begin at 1); its term is a last index."""

NO_SEGMENT = -1
"""Base of the active contents while there is no active segment: no segment's."""


@dataclass(frozen=True, slots=True)
class ReplicaLog:
    """The frames of one replica in the log.

    `first_index` to `last_index` has no gap; both are 0 if there is no entry. `removed`: the
    replica id has ended. `damaged`: empty, or why the replica must not vote (rule 8); if a lost
    frame had superseded others, those show again, so only what is committed is right.
    `void_until`: all entries up to this index were truncated once, to make room for a snapshot;
    0: never, or it is as long again and nobody remembers.
    """

    replica_id: int
    raft_group: int
    first_index: int = 0
    last_index: int = 0
    last_term: int = 0
    term: int = 0
    vote: int = 0
    commit: int = 0
    removed: bool = False
    damaged: str = ""
    void_until: int = 0


@dataclass(slots=True)
class LogReplica:
    """One replica over all segments. `active` is its section in the active segment."""

    replica_id: int
    raft_group: int
    spans: tuple[ReplicaSpan, ...] = ()
    active: FooterSection | None = None
    active_base: int = 0
    last_index: int = 0
    last_term: int = 0
    term: int = 0
    vote: int = 0
    commit: int = 0
    removed: bool = False
    damaged: str = ""
    void_until: int = 0
    # Carried from section to section.
    checkpoint: int = NO_CHECKPOINT
    open_checkpoint: int = NO_CHECKPOINT
    next_part: int = -1
    _table: SpanTable = field(default_factory=SpanTable, init=False, repr=False, compare=False)

    @property
    def table(self) -> SpanTable:
        """The entries of sealed segments, each with the segment that serves it."""
        spans, table = self.spans, self._table
        if table.spans is not spans:
            # Two threads may make it at the same time: both make the same one.
            table = self._table = table.following(spans)
        return table

    @property
    def has_hard_state(self) -> bool:
        """Whether a hard state of the replica is known."""
        return bool(self.term or self.vote or self.commit)

    def all_spans(self) -> tuple[ReplicaSpan, ...]:
        """Return the spans, that of the active segment included."""
        active = self.active
        if active is None:
            return self.spans
        return (*self.spans, _span_of(active, self.active_base, ()))

    def live_runs(self) -> Iterator[tuple[int, Run]]:
        """Yield (segment base, run) of the entries that rule 9 leaves, newest segment first.

        Two segments may both name an index (a moved copy); both can serve it.
        """
        bound = NO_CUT
        for span in reversed(self.all_spans()):
            for first, last in reversed(span.runs):
                if first < bound:
                    yield span.base, (first, min(last, bound - 1))
            bound = min(bound, span.cut)

    def is_void(self) -> bool:
        """Tell whether the log is shorter than it was when it was truncated."""
        return self.last_index < self.void_until

    def holds(self, index: int) -> bool:
        """Tell whether there is a live entry of an index."""
        return any(first <= index <= last for _, (first, last) in self.live_runs())

    def first_index(self) -> int:
        """Return the lowest index from which on no entry up to `last_index` is missing.

        Frames before a hole were truncated by the entry of index 0 that an install wrote, or
        their segment is gone.
        """
        low = self.last_index + 1
        for first, last in sorted((run for _, run in self.live_runs()), key=_last_of, reverse=True):
            if last < low - 1:
                break
            low = min(low, max(first, 1))
        return low if low <= self.last_index else 0

    def end(self) -> None:
        """Forget what the replica had: its id has ended."""
        self.spans = ()
        self.checkpoint = self.open_checkpoint = NO_CHECKPOINT
        self.void_until = 0

    def summary(self) -> ReplicaLog:
        """Return what the owner of the replica needs to know."""
        first = 0 if self.removed else self.first_index()
        return ReplicaLog(
            self.replica_id,
            self.raft_group,
            first,
            self.last_index if first else 0,
            self.last_term if first else 0,
            self.term,
            self.vote,
            self.commit,
            self.removed,
            self.damaged,
            self.void_until,
        )


class LogIndex:
    """Replica states by replica id, and the contents of the active segment."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.replicas: dict[int, LogReplica] = {}
        self.active = Contents(NO_SEGMENT)

    def begin_segment(self, base: int) -> None:
        """Make an empty segment the active one; the one before was sealed."""
        self.active = Contents(base)

    def add(
        self,
        kind: int,
        replica_id: int,
        raft_group: int,
        term: int,
        index: int,
        entry_kind: int,
        flags: int,
        position: int,
        payload: Sequence[bytes],
    ) -> int:
        """Note a frame in the active segment; call under `lock` if others may look up.

        Returns:
            The last index that this frame ended, 0 if none (they begin at `index`).
        """
        if replica_id == NO_REPLICA:
            return 0
        state = self.replicas.get(replica_id)
        if state is None:
            state = self.replicas[replica_id] = LogReplica(replica_id, raft_group)
        section = state.active
        if section is None:
            section = self.active.section(replica_id, raft_group)
            section.open_checkpoint, section.next_part = state.open_checkpoint, state.next_part
            state.active, state.active_base = section, self.active.base
        self.active.add(section, kind, position, term, index, entry_kind, flags, payload)
        if kind == FrameKind.ENTRY:
            before, moved = state.last_index, flags & FLAG_MOVED
            if index == VOID_INDEX:
                state.void_until = term
            if index > before or not moved:
                state.last_index, state.last_term = index, term
            return before if index <= before and not moved else 0
        if kind == FrameKind.REMOVED:
            state.end()
        self._note_state(state, section)
        return state.last_index if kind == FrameKind.REMOVED else 0

    def open_checkpoints(self) -> dict[int, tuple[int, int]]:
        """Return by replica id where a checkpoint begins that has not ended, and its next part."""
        return {
            replica_id: (state.open_checkpoint, state.next_part)
            for replica_id, state in self.replicas.items()
            if state.open_checkpoint != NO_CHECKPOINT
        }

    def add_sealed(self, contents: Contents) -> None:
        """Note a sealed segment that follows all noted before."""
        for section in contents.sections.values():
            state = self.replicas.get(section.replica_id)
            if state is None:
                state = LogReplica(section.replica_id, section.raft_group)
                self.replicas[section.replica_id] = state
            if section.removed:
                # Frames after that count once the replica id is taken back.
                state.end()
            columns = section.columns
            live = columns.live_indexes
            if live and (columns.cut != NO_CUT or live[-1] > state.last_index):
                state.last_index = live[-1]
                state.last_term = columns.terms[columns.find(live[-1])]
            if live and live[0] == VOID_INDEX:
                state.void_until = columns.terms[columns.find(VOID_INDEX)]
            state.spans = (*state.spans, _span_of(section, contents.base, columns.term_runs()))
            self._note_state(state, section)

    def seal(self) -> Contents:
        """Turn the active segment into a sealed one and return its contents; under `lock`."""
        contents = self.active
        for section in contents.sections.values():
            state = self.replicas[section.replica_id]
            # Spans first: a reader sees the entries in one of the two places, or in both.
            terms = section.columns.term_runs()
            state.spans = (*state.spans, _span_of(section, contents.base, terms))
            state.active = None
        self.active = Contents(NO_SEGMENT)
        return contents

    def drop_segment(self, base: int) -> None:
        """Forget a sealed segment, and replicas of which nothing is left."""
        for replica_id, state in list(self.replicas.items()):
            state.spans = tuple(span for span in state.spans if span.base != base)
            if state.void_until and not state.holds(VOID_INDEX):
                # The log was as long again; no start would know of the truncation any more.
                state.void_until = 0
            gone = not state.spans and state.active is None
            if gone and (state.removed or not state.has_hard_state):
                del self.replicas[replica_id]

    def locate(
        self, replica_id: int, index: int, load: Callable[[int], Contents]
    ) -> tuple[int, int] | None:
        """Find a live entry.

        Args:
            replica_id: whose log.
            index: raft index.
            load: gives the contents of the sealed segment with this base; may read the disk.

        Returns:
            (segment base, offset in the segment), or None.
        """
        found = self._find(replica_id, index, load)
        return None if found is None else (found[0], found[1].offsets[found[2]])

    def locate_with_term(
        self, replica_id: int, index: int, load: Callable[[int], Contents]
    ) -> tuple[int, int, int] | None:
        """Find a live entry; return what `locate` does, and the term it must have."""
        found = self._find(replica_id, index, load)
        if found is None:
            return None
        base, columns, row = found
        return base, columns.offsets[row], columns.terms[row]

    def term(self, replica_id: int, index: int) -> int | None:
        """Return the term of a live entry, from memory alone; None: there is none."""
        state = self.replicas.get(replica_id)
        if state is None or state.removed:
            return None
        with self.lock:
            section = state.active
            if section is not None:
                row = section.columns.find(index)
                if row >= 0:
                    return section.columns.terms[row]
                if section.columns.cut <= index:
                    return None
        piece = state.table.find(index)
        if piece is None:
            return None
        terms = piece.span.terms
        return terms[bisect_right(terms, index, key=_first_of) - 1][1]

    def _find(
        self, replica_id: int, index: int, load: Callable[[int], Contents]
    ) -> tuple[int, EntryColumns, int] | None:
        """Return (segment base, columns, row) of a live entry; rows never change."""
        state = self.replicas.get(replica_id)
        if state is None or state.removed:
            return None
        with self.lock:
            section, base = state.active, self.active.base
            if section is not None:
                row = section.columns.find(index)
                if row >= 0:
                    return base, section.columns, row
                if section.columns.cut <= index:
                    return None
        piece = state.table.find(index)
        if piece is None:
            return None
        columns = load(piece.span.base).sections[replica_id].columns
        return piece.span.base, columns, columns.find(index)

    def locate_run(
        self, replica_id: int, first: int, last: int, load: Callable[[int], Contents]
    ) -> tuple[int, list[int], list[int]] | None:
        """Find live entries that follow each other in one segment.

        Args:
            replica_id: whose log.
            first: raft index of the first one.
            last: of the last one wanted; fewer are found where the segment ends.
            load: as in `locate`.

        Returns:
            (segment base, offsets in the segment, terms), at least one; None: there is no `first`.
            They end before an index that a newer segment has too (a moved copy): that one holds.
        """
        state = self.replicas.get(replica_id)
        if state is None or state.removed:
            return None
        bound = NO_CUT
        with self.lock:
            section, base = state.active, self.active.base
            if section is not None:
                found = section.columns.located_from(first, last)
                if found[0]:
                    return base, *found
                bound = section.columns.cut
                last = min(last, section.columns.next_after(first, last + 1) - 1)
        piece = state.table.find(first)
        if piece is None or bound <= first:
            return None
        columns = load(piece.span.base).sections[replica_id].columns
        return piece.span.base, *columns.located_from(first, min(last, piece.last, bound - 1))

    def indexes_of_kind(
        self, replica_id: int, entry_kind: int, load: Callable[[int], Contents]
    ) -> list[int]:
        """Return the indexes of a replica's live entries of a kind, ascending.

        Args:
            replica_id: whose log.
            entry_kind: raft's.
            load: as in `locate`.
        """
        state = self.replicas.get(replica_id)
        if state is None or state.removed:
            return []
        with self.lock:
            active, active_base = state.active, self.active.base
            runs = list(state.live_runs())
            found: set[int] = set()
            if active is not None:
                found.update(active.columns.live_of_kind(entry_kind))
        for base, (first, last) in runs:
            if base == active_base:
                continue
            columns = load(base).sections[replica_id].columns
            found.update(i for i in columns.live_of_kind(entry_kind) if first <= i <= last)
        return sorted(found)

    @staticmethod
    def _note_state(state: LogReplica, section: FooterSection) -> None:
        if section.has_hard_state:
            state.term, state.vote, state.commit = section.term, section.vote, section.commit
        if section.checkpoint != NO_CHECKPOINT:
            state.checkpoint = section.checkpoint
        state.open_checkpoint, state.next_part = section.open_checkpoint, section.next_part
        if section.removed:
            state.removed = True
        elif section.returned:
            state.removed = False


def _span_of(section: FooterSection, base: int, terms: tuple[tuple[int, int], ...]) -> ReplicaSpan:
    return ReplicaSpan(
        base,
        _runs(section.columns.live_indexes),
        terms,
        section.columns.cut,
        section.checkpoint,
        section.open_checkpoint,
    )


def _runs(indexes: array[int]) -> tuple[Run, ...]:
    """Split ascending indexes into runs without a gap."""
    if not indexes:
        return ()
    if indexes[-1] - indexes[0] + 1 == len(indexes):
        return ((indexes[0], indexes[-1]),)
    runs: list[Run] = []
    first = last = indexes[0]
    for index in indexes[1:]:
        if index != last + 1:
            runs.append((first, last))
            first = index
        last = index
    runs.append((first, last))
    return tuple(runs)


def _first_of(run: Run) -> int:
    return run[0]


def _last_of(run: Run) -> int:
    return run[1]
