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
    contents: Contents,
    index: LogIndex,
    locate: Callable[[int, int], tuple[int, int] | None],
    is_needed: Callable[[int, int], bool],
) -> Iterator[tuple[tuple[int, int], int]]:
    """Yield ((replica id, index), offset) of entries that only this segment has and are needed.

    Args:
        contents: of the segment.
        index: of the log.
        locate: gives (segment base, offset) of the newest copy of a live entry.
        is_needed: says of (replica id, index) whether it is still wanted.
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
