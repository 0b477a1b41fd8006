"""A million delayed messages: their memory, and the lateness of deliveries; prints JSON.

    python bench/pending.py [--count 1000000] [--minutes 10] [--lead-s 120] [--receive-s S]
                            [--folder DIR]

One storage node without RPC and broker. Messages with delivery times spread evenly over the given
minutes are stored in random order before the first one is due; consumers wait for them with long
polls. Every message has its due time: no message may arrive earlier. Lateness is measured at the
consumer, when a pop has answered. `--receive-s` ends the run this long after the first message is
due; later messages still wait then, so a short run measures a node with a million of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import struct
import sys
import tempfile
import time
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import google_crc32c
from google.protobuf.descriptor import ServiceDescriptor

from strata.storage.v1 import storage_pb2 as pb
from strata_angelia.ports import CallContext
from strata_mq.layout import BatchBuilder, OutgoingMessage, PartKey, PartKind
from strata_runtime.clock import SystemClock
from strata_runtime.memory_return import MemoryReturn
from strata_runtime.metrics import Metrics
from strata_runtime.runtime import Runtime
from strata_storage.base.config import StorageConfig
from strata_storage.servicers.storage import StorageServicer
from strata_testing.storage_node import lone_storage_app

RAFT_GROUP, CONSUMER_GROUP_ID = 1, 5
TOPIC = pb.TopicRef(topic_id=7, slot_base=0, queue_count=8)
BATCH = 64
CONSUMERS = 8
CONTEXT = CallContext(timeout_s=None)
DUE = struct.Struct(">Q")
BUCKETS_MS = (5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000)


class LocalServer:
    """Keeps the handler; it is called directly."""

    def __init__(self) -> None:
        self.handler: StorageServicer | None = None

    def register(self, service: ServiceDescriptor, handler: object) -> None:
        """Take the storage service's handler; nobody calls those of other services."""
        if service.name == "StorageService":
            self.handler = cast("StorageServicer", handler)

    async def start(self) -> str:
        """Nothing listens."""
        return "none"

    async def stop(self, grace_s: float) -> None:
        """Nothing runs."""


@dataclass
class Arrivals:
    """Messages that consumers got."""

    late_ms: array[int] = field(default_factory=lambda: array("q"))
    early: int = 0

    def take(self, message: bytes, now_ms: float) -> None:
        """Take in one message."""
        late_ms = now_ms - DUE.unpack_from(message)[0]
        if late_ms < 0:
            self.early += 1
        self.late_ms.append(int(late_ms))

    def result(self) -> dict[str, object]:
        """Figures to print."""
        ordered = sorted(self.late_ms)
        buckets = {f"<={bound}": 0 for bound in BUCKETS_MS} | {"more": 0}
        for late_ms in ordered:
            bound = next((bound for bound in BUCKETS_MS if late_ms <= bound), None)
            buckets["more" if bound is None else f"<={bound}"] += 1
        return {
            "delivered": len(ordered),
            "early": self.early,
            "late_ms_p50": ordered[len(ordered) // 2],
            "late_ms_p99": ordered[len(ordered) * 99 // 100],
            "late_ms_max": ordered[-1],
            "late_ms_histogram": buckets,
        }


def resident_mb() -> float:
    """Return the memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


class Run:
    """One measurement."""

    def __init__(self, rpc: StorageServicer, count: int, body_bytes: int) -> None:
        self._rpc = rpc
        self._count = count
        self._padding = os.urandom(max(0, body_bytes - DUE.size))
        self._sequence = 0
        self.arrivals = Arrivals()
        self.peak_resident_mb = 0.0

    async def store(self, first_due_ms: int, window_ms: int) -> None:
        """Store all messages, in random order of their times."""
        order = array("I", range(self._count))
        random.Random(1).shuffle(order)
        in_flight: list[asyncio.Task[None]] = []
        for first in range(0, self._count, BATCH):
            numbers = order[first : first + BATCH]
            due_times = [first_due_ms + number * window_ms // self._count for number in numbers]
            in_flight.append(asyncio.ensure_future(self._append(numbers, due_times)))
            if len(in_flight) == 16:
                await asyncio.gather(*in_flight)
                in_flight.clear()
                self.peak_resident_mb = max(self.peak_resident_mb, resident_mb())
        await asyncio.gather(*in_flight)

    async def _append(self, numbers: array[int], due_times: list[int]) -> None:
        builder = BatchBuilder(google_crc32c.value)
        key = PartKey(TOPIC.topic_id, -1, TOPIC.slot_base, TOPIC.queue_count, PartKind.DELAYED)
        builder.add(
            key,
            [
                self._message(number, due_ms)
                for number, due_ms in zip(numbers, due_times, strict=True)
            ],
        )
        self._sequence += 1
        batch = pb.GroupBatch(raft_group=RAFT_GROUP, sequence=self._sequence, batch=builder.build())
        request = pb.AppendRequest(broker_boot_id=0, batches=[batch])
        (result,) = (await self._rpc.append(request, CONTEXT)).results
        assert not result.refusal.outcome, result.refusal.reason

    def _message(self, number: int, due_ms: int) -> OutgoingMessage:
        body = DUE.pack(due_ms) + self._padding
        message_id = b"\x01" + number.to_bytes(16, "big")
        return OutgoingMessage(body, google_crc32c.value(body), 0, 0, message_id, 3, 0, (), due_ms)

    async def receive(self, deadline_s: float) -> None:
        """Receive until all have come, or the time is over."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(CONSUMERS):
                tasks.create_task(self._consume(deadline_s))
            tasks.create_task(self._watch_memory(deadline_s))

    def _is_over(self, deadline_s: float) -> bool:
        return len(self.arrivals.late_ms) >= self._count or time.monotonic() > deadline_s

    async def _watch_memory(self, deadline_s: float) -> None:
        while not self._is_over(deadline_s):
            self.peak_resident_mb = max(self.peak_resident_mb, resident_mb())
            await asyncio.sleep(0.5)

    async def _consume(self, deadline_s: float) -> None:
        request = pb.PopRequest(
            raft_group=RAFT_GROUP,
            consumer_group_id=CONSUMER_GROUP_ID,
            topic=TOPIC,
            queue=-1,
            max_messages=64,
            invisible_ms=60_000,
            max_attempts=16,
            wait_ms=1_000,
            start=pb.START_POSITION_EARLIEST,
        )
        while not self._is_over(deadline_s):
            response = await self._rpc.pop(request, CONTEXT)
            now_ms = time.time() * 1_000
            assert not response.refusal.outcome, response.refusal.reason
            if response.messages:
                for message in response.messages:
                    self.arrivals.take(message.message, now_ms)
                await self._ack(response.messages)

    async def _ack(self, messages: object) -> None:
        leases = [
            pb.LeaseRef(
                consumer_group_id=CONSUMER_GROUP_ID,
                topic_id=TOPIC.topic_id,
                queue=message.queue,
                offset=message.offset,
                lease_number=message.lease_number,
                generation=message.generation,
                visible_at_ms=message.visible_at_ms,
            )
            for message in messages  # type: ignore[attr-defined]
        ]
        groups = [pb.GroupLeases(raft_group=RAFT_GROUP, leases=leases)]
        await self._rpc.ack(pb.AckRequest(groups=groups), CONTEXT)


async def measure(folder: Path, arguments: argparse.Namespace) -> dict[str, object]:
    """Start a node, store, receive."""
    server = LocalServer()

    def on_fatal(name: str, error: BaseException) -> None:
        sys.exit(f"{name}: {error!r}")

    app = lone_storage_app(
        StorageConfig(ballast_bytes=0),
        folder / "storage",
        server,
        runtime=Runtime(
            SystemClock(),
            random.random,
            Metrics.disabled(),
            on_fatal,
        ),
    )
    # As every process of the product has it.
    memory_return = MemoryReturn(Metrics(), on_fatal)
    await memory_return.start()
    await app.start()
    assert server.handler is not None
    run = Run(server.handler, arguments.count, arguments.body_bytes)
    before_mb, began_s = resident_mb(), time.monotonic()
    first_due_ms = int((time.time() + arguments.lead_s) * 1_000)
    window_ms = int(arguments.minutes * 60_000)
    await run.store(first_due_ms, window_ms)
    stored_s, stored_mb, cpu_s = time.monotonic() - began_s, resident_mb(), time.process_time()
    receive_s = arguments.receive_s or window_ms / 1_000 + 60
    await run.receive(began_s + arguments.lead_s + receive_s)
    waited_s = time.monotonic() - began_s - stored_s
    result = {
        "count": arguments.count,
        "minutes": arguments.minutes,
        "body_bytes": arguments.body_bytes,
        "stored_in_time": stored_s < arguments.lead_s,
        "stored_per_s": round(arguments.count / stored_s),
        "resident_mb_before": round(before_mb, 1),
        "resident_mb_stored": round(stored_mb, 1),
        "resident_mb_peak": round(run.peak_resident_mb, 1),
        "resident_mb_cost": round(run.peak_resident_mb - before_mb, 1),
        "cpu_share_while_delivering": round((time.process_time() - cpu_s) / waited_s, 3),
        **run.arrivals.result(),
    }
    await app.stop(1.0)
    await memory_return.stop(1.0)
    return result


def main() -> None:
    """Parse arguments, run, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--lead-s", type=float, default=120.0)
    parser.add_argument("--receive-s", type=float, help="end so long after the first one is due")
    parser.add_argument("--body-bytes", type=int, default=200)
    parser.add_argument("--folder", type=Path, default=None)
    arguments = parser.parse_args()
    sys.setswitchinterval(0.0001)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        print(json.dumps(asyncio.run(measure(Path(folder), arguments)), indent=2))


if __name__ == "__main__":
    main()
