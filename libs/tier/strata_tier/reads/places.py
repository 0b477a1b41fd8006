"""Places of the messages of a queue: from the tier state to blocks of opened objects.

An offset that no range covers is an error that says whether the tier state ends before it or has a
gap there; it is never the end of a queue.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from strata_tier.base.errors import NotTieredError, TierGapError
from strata_tier.objects.open_objects import OpenObject
from strata_tier.ranges.metadata import TierMetadata
from strata_tier.reads.block_source import BlockSource, PlacedBlock


class TierPlaces:
    """Finds blocks; their indexes are read, and kept, by the source."""

    __slots__ = ("_source",)

    def __init__(self, source: BlockSource) -> None:
        self._source = source

    async def place(
        self, metadata: TierMetadata, topic_id: int, queue: int, offset: int
    ) -> PlacedBlock:
        """Return the block that holds an offset.

        Raises:
            NotTieredError: the tier ends before it, or begins behind it.
            TierGapError: the tier state has a hole.
            StoreError, DamagedObjectError, BusyError: the object cannot be opened.
        """
        tiered = metadata.covering(topic_id, queue, offset)
        if tiered is None:
            raise _not_covered(metadata, topic_id, queue, offset)
        opened = await opened_object(self._source, metadata, tiered.object_id, topic_id)

        async def find() -> PlacedBlock:
            number = await opened.find(tiered, offset)
            return PlacedBlock(opened, number, await opened.entry(number))

        return await self._source.again_if_damaged(find)

    async def walk(
        self, metadata: TierMetadata, topic_id: int, queue: int, offset: int
    ) -> AsyncIterator[PlacedBlock]:
        """Yield the blocks of a queue from the one that holds `offset` on, up to the last one."""
        while True:
            known = metadata.queue(topic_id, queue)
            if known is not None and offset == known.commit_offset:
                return
            place = await self.place(metadata, topic_id, queue, offset)
            yield place
            offset = place.entry.end_offset


async def opened_object(
    source: BlockSource, metadata: TierMetadata, object_id: int, topic_id: int
) -> OpenObject:
    """Return the index of an object that a range names; a topic pays for reading it.

    Raises:
        TierGapError: the tier state does not know it.
        StoreError, DamagedObjectError, BusyError: it cannot be opened.
    """
    held = metadata.object(object_id)
    if held is None:
        raise TierGapError(f"object {object_id:016x} is named and not known")
    return await source.open(held.ref, topic_id)


def _not_covered(
    metadata: TierMetadata, topic_id: int, queue: int, offset: int
) -> NotTieredError | TierGapError:
    known = metadata.queue(topic_id, queue)
    what = f"topic {topic_id} queue {queue} offset {offset}"
    if known is None:
        return NotTieredError(f"{what}: nothing of the queue is in the tier")
    if not known.first_offset <= offset < known.commit_offset:
        return NotTieredError(
            f"{what}: the tier holds {known.first_offset} to {known.commit_offset}"
        )
    return TierGapError(f"{what}: no range of the tier holds it")
