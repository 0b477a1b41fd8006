"""Search by key and by id in the tier (docs/data-layout.md section 9, "Search pages").

Half a hash in an object names the blocks that may hold a key or an id; the columns of these blocks
identify the messages. Objects outside the wanted times are not opened.
"""

from __future__ import annotations

from functools import partial

from strata_tier.objects.blocks import BlockColumns, id_hash
from strata_tier.objects.state import TieredRange
from strata_tier.ranges.metadata import TierMetadata
from strata_tier.reads.block_source import BlockSource, PlacedBlock
from strata_tier.reads.places import opened_object


class TierSearch:
    """Finds messages of one raft group by what their senders called them."""

    __slots__ = ("_source",)

    def __init__(self, source: BlockSource) -> None:
        self._source = source

    async def find_key(
        self,
        metadata: TierMetadata,
        topic_id: int,
        key_hash: int,
        times_ms: range,
        max_found: int,
    ) -> list[tuple[int, int]]:
        """Return (queue, offset) of messages with a key, newest objects first.

        Args:
            metadata: of the raft group.
            topic_id: of the messages.
            key_hash: `strata_mq.layout.hashing.key_hash` of the key.
            times_ms: store times to look at.
            max_found: at most so many.

        Raises:
            StoreError, DamagedObjectError, BusyError: as `messages`.
        """
        found: list[tuple[int, int]] = []
        for place in await self._search(metadata, topic_id, key_hash, times_ms):
            columns = await self._source.columns(place)
            for ordinal in reversed(_with_key(columns, key_hash)):
                if columns.times_ms[ordinal] in times_ms:
                    found.append((place.entry.queue, columns.offsets[ordinal]))
                    if len(found) >= max_found:
                        return found
        return found

    async def find_id(
        self, metadata: TierMetadata, topic_id: int, message_id: bytes, times_ms: range
    ) -> list[tuple[int, int]]:
        """Return (queue, offset) of messages with a packed id (17 bytes), newest objects first.

        Raises:
            StoreError, DamagedObjectError, BusyError: as `messages`.
        """
        found: list[tuple[int, int]] = []
        hash_value = id_hash(message_id)
        for place in await self._search(metadata, topic_id, hash_value, times_ms):
            columns = await self._source.columns(place)
            ids = columns.terms.ids
            at = ids.find(message_id)
            while at >= 0:
                if at % len(message_id) == 0:
                    ordinal = at // len(message_id)
                    found.append((place.entry.queue, columns.offsets[ordinal]))
                at = ids.find(message_id, at + 1)
        return found

    async def _search(
        self, metadata: TierMetadata, topic_id: int, hash_value: int, times_ms: range
    ) -> list[PlacedBlock]:
        """Return blocks that may hold a hash, those of the newest messages first."""
        by_object: dict[int, list[TieredRange]] = {}
        for key, _ in metadata.queues(topic_id):
            for tiered in metadata.ranges(*key):
                if tiered.min_time_ms < times_ms.stop and tiered.max_time_ms >= times_ms.start:
                    by_object.setdefault(tiered.object_id, []).append(tiered)
        newest_first = sorted(
            by_object.items(), key=lambda item: max(each.max_time_ms for each in item[1])
        )[::-1]
        places: list[PlacedBlock] = []
        for object_id, ranges in newest_first:
            opened = await opened_object(self._source, metadata, object_id, topic_id)
            search = partial(opened.search, hash_value)
            numbers = await self._source.again_if_damaged(search)
            blocks = {number for each in ranges for number in numbers if _is_in(each, number)}
            places += [
                PlacedBlock(opened, number, await opened.entry(number))
                for number in sorted(blocks, reverse=True)
            ]
        return places


def _with_key(columns: BlockColumns, key_hash: int) -> list[int]:
    terms = columns.terms
    found: list[int] = []
    at = 0
    for ordinal, count in enumerate(terms.key_counts):
        if key_hash in terms.key_hashes[at : at + count]:
            found.append(ordinal)
        at += count
    return found


def _is_in(tiered: TieredRange, number: int) -> bool:
    return tiered.first_block <= number < tiered.first_block + tiered.block_count
