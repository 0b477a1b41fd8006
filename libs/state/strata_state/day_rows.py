"""Rows in day buckets: the place of a message by id or by key, and the end of a message."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import chain, repeat

from strata_mq import layout
from strata_mq.layout import (
    MessagePosition,
    PendingRef,
    RowKind,
    decode_ended,
    decode_id,
    encode_ended,
    encode_pending_id,
    ended_key,
)
from strata_state.ports import RowBatch
from strata_state.rows_of_kind import RowsOfKind

_ID_TAIL_AT = 9
_DAY = struct.Struct(">H")


class DayRows(RowsOfKind):
    """Rows in day buckets: they expire by one range deletion (rule 27)."""

    __slots__ = ()

    def first_day(self) -> int | None:
        """Return the oldest day bucket that has a row."""
        first = next(self._scan(self._prefix), None)
        return None if first is None else _DAY.unpack_from(first[0], len(self._prefix))[0]

    def delete_before(self, batch: RowBatch, day: int) -> None:
        """Remove the buckets of earlier days."""
        end = layout.day_prefix(self._raft_group, self.KIND, day)
        batch.delete_range(self._prefix, end)


class IdRows(DayRows):
    """Place of the message with an id."""

    KIND = RowKind.ID
    __slots__ = ()

    def put_run(
        self,
        batch: RowBatch,
        day: int,
        topic_id: int,
        ids: Sequence[bytes],
        queue: int,
        base_offset: int,
    ) -> None:
        """Write rows of messages at base_offset, base_offset + 1, ... (the hot path).

        Args:
            batch: where to.
            day: `day_of` the store time.
            topic_id: the messages' topic.
            ids: 17 bytes each.
            queue: the messages' queue.
            base_offset: offset of the first one.
        """
        head = layout.id_key(self._raft_group, day, topic_id, b"")
        offsets = range(base_offset, base_offset + len(ids))
        # All values of the run in one call, as `MessagePosition` lays out each.
        values = struct.pack(
            ">" + "IQ" * len(ids),
            *chain.from_iterable(zip(repeat(queue), offsets, strict=False)),
        )
        put = batch.put
        at = 0
        for message_id in ids:
            put(head + message_id[_ID_TAIL_AT:] + message_id[:_ID_TAIL_AT], values[at : at + 12])
            at += 12

    def put_pending_run(
        self, batch: RowBatch, day: int, topic_id: int, ids: Sequence[bytes], first: PendingRef
    ) -> None:
        """Write rows of messages that were stored to wait, side by side in one batch.

        Args:
            batch: where to.
            day: `day_of` the store time, or of the time at which they were placed.
            topic_id: the messages' topic.
            ids: 17 bytes each.
            first: name of the first one.
        """
        raft_index, ordinal = first
        for number, message_id in enumerate(ids, ordinal):
            key = layout.id_key(self._raft_group, day, topic_id, message_id)
            batch.put(key, encode_pending_id(PendingRef(raft_index, number)))

    def get(
        self, day: int, topic_id: int, message_id: bytes
    ) -> MessagePosition | PendingRef | None:
        """Return where the message is that was stored last with this id on that day.

        Returns:
            Its offset; or its name if it was stored to wait, whatever became of it since.
        """
        value = self._store.get(layout.id_key(self._raft_group, day, topic_id, message_id))
        return None if value is None else decode_id(value)


class KeyRows(DayRows):
    """Messages that have a key."""

    KIND = RowKind.KEY
    __slots__ = ()

    def put(
        self, batch: RowBatch, day: int, topic_id: int, key_hash: int, queue: int, offset: int
    ) -> None:
        """Write one row."""
        key = layout.message_key_key(self._raft_group, day, topic_id, key_hash, queue, offset)
        batch.put(key, b"")

    def put_run(
        self,
        batch: RowBatch,
        day: int,
        topic_id: int,
        queue: int,
        uses: Sequence[tuple[int, int]],
    ) -> None:
        """Write rows of many messages of a queue (the hot path).

        Args:
            batch: where to.
            day: `day_of` the store time.
            topic_id: the messages' topic.
            queue: the messages' queue.
            uses: (offset, key hash) of each key.
        """
        head = layout.message_keys_head(self._raft_group, day, topic_id)
        put = batch.put
        for tail in layout.message_key_tails(queue, uses):
            put(head + tail, b"")

    def find(self, day: int, topic_id: int, key_hash: int, limit: int) -> list[tuple[int, int]]:
        """Return at most `limit` (queue, offset) of messages with a key on that day."""
        prefix = layout.message_key_prefix(self._raft_group, day, topic_id, key_hash)
        rows = zip(range(limit), self._scan(prefix), strict=False)
        return [layout.parse_message_key_key(key) for _, (key, _) in rows]


class EndedRows(DayRows):
    """How messages ended that waited and took no offset: who asks again is told the same."""

    KIND = RowKind.ENDED
    __slots__ = ()

    def expire(self, batch: RowBatch, day: int) -> None:
        """Remove the buckets of earlier days, if there are any."""
        first_day = self.first_day()
        # Every range that is deleted costs readers.
        if first_day is not None and first_day < day:
            self.delete_before(batch, day)

    def put(self, batch: RowBatch, day: int, ref: PendingRef, end: int, topic_id: int) -> None:
        """Write one row.

        Args:
            batch: where to.
            day: `day_of` the time at which it ended.
            ref: the message's name.
            end: how it ended, an `EndedAs`.
            topic_id: its topic.
        """
        batch.put(ended_key(self._raft_group, day, ref), encode_ended(end, topic_id))

    def get(self, today: int, ref: PendingRef) -> tuple[int, int] | None:
        """Return (how it ended, topic id) of a message; None: it is not known any more.

        Args:
            today: the last day to look at.
            ref: the message's name.
        """
        first_day = self.first_day()
        for day in range(today, (today if first_day is None else first_day) - 1, -1):
            value = self._store.get(ended_key(self._raft_group, day, ref))
            if value is not None:
                return decode_ended(value)
        return None
