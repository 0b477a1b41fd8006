"""Brings to the store what a restore needs beside the objects: checkpoint and manifest (rule 29).

A checkpoint archive holds the raft group's small rows and the entries that messages which wait are
in; the manifest says which objects hold which offsets, and names the archive. Both are derived and
never changed; a running node never reads them.

A restore reads the newest manifest, so no object may be deleted that this one still names (rule
29). A leader knows what its own manifests name; it deletes nothing before it has published one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from itertools import islice

from strata_mq.layout import PendingKey, RowKind
from strata_runtime.logs import get_logger
from strata_seglog.errors import CorruptFrame, LogError
from strata_seglog.log import CommitLog
from strata_state.memory_store import MemoryStore
from strata_state.ports import Row, StateError
from strata_storage.group.engine import GroupEngine
from strata_storage.tiering.parts import TieringParts
from strata_storage.tiering.uploader import Uploader
from strata_tier.base import TierError
from strata_tier.objects import (
    ArchivedEntry,
    Description,
    ManifestName,
    checkpoint_key,
    encode_archive,
    manifest_key,
)
from strata_tier.ranges import RowTierMetadata, encode_manifest, manifest_of
from strata_tier.store import StoreError, parts_of
from strata_tier.upkeep import manifests_of

PUBLISH_FAILURES = (StoreError, TierError, LogError, StateError)
"""Failures of a publication: what it needs is not there, or the store did not take it."""

# Entries of messages that wait which one archive carries; what is beyond is named as missing.
_ENTRIES_MAX = 100_000
# Newest manifests of a raft group that stay, with their checkpoints.
_KEPT = 3
# Place in a key: behind the raft group.
_KIND_AT = 4
_TIER_STATE = frozenset((RowKind.TIER_RANGE, RowKind.TIER_OBJECT, RowKind.TIER_QUEUE))


class Publisher:
    """Publishes for the leader of one raft group.

    Args:
        engine: of the raft group.
        uploader: of its leader; every drop of this term is proposed through it.
        parts: of tiering.
        log: the node's CommitLog.

    Attributes:
        last_failure: why the last publication failed; empty: it did not.
    """

    def __init__(
        self, engine: GroupEngine, uploader: Uploader, parts: TieringParts, *, log: CommitLog
    ) -> None:
        self._engine = engine
        self._uploader = uploader
        self._place = parts.place
        self._topics = parts.topics
        self._work = parts.work
        self._metadata = parts.metadata
        self._log = log
        self._run_read = parts.work.run_read
        self._published_s: float | None = None
        self._published_index = 0
        # The newest manifest names no object as live that was dropped before this group time.
        self._covered_ms = 0
        self.last_failure = ""
        self._publishing = asyncio.Lock()
        self._logger = get_logger("tier")

    def is_due(self) -> bool:
        """Whether there is something new, and the last time was long enough ago."""
        if not self._has_news() and (self._metadata is None or not self._metadata.is_due()):
            return False
        interval_s = self._work.options.local.manifest_interval_ms / 1_000
        now_s = self._work.clock.monotonic_s()
        return self._published_s is None or now_s - self._published_s >= interval_s

    async def publish(self) -> None:
        """Upload checkpoint and manifest as of now; what fails is logged and comes next time."""
        self._published_s = self._work.clock.monotonic_s()
        try:
            await self._publish()
        except PUBLISH_FAILURES as error:
            self.last_failure = f"manifest is not published: {error}"
            self._work.instruments.failures.add(1, {"work": "manifest"})
            self._logger.warning(
                "manifest is not published", raft_group=self._engine.raft_group, reason=str(error)
            )

    async def publish_now(self) -> int:
        """Upload checkpoint and manifest as of now, unless they are there; return their index.

        Raises:
            PUBLISH_FAILURES: see there.
        """
        self._published_s = self._work.clock.monotonic_s()
        await self._publish()
        return self._published_index

    async def deletable_before_ms(self) -> int:
        """Return before which group time an object must have been dropped to be deleted now.

        No manifest that a restore would take names such an object as live. 0: nothing may be
        deleted, because the newest manifest is of another leader, or not known to have arrived.

        Raises:
            StoreError: the store does not say whether there is a manifest.
        """
        if self._published_index and self._uploader.is_settled and not self._has_news():
            # The newest manifest says what the rows say.
            return self._uploader.now_ms() + 1
        if self._covered_ms:
            return self._covered_ms
        home, raft_group = self._place.home, self._engine.raft_group
        # None of this leader's is on its way meanwhile.
        async with self._publishing:
            before_ms = self._uploader.now_ms()
            if not await manifests_of(self._place.store, home, raft_group):
                # Nothing of this raft group can be restored, so nothing is kept for that.
                return before_ms
        return self._covered_ms

    async def _publish(self) -> None:
        # One at a time: two of one index would write under the same names.
        async with self._publishing:
            if self._has_news():
                await self._publish_state()
            if self._metadata is not None:
                # Topics are made and groups changed while a raft group rests, too.
                await self._metadata.publish()
        self.last_failure = ""

    def _has_news(self) -> bool:
        return self._engine.machine.state.raft_index != self._published_index

    async def _publish_state(self) -> None:
        engine, home = self._engine, self._place.home
        async with self._uploader.turn:
            machine, generation = engine.machine, engine.whole_rows()
            if generation is None:
                # It led until a moment ago, and takes in a snapshot now.
                return
            covered_ms = self._settled_ms()
            machine.settle()
            state = machine.state
            name = ManifestName(engine.raft_group, state.term, state.raft_index)
            description = Description(
                home,
                engine.raft_group,
                state.raft_index,
                state.term,
                state.group_time_ms,
                self._work.clock.wall_ms(),
            )
            # As they are now; a thread reads them, for there may be many.
            rows = machine.rows.checkpoint()
            waiting = machine.rows.pending.keys(machine.pending_bound)
        parts, manifest = await self._run_read(
            partial(self._prepare, description, name, rows, waiting)
        )
        if engine.whole_rows() != generation:
            # The log that the entries were read from was truncated meanwhile.
            return
        store = self._place.store
        await store.put(
            checkpoint_key(home, name), parts_of(parts), size_bytes=sum(map(len, parts))
        )
        await store.put(manifest_key(home, name), manifest)
        self._published_index, self._covered_ms = name.sequence, covered_ms
        await self._forget_old()
        self._work.instruments.objects.add(1, {"result": "published"})

    def _settled_ms(self) -> int:
        """Return a group time: what was dropped before it, is so in the rows as they are now.

        A drop carries the group time at which it was proposed, and that never goes back in a term;
        drops of earlier terms are applied before a leader leads. A drop whose proposer was
        cancelled may be under way yet: then the time is that of the last manifest.
        """
        return self._uploader.now_ms() if self._uploader.is_settled else self._covered_ms

    def _prepare(
        self,
        description: Description,
        name: ManifestName,
        rows: Iterator[Row],
        waiting: Iterator[PendingKey],
    ) -> tuple[list[bytes], bytes]:
        """Return the archive, in parts, and the manifest that goes with it. Blocks."""
        tiered = MemoryStore()
        batch = tiered.new_batch()
        metadata = RowTierMetadata(tiered, name.raft_group)

        def noted() -> Iterator[Row]:
            for key, value in rows:
                if key[_KIND_AT] in _TIER_STATE:
                    batch.put(key, value)
                yield key, value
            tiered.write(batch)

        def names() -> dict[str, str]:
            topic_ids = {topic_id for (topic_id, _), _ in metadata.queues()}
            # A million of them are read for more than a second.
            known = self._topics.names()
            return {text: known[text] for text in map(str, sorted(topic_ids)) if text in known}

        indexes = sorted({key.raft_index for key in islice(waiting, _ENTRIES_MAX)})
        parts = encode_archive(description, noted(), self._entries(indexes), names=names)
        manifest = manifest_of(
            metadata,
            description.home,
            name,
            description.raft_index,
            description.group_time_ms,
            checkpoint_key(description.home, name),
        )
        return parts, encode_manifest(manifest)

    def _entries(self, indexes: list[int]) -> Iterator[ArchivedEntry]:
        """Yield entries of messages that wait; without damaged ones, which nobody has to give.

        A restore reports those as missing. An entry that cannot be read now fails the publication:
        it may be whole the next time (rule 40).
        """
        damaged: list[CorruptFrame] = []
        for index in indexes:
            try:
                frame = self._log.entry(self._engine.replica_id, index)
            except CorruptFrame as error:
                damaged.append(error)
                continue
            if frame is not None:
                yield ArchivedEntry(index, frame.term, frame.payload)
        if damaged:
            self._work.instruments.failures.add(1, {"work": "manifest"})
            self._logger.warning(
                "archive lacks damaged entries of messages that wait",
                raft_group=self._engine.raft_group,
                count=len(damaged),
                reason=str(damaged[0]),
            )

    async def _forget_old(self) -> None:
        """Delete all but the newest manifests, and their checkpoints."""
        store, home, raft_group = self._place.store, self._place.home, self._engine.raft_group
        names = sorted(await manifests_of(store, home, raft_group))
        keys = [
            key
            for name in names[:-_KEPT]
            for key in (manifest_key(home, name), checkpoint_key(home, name))
        ]
        if keys:
            await store.delete(keys)
