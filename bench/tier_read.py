"""Cold reads from the tier beside those of the bare driver: MB/s, first byte, requests per MB.

    python -m bench.tier_read --url posix:///tmp/tier-bench --mib 64
    python -m bench.tier_read --stores posix s3 hdfs gs

Writes objects of one queue, then reads as much by the store's usual client (one large object), by
ranged GETs of the driver alone, by `TierReader.messages` from the start to the end (cold cache,
read-ahead), and one tag in a thousand. The numbers of one run belong together; on a busy machine
only MB per second of CPU says much.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from array import array
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any

from bench.object_stores import STORES, Bare
from strata_mq.layout import MESSAGE_ID_BYTES, text_hash
from strata_runtime.clock import SystemClock
from strata_runtime.memory import keep_freed_memory
from strata_runtime.metrics import Metrics
from strata_state.memory_store import MemoryStore
from strata_tier.objects import (
    Author,
    BlockData,
    CommitRanges,
    MessageRun,
    ObjectWriter,
    PlannedBlock,
    PlanOptions,
    QueueRuns,
    SearchTerms,
    Stores,
    checksum,
    plan_object,
)
from strata_tier.ranges import RowTierMetadata, apply_change
from strata_tier.reads import TierFetch, TierRead, TierReader, TierReadOptions
from strata_tier.store import ObjectStore, OpenWith, open_store, parts_of
from tests.parts.stores import Place

_MIB = 1024 * 1024
_HOME = "bench"
_MESSAGES_AT_ONCE = 1024
_FIRST_BYTES = 100
_RARE, _OFTEN = text_hash("rare"), text_hash("often")


class CountingStore:
    """A store that counts ranged reads and their bytes; everything else passes through."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.requests = 0
        self.bytes_read = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def get(self, key: str, position: int = 0, length: int | None = None) -> bytes:
        """Return bytes of an object."""
        data = await self._store.get(key, position, length)
        self.requests += 1
        self.bytes_read += len(data)
        return data


def _run(first: int, bodies: Sequence[bytes]) -> MessageRun:
    count = len(bodies)
    return MessageRun(
        range(first, first + count),
        array("Q", [1_000] * count),
        array("I", map(len, bodies)),
        array("I", map(checksum, bodies)),
        array("Q", [_OFTEN if (first + at) % 1000 else _RARE for at in range(count)]),
        array("Q", [0] * count),
        bodies,
    )


def _data(block: PlannedBlock, first: int, bodies: Sequence[bytes]) -> BlockData:
    wanted = [bodies[offset - first] for piece in block.pieces for offset in piece.offsets]
    ids = random.randbytes(MESSAGE_ID_BYTES * len(wanted))
    return BlockData(b"".join(wanted), SearchTerms(ids, bytes(len(wanted)), array("Q")))


async def _write(
    store: ObjectStore, metadata: RowTierMetadata, rows: MemoryStore, mib: int, message_bytes: int
) -> list[tuple[str, int]]:
    """Write objects of 64 MiB; return their names and lengths."""
    written: list[tuple[str, int]] = []
    offset = 0
    for _ in range(max(mib // 64, 1)):
        count = min(mib, 64) * _MIB // message_bytes
        bodies = [random.randbytes(message_bytes) for _ in range(count)]
        queue = QueueRuns(1, 0, offset, offset + count, [_run(offset, bodies)])
        plan = plan_object(Author(_HOME, 1), [queue], PlanOptions())
        writer = ObjectWriter(plan)
        parts = [writer.begin()]
        for block in plan.blocks:
            parts += writer.add(_data(block, offset, bodies))
        parts += writer.finish()
        await store.put(plan.key, parts_of(parts), size_bytes=sum(map(len, parts)))
        batch = rows.new_batch()
        apply_change(metadata, batch, CommitRanges(writer.ref, plan.ranges, 1))
        rows.write(batch)
        written.append((plan.key, writer.ref.length))
        offset += count
    return written


async def _bare(store: ObjectStore, objects: Sequence[tuple[str, int]]) -> dict[str, float]:
    """Read everything by GETs of 8 MiB, four at a time, and nothing else."""
    ranges = [
        (key, at, min(8 * _MIB, length - at))
        for key, length in objects
        for at in range(0, length, 8 * _MIB)
    ]
    left = iter(ranges)

    async def work() -> int:
        return sum([len(await store.get(*each)) for each in left])

    started, cpu_started = time.perf_counter(), time.process_time()
    async with asyncio.TaskGroup() as group:
        workers = [group.create_task(work()) for _ in range(4)]
    took_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu_started
    total = sum(worker.result() for worker in workers)
    return {"mb_per_s": total / took_s / 1e6, "mb_per_cpu_s": total / cpu_s / 1e6}


def _reader(store: CountingStore, cache_bytes: int = 256 * _MIB) -> TierReader:
    return TierReader(
        Stores(store),  # type: ignore[arg-type]
        TierReadOptions(cache_bytes=cache_bytes),
        Metrics.disabled(),
        clock=SystemClock(),
    )


async def _first_bytes(
    store: CountingStore, metadata: RowTierMetadata, objects: Sequence[tuple[str, int]]
) -> dict[str, float]:
    """Time 32 messages from anywhere, nothing of them in memory, beside a GET of one block.

    `known`: the object's index is in memory, as it is where it was uploaded or read before.
    """
    known = metadata.queue(1, 0)
    assert known is not None
    rng = random.Random(7)
    bare_ms: list[float] = []
    unknown_ms: list[float] = []
    known_ms: list[float] = []
    # Too small to keep a block.
    warm = _reader(store, cache_bytes=1)
    for _ in range(_FIRST_BYTES):
        key, length = rng.choice(objects)
        offset = rng.randrange(known.first_offset, known.commit_offset - 32)
        read = TierRead(1, 0, range(offset, offset + 32))
        at = rng.randrange(max(length - _MIB, 1))
        bare_ms.append(await _timed_ms(store.get(key, at, min(_MIB, length))))
        cold = _reader(store, cache_bytes=1)
        unknown_ms.append(await _timed_ms(cold.messages(metadata, read)))
        await cold.close()
        await warm.messages(metadata, read)
        known_ms.append(await _timed_ms(warm.messages(metadata, read)))
    await warm.close()
    figures = {"bare": bare_ms, "known": known_ms, "unknown": unknown_ms}
    return {
        f"{name} {what} ms": value
        for name, times_ms in figures.items()
        for what, value in (("p50", statistics.median(times_ms)), ("p99", _p99(times_ms)))
    }


async def _timed_ms(work: Awaitable[object]) -> float:
    started = time.perf_counter()
    await work
    return (time.perf_counter() - started) * 1e3


def _p99(times_ms: Sequence[float]) -> float:
    return statistics.quantiles(times_ms, n=100)[98]


async def _tier(store: CountingStore, metadata: RowTierMetadata) -> dict[str, float]:
    """Read the queue from start to end with a cold cache, as a storage node does."""
    store.requests = store.bytes_read = 0
    reader = _reader(store)
    known = metadata.queue(1, 0)
    assert known is not None
    offset, got = known.first_offset, 0
    started, cpu_started = time.perf_counter(), time.process_time()
    while offset < known.commit_offset:
        end = min(offset + _MESSAGES_AT_ONCE, known.commit_offset)
        got += sum(map(len, await reader.messages(metadata, _scan(offset, end))))
        offset = end
    took_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu_started
    await reader.close()
    return _figures(store, got, took_s, cpu_s)


def _scan(offset: int, end: int) -> TierRead:
    return TierRead(1, 0, range(offset, end), consumer_group=1)


async def _filtered(
    store: CountingStore, metadata: RowTierMetadata, tags: frozenset[int]
) -> dict[str, float]:
    """Fetch the messages of some tags with a cold cache."""
    store.requests = store.bytes_read = 0
    reader = _reader(store)
    known = metadata.queue(1, 0)
    assert known is not None
    offset, got = known.first_offset, 0
    started, cpu_started = time.perf_counter(), time.process_time()
    while offset < known.commit_offset:
        fetch = TierFetch(1, 0, offset, 10_000, 4 * _MIB, tags, 1)
        fetched = await reader.fetch(metadata, fetch)
        got += sum([len(each.message) for each in fetched.messages])
        offset = fetched.resume_offset
    took_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu_started
    await reader.close()
    return _figures(store, got, took_s, cpu_s)


def _figures(store: CountingStore, got: int, took_s: float, cpu_s: float) -> dict[str, float]:
    return {
        "mb_per_s": got / took_s / 1e6,
        "mb_per_cpu_s": got / cpu_s / 1e6,
        "requests": store.requests,
        "requests_per_mb": store.requests / (store.bytes_read / 1e6),
        "fetched_mb": store.bytes_read / 1e6,
    }


def _better(results: dict[str, Any], name: str, figures: dict[str, float]) -> None:
    if name not in results or figures["mb_per_s"] > results[name]["mb_per_s"]:
        results[name] = figures


async def _client(client: Bare) -> dict[str, float]:
    """Read one object by the store's usual client library."""
    started = time.perf_counter()
    size = await asyncio.to_thread(client.get)
    return {"mb_per_s": size / (time.perf_counter() - started) / 1e6}


async def _measure(
    place: Place, client: Bare | None, mib: int, message_bytes: int, rounds: int
) -> dict[str, Any]:
    store = await open_store(place.url, OpenWith(credentials=place.credentials))
    rows = MemoryStore()
    metadata = RowTierMetadata(rows, 1)
    try:
        objects = await _write(store, metadata, rows, mib, message_bytes)
        counting = CountingStore(store)
        results: dict[str, Any] = {"url": place.url, "mib": mib, "message_bytes": message_bytes}
        if client is not None:
            await asyncio.to_thread(client.put, random.randbytes(mib * _MIB))
        # In turn: a busy machine slows both. The best of each counts.
        for _ in range(rounds):
            if client is not None:
                _better(results, "client", await _client(client))
            _better(results, "bare", await _bare(store, objects))
            _better(results, "tier", await _tier(counting, metadata))
        rare = frozenset((_RARE,))
        results["tier, 1 tag in 1000"] = await _filtered(counting, metadata, rare)
        results["first bytes"] = await _first_bytes(counting, metadata, objects)
        await store.delete([key for key, _ in objects])
    finally:
        await store.close()
    return results


def main() -> None:
    """Run and print one JSON object per store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a store that is there")
    parser.add_argument("--stores", nargs="*", choices=STORES, default=[], help="the tests' own")
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--message-bytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    # As in every server (rule 30): at the default, each hop between threads may cost 5 ms.
    sys.setswitchinterval(0.0001)
    keep_freed_memory()

    def measured(place: Place, client: Bare | None) -> None:
        work = _measure(place, client, options.mib, options.message_bytes, options.rounds)
        print(json.dumps(asyncio.run(work)), flush=True)

    if options.url:
        measured(Place(options.url), None)
    for scheme in options.stores:
        with (
            tempfile.TemporaryDirectory(prefix="stratamq-tier-") as folder,
            STORES[scheme](Path(folder)) as (place, client_of),
        ):
            if scheme == "posix":
                (Path(folder) / "store").mkdir()
            measured(place, client_of(place))


if __name__ == "__main__":
    main()
