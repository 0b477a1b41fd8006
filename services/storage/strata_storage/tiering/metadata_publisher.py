"""Brings the metadata rows to the store, so that a restore knows topics and groups (rule 29).

Every storage node has the metadata; leaders publish it beside their own state. The name is the
revision, so those who publish the same rows write the same object.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from strata.meta.v1 import meta_pb2
from strata_metadata.rows import key_of, value_of
from strata_runtime.clock import Clock
from strata_tier.objects import (
    NO_RAFT_GROUP,
    Description,
    encode_archive,
    metadata_key,
    metadata_prefix,
)
from strata_tier.store import ObjectStore, parts_of
from strata_tier.upkeep import objects_under

MetadataSnapshot = Callable[[], Awaitable[tuple[int, list[meta_pb2.Change]]]]
"""Gives a revision and all metadata rows as of then; revision 0: nothing is known yet."""

# Newest archives that stay.
_KEPT = 3


class MetadataPublisher:
    """Publishes for one node.

    Args:
        store: where to.
        home: folder of this cluster.
        snapshot: gives the rows.
        clock: stamps the archive.
    """

    def __init__(
        self, store: ObjectStore, home: str, snapshot: MetadataSnapshot, *, clock: Clock
    ) -> None:
        self._store = store
        self._home = home
        self._snapshot = snapshot
        self._clock = clock
        self._published_revision = 0

    async def publish(self) -> None:
        """Upload the rows if they are newer than what this node published last.

        Raises:
            StoreError: the store did not take them.
        """
        revision, changes = await self._snapshot()
        if revision <= self._published_revision:
            return
        rows = [
            (key_of(change), value) for change in changes if (value := value_of(change)) is not None
        ]
        now_ms = self._clock.wall_ms()
        description = Description(self._home, NO_RAFT_GROUP, revision, 0, now_ms, now_ms)
        parts = encode_archive(description, rows)
        key = metadata_key(self._home, revision)
        await self._store.put(key, parts_of(parts), size_bytes=sum(map(len, parts)))
        self._published_revision = revision
        prefix = metadata_prefix(self._home)
        keys = [info.key async for info in objects_under(self._store, prefix)]
        if len(keys) > _KEPT:
            await self._store.delete(keys[:-_KEPT])
