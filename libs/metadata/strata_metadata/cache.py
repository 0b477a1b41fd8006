"""A durable copy of the metadata, so that a node knows its peers without a nameserver (rule 16).

Rows are in a metadata store under the same keys as at the nameservers. The revision is in the
applied row (index and term stay 0), written in one batch with the rows it counts. The copy lags
behind the nameservers: a reader gets rows that were true a moment ago.

A snapshot is installed part by part (see `install`). From its first part to its last the rows are
of no revision, also after a restart: the snapshot may be of another history than the rows that it
replaces. So one that breaks off must come again from its start, and nobody is told half of it;
sinks keep what they were told. A mark in place of the applied row says so, and holds that row.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterator, Sequence
from dataclasses import dataclass

from strata.meta.v1 import command_pb2, meta_pb2
from strata_angelia.cluster_id import ClusterId
from strata_metadata.follower import KnownRevision, MetadataSink
from strata_metadata.identity import KnownNode, look_up_node
from strata_metadata.install import WHOLE_KINDS, SnapshotInstall
from strata_metadata.options import WatchOptions
from strata_metadata.rows import SNAPSHOT_ORDER, change_of, key_of, value_of
from strata_metadata.topic_ids import ensure_id_rows, id_rows, ids_mark
from strata_metadata.watch import Revision, WatchHub
from strata_runtime.metrics import Metrics
from strata_state.metadata import FrozenRows, MetadataStore, MetadataStoreError, Row
from strata_state.metadata_keys import APPLIED_KEY, INSTALLING_KEY, MetadataRowKind, kind_range


@dataclass(frozen=True, slots=True)
class FrozenMetadata:
    """The metadata as they stood at one revision; another thread may read them.

    Attributes:
        revision: of the rows.
        rows: as they stood; whoever froze them closes them.
    """

    revision: int
    rows: FrozenRows

    def all(self) -> Iterator[Row]:
        """Iterate every row that watchers see, those first that others refer to.

        Raises:
            MetadataStoreError: the store was closed meanwhile.
        """
        for kind in SNAPSHOT_ORDER:
            yield from self.rows.scan(*kind_range(kind))


class MetadataCache:
    """A sink that keeps what it was told, and passes it on.

    Args:
        store: the rows; what it holds is given to `sinks` at once. Closed by its owner.
        options: limits of the watch streams served from here.
        metrics: watchers.
        sinks: told everything after it is in the store.
        sink_kinds: rows that sinks are told of what the store holds when it is opened. If it was
            closed while a snapshot replaced its rows, those that were not replaced yet: placement.
        cluster: that the process belongs to; None: to none.

    Attributes:
        changes_taken: changes of rows that came since the start, rows of snapshots among them.
    """

    def __init__(
        self,
        store: MetadataStore,
        options: WatchOptions,
        metrics: Metrics,
        *,
        sinks: Sequence[MetadataSink] = (),
        sink_kinds: Collection[MetadataRowKind] = SNAPSHOT_ORDER,
        cluster: ClusterId | None = None,
    ) -> None:
        self.changes_taken = 0
        self._store = store
        self._sinks = tuple(sinks)
        value = store.get(APPLIED_KEY)
        before = store.get(INSTALLING_KEY) if value is None else None
        self._is_replaced = before is not None
        applied = command_pb2.AppliedState.FromString(value or before or b"")
        self._known_revision = applied.counters.revision
        # The cluster of these rows, as their source said.
        self._cluster_id = applied.cluster_id
        self._synced_revision = self._known_revision
        self._stamp = 0 if self._is_replaced else applied.counters.stamp
        self._hub = WatchHub(
            store, self.revision, options, metrics=metrics, cluster=cluster, stamp=self._stamp
        )
        # A snapshot of which parts have come.
        self._install: SnapshotInstall | None = None
        if self._is_replaced:
            self._hub.pause()
        if self._known_revision:
            ensure_id_rows(store, self._known_revision)
            kinds = set(sink_kinds) & WHOLE_KINDS if self._is_replaced else sink_kinds
            for response in self._parts(kinds, options.response_changes):
                for sink in self._sinks:
                    sink.apply(response)

    @property
    def revision(self) -> int:
        """Revision of the rows; 0: nothing was ever taken in, or a snapshot is replacing them."""
        return 0 if self._is_replaced else self._known_revision

    @property
    def known(self) -> KnownRevision:
        """The revision that sinks were told; older sources are of no use."""
        return KnownRevision(self._known_revision, self._stamp)

    @property
    def stamp(self) -> int:
        """Stamp of `revision`, as its source said; 0: not known."""
        return self._stamp

    def apply(self, response: meta_pb2.WatchResponse) -> None:
        """Take in changes (see `follower.MetadataSink`); first of all they are in the store."""
        self._cluster_id = response.cluster_id or self._cluster_id
        if response.snapshot:
            self._begin_install()
        elif not response.snapshot_revision:
            # The rest of a snapshot never came.
            self._install = None
        if self._install is not None:
            self._take_part(self._install, response)
        elif self._is_replaced:
            raise MetadataStoreError(
                f"changes up to revision {response.revision} follow rows that are replaced in part"
            )
        elif response.changes or response.revision != self.revision:
            self._write(response)
        self.changes_taken += len(response.changes)
        for sink in self._sinks:
            sink.apply(response)

    def look_up_node(self, node_id: str) -> KnownNode:
        """Return what the rows know of a node (see `identity.look_up_node`).

        Raises:
            MetaRefused: UNAVAILABLE: not all rows are here.
        """
        return look_up_node(self._store, node_id)

    def sync(self) -> None:
        """Make what was taken in survive a power failure, if anything was. Blocks on the disk."""
        revision = self.revision
        if revision != self._synced_revision:
            self._store.sync()
            self._synced_revision = revision

    async def snapshot(self) -> tuple[int, list[meta_pb2.Change]]:
        """Return the revision and all rows (see `WatchHub.snapshot`)."""
        return await self._hub.snapshot()

    def freeze_after(self, revision: int) -> FrozenMetadata | None:
        """Return the rows as they stand now, however many; None: they are not newer than that.

        Nor are they given while a snapshot replaces them part by part.
        """
        if self.revision <= revision:
            return None
        return FrozenMetadata(self.revision, self._store.frozen())

    def watch(
        self, from_revision: int, from_stamp: int = 0
    ) -> AsyncGenerator[meta_pb2.WatchResponse, None]:
        """Return the stream of changes after `from_revision` (see `WatchHub.watch`)."""
        return self._hub.watch(from_revision, from_stamp)

    def close(self) -> None:
        """End every watch stream."""
        self._hub.close()

    def _begin_install(self) -> None:
        """Mark the rows as being replaced, before the first of them is.

        A copy without an applied row is of no revision anyway, or marked already.
        """
        self._install = None
        applied = self._store.get(APPLIED_KEY)
        if applied is not None:
            self._store.write([(INSTALLING_KEY, applied)], [APPLIED_KEY])
            self._is_replaced, self._stamp = True, 0
            self._hub.pause()
        self._install = SnapshotInstall(self._store)

    def _take_part(self, install: SnapshotInstall, response: meta_pb2.WatchResponse) -> None:
        install.take(response.changes)
        if response.revision:
            install.finish(self._applied_row(response), ids_mark(response.revision))
            self._install, self._is_replaced = None, False
            self._known_revision, self._stamp = response.revision, response.stamp
            self._hub.reset(response.revision, response.stamp)
            self._hub.resume()

    def _write(self, response: meta_pb2.WatchResponse) -> None:
        rows = {key_of(change): value_of(change) for change in response.changes}
        rows[APPLIED_KEY] = self._applied_row(response)
        ids, old_ids = id_rows(self._store, response.changes)
        puts = [(key, value) for key, value in rows.items() if value is not None]
        deletes = [key for key, value in rows.items() if value is None]
        self._store.write([*puts, *ids, ids_mark(response.revision)], [*deletes, *old_ids])
        before, self._known_revision = self._known_revision, response.revision
        self._stamp = response.stamp
        self._hub.publish(
            [Revision(before, response.revision, tuple(response.changes), response.stamp)]
        )

    def _parts(
        self, kinds: Collection[MetadataRowKind], part_changes: int
    ) -> Iterator[meta_pb2.WatchResponse]:
        """Yield the rows of some kinds as a snapshot of many parts: it is never whole in memory."""
        revision = self._known_revision
        response = meta_pb2.WatchResponse(snapshot=True, snapshot_revision=revision)
        for kind in SNAPSHOT_ORDER:
            for key, value in self._store.scan(*kind_range(kind)) if kind in kinds else ():
                if len(response.changes) >= part_changes:
                    yield response
                    response = meta_pb2.WatchResponse(snapshot_revision=revision)
                response.changes.append(change_of(key, value))
        response.revision, response.cluster_id = revision, self._cluster_id
        yield response

    def _applied_row(self, response: meta_pb2.WatchResponse) -> bytes:
        counters = command_pb2.Counters(revision=response.revision, stamp=response.stamp)
        applied = command_pb2.AppliedState(counters=counters, cluster_id=self._cluster_id)
        return applied.SerializeToString()
