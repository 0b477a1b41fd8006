"""The storage engine alone: append batches to commit and apply, pop and ack; prints JSON.

    python bench/engine.py [--seconds 5] [--folder DIR]

No RPC and no broker: batches of 64 messages are built beforehand, given to the engine of one raft
group with a few in flight, and count when committed (fsync) and, at the end, applied (rows in
RocksDB). For 1 KB messages the same bytes are also written and synced bare, in the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import google_crc32c
from google.protobuf.descriptor import ServiceDescriptor

from strata_mq.layout import BatchBuilder, OutgoingMessage, PartKey
from strata_mq.leases import TakeRequest
from strata_runtime.clock import SystemClock
from strata_runtime.metrics import Metrics
from strata_runtime.runtime import Runtime
from strata_storage.base.config import StorageConfig
from strata_storage.group.engine import GroupEngine
from strata_storage.group.translation import handles_by_queue
from strata_storage.leading.appends.append import AppendResult
from strata_storage.leading.pops.lease_calls import LeaseRef
from strata_storage.leading.pops.pop_calls import PopCall
from strata_storage.rows.ownership import Topic
from strata_testing.storage_node import lone_storage_app

BATCH = 64
IN_FLIGHT = 16
SLICE_S = 0.5
CONSUMERS = 8
TOPIC = Topic(7, 0, 8)


class NoServer:
    """The engine is called directly."""

    def register(self, service: ServiceDescriptor, handler: object) -> None:
        """Nobody calls."""

    async def start(self) -> str:
        """Nothing listens."""
        return "none"

    async def stop(self, grace_s: float) -> None:
        """Nothing runs."""


def batches(size: int) -> Iterator[bytes]:
    """Build batches of fresh messages forever, as one broker process does."""
    number = 0
    producer = b"\x01" + os.urandom(8)
    body = os.urandom(size)
    checksum = google_crc32c.value(body)
    while True:
        builder = BatchBuilder(google_crc32c.value)
        messages = [
            OutgoingMessage(
                body, checksum, 0, 0, producer + (number + at).to_bytes(8, "big"), 1, 0, ()
            )
            for at in range(BATCH)
        ]
        number += BATCH
        builder.add(PartKey(TOPIC.topic_id, -1, TOPIC.slot_base, TOPIC.queue_count), messages)
        yield builder.build()


@dataclass
class Tally:
    """Return the count in the time that counts."""

    size: int
    messages: int = 0
    spent_s: float = 0.0
    loop_cpu_s: float = 0.0
    cpu_s: float = 0.0

    def rate(self) -> float:
        """Messages per second."""
        return self.messages / self.spent_s

    def result(self) -> dict[str, float]:
        """Figures to print."""
        return {
            "messages_per_s": round(self.rate()),
            "mb_per_s": round(self.rate() * self.size / 1e6, 1),
            "loop_cpu_us_per_message": round(self.loop_cpu_s / self.messages * 1e6, 2),
            "cpu_us_per_message": round(self.cpu_s / self.messages * 1e6, 2),
        }


class Appends:
    """Appends to one raft group as one broker."""

    def __init__(self, engine: GroupEngine, size: int, boot_id: int) -> None:
        self._engine = engine
        self._boot_id = boot_id
        self._source = batches(size)
        self._sequence = 0
        self._chunk = max(64, min(2_000, 128 * 1024 * 1024 // (size * BATCH)))
        self.tally = Tally(size)

    async def run(self, seconds: float) -> None:
        """Append for a while; batches are made beforehand in chunks whose time does not count."""
        tally, end_s = self.tally, self.tally.spent_s + seconds
        while tally.spent_s < end_s:
            ready = [next(self._source) for _ in range(self._chunk)]
            began = time.perf_counter(), time.thread_time(), time.process_time()
            await self._append(ready)
            tally.spent_s += time.perf_counter() - began[0]
            tally.loop_cpu_s += time.thread_time() - began[1]
            tally.cpu_s += time.process_time() - began[2]
            tally.messages += len(ready) * BATCH

    async def _append(self, ready: list[bytes]) -> None:
        assert self._engine.leader is not None
        submit = self._engine.leader.appends.submit
        in_flight: deque[AppendResult] = deque()
        for data in ready:
            self._sequence += 1
            in_flight.append(submit(data, self._boot_id, self._sequence))
            if len(in_flight) >= IN_FLIGHT:
                await in_flight.popleft().wait()
        while in_flight:
            await in_flight.popleft().wait()
        await self._engine.barrier()


class BareWrites:
    """Writes and fdatasyncs the same batches, preallocated, some of them at once."""

    def __init__(self, folder: Path, size: int, batches_per_sync: int) -> None:
        source = batches(size)
        self._data = [next(source) for _ in range(batches_per_sync)]
        self._length = sum(map(len, self._data))
        self._total = 256 * 1024 * 1024
        self._position = 0
        name = f"bare-{batches_per_sync}"
        self._descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT)
        os.posix_fallocate(self._descriptor, 0, self._total)
        os.fsync(self._descriptor)
        self.tally = Tally(size)

    def run(self, seconds: float) -> None:
        """Write for a while."""
        tally = self.tally
        began_s, cpu_began_s = time.perf_counter(), time.process_time()
        while time.perf_counter() - began_s < seconds:
            if self._position + self._length > self._total:
                self._position = 0
            os.pwritev(self._descriptor, self._data, self._position)
            os.fdatasync(self._descriptor)
            self._position += self._length
            tally.messages += len(self._data) * BATCH
        tally.spent_s += time.perf_counter() - began_s
        tally.cpu_s += time.process_time() - cpu_began_s

    def close(self) -> None:
        """Free the file."""
        os.close(self._descriptor)


async def pop_and_ack(engine: GroupEngine, rounds: int) -> dict[str, object]:
    """Pop 32 and ack 32, over and over, by some consumers at once; CPU of the event loop."""
    # CPU of the event loop's thread only: RocksDB's threads still sort the appended rows.
    began_s, cpu_began_s = time.perf_counter(), time.thread_time()
    async with asyncio.TaskGroup() as tasks:
        consumers = [
            tasks.create_task(_consume(engine, rounds // CONSUMERS)) for _ in range(CONSUMERS)
        ]
    done = sum(consumer.result() for consumer in consumers)
    spent_s = time.perf_counter() - began_s
    cpu_s = time.thread_time() - cpu_began_s
    return {
        "messages_per_s": round(done / spent_s),
        "loop_cpu_us_per_32_popped_and_acked": round(cpu_s / max(done, 1) * 32 * 1e6, 1),
    }


async def _consume(engine: GroupEngine, rounds: int) -> int:
    assert engine.leader is not None
    take = TakeRequest(
        max_messages=32,
        max_bytes=1 << 20,
        invisible_ms=30_000,
        auto_renew=False,
        holder=0,
        attempt=0,
        fifo=False,
        max_attempts=16,
        dead_letter_topic_id=9,
    )
    call = PopCall(consumer_group_id=5, topic=TOPIC, queue=-1, take=take, latest=False, wait_s=0.0)
    done = 0
    for _ in range(rounds):
        delivered = (await engine.leader.pops.pop(call)).messages
        refs = [
            LeaseRef(
                5,
                TOPIC.topic_id,
                message.queue,
                message.offset,
                message.lease.lease_number,
                message.generation,
                message.lease.visible_at_ms,
            )
            for message in delivered
        ]
        valid, future = engine.leader.leases.ack(handles_by_queue(refs))
        await engine.leader.leases.settle(future)
        assert all(valid), "an ack of a held lease is valid"
        done += len(delivered)
    return done


async def run(folder: Path, seconds: float) -> dict[str, object]:
    """Run everything on one node."""
    app = lone_storage_app(
        StorageConfig(ballast_bytes=0),
        folder / "storage",
        NoServer(),
        runtime=Runtime(
            SystemClock(),
            random.random,
            Metrics.disabled(),
            lambda name, error: sys.exit(f"{name}: {error!r}"),
        ),
    )
    began_s = time.perf_counter()
    await app.start()
    started_s = time.perf_counter() - began_s
    engine = app.node.engine(1)
    result: dict[str, object] = {"start_s": round(started_s, 3), "batch_messages": BATCH}
    large = Appends(engine, 1_000, 1)
    single, grouped = BareWrites(folder, 1_000, 1), BareWrites(folder, 1_000, IN_FLIGHT)
    for _ in range(max(1, round(seconds / SLICE_S))):
        # In turns: the disk of a shared machine is not equally fast for long.
        await large.run(SLICE_S)
        single.run(SLICE_S)
        grouped.run(SLICE_S)
    single.close()
    grouped.close()
    result["append_1000_bytes"] = large.tally.result()
    result["bare_one_batch_per_fdatasync"] = single.tally.result()
    result[f"bare_{IN_FLIGHT}_batches_per_fdatasync"] = grouped.tally.result()
    result["ratio_to_bare_one_batch"] = round(large.tally.rate() / single.tally.rate(), 3)
    result["ratio_to_bare_grouped"] = round(large.tally.rate() / grouped.tally.rate(), 3)
    small = Appends(engine, 100, 2)
    await small.run(seconds)
    result["append_100_bytes"] = small.tally.result()
    result["pop_32_ack_32"] = await pop_and_ack(engine, 2_000)
    result["max_resident_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    await app.stop(1.0)
    return result


def main() -> None:
    """Parse arguments, run, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--folder", type=Path, default=None)
    arguments = parser.parse_args()
    sys.setswitchinterval(0.0001)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        print(json.dumps(asyncio.run(run(Path(folder), arguments.seconds)), indent=2))


if __name__ == "__main__":
    main()
