"""Index rows that are missing after a rebuild: all of them are found, wherever they are."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from strata_mq.layout.columns import pack_longs, pack_words
from strata_mq.layout.cq_rows import encode_cq_row
from strata_mq.layout.rows import QueueRow
from strata_state.memory_store import MemoryStore
from strata_state.rows import GroupRows
from strata_storage.tiering.refill import Hole, LogTail, holes, refill
from strata_tier.objects import BlockColumns
from strata_tier.objects.layout import BlockEntry, BlockFlag, checksum
from strata_tier.objects.state import TieredQueue
from strata_tier.ranges import TierMetadata
from strata_tier.ranges.metadata_rows import RowTierMetadata

RAFT_GROUP, TOPIC_ID, QUEUE = 3, 7, 1


def found(
    runs: Sequence[tuple[int, int]],
    *,
    min_offset: int,
    next_offset: int,
    tiered: tuple[int, int],
    retracted: Sequence[int] = (),
) -> list[Hole]:
    """Return the holes of a queue with rows of some (base offset, count)."""
    store = MemoryStore()
    rows, metadata = GroupRows(store, RAFT_GROUP), RowTierMetadata(store, RAFT_GROUP)
    batch = store.new_batch()
    rows.queues.put(batch, TOPIC_ID, QUEUE, QueueRow(next_offset, min_offset, 0, 0))
    metadata.put_queue(batch, (TOPIC_ID, QUEUE), TieredQueue(*tiered))
    for base, count in runs:
        columns = pack_words([5] * count) * 2 + pack_longs([0] * count) * 2
        rows.cq.put(batch, TOPIC_ID, QUEUE, base, encode_cq_row(0, 1, 1, columns, count))
    for offset in retracted:
        rows.retracted.put(batch, TOPIC_ID, QUEUE, offset, day=1)
    store.write(batch)
    return list(holes(rows, metadata))


def hole(first: int, end: int) -> Hole:
    return Hole(TOPIC_ID, QUEUE, first, end)


def test_a_row_in_the_midst_hides_no_hole() -> None:
    """Rows behind an entry that the log kept for another queue are missing, too."""
    runs = [(60, 6), (72, 30)]
    assert found(runs, min_offset=0, next_offset=102, tiered=(0, 90)) == [hole(0, 60), hole(66, 72)]


def test_only_what_the_tier_has_is_missing() -> None:
    """Neither what was trimmed, nor what is not uploaded, nor what a row covers."""
    assert found([], min_offset=20, next_offset=100, tiered=(10, 80)) == [hole(20, 80)]
    assert found([(10, 20)], min_offset=20, next_offset=100, tiered=(10, 25)) == []
    assert found([(10, 20)], min_offset=20, next_offset=100, tiered=(10, 80)) == [hole(30, 80)]
    assert found([(90, 10)], min_offset=0, next_offset=100, tiered=(0, 80)) == [hole(0, 80)]


def test_what_was_taken_back_is_not_missing() -> None:
    """An object that was written before holds it still."""
    tiered = (0, 100)
    found_ = found([], min_offset=0, next_offset=100, tiered=tiered, retracted=[0, 7, 8, 99, 120])
    assert found_ == [hole(1, 7), hole(9, 99)]
    runs = [(0, 7), (8, 92)]
    assert found(runs, min_offset=0, next_offset=100, tiered=tiered, retracted=[7]) == []


@pytest.mark.parametrize("round_", range(20))
def test_every_offset_is_in_a_row_or_in_a_hole(round_: int) -> None:
    """And in one of them only."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    runs: list[tuple[int, int]] = []
    at = 0
    while at < 200:
        count = rng.randrange(1, 12)
        if rng.random() < 0.6:
            runs.append((at, count))
        at += count
    min_offset, commit_offset = rng.randrange(100), rng.randrange(100, at)
    missing = found(runs, min_offset=min_offset, next_offset=at, tiered=(0, commit_offset))
    in_rows = {offset for base, count in runs for offset in range(base, base + count)}
    in_holes = [offset for each in missing for offset in range(each.first, each.end)]
    assert in_holes == sorted(set(range(min_offset, commit_offset)) - in_rows)


class EmptyBlocks:
    """A tier that has a block for each offset, and in it no message."""

    async def columns(
        self, metadata: TierMetadata, topic_id: int, queue: int, offset: int
    ) -> BlockColumns:
        entry = BlockEntry(
            topic_id,
            queue,
            offset,
            offset + 5,
            0,
            BlockFlag.SPARSE,
            0,
            0,
            checksum(b""),
            0,
            0,
            0,
            0,
            0,
        )
        return BlockColumns(entry, b"", "object")


async def test_what_the_log_gave_up_is_below_the_local_offset() -> None:
    """A retraction that is applied again finds no row there, which is no fault then."""
    store = MemoryStore()
    rows, metadata = GroupRows(store, RAFT_GROUP), RowTierMetadata(store, RAFT_GROUP)
    batch = store.new_batch()
    rows.queues.put(batch, TOPIC_ID, QUEUE, QueueRow(20, 2, 0, 0))
    metadata.put_queue(batch, (TOPIC_ID, QUEUE), TieredQueue(2, 14))
    rows.tier.local.put(batch, TOPIC_ID, QUEUE, 6)
    rows.unfinished.set(batch)
    store.write(batch)

    async def read_tail() -> LogTail:
        return LogTail({(TOPIC_ID, QUEUE): 15}, set(), metadata)

    assert await refill(store, RAFT_GROUP, EmptyBlocks(), read_tail) == ""
    assert not rows.unfinished.is_set()
    assert rows.tier.local.get(TOPIC_ID, QUEUE) == 14
