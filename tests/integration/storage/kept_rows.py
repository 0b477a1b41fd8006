"""Rows of a raft group that every rebuild must give again."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from strata_mq.layout.pending_rows import PendingRef, decode_id
from strata_mq.layout.rows import QueueRow, RowKind, parse_message_key_key, parse_queue_key
from strata_state.ports import Row

_KIND_AT = 4
_TOPIC = struct.Struct(">I")
# Behind raft group, kind and day.
_TOPIC_AT = 7


def kept_rows(rows: Sequence[Row]) -> list[Row]:
    """Return all rows but those of ids and keys of messages that were trimmed.

    Those go with their day, or with the next rebuild, whichever is first. The applied row moves
    with the no-op of every term.
    """
    begins = {
        parse_queue_key(key): QueueRow.decode(value).min_offset
        for key, value in rows
        if key[_KIND_AT] == RowKind.QUEUE
    }
    return [row for row in rows if _is_kept(row, begins)]


def _is_kept(row: Row, begins: dict[tuple[int, int], int]) -> bool:
    key, value = row
    kind = key[_KIND_AT]
    if kind == RowKind.APPLIED:
        return False
    if kind == RowKind.ID:
        place = decode_id(value)
        if isinstance(place, PendingRef):
            return True
        queue, offset = place
    elif kind == RowKind.KEY:
        queue, offset = parse_message_key_key(key)
    else:
        return True
    (topic_id,) = _TOPIC.unpack_from(key, _TOPIC_AT)
    return offset >= begins[topic_id, queue]
