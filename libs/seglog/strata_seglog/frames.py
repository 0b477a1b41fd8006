"""The frame, the unit of the CommitLog. Layout: docs/data-layout.md section 2.

Invariants:
- The header has its own CRC and names its own log position, so a stray or stale header is never
  taken for a frame, and the length of a frame with a bad payload can be trusted.
- A payload is written as its original buffers, never joined.

It does not know segments, indexes or disks.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import google_crc32c

from strata_seglog.ports import Buffer

MAGIC = b"SMQF"
VERSION = 1
HEADER_BYTES = 72
HARD_STATE_FRAME_BYTES = HEADER_BYTES + 16
FLAG_MOVED = 1
"""The frame is a copy made by relocation; it supersedes nothing (rule 9)."""
NO_REPLICA = 0
"""Replica id of the log's own frames: footers, marks and holes."""

_SUMMED = struct.Struct(">4sBBHQQQIIQQIII")
_HEADER = struct.Struct(">4sBBHQQQIIQQIIII")
_HARD_STATE = struct.Struct(">QQ")
_CRC = struct.Struct(">I")
_CHECKPOINT_PART = struct.Struct(">BBH")
_LAST_PART = 1


class FrameKind(IntEnum):
    """Content of a frame."""

    ENTRY = 1
    HARD_STATE = 2
    CHECKPOINT = 3
    FOOTER = 4
    REMOVED = 5
    HOLE = 6
    RETURNED = 7


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame to write. `flags` is 0 or `FLAG_MOVED`; `payload` may be any number of buffers."""

    kind: FrameKind
    replica_id: int
    raft_group: int
    term: int
    index: int
    entry_kind: int = 0
    flags: int = 0
    payload: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredFrame:
    """A frame that was read, both CRCs checked."""

    kind: FrameKind
    replica_id: int
    raft_group: int
    term: int
    index: int
    entry_kind: int
    flags: int
    position: int
    payload: bytes


@dataclass(slots=True)
class Header:
    """A header whose CRC is right."""

    kind: int
    flags: int
    position: int
    synced_before: int
    replica_id: int
    raft_group: int
    payload_bytes: int
    term: int
    index: int
    entry_kind: int
    payload_crc: int

    @property
    def moved(self) -> bool:
        """Whether the frame is a copy that supersedes nothing."""
        return bool(self.flags & FLAG_MOVED)

    @property
    def end(self) -> int:
        """Log position after the frame."""
        return self.position + HEADER_BYTES + self.payload_bytes

    def with_payload(self, payload: bytes) -> StoredFrame:
        """Return the whole frame; the payload's CRC has been checked."""
        return StoredFrame(
            FrameKind(self.kind),
            self.replica_id,
            self.raft_group,
            self.term,
            self.index,
            self.entry_kind,
            self.flags,
            self.position,
            payload,
        )


def encode_frames(
    frames: Iterable[Frame], position: int, synced_before: int
) -> tuple[list[Buffer], list[int], int]:
    """Lay frames out one after another from `position` on.

    Returns:
        (buffers to write, position of each frame, position after the last).
    """
    buffers: list[Buffer] = []
    positions: list[int] = []
    checksum, extend = google_crc32c.value, google_crc32c.extend
    pack_summed, pack_crc = _SUMMED.pack, _CRC.pack
    for frame in frames:
        payload = frame.payload
        payload_bytes = 0
        payload_crc = 0
        for chunk in payload:
            payload_bytes += len(chunk)
            payload_crc = extend(payload_crc, chunk)
        summed = pack_summed(
            MAGIC,
            VERSION,
            frame.kind,
            frame.flags,
            position,
            synced_before,
            frame.replica_id,
            frame.raft_group,
            payload_bytes,
            frame.term,
            frame.index,
            frame.entry_kind,
            0,
            payload_crc,
        )
        buffers.append(summed + pack_crc(checksum(summed)))
        buffers.extend(payload)
        positions.append(position)
        position += HEADER_BYTES + payload_bytes
    return buffers, positions, position


def decode_header(data: bytes, offset: int, position: int) -> Header | None:
    """Read the header at `offset` of `data`; None unless it is one, and that of `position`."""
    if data[offset : offset + 4] != MAGIC or len(data) - offset < HEADER_BYTES:
        return None
    fields = _HEADER.unpack_from(data, offset)
    if google_crc32c.value(data[offset : offset + _SUMMED.size]) != fields[14]:
        return None
    if fields[1] != VERSION or fields[4] != position:
        return None
    _magic, _version, kind, flags, _position, synced_before, replica_id, raft_group = fields[:8]
    length, term, index, entry_kind, _reserved, payload_crc, _header_crc = fields[8:]
    return Header(
        kind,
        flags,
        position,
        synced_before,
        replica_id,
        raft_group,
        length,
        term,
        index,
        entry_kind,
        payload_crc,
    )


def payload_matches(header: Header, payload: bytes) -> bool:
    """Whether `payload` is whole and has the CRC that the header names."""
    return (
        len(payload) == header.payload_bytes and google_crc32c.value(payload) == header.payload_crc
    )


def payload_bytes(frame: Frame) -> int:
    """Return the length of a frame's payload."""
    return sum(map(len, frame.payload))


def hard_state_frame(replica_id: int, raft_group: int, term: int, vote: int, commit: int) -> Frame:
    """Return the frame that keeps a replica's term, vote and commit index."""
    return Frame(
        FrameKind.HARD_STATE,
        replica_id,
        raft_group,
        term,
        0,
        payload=(_HARD_STATE.pack(vote, commit),),
    )


def decode_hard_state(payload: bytes) -> tuple[int, int]:
    """Return (vote, commit) of a hard state frame's payload."""
    vote, commit = _HARD_STATE.unpack(payload)
    return vote, commit


def checkpoint_part(payload: Sequence[bytes]) -> tuple[int, bool]:
    """Return (part number, whether it is the last part) of a checkpoint frame's payload.

    This is all that the log knows of the payload (docs/data-layout.md section 6).

    Raises:
        ValueError: it is too short.
    """
    size = _CHECKPOINT_PART.size
    head = payload[0] if payload and len(payload[0]) >= size else b"".join(payload)
    if len(head) < size:
        raise ValueError("a checkpoint frame's payload begins with version, flags and part number")
    _version, flags, part = _CHECKPOINT_PART.unpack_from(head)
    return part, bool(flags & _LAST_PART)


def moved_copy(stored: StoredFrame) -> Frame:
    """Return the frame that relocation writes: the same entry, superseding nothing."""
    return Frame(
        stored.kind,
        stored.replica_id,
        stored.raft_group,
        stored.term,
        stored.index,
        stored.entry_kind,
        FLAG_MOVED,
        (stored.payload,),
    )


def hole_frame(length: int) -> Frame:
    """Return the frame of `length` bytes that stands where a repair gave bytes up."""
    return Frame(FrameKind.HOLE, NO_REPLICA, 0, 0, 0, payload=(bytes(length - HEADER_BYTES),))


def mark_frame() -> Frame:
    """Return the frame that says nothing but what was durable when it was written."""
    return hard_state_frame(NO_REPLICA, 0, 0, 0, 0)
