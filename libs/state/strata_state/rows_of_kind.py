"""Base of all classes of rows: the key range of one kind in one raft group."""

from __future__ import annotations

from collections.abc import Iterator

from strata_mq import layout
from strata_mq.layout import RowKind
from strata_state.ports import Row, RowBatch, StateStore


class RowsOfKind:
    """A kind's key range in one raft group."""

    KIND: RowKind

    __slots__ = ("_prefix", "_raft_group", "_store")

    def __init__(self, store: StateStore, raft_group: int) -> None:
        self._store = store
        self._raft_group = raft_group
        self._prefix = layout.kind_prefix(raft_group, self.KIND)

    def _scan(self, prefix: bytes) -> Iterator[Row]:
        return self._store.scan(prefix, layout.prefix_end(prefix))

    def _delete(self, batch: RowBatch, prefix: bytes) -> None:
        batch.delete_range(prefix, layout.prefix_end(prefix))
