"""Rows of one raft group by kind (docs/data-layout.md section 5): one small class each.

A class knows the key ranges of its rows and how to find them; `strata_mq.layout.rows` defines their
bytes, and the state machine decides when to write them. Every write is put into a batch that the
caller writes together with the applied row (rule 5). Rows of ownership are in `own_rows`, rows in
day buckets in `day_rows`, rows of pending messages in `pending_rows`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import chain, islice

from strata_mq import layout
from strata_mq.commands import decode_lease
from strata_mq.layout import (
    CHECKPOINT_KINDS,
    AppliedRow,
    BrokerRow,
    ConfigurationRow,
    CqRow,
    HeadRow,
    LocalRow,
    QueueRow,
    RowKind,
)
from strata_mq.leases import Lease
from strata_state.day_rows import EndedRows, IdRows, KeyRows
from strata_state.lite_rows import LiteRows
from strata_state.own_rows import MoveRows, OwnedRows, OwnRevisionRow, QueuePlaceRows
from strata_state.pending_rows import PendingRows, PinRows
from strata_state.ports import Row, RowBatch, StateStore
from strata_state.retracted_rows import RetractedRows
from strata_state.rows_of_kind import RowsOfKind
from strata_state.tier_rows import TierRows
from strata_state.trace_rows import ClientNameRows, TraceRows

_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_CQ_TAIL = struct.Struct(">IIQ")
_TOMBSTONE = struct.Struct(">BI")
_ROWS_BEFORE_LEAP = 16
"""Rows that are read one by one before a seek pays."""

ConsumerKey = tuple[int, int, int]
"""(consumer group id, topic id, queue)."""


class AppliedRows(RowsOfKind):
    """The one applied row."""

    KIND = RowKind.APPLIED
    __slots__ = ()

    def get(self) -> AppliedRow:
        """Return it; zeros if nothing was ever applied."""
        value = self._store.get(self._prefix)
        return AppliedRow(0, 0, 0) if value is None else AppliedRow.decode(value)

    def put(self, batch: RowBatch, row: AppliedRow) -> None:
        """Write it."""
        batch.put(self._prefix, row.encode())


class QueueRows(RowsOfKind):
    """One row per queue that was ever used here."""

    KIND = RowKind.QUEUE
    __slots__ = ()

    def get(self, topic_id: int, queue: int) -> QueueRow | None:
        """Return a queue's row."""
        value = self._store.get(layout.queue_key(self._raft_group, topic_id, queue))
        return None if value is None else QueueRow.decode(value)

    def put(self, batch: RowBatch, topic_id: int, queue: int, row: QueueRow) -> None:
        """Write a queue's row."""
        batch.put(layout.queue_key(self._raft_group, topic_id, queue), row.encode())

    def all_keys(self) -> Iterator[tuple[int, int]]:
        """Iterate (topic, queue) as they are at the call."""
        return (layout.parse_queue_key(key) for key, _ in self._scan(self._prefix))

    def of_topic(self, topic_id: int) -> list[tuple[int, QueueRow]]:
        """Return (queue, row) of a topic."""
        return [
            (layout.parse_queue_key(key)[1], QueueRow.decode(value))
            for key, value in self._scan(self._prefix + _U32.pack(topic_id))
        ]

    def all(self) -> Iterator[tuple[int, int, QueueRow]]:
        """Iterate (topic, queue, row) as they are at the call."""
        rows = self._scan(self._prefix)
        return ((*layout.parse_queue_key(key), QueueRow.decode(value)) for key, value in rows)

    def delete(self, batch: RowBatch, topic_id: int, queue: int) -> None:
        """Remove a queue's row."""
        batch.delete(layout.queue_key(self._raft_group, topic_id, queue))

    def after(self, place: tuple[int, int] | None, limit: int) -> list[tuple[int, int, QueueRow]]:
        """Return at most so many (topic, queue, row) behind a queue; None: from the first one.

        For walks over all queues with pauses: a million rows are never in memory at once.
        """
        first = self._prefix
        if place is not None:
            first = layout.queue_key(self._raft_group, *place) + b"\x00"
        rows = islice(self._store.scan(first, layout.prefix_end(self._prefix)), limit)
        return [(*layout.parse_queue_key(key), QueueRow.decode(value)) for key, value in rows]

    def delete_topic(self, batch: RowBatch, topic_id: int) -> None:
        """Remove a topic's rows."""
        self._delete_stored_of(batch, self._prefix + _U32.pack(topic_id))


class CqRows(RowsOfKind):
    """One row per run of messages that one entry stored in one queue."""

    KIND = RowKind.CQ
    __slots__ = ()

    def put(
        self, batch: RowBatch, topic_id: int, queue: int, base_offset: int, value: bytes
    ) -> None:
        """Write a row made by `strata_mq.layout.cq_rows.encode_cq_row`."""
        batch.put(layout.cq_key(self._raft_group, topic_id, queue, base_offset), value)

    def covering(self, topic_id: int, queue: int, offset: int) -> tuple[int, CqRow] | None:
        """Return (base offset, row) of the run that holds `offset`."""
        found = self.at_or_before(topic_id, queue, offset)
        return found if found is not None and offset < found[0] + found[1].count else None

    def at_or_before(self, topic_id: int, queue: int, offset: int) -> tuple[int, CqRow] | None:
        """Return (base offset, row) of the last run that begins at or before `offset`."""
        prefix = layout.cq_prefix(self._raft_group, topic_id, queue)
        found = self._store.last_before(prefix, prefix + _U64.pack(offset))
        return None if found is None else (layout.offset_of_key(found[0]), CqRow(found[1]))

    def from_base(self, topic_id: int, queue: int, base_offset: int) -> Iterator[tuple[int, CqRow]]:
        """Iterate (base offset, row) from a base offset on."""
        prefix = layout.cq_prefix(self._raft_group, topic_id, queue)
        rows = self._store.scan(prefix + _U64.pack(base_offset), layout.prefix_end(prefix))
        return ((layout.offset_of_key(key), CqRow(value)) for key, value in rows)

    def all(self) -> Iterator[tuple[int, int, int, CqRow]]:
        """Iterate (topic, queue, base offset, row) as they are at the call."""
        at = len(self._prefix)
        rows = self._scan(self._prefix)
        return ((*_CQ_TAIL.unpack_from(key, at), CqRow(value)) for key, value in rows)

    def delete(self, batch: RowBatch, topic_id: int, queue: int, base_offset: int) -> None:
        """Remove one row."""
        batch.delete(layout.cq_key(self._raft_group, topic_id, queue, base_offset))

    def delete_below(self, batch: RowBatch, topic_id: int, queue: int, base_offset: int) -> None:
        """Remove rows whose base is below `base_offset`."""
        prefix = layout.cq_prefix(self._raft_group, topic_id, queue)
        self._delete_stored(batch, prefix, prefix + _U64.pack(base_offset))

    def delete_queue(self, batch: RowBatch, topic_id: int, queue: int) -> None:
        """Remove a queue's rows."""
        self._delete_stored_of(batch, layout.cq_prefix(self._raft_group, topic_id, queue))

    def delete_topic(self, batch: RowBatch, topic_id: int) -> None:
        """Remove a topic's rows."""
        self._delete_stored_of(batch, self._prefix + _U32.pack(topic_id))


class HeadRows(RowsOfKind):
    """Head and generation per (consumer group, topic, queue)."""

    KIND = RowKind.HEAD
    __slots__ = ()

    def get(self, key: ConsumerKey) -> HeadRow | None:
        """Return a head row."""
        value = self._store.get(layout.head_key(self._raft_group, *key))
        return None if value is None else HeadRow.decode(value)

    def put(self, batch: RowBatch, key: ConsumerKey, row: HeadRow) -> None:
        """Write a head row."""
        batch.put(layout.head_key(self._raft_group, *key), row.encode())

    def all_keys(self) -> Iterator[ConsumerKey]:
        """Iterate (consumer group, topic, queue) as they are at the call."""
        return (layout.parse_head_key(key) for key, _ in self._scan(self._prefix))

    def of_topic(self, topic_id: int) -> list[ConsumerKey]:
        """Return the keys of a topic's rows.

        Rows of other topics are read one by one where a consumer group has few, and leapt over
        where it has many: a group with a row in each of a million topics costs three seeks.
        """
        end = layout.prefix_end(self._prefix)
        found: list[ConsumerKey] = []
        rows = self._store.scan(self._prefix, end)
        consumer_group_id, passed = -1, 0
        while (row := next(rows, None)) is not None:
            key = layout.parse_head_key(row[0])
            if key[1] == topic_id:
                found.append(key)
                passed = 0
                continue
            if key[0] != consumer_group_id:
                consumer_group_id, passed = key[0], 0
            passed += 1
            if passed < _ROWS_BEFORE_LEAP:
                continue
            of_group = self._prefix + _U32.pack(consumer_group_id)
            if key[1] < topic_id:
                rows = self._store.scan(of_group + _U32.pack(topic_id), end)
            else:
                rows = self._store.scan(layout.prefix_end(of_group), end)
            passed = 0
        return found

    def consumer_groups(self, topic_id: int) -> Iterator[int]:
        """Iterate the consumer groups with a row of a topic, rising: two seeks for each in all."""
        end = layout.prefix_end(self._prefix)
        begin = self._prefix
        while (found := next(self._store.scan(begin, end), None)) is not None:
            consumer_group_id, found_topic_id, _ = layout.parse_head_key(found[0])
            of_group = self._prefix + _U32.pack(consumer_group_id)
            if found_topic_id < topic_id:
                begin = of_group + _U32.pack(topic_id)
                continue
            if found_topic_id == topic_id:
                yield consumer_group_id
            begin = layout.prefix_end(of_group)

    def topics(self, consumer_group_id: int, limit: int) -> list[int]:
        """Return the first `limit` topics of a consumer group, rising: one seek for each."""
        prefix = self._prefix + _U32.pack(consumer_group_id)
        end = layout.prefix_end(prefix)
        topic_ids: list[int] = []
        begin = prefix
        while len(topic_ids) < limit:
            found = next(self._store.scan(begin, end), None)
            if found is None:
                break
            topic_id = layout.parse_head_key(found[0])[1]
            topic_ids.append(topic_id)
            begin = layout.prefix_end(prefix + _U32.pack(topic_id))
        return topic_ids

    def delete(self, batch: RowBatch, key: ConsumerKey) -> None:
        """Remove one row."""
        batch.delete(layout.head_key(self._raft_group, *key))

    def delete_group(self, batch: RowBatch, consumer_group_id: int) -> None:
        """Remove a consumer group's rows."""
        self._delete_stored_of(batch, self._prefix + _U32.pack(consumer_group_id))


class LeaseRows(RowsOfKind):
    """One row per un-acked message below head."""

    KIND = RowKind.LEASE
    __slots__ = ()

    def prefix(self, key: ConsumerKey) -> bytes:
        """Return what stands before the offset (8 bytes) in a row's key."""
        return layout.lease_prefix(self._raft_group, *key)

    def of_queue(self, key: ConsumerKey) -> list[tuple[int, Lease]]:
        """Return (offset, lease) of one (consumer group, topic, queue)."""
        return [
            (layout.offset_of_key(row_key), decode_lease(row))
            for row_key, row in self._scan(self.prefix(key))
        ]

    def all(self) -> Iterator[tuple[ConsumerKey, Lease]]:
        """Iterate all leases as they are at the call: a new leader must know what runs out when."""
        rows = self._scan(self._prefix)
        return ((layout.parse_head_key(key), decode_lease(row)) for key, row in rows)

    def delete_all(self, batch: RowBatch, key: ConsumerKey) -> None:
        """Remove the rows of one (consumer group, topic, queue), also those of the same batch."""
        self._delete(batch, self.prefix(key))

    def delete_stored(self, batch: RowBatch, key: ConsumerKey) -> None:
        """Remove the rows of one (consumer group, topic, queue) that are in the store."""
        self._delete_stored_of(batch, self.prefix(key))

    def delete_group(self, batch: RowBatch, consumer_group_id: int) -> None:
        """Remove a consumer group's rows."""
        self._delete_stored_of(batch, self._prefix + _U32.pack(consumer_group_id))


class BrokerRows(RowsOfKind):
    """The last append of each broker."""

    KIND = RowKind.BROKER
    __slots__ = ()

    def put(self, batch: RowBatch, broker_boot_id: int, row: BrokerRow) -> None:
        """Write the row of a broker."""
        batch.put(layout.broker_key(self._raft_group, broker_boot_id), row.encode())

    def all(self) -> list[tuple[int, BrokerRow]]:
        """Return (broker boot id, row)."""
        at = len(self._prefix)
        return [
            (_U64.unpack_from(key, at)[0], BrokerRow.decode(value))
            for key, value in self._scan(self._prefix)
        ]

    def delete_older(self, batch: RowBatch, store_time_ms: int) -> None:
        """Remove rows of brokers whose last append is older."""
        for boot_id, row in self.all():
            if row.store_time_ms < store_time_ms:
                batch.delete(layout.broker_key(self._raft_group, boot_id))


class TombstoneRows(RowsOfKind):
    """Runs of ids of topics and consumer groups that were dropped (rule 17)."""

    KIND = RowKind.TOMBSTONE
    __slots__ = ()

    def put(
        self, batch: RowBatch, what: int, first_id: int, last_id: int, *, group_time_ms: int
    ) -> None:
        """Write the row of a run."""
        key = layout.tombstone_key(self._raft_group, what, first_id)
        batch.put(key, layout.encode_tombstone(group_time_ms, first_id, last_id))

    def delete(self, batch: RowBatch, what: int, first_id: int) -> None:
        """Remove the row of a run."""
        batch.delete(layout.tombstone_key(self._raft_group, what, first_id))

    def all(self) -> Iterator[tuple[int, int, int]]:
        """Yield (what, first id, last id) in this order; runs may follow one another or overlap."""
        at = len(self._prefix)
        for key, value in self._scan(self._prefix):
            what, first_id = _TOMBSTONE.unpack_from(key, at)
            yield what, first_id, layout.tombstone_last_id(first_id, value)


class ConfigurationRows(RowsOfKind):
    """The one row of the raft group's configuration."""

    KIND = RowKind.CONFIGURATION
    __slots__ = ()

    def get(self) -> ConfigurationRow | None:
        """Return it; None: no configuration entry was applied yet."""
        value = self._store.get(self._prefix)
        return None if value is None else ConfigurationRow.decode(value)

    def put(self, batch: RowBatch, row: ConfigurationRow) -> None:
        """Write it."""
        batch.put(self._prefix, row.encode())


class LocalRows(RowsOfKind):
    """The one row that only this node knows."""

    KIND = RowKind.LOCAL
    __slots__ = ()

    def get(self) -> LocalRow | None:
        """Return it; None: there are no rows, or nobody knows whose they are."""
        value = self._store.get(self._prefix)
        return None if value is None else LocalRow.decode(value)

    def put(self, batch: RowBatch, row: LocalRow) -> None:
        """Write it."""
        batch.put(self._prefix, row.encode())


class UnfinishedRow(RowsOfKind):
    """A mark: the rows are being rebuilt from the log, or could not be rebuilt in full."""

    KIND = RowKind.UNFINISHED
    __slots__ = ()

    def is_set(self) -> bool:
        """Whether the rows must be rebuilt before they are used."""
        return self._store.get(self._prefix) is not None

    def set(self, batch: RowBatch) -> None:
        """Write the mark."""
        batch.put(self._prefix, b"")

    def clear(self, batch: RowBatch) -> None:
        """Remove the mark: the rows are whole."""
        batch.delete(self._prefix)


class GroupRows:
    """All rows of one raft group, by kind.

    Attributes:
        store: of all raft groups.
    """

    def __init__(self, store: StateStore, raft_group: int) -> None:
        self.store = store
        self._raft_group = raft_group
        self.applied = AppliedRows(store, raft_group)
        self.owned = OwnedRows(store, raft_group)
        self.queues = QueueRows(store, raft_group)
        self.cq = CqRows(store, raft_group)
        self.heads = HeadRows(store, raft_group)
        self.leases = LeaseRows(store, raft_group)
        self.ids = IdRows(store, raft_group)
        self.keys = KeyRows(store, raft_group)
        self.brokers = BrokerRows(store, raft_group)
        self.tombstones = TombstoneRows(store, raft_group)
        self.configuration = ConfigurationRows(store, raft_group)
        self.moves = MoveRows(store, raft_group)
        self.queue_places = QueuePlaceRows(store, raft_group)
        self.own_revision = OwnRevisionRow(store, raft_group)
        self.pending = PendingRows(store, raft_group)
        self.pins = PinRows(store, raft_group)
        self.retracted = RetractedRows(store, raft_group)
        self.ended = EndedRows(store, raft_group)
        self.traces = TraceRows(store, raft_group)
        self.client_names = ClientNameRows(store, raft_group)
        self.lite = LiteRows(store, raft_group)
        self.tier = TierRows(store, raft_group)
        self.local = LocalRows(store, raft_group)
        self.unfinished = UnfinishedRow(store, raft_group)

    def checkpoint(self) -> Iterator[Row]:
        """Iterate the rows of a checkpoint, all as they are at the call.

        Iterators are made here, not when they are driven, so that they show one picture.
        """
        scans = []
        for kind in CHECKPOINT_KINDS:
            prefix = layout.kind_prefix(self._raft_group, kind)
            scans.append(self.store.scan(prefix, layout.prefix_end(prefix)))
        return chain.from_iterable(scans)

    def all(self) -> Iterator[Row]:
        """Iterate the rows that all replicas share, as they are at the call."""
        first = layout.raft_group_prefix(self._raft_group)
        return self.store.scan(first, layout.kind_prefix(self._raft_group, RowKind.LOCAL))

    def drop(self, batch: RowBatch) -> None:
        """Remove every row of the raft group."""
        prefix = layout.raft_group_prefix(self._raft_group)
        batch.delete_range(prefix, layout.prefix_end(prefix))
