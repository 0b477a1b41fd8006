"""Watch streams: every watcher is a revision on its way to the newest one.

A watcher holds no queue: it reads the recent revisions that all watchers share, falls back to the
rows of kind "change" when it is further behind, and to a snapshot when it is too far behind for
those too. A slow watcher therefore costs one number, however slow it is.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from strata.meta.v1 import command_pb2, meta_pb2
from strata_nameserver.config import NameserverConfig
from strata_nameserver.draft import applied_state
from strata_nameserver.errors import MetaError
from strata_nameserver.rows import SNAPSHOT_ORDER, change_of
from strata_runtime.limits import Limit
from strata_runtime.metrics import Metrics
from strata_state.metadata import MetadataStore
from strata_state.metadata_keys import RowKind, change_key, kind_range


class Revision(NamedTuple):
    """One applied revision and what it changed."""

    number: int
    changes: Sequence[meta_pb2.Change]


class WatchHub:
    """Brings watchers up to date with the applied rows.

    Args:
        store: where revisions are that are not recent.
        config: limits.
        metrics: watchers and snapshots.
    """

    def __init__(self, store: MetadataStore, config: NameserverConfig, metrics: Metrics) -> None:
        self._store = store
        self._recent: deque[Revision] = deque(maxlen=config.watch_recent_changes)
        self._revision = applied_state(store).counters.revision
        self._response_changes = config.watch_response_changes
        self._watchers = Limit("metadata_watchers", config.max_watchers, "streams", metrics)
        self._snapshots_total = metrics.counter("strata_metadata_watch_snapshots_total")
        self._published = asyncio.Event()
        self._closed = False

    def publish(self, revisions: Sequence[Revision]) -> None:
        """Wake the watchers. The rows of these revisions are in the store already."""
        if not revisions:
            return
        self._recent.extend(revisions)
        self._revision = revisions[-1].number
        self._wake()

    def close(self) -> None:
        """End every stream."""
        self._closed = True
        self._wake()

    async def watch(self, from_revision: int) -> AsyncIterator[meta_pb2.WatchResponse]:
        """Yield what happened after `from_revision`, then every revision as it is applied.

        The first response comes at once, even when there is nothing new: it tells the revision.
        A snapshot too large for one response comes in several; only the last one tells a
        revision, so a watcher that is cut off between starts again from 0.

        Raises:
            MetaError: LIMIT_REACHED: too many watchers.
        """
        if not self._watchers.try_take():
            raise MetaError(
                meta_pb2.META_OUTCOME_LIMIT_REACHED,
                f"{self._watchers.maximum} watch streams are open (nameserver.max_watchers)",
            )
        try:
            revision = from_revision
            first = True
            while not self._closed:
                published = self._published
                if first or revision != self._revision:
                    for response in self._responses_after(revision):
                        yield response
                        revision = response.revision
                    first = False
                else:
                    await published.wait()
        finally:
            self._watchers.give_back()

    def snapshot(self) -> Iterator[meta_pb2.Change]:
        """Return all rows, what others refer to first."""
        for kind in SNAPSHOT_ORDER:
            for key, value in self._store.scan(*kind_range(kind)):
                yield change_of(key, value)

    @property
    def revision(self) -> int:
        """Revision of the rows that readers and watchers see."""
        return self._revision

    def _wake(self) -> None:
        self._published.set()
        self._published = asyncio.Event()

    def _responses_after(self, revision: int) -> Iterator[meta_pb2.WatchResponse]:
        if revision == self._revision and revision > 0:
            return iter([meta_pb2.WatchResponse(revision=revision)])
        # A watcher of a revision that does not exist here knew another metadata.
        if 0 < revision < self._revision:
            if self._recent and self._recent[0].number <= revision + 1:
                return self._recent_after(revision)
            if self._store.get(change_key(revision + 1)) is not None:
                return iter([self._stored_after(revision)])
        return self._whole()

    def _recent_after(self, revision: int) -> Iterator[meta_pb2.WatchResponse]:
        """Join recent revisions into responses; revisions without a gap make this an index."""
        response = meta_pb2.WatchResponse()
        for recent in list(islice(self._recent, revision + 1 - self._recent[0].number, None)):
            response.changes.extend(recent.changes)
            response.revision = recent.number
            if len(response.changes) >= self._response_changes:
                yield response
                response = meta_pb2.WatchResponse()
        if response.revision:
            yield response

    def _stored_after(self, revision: int) -> meta_pb2.WatchResponse:
        """Return the rows changed since as they stand now; each once, however often it changed."""
        keys: dict[bytes, None] = {}
        end = kind_range(RowKind.CHANGE)[1]
        for _, value in self._store.scan(change_key(revision + 1), end):
            keys.update(dict.fromkeys(command_pb2.ChangedKeys.FromString(value).keys))
        changes = [change_of(key, self._store.get(key)) for key in keys]
        return meta_pb2.WatchResponse(revision=self._revision, changes=changes)

    def _whole(self) -> Iterator[meta_pb2.WatchResponse]:
        """Snapshot as of now; what changes while it is sent follows as ordinary changes."""
        self._snapshots_total.add()
        revision = self._revision
        response = meta_pb2.WatchResponse(snapshot=True)
        for change in self.snapshot():
            if len(response.changes) >= self._response_changes:
                yield response
                response = meta_pb2.WatchResponse()
            response.changes.append(change)
        response.revision = revision
        yield response
