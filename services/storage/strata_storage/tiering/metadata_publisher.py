"""Brings the metadata rows to the store, so that a restore knows topics and groups (rule 29).

Every storage node has the metadata; leaders publish it beside their own state. The name is the
revision, so those who publish the same rows write the same object.

There may be millions of rows: they are looked at only if they are newer than what this node
published last, by a thread, and never stand in memory but as the bytes of the archive.
"""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import Protocol

from strata_metadata import FrozenMetadata
from strata_runtime.blocking import RunBlocking
from strata_runtime.clock import Clock
from strata_tier.objects import (
    NO_RAFT_GROUP,
    Description,
    encode_archive,
    metadata_key,
)
from strata_tier.store import ObjectStore, parts_of
from strata_tier.upkeep import metadata_keys


class MetadataSource(Protocol):
    """A node's copy of the metadata."""

    @property
    def revision(self) -> int:
        """Revision of the rows; 0: none are known yet."""

    def freeze_after(self, revision: int) -> FrozenMetadata | None:
        """Return the rows as they stand; None: they are not newer than that, or not whole."""


# Newest archives that stay.
_KEPT = 3


class MetadataPublisher:
    """Publishes for one node.

    Args:
        store: where to.
        home: folder of this cluster.
        source: of the rows.
        clock: stamps the archive.
        run_read: reads the rows in a thread.
    """

    def __init__(
        self,
        store: ObjectStore,
        home: str,
        source: MetadataSource,
        *,
        clock: Clock,
        run_read: RunBlocking,
    ) -> None:
        self._store = store
        self._home = home
        self._source = source
        self._clock = clock
        self._run_read = run_read
        self._published_revision = 0
        # Leaders of several raft groups publish through this: one at a time.
        self._publishing = asyncio.Lock()

    def is_due(self) -> bool:
        """Whether the rows are newer than what this node published last."""
        return self._source.revision > self._published_revision

    async def publish(self) -> None:
        """Upload the rows if they are newer than what this node published last.

        Raises:
            StoreError: the store did not take them.
            MetadataStoreError: the rows cannot be read.
        """
        async with self._publishing:
            frozen = self._source.freeze_after(self._published_revision)
            if frozen is not None:
                await self._publish(frozen)

    async def _publish(self, frozen: FrozenMetadata) -> None:
        now_ms = self._clock.wall_ms()
        description = Description(self._home, NO_RAFT_GROUP, frozen.revision, 0, now_ms, now_ms)
        with closing(frozen.rows):
            parts = await self._run_read(lambda: encode_archive(description, frozen.all()))
        key = metadata_key(self._home, frozen.revision)
        await self._store.put(key, parts_of(parts), size_bytes=sum(map(len, parts)))
        self._published_revision = frozen.revision
        keys = await metadata_keys(self._store, self._home)
        if len(keys) > _KEPT:
            await self._store.delete(keys[:-_KEPT])
