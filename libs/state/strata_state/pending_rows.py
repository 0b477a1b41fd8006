"""Rows of pending messages, by due time, and the pins that find them by name."""

from __future__ import annotations

from collections.abc import Iterator

from strata_mq import layout
from strata_mq.layout import (
    ORDINAL_OF_ALL,
    PendingKey,
    PendingRef,
    PendingRow,
    PinRow,
    PinRun,
    PinState,
    RowKind,
    prefix_end,
)
from strata_state.ports import RowBatch
from strata_state.rows_of_kind import RowsOfKind

_FIRST = PendingKey(0, 0, 0)
_FIRST_REF = PendingRef(0, 0)


class PendingRows(RowsOfKind):
    """Messages that wait, the earliest first."""

    KIND = RowKind.PENDING
    __slots__ = ()

    def get(self, key: PendingKey) -> PendingRow | None:
        """Return a row."""
        value = self._store.get(layout.pending_key(self._raft_group, key))
        return None if value is None else PendingRow.decode(value)

    def put(self, batch: RowBatch, key: PendingKey, row: PendingRow) -> None:
        """Write a row."""
        self.put_encoded(batch, key, row.encode())

    def put_encoded(self, batch: RowBatch, key: PendingKey, value: bytes) -> None:
        """Write a row's bytes."""
        batch.put(layout.pending_key(self._raft_group, key), value)

    def delete(self, batch: RowBatch, key: PendingKey) -> None:
        """Remove a row."""
        batch.delete(layout.pending_key(self._raft_group, key))

    def scan(self, begin: PendingKey = _FIRST) -> Iterator[tuple[PendingKey, PendingRow]]:
        """Iterate (key, row) from `begin` on, included, by due time, as they are at the call.

        Begin at a bound below which nothing waits, not at the start (rule 27): what was resolved
        lies there as tombstones. Take what is needed of it (`itertools.islice`).
        """
        first = layout.pending_key(self._raft_group, begin)
        rows = self._store.scan(first, prefix_end(self._prefix))
        return ((layout.parse_pending_key(key), PendingRow.decode(value)) for key, value in rows)

    def keys(self, begin: PendingKey = _FIRST) -> Iterator[PendingKey]:
        """Iterate keys as `scan` does."""
        first = layout.pending_key(self._raft_group, begin)
        return (
            layout.parse_pending_key(key)
            for key, _ in self._store.scan(first, prefix_end(self._prefix))
        )

    def kinds(self, begin: PendingKey = _FIRST) -> Iterator[int]:
        """Iterate the kinds (`PartKind`) of rows as `scan` does."""
        first = layout.pending_key(self._raft_group, begin)
        return (
            layout.kind_of_pending(value)
            for _, value in self._store.scan(first, prefix_end(self._prefix))
        )


class PinRows(RowsOfKind):
    """Messages that were stored to wait, by name: those that wait, and those that were placed."""

    KIND = RowKind.PIN
    __slots__ = ()

    def get(self, ref: PendingRef) -> PinRow | None:
        """Return a message's pin; None: it was dropped, or trimmed, or never there."""
        value = self._store.get(layout.pin_key(self._raft_group, ref))
        return None if value is None else PinRow.decode(value)

    def put(self, batch: RowBatch, ref: PendingRef, row: PinRow) -> None:
        """Write a pin."""
        self.put_encoded(batch, ref, row.encode())

    def put_encoded(self, batch: RowBatch, ref: PendingRef, value: bytes) -> None:
        """Write a pin's bytes."""
        batch.put(layout.pin_key(self._raft_group, ref), value)

    def delete(self, batch: RowBatch, ref: PendingRef) -> None:
        """Remove a pin."""
        batch.delete(layout.pin_key(self._raft_group, ref))

    def delete_run(self, batch: RowBatch, run: PinRun) -> None:
        """Remove the pins of a run; a single one without a range, which would slow readers down."""
        first = layout.pin_key(self._raft_group, run.first)
        if run.end == run.first.following():
            batch.delete(first)
        else:
            batch.delete_range(first, layout.pin_key(self._raft_group, run.end))

    def scan(
        self, begin: PendingRef = _FIRST_REF, last_index: int | None = None
    ) -> Iterator[tuple[PendingRef, PinRow]]:
        """Iterate (name, pin) from `begin` on, included, as they are at the call.

        Args:
            begin: where to; the low index of the raft group is a good bound.
            last_index: pins of later entries are left out.
        """
        first = layout.pin_key(self._raft_group, begin)
        end = prefix_end(self._prefix)
        if last_index is not None:
            end = layout.pin_key(self._raft_group, PendingRef(last_index + 1, 0))
        rows = self._store.scan(first, end)
        return ((layout.parse_pin_key(key), PinRow.decode(value)) for key, value in rows)

    def is_lost(self, ref: PendingRef) -> bool:
        """Whether a repair of the log gave a message up before it was placed."""
        for name in (ref, PendingRef(ref.raft_index, ORDINAL_OF_ALL)):
            pin = self.get(name)
            if pin is not None and pin.state is PinState.LOST:
                return True
        return False
