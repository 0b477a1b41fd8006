"""Tombstones that may go: small, so kept in memory beside the speculative rows."""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice

from strata.meta.v1 import meta_pb2
from strata_state.metadata import MetadataStore
from strata_state.metadata_keys import MetadataRowKind, kind_range

TombstoneId = tuple[meta_pb2.TombstoneKind.ValueType, int]
"""Kind of the thing that was deleted, and its id."""


class DoneTombstones:
    """The tombstones that may go, the one done for longest first; bounded by `max_tombstones`."""

    def __init__(self) -> None:
        self._done: OrderedDict[TombstoneId, None] = OrderedDict()

    @classmethod
    def load(cls, store: MetadataStore) -> DoneTombstones:
        """Read the rows; a row's revision is that at which it was marked done."""
        rows = [
            meta_pb2.Tombstone.FromString(value)
            for _, value in store.scan(*kind_range(MetadataRowKind.TOMBSTONE))
        ]
        tombstones = cls()
        for row in sorted(rows, key=lambda row: row.revision):
            tombstones._take_row(row, deleted=False)
        return tombstones

    def take(self, change: meta_pb2.Change) -> None:
        """Take in a change; those of other rows do not matter here."""
        if change.WhichOneof("row") == "tombstone":
            self._take_row(change.tombstone, deleted=change.deleted)

    def oldest(self, first: int, count: int) -> list[TombstoneId]:
        """Return at most `count` ids from the place `first` on."""
        return list(islice(self._done, first, first + count))

    def _take_row(self, row: meta_pb2.Tombstone, *, deleted: bool) -> None:
        if deleted:
            self._done.pop((row.kind, row.id), None)
        elif row.done:
            self._done[row.kind, row.id] = None
