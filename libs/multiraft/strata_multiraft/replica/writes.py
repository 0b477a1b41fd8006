"""Parts of a group commit: the frames of one step each, or control frames."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from strata_multiraft.replica.replica import Replica
from strata_multiraft.replica.stored_log import Floor
from strata_raft import Effects, Entry, EntryKind
from strata_seglog.frames import Frame, FrameKind, StoredFrame, hard_state_frame
from strata_seglog.index import VOID_INDEX

_FLOOR_TERM = struct.Struct(">Q")


@dataclass(slots=True)
class Write:
    """Frames that are written together.

    `replica`, `entries` and `sequence` name the step; `future` is for control frames.
    """

    frames: Sequence[Frame]
    size_bytes: int
    replica: Replica | None = None
    entries: Sequence[Entry] = ()
    sequence: int = 0
    future: asyncio.Future[int] | None = None


def as_write(replica: Replica, effects: Effects) -> Write:
    """Turn a step's durable part into frames: the hard state first, then entries."""
    frames: list[Frame] = []
    replica_id, raft_group = replica.replica_id, replica.raft_group
    if effects.hard_state is not None:
        state = effects.hard_state
        frames.append(
            hard_state_frame(replica_id, raft_group, state.term, state.vote, state.commit)
        )
    size_bytes = 0
    for entry in effects.entries:
        size_bytes += entry.size_bytes()
        frames.append(as_frame(replica_id, raft_group, entry))
    return Write(frames, size_bytes, replica, effects.entries, effects.sequence)


def as_frame(replica_id: int, raft_group: int, entry: Entry) -> Frame:
    """Turn an entry into the frame that stores it."""
    return Frame(
        FrameKind.ENTRY,
        replica_id,
        raft_group,
        entry.term,
        entry.index,
        entry.kind,
        0,
        entry.payload,
    )


def void_frame(replica_id: int, raft_group: int, floor: Floor) -> Frame:
    """Return the entry of index 0, which ends all earlier ones of the replica (rule 9).

    Args:
        replica_id: whose log is truncated.
        raft_group: its raft group.
        floor: term and index of the entry up to which others must count on it (rule 8).
    """
    term, index = floor
    payload = (_FLOOR_TERM.pack(term),)
    return Frame(
        FrameKind.ENTRY, replica_id, raft_group, index, VOID_INDEX, EntryKind.NO_OP, 0, payload
    )


def floor_of(frame: StoredFrame) -> Floor:
    """Return the floor that a stored `void_frame` keeps."""
    (term,) = _FLOOR_TERM.unpack(frame.payload)
    return term, frame.term


BeforeEnd = Callable[[], Awaitable[None]]
"""Called once a replica that is removed has fallen silent, before its end is written down."""


async def nothing() -> None:
    """Do nothing before that (`BeforeEnd`)."""


def removed_frame(replica_id: int, raft_group: int) -> Frame:
    """Return the frame that ends a replica id (rule 9)."""
    return Frame(FrameKind.REMOVED, replica_id, raft_group, 0, 0)


def as_entry(frame: StoredFrame) -> Entry:
    """Turn a stored frame back into the raft core's entry."""
    return Entry(frame.term, frame.index, EntryKind(frame.entry_kind), (frame.payload,))
