"""Checkpoints: a raft group's small state as frames of the log (docs/data-layout.md section 6).

A checkpoint and the retained frames give all rows again when the row store is lost (rule 6).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from strata_mq.layout import AppliedRow
from strata_seglog.frames import Frame, FrameKind
from strata_state.ports import Row

_HEAD = struct.Struct(">BBHIQ")
_ROW = struct.Struct(">HI")
_VERSION = 1
_LAST = 1
PART_BYTES = 1024 * 1024
# From this part on they are larger: a part number has two bytes, and the rows of tables may be more
# than memory. With the largest value of a table each fits into the smallest segment.
_LARGE_FROM = 0x8000
_LARGE_BYTES = 3 * PART_BYTES
_PARTS_MAX = 0xFFFF


class CheckpointError(Exception):
    """The payload is no checkpoint part of this version, or rows are too many for a checkpoint."""


def encode_checkpoint(
    rows: Iterable[Row], raft_group: int, replica_id: int, applied: AppliedRow
) -> Iterator[Frame]:
    """Lay rows out in frames of about 1 MiB, one at a time; at least one, the last one marked.

    Raises:
        CheckpointError: the rows are too many for a checkpoint, 128 GiB.
    """
    for number, (row_count, data, is_last) in enumerate(_parts(rows)):
        if number >= _PARTS_MAX:
            raise CheckpointError(f"rows are more than {_PARTS_MAX} parts of a checkpoint")
        flags = _LAST if is_last else 0
        head = _HEAD.pack(_VERSION, flags, number, row_count, applied.raft_index)
        yield Frame(
            FrameKind.CHECKPOINT,
            replica_id,
            raft_group,
            applied.term,
            applied.raft_index,
            payload=(head, data),
        )


def _parts(rows: Iterable[Row]) -> Iterator[tuple[int, bytes, bool]]:
    """Iterate (row count, rows, whether it is the last part)."""
    pieces: list[bytes] = []
    count = size = number = 0
    for key, value in rows:
        pieces += (_ROW.pack(len(key), len(value)), key, value)
        count += 1
        size += _ROW.size + len(key) + len(value)
        if size >= (PART_BYTES if number < _LARGE_FROM else _LARGE_BYTES):
            yield count, b"".join(pieces), False
            number += 1
            pieces, count, size = [], 0, 0
    yield count, b"".join(pieces), True


def decode_checkpoint(payload: bytes) -> Iterator[Row]:
    """Iterate the rows of one part.

    Raises:
        CheckpointError: another version, or rows that do not fit the payload.
    """
    try:
        version, _, _, count, _ = _HEAD.unpack_from(payload)
        if version != _VERSION:
            raise CheckpointError(f"checkpoint of version {version}")
        at = _HEAD.size
        for _ in range(count):
            key_bytes, value_bytes = _ROW.unpack_from(payload, at)
            at += _ROW.size
            key = payload[at : at + key_bytes]
            at += key_bytes
            yield key, payload[at : at + value_bytes]
            at += value_bytes
    except struct.error as error:
        raise CheckpointError(f"checkpoint part is cut: {error}") from error
    if at != len(payload):
        raise CheckpointError(f"checkpoint part has {len(payload) - at} bytes too many")
