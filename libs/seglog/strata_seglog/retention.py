"""Choice of the segments to delete, and emptying of the oldest segment (rules 6 and 10).

This module chooses, the log deletes: segments are deleted from the oldest on, so that a superseded
frame never returns.

A hard state never pins a segment: every segment begins with a copy of all hard states. A checkpoint
pins its segment until its owner has written a newer one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from strata_seglog.footer import Contents
from strata_seglog.index import VOID_INDEX, LogIndex
from strata_seglog.segments import Segment

Entry = tuple[int, int]
"""Replica id and index."""

IsNeeded = Callable[[int, int], bool]
"""Says of (replica id, index) whether the entry is still wanted."""

Locate = Callable[[int, int], tuple[int, int] | None]
"""Gives (segment base, offset) of the newest copy of a live entry."""


@dataclass(frozen=True, slots=True)
class Relocation:
    """Result of one step of relocation.

    Attributes:
        copied_frames: frames copied to the end of the log.
        copied_bytes: their payload bytes.
        freed: name of the segment that is gone, empty if there is more to copy.
        waiting_for: replicas that must write a checkpoint first; nothing was done.
    """

    copied_frames: int = 0
    copied_bytes: int = 0
    freed: str = ""
    waiting_for: tuple[int, ...] = ()


def freeable_segments(
    sealed: Sequence[Segment], index: LogIndex, low: Mapping[int, int]
) -> list[Segment]:
    """Return the oldest sealed segments that hold nothing anybody needs.

    Args:
        sealed: all sealed segments, in log order.
        index: of the log.
        low: replica id -> lowest index still needed; a replica that is not named needs all.
    """
    lowest_pin = sealed[-1].base + sealed[-1].capacity if sealed else 0
    for state in index.replicas.values():
        if state.removed:
            continue
        limit = low.get(state.replica_id, 0)
        if state.is_void():
            limit = VOID_INDEX
        pins = [base for base, (_, last) in state.live_runs() if last >= limit]
        lowest_pin = min(lowest_pin, state.checkpoint, state.open_checkpoint, *pins)
    return [segment for segment in sealed if segment.base + segment.capacity <= lowest_pin]


def checkpoint_owners(segment: Segment, index: LogIndex) -> tuple[int, ...]:
    """Return the replicas whose newest checkpoint, or one being written, begins in a segment."""
    return tuple(
        state.replica_id
        for state in index.replicas.values()
        if not state.removed
        and any(
            segment.base <= position < segment.base + segment.capacity
            for position in (state.checkpoint, state.open_checkpoint)
        )
    )


def entries_to_keep(
    contents: Contents, index: LogIndex, locate: Locate, is_needed: IsNeeded
) -> Iterator[tuple[Entry, int]]:
    """Yield ((replica id, index), offset) of entries that only this segment has and are needed.

    Args:
        contents: of the segment.
        index: of the log.
        locate: says where the newest copy of each entry is.
        is_needed: says what is wanted.
    """
    for section in list(contents.sections.values()):
        state = index.replicas.get(section.replica_id)
        if state is None or state.removed:
            continue
        for entry_index, offset in section.columns.live():
            # Most entries of an old segment are needed no more.
            if not is_needed(section.replica_id, entry_index):
                continue
            if locate(section.replica_id, entry_index) == (contents.base, offset):
                yield (section.replica_id, entry_index), offset


class Emptying:
    """The entries of a segment that are to be copied, in steps: none is looked at twice.

    Invariant: an entry that was passed over stays superfluous. Newer copies are never freed before
    the segment, and `is_needed` answers no for good.
    """

    def __init__(
        self, contents: Contents, index: LogIndex, *, locate: Locate, is_needed: IsNeeded
    ) -> None:
        self._base = contents.base
        self._locate = locate
        self._is_needed = is_needed
        self._found = entries_to_keep(contents, index, locate, is_needed)
        self._left: tuple[Entry, int] | None = None

    def is_of(self, base: int, is_needed: IsNeeded) -> bool:
        """Whether it is about this segment and this need."""
        return (self._base, self._is_needed) == (base, is_needed)

    def __iter__(self) -> Iterator[tuple[Entry, int]]:
        """Return itself: a loop that ends early leaves the rest to the next one."""
        return self

    def __next__(self) -> tuple[Entry, int]:
        """Return ((replica id, index), offset) of the next one."""
        left, self._left = self._left, None
        # Other writes came between the steps.
        if left is not None and self._locate(*left[0]) == (self._base, left[1]):
            return left
        return next(self._found)

    def leave(self, found: tuple[Entry, int]) -> None:
        """Leave what was yielded last for the next step."""
        self._left = found
