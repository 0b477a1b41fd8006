"""Rows of offsets whose messages were retracted; these offsets hold nothing (docs/data-layout.md).

An object of the tier or an entry of the log may still hold such a message; these rows prevent its
return when consume queue rows are rebuilt.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from strata_mq import layout
from strata_mq.layout import PartKind, PendingRef, PinRow, RowKind
from strata_state.ports import RowBatch
from strata_state.rows_of_kind import RowsOfKind

_U32 = struct.Struct(">I")
_DAY = struct.Struct(">H")
# Raft index and ordinal of the message's pin, and the part kind.
_PINNED = struct.Struct(">QIB")
# Rows of older versions do not say the day.
_WITH_DAY = (_DAY.size, _DAY.size + _PINNED.size)


class RetractedRows(RowsOfKind):
    """One row per offset, until its queue is trimmed beyond it and a day or two have passed.

    However soon an offset is trimmed that holds nothing, a repeat of the recall gets the answer of
    the first one (rule 37).
    """

    KIND = RowKind.RETRACTED
    __slots__ = ()

    def put(
        self,
        batch: RowBatch,
        topic_id: int,
        queue: int,
        offset: int,
        *,
        day: int,
        pinned: tuple[PendingRef, PinRow] | None = None,
    ) -> None:
        """Write the row of an offset.

        Args:
            batch: where to.
            topic_id: the topic.
            queue: the queue.
            offset: its message was retracted.
            day: `day_of` the time of the recall.
            pinned: the pin of a message that waited before it got the offset. The log gives up the
                entry that says so, and a repeat of the recall still looks for the pin (rule 37).
        """
        pin = b"" if pinned is None else _PINNED.pack(*pinned[0], pinned[1].kind)
        batch.put(self._key(topic_id, queue, offset), _DAY.pack(day) + pin)

    def has(self, topic_id: int, queue: int, offset: int) -> bool:
        """Whether the message at an offset was taken back."""
        return self._store.get(self._key(topic_id, queue, offset)) is not None

    def offsets(self, topic_id: int, queue: int, first: int, end: int) -> Iterator[int]:
        """Iterate those from `first` to before `end`, as they are at the call."""
        begin, stop = self._key(topic_id, queue, first), self._key(topic_id, queue, end)
        return (layout.offset_of_key(key) for key, _ in self._store.scan(begin, stop))

    def all(self) -> Iterator[tuple[int, int, int]]:
        """Iterate (topic, queue, offset), as they are at the call."""
        return (
            (*layout.parse_queue_key(key), layout.offset_of_key(key))
            for key, _ in self._scan(self._prefix)
        )

    def pins(self) -> Iterator[tuple[PendingRef, PinRow]]:
        """Iterate the pins of messages that waited before they were retracted."""
        for key, value in self._scan(self._prefix):
            pin = value[_DAY.size :] if len(value) in _WITH_DAY else value
            if pin:
                index, ordinal, kind = _PINNED.unpack(pin)
                place = (*layout.parse_queue_key(key), layout.offset_of_key(key))
                yield PendingRef(index, ordinal), PinRow.placed(PartKind(kind), *place)

    def expire(self, batch: RowBatch, topic_id: int, queue: int, offset: int, day: int) -> None:
        """Remove the rows below an offset, up to the first that is of `day` or later."""
        begin, end = self._key(topic_id, queue, 0), self._key(topic_id, queue, offset)
        stop = begin
        for key, value in self._store.scan(begin, end):
            if len(value) in _WITH_DAY and _DAY.unpack_from(value)[0] >= day:
                break
            stop = key + b"\0"
        # Few queues ever have one, and every range that is deleted costs readers.
        if stop != begin:
            batch.delete_range(begin, stop)

    def delete_topic(self, batch: RowBatch, topic_id: int) -> None:
        """Remove a topic's rows."""
        self._delete_stored_of(batch, self._prefix + _U32.pack(topic_id))

    def _key(self, topic_id: int, queue: int, offset: int) -> bytes:
        return layout.retracted_key(self._raft_group, topic_id, queue, offset)
