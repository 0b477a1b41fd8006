"""A durable copy of the metadata: so that a node knows its peers with no nameserver (rule 16).

Rows lie in a metadata store under the keys of the nameservers' own, the revision in the applied
row (index and term stay 0), in one batch with the rows it counts. The copy lags behind the
nameservers; whoever reads it gets what was true a moment ago.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from strata.meta.v1 import command_pb2, meta_pb2
from strata_metadata.follower import MetadataSink
from strata_metadata.options import WatchOptions
from strata_metadata.rows import SNAPSHOT_ORDER, change_of, key_of, value_of
from strata_metadata.watch import Revision, WatchHub
from strata_runtime.metrics import Metrics
from strata_state.metadata import MetadataStore
from strata_state.metadata_keys import APPLIED_KEY, kind_range


class MetadataCache:
    """A sink that keeps what it was told, and passes it on.

    Args:
        store: the rows; what it holds is given to `sinks` at once. Closed by its owner.
        options: limits of the watch streams served from here.
        metrics: watchers.
        sinks: told everything after it is in the store.
    """

    def __init__(
        self,
        store: MetadataStore,
        options: WatchOptions,
        metrics: Metrics,
        *,
        sinks: Sequence[MetadataSink] = (),
    ) -> None:
        self._store = store
        self._sinks = tuple(sinks)
        value = store.get(APPLIED_KEY)
        applied = command_pb2.AppliedState.FromString(value or b"")
        self._revision = applied.counters.revision
        self._synced_revision = self._revision
        self._hub = WatchHub(store, self._revision, options, metrics)
        if self._revision:
            response = self._whole()
            for sink in self._sinks:
                sink.apply(response)

    @property
    def revision(self) -> int:
        """Revision of the rows; 0: nothing was ever taken in."""
        return self._revision

    def apply(self, response: meta_pb2.WatchResponse) -> None:
        """Take in changes (see `follower.MetadataSink`)."""
        if response.changes or response.snapshot or response.revision != self._revision:
            self._write(response)
        for sink in self._sinks:
            sink.apply(response)

    def sync(self) -> None:
        """Make what was taken in survive a power failure, if anything was. Blocks on the disk."""
        revision = self._revision
        if revision != self._synced_revision:
            self._store.sync()
            self._synced_revision = revision

    def snapshot(self) -> tuple[int, list[meta_pb2.Change]]:
        """Return the revision and all rows."""
        return self._revision, list(self._hub.snapshot())

    def watch(self, from_revision: int) -> AsyncGenerator[meta_pb2.WatchResponse, None]:
        """Return the stream of changes after `from_revision` (see `WatchHub.watch`)."""
        return self._hub.watch(from_revision)

    def close(self) -> None:
        """End every watch stream."""
        self._hub.close()

    def _write(self, response: meta_pb2.WatchResponse) -> None:
        rows: dict[bytes, bytes | None] = {}
        if response.snapshot:
            for kind in SNAPSHOT_ORDER:
                rows.update((key, None) for key, _ in self._store.scan(*kind_range(kind)))
        for change in response.changes:
            rows[key_of(change)] = value_of(change)
        counters = command_pb2.Counters(revision=response.revision)
        rows[APPLIED_KEY] = command_pb2.AppliedState(counters=counters).SerializeToString()
        self._store.write(
            [(key, value) for key, value in rows.items() if value is not None],
            [key for key, value in rows.items() if value is None],
        )
        before, self._revision = self._revision, response.revision
        if response.snapshot:
            self._hub.reset(response.revision)
        else:
            self._hub.publish([Revision(before, response.revision, tuple(response.changes))])

    def _whole(self) -> meta_pb2.WatchResponse:
        changes = [
            change_of(key, value)
            for kind in SNAPSHOT_ORDER
            for key, value in self._store.scan(*kind_range(kind))
        ]
        return meta_pb2.WatchResponse(revision=self._revision, snapshot=True, changes=changes)
