"""Contents of a segment per replica, and their form in a sealed segment: footer and trailer.

Layout: docs/data-layout.md section 2. The `Contents` of the segment being written is in memory; the
`Contents` of a sealed segment is read back from its footer on demand (rule 2).

It does not know other segments: `index.py` knows what a later segment supersedes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import google_crc32c

from strata_seglog.columns import BYTES_PER_ROW, EntryColumns
from strata_seglog.frames import (
    FLAG_MOVED,
    HEADER_BYTES,
    FrameKind,
    checkpoint_part,
    decode_hard_state,
)

TRAILER_BYTES = 24
NO_CHECKPOINT = (1 << 64) - 1

_TRAILER_MAGIC = b"SMQT"
_TRAILER = struct.Struct(">4sQII")
_CRC = struct.Struct(">I")
_COUNT = struct.Struct(">I")
_SECTION = struct.Struct(">QIIQQQQQI")
_REMOVED = 1
_RETURNED = 2


@dataclass(slots=True)
class FooterSection:
    """One replica in one segment.

    Term, vote and commit are all 0 if no hard state stands in this segment. The checkpoint
    fields are log positions of a first part or `NO_CHECKPOINT`: of the newest set completed in
    this segment, and of a set begun (here or earlier) and not ended. `next_part` is the part
    that the open set waits for, -1 if that is not known. `removed` and `returned`: the replica id
    ended here, or was taken back; the later of the two.
    """

    replica_id: int
    raft_group: int
    removed: bool = False
    returned: bool = False
    term: int = 0
    vote: int = 0
    commit: int = 0
    checkpoint: int = NO_CHECKPOINT
    open_checkpoint: int = NO_CHECKPOINT
    next_part: int = -1
    columns: EntryColumns = field(default_factory=EntryColumns)

    @property
    def has_hard_state(self) -> bool:
        """Whether this segment holds a hard state of the replica."""
        return bool(self.term or self.vote or self.commit)

    def end(self) -> None:
        """Note that the replica id has ended: its checkpoints went with it."""
        self.removed, self.returned = True, False
        self.checkpoint = self.open_checkpoint = NO_CHECKPOINT
        self.next_part = -1

    def add_checkpoint_part(self, position: int, part: int, *, last: bool) -> None:
        """Note a checkpoint frame: parts count from 0, a set is complete when all stand in order.

        A part out of order ends the open set: its writer gave up.
        """
        if part == 0:
            self.open_checkpoint, self.next_part = position, 0
        if self.open_checkpoint == NO_CHECKPOINT or self.next_part not in (part, -1):
            self.open_checkpoint = NO_CHECKPOINT
            return
        self.next_part = part + 1
        if last:
            self.checkpoint, self.open_checkpoint = self.open_checkpoint, NO_CHECKPOINT


class Contents:
    """All replicas in one segment."""

    __slots__ = ("base", "rows", "sections")

    def __init__(self, base: int) -> None:
        self.base = base
        self.rows = 0
        self.sections: dict[int, FooterSection] = {}

    def section(self, replica_id: int, raft_group: int) -> FooterSection:
        """Return the section of a replica, made when first named."""
        section = self.sections.get(replica_id)
        if section is None:
            section = self.sections[replica_id] = FooterSection(replica_id, raft_group)
        return section

    def add(
        self,
        section: FooterSection,
        kind: int,
        position: int,
        term: int,
        index: int,
        entry_kind: int,
        flags: int,
        payload: Sequence[bytes],
    ) -> None:
        """Note one frame of `section`'s replica that stands at log position `position`."""
        if kind == FrameKind.ENTRY:
            self.rows += 1
            section.columns.append(
                index, term, position - self.base, entry_kind, moved=bool(flags & FLAG_MOVED)
            )
        elif kind == FrameKind.HARD_STATE:
            section.term = term
            section.vote, section.commit = decode_hard_state(b"".join(payload))
        elif kind == FrameKind.CHECKPOINT:
            part, last = checkpoint_part(payload)
            section.add_checkpoint_part(position, part, last=last)
        elif kind == FrameKind.REMOVED:
            section.end()
        elif kind == FrameKind.RETURNED:
            section.removed, section.returned = False, True

    def encode(self) -> tuple[bytes, ...]:
        """Return the payload of the footer frame."""
        parts = [_COUNT.pack(len(self.sections))]
        for section in self.sections.values():
            parts.append(
                _SECTION.pack(
                    section.replica_id,
                    section.raft_group,
                    _REMOVED * section.removed + _RETURNED * section.returned,
                    section.term,
                    section.vote,
                    section.commit,
                    section.checkpoint,
                    section.open_checkpoint,
                    len(section.columns),
                )
            )
            parts.append(section.columns.encode())
        return tuple(parts)

    @classmethod
    def decode(cls, base: int, payload: bytes) -> Contents:
        """Read the payload of a footer frame whose CRC was right."""
        contents = cls(base)
        view = memoryview(payload)
        (count,) = _COUNT.unpack_from(view)
        at = _COUNT.size
        for _ in range(count):
            replica_id, raft_group, flags, term, vote, commit, checkpoint, open_checkpoint, rows = (
                _SECTION.unpack_from(view, at)
            )
            at += _SECTION.size
            end = at + rows * BYTES_PER_ROW
            contents.sections[replica_id] = FooterSection(
                replica_id,
                raft_group,
                bool(flags & _REMOVED),
                bool(flags & _RETURNED),
                term,
                vote,
                commit,
                checkpoint,
                open_checkpoint,
                columns=EntryColumns.decode(view[at:end], rows),
            )
            contents.rows += rows
            at = end
        return contents

    @property
    def payload_bytes(self) -> int:
        """Length of `encode()`."""
        return footer_payload_bytes(len(self.sections), self.rows)


def footer_payload_bytes(replicas: int, rows: int) -> int:
    """Return the length of a footer's payload."""
    return _COUNT.size + replicas * _SECTION.size + rows * BYTES_PER_ROW


def seal_bytes(replicas: int, rows: int) -> int:
    """Return the room that a segment needs for its footer frame and trailer."""
    return HEADER_BYTES + footer_payload_bytes(replicas, rows) + TRAILER_BYTES


def encode_trailer(footer_offset: int, footer_bytes: int) -> bytes:
    """Return the last bytes of a sealed segment: where the footer frame is and how long."""
    summed = _TRAILER.pack(_TRAILER_MAGIC, footer_offset, footer_bytes, 0)
    return summed + _CRC.pack(google_crc32c.value(summed))


def decode_trailer(data: bytes) -> tuple[int, int] | None:
    """Return (footer offset, footer frame length); None: `data` is not a trailer."""
    if len(data) != TRAILER_BYTES or data[:4] != _TRAILER_MAGIC:
        return None
    summed, (crc,) = data[: _TRAILER.size], _CRC.unpack_from(data, _TRAILER.size)
    if google_crc32c.value(summed) != crc:
        return None
    _magic, offset, length, _reserved = _TRAILER.unpack(summed)
    return offset, length
