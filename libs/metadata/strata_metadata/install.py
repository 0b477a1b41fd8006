"""Replaces all rows of a durable copy by those of a snapshot, part by part.

Topics, consumer groups and tombstones are many: they are written as they arrive, and rows that the
snapshot leaves out are deleted on the way. Rows of placement are few and make sense only as a
whole: they are written at the end, in one batch with the revision. The copy is marked before an
install begins, so that a crash in between leaves no revision above rows of two histories.

Invariant: a row of the snapshot is never deleted, in whatever order rows arrive.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from strata.meta.v1 import meta_pb2
from strata_metadata.rows import SNAPSHOT_ORDER, key_of, value_of
from strata_metadata.topic_ids import id_rows
from strata_state.metadata import MetadataStore, Row
from strata_state.metadata_keys import (
    APPLIED_KEY,
    INSTALLING_KEY,
    MetadataRowKind,
    kind_of,
    kind_range,
    topic_id_key,
)

_MANY = frozenset(
    (MetadataRowKind.TOPIC, MetadataRowKind.CONSUMER_GROUP, MetadataRowKind.TOMBSTONE)
)

WHOLE_KINDS = frozenset(SNAPSHOT_ORDER) - _MANY
"""Kinds whose rows stay as they were until the last part of a snapshot is here: placement."""


class SnapshotInstall:
    """One snapshot on its way into a store."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        # Rows that tell where things are.
        self._few: dict[bytes, bytes] = {}
        # Kind -> first key that is not compared with the snapshot yet: above all that have come.
        self._swept = {kind: kind_range(kind)[0] for kind in SNAPSHOT_ORDER}

    def take(self, changes: Iterable[meta_pb2.Change]) -> None:
        """Take in the rows of one part."""
        changes = list(changes)
        ids, old_ids = id_rows(self._store, changes)
        rows: defaultdict[MetadataRowKind, dict[bytes, bytes]] = defaultdict(dict)
        for change in changes:
            key, value = key_of(change), value_of(change)
            assert value is not None, "a snapshot deletes nothing"
            kind = kind_of(key)
            if kind in _MANY:
                rows[kind][key] = value
            else:
                self._few[key] = value
        stale: list[Row] = []
        for kind, of_kind in rows.items():
            end = max(of_kind) + b"\x00"
            stale += [row for row in self._sweep(kind, end) if row[0] not in of_kind]
        puts = [row for of_kind in rows.values() for row in of_kind.items()]
        if puts or stale:
            deletes = dict.fromkeys([*old_ids, *_with_ids(stale)])
            kept = {key for key, _ in ids}
            self._store.write([*puts, *ids], [key for key in deletes if key not in kept])

    def finish(self, applied_row: bytes, ids_mark: Row) -> None:
        """Take in that all parts have come; `applied_row` and `ids_mark` tell their revision.

        The mark of the install goes.
        """
        stale = [
            row
            for kind in SNAPSHOT_ORDER
            for row in self._sweep(kind, kind_range(kind)[1])
            if row[0] not in self._few
        ]
        puts = [*self._few.items(), (APPLIED_KEY, applied_row), ids_mark]
        self._store.write(puts, [*_with_ids(stale), INSTALLING_KEY])

    def _sweep(self, kind: MetadataRowKind, end: bytes) -> list[Row]:
        """Return the stored rows of a kind up to `end` that were not compared yet."""
        first = self._swept[kind]
        if end <= first:
            return []
        self._swept[kind] = end
        return list(self._store.scan(first, end))


def _with_ids(stale: Iterable[Row]) -> list[bytes]:
    """Return keys of rows to delete, and for topics those of their rows by id."""
    keys: list[bytes] = []
    for key, value in stale:
        keys.append(key)
        if kind_of(key) is MetadataRowKind.TOPIC:
            keys.append(topic_id_key(meta_pb2.Topic.FromString(value).topic_id))
    return keys
