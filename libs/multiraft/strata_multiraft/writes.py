"""What a group commit is made of: the frames of one step each, or control frames."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from strata_multiraft.replica import Replica
from strata_raft import Effects, Entry, EntryKind
from strata_seglog.frames import Frame, FrameKind, StoredFrame, hard_state_frame


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
        frames.append(
            Frame(
                FrameKind.ENTRY,
                replica_id,
                raft_group,
                entry.term,
                entry.index,
                entry.kind,
                0,
                entry.payload,
            )
        )
    return Write(frames, size_bytes, replica, effects.entries, effects.sequence)


def as_entry(frame: StoredFrame) -> Entry:
    """Turn a stored frame back into the raft core's entry."""
    return Entry(frame.term, frame.index, EntryKind(frame.entry_kind), (frame.payload,))
