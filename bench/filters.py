"""Filters: how fast a consumer group skips messages that it does not want; prints JSON.

    python bench/filters.py [--messages 200000] [--folder DIR]

No RPC and no broker. A backlog in one queue, 1 KB messages with five properties of which one in a
hundred is wanted, is popped and acked to its end by one consumer at a time: by tag, by SQL92 on a
property, and, beside them, without a filter and with a SQL92 filter that lets everything through.
`evaluation` is the filter alone on one message: reading its properties and deciding.
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
from collections.abc import Iterator
from pathlib import Path

import google_crc32c

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from apache.rocketmq.v2 import definition_pb2  # noqa: E402
from bench.engine import NoServer  # noqa: E402
from bench.micro_mq import best_microseconds  # noqa: E402
from strata_broker.base.wire import stored_message  # noqa: E402
from strata_mq.filters import EVERYTHING, FilterKind, MessageFilter, parse_filter  # noqa: E402
from strata_mq.layout import (  # noqa: E402
    BatchBuilder,
    OutgoingMessage,
    PartKey,
    text_hash,
)
from strata_mq.leases import TakeRequest  # noqa: E402
from strata_mq.traces import store_fragment  # noqa: E402
from strata_runtime.clock import SystemClock  # noqa: E402
from strata_runtime.metrics import Metrics  # noqa: E402
from strata_runtime.runtime import Runtime  # noqa: E402
from strata_storage.base.config import StorageConfig  # noqa: E402
from strata_storage.group.engine import GroupEngine  # noqa: E402
from strata_storage.group.translation import handles_by_queue  # noqa: E402
from strata_storage.leading.pops.lease_calls import LeaseRef  # noqa: E402
from strata_storage.leading.pops.pop_calls import Delivered, PopCall  # noqa: E402
from strata_storage.rows.ownership import Topic  # noqa: E402
from strata_testing.storage_node import lone_storage_app  # noqa: E402

# One wanted message in so many.
RARITY = 100
BODY = os.urandom(1_000)
EXPRESSION = "kind = 'wanted' AND amount > 100 AND region IN ('eu', 'us')"
LET_ALL = "amount > 100 AND region IN ('eu', 'us')"
ALL_THROUGH = ("no_filter", "sql_that_lets_all_through")
BATCHES = (64, 8)
TO_REACH = {"tag_messages_per_s": 300_000, "sql_messages_per_s_per_core": 30_000}


def stored(kind: str) -> bytes:
    """Return a message as storage has it."""
    properties = {"kind": kind, "amount": "250", "region": "eu", "source": "shop", "note": "x"}
    message = definition_pb2.Message(
        topic=definition_pb2.Resource(name="orders"), user_properties=properties, body=BODY
    )
    own = definition_pb2.SystemProperties(tag=kind, message_id="01" * 17)
    return stored_message(
        own.SerializeToString(), store_fragment("A" * 32), message.SerializeToString()
    )


def batches(topic: Topic, count: int, batch: int) -> Iterator[bytes]:
    """Build batches of `batch` messages, `count` messages in all."""
    kinds = {kind: (stored(kind), text_hash(kind)) for kind in ("wanted", "other")}
    checksums = {kind: google_crc32c.value(data) for kind, (data, _) in kinds.items()}
    producer = b"\x01" + os.urandom(8)
    for first in range(0, count, batch):
        builder = BatchBuilder(google_crc32c.value)
        messages = []
        for number in range(first, first + batch):
            # The last one is wanted: no pop waits at the end.
            kind = "wanted" if number % RARITY == RARITY - 1 else "other"
            data, tag_hash = kinds[kind]
            message_id = producer + number.to_bytes(8)
            messages.append(
                OutgoingMessage(data, checksums[kind], tag_hash, 0, message_id, 1, 0, ())
            )
        builder.add(PartKey(topic.topic_id, 0, topic.slot_base, topic.queue_count), messages)
        yield builder.build()


async def fill(engine: GroupEngine, topic: Topic, count: int, batch: int) -> None:
    """Append the backlog."""
    assert engine.leader is not None
    for sequence, data in enumerate(batches(topic, count, batch), 1):
        await engine.leader.appends.submit(data, topic.topic_id, sequence).wait()
    await engine.barrier()


async def drain(
    engine: GroupEngine, topic: Topic, group: int, wanted: MessageFilter, count: int
) -> dict[str, float]:
    """Pop and ack to the end of the queue; messages passed and CPU of the event loop."""
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
    call = PopCall(
        consumer_group_id=group,
        topic=topic,
        queue=0,
        take=take,
        latest=False,
        wait_s=1.0,
        message_filter=wanted,
    )
    key = (group, topic.topic_id, 0)
    given = pops = 0
    longest_gap_s = 0.0
    began_s, cpu_began_s = time.perf_counter(), time.thread_time()
    while True:
        lease_set = engine.leader.sets.find(key)
        if lease_set is not None and lease_set.leases.head >= count:
            break
        pop_began_s = time.perf_counter()
        delivered = (await engine.leader.pops.pop(call)).messages
        longest_gap_s = max(longest_gap_s, time.perf_counter() - pop_began_s)
        pops += 1
        given += len(delivered)
        if delivered:
            _, future = engine.leader.leases.ack(
                handles_by_queue(_ref(key, one) for one in delivered)
            )
            await engine.leader.leases.settle(future)
    spent_s, cpu_s = time.perf_counter() - began_s, time.thread_time() - cpu_began_s
    return {
        "messages_per_s": round(count / spent_s),
        "messages_per_s_per_core": round(count / cpu_s),
        "loop_cpu_us_per_message": round(cpu_s / count * 1e6, 3),
        "given": given,
        "pops": pops,
        "longest_pop_ms": round(longest_gap_s * 1e3, 1),
    }


def _ref(key: tuple[int, int, int], one: Delivered) -> LeaseRef:
    return LeaseRef(
        *key, one.offset, one.lease.lease_number, one.generation, one.lease.visible_at_ms
    )


def evaluation() -> dict[str, float]:
    """Measure filters on one message of 1 KB with five properties."""
    message = stored("wanted")
    large = stored_message(
        definition_pb2.SystemProperties(tag="wanted").SerializeToString(),
        store_fragment("A" * 32),
        definition_pb2.Message(
            user_properties={"kind": "wanted", "amount": "250", "region": "eu"},
            body=bytes(1 << 20),
        ).SerializeToString(),
    )
    sql = parse_filter(FilterKind.SQL, EXPRESSION)
    tag = parse_filter(FilterKind.TAG, "wanted || rare")
    assert sql.matches(message)
    assert sql.matches(large)
    assert tag.matches(message)
    return {
        "sql_us": round(best_microseconds(lambda: sql.matches(message)), 2),
        "sql_body_of_1_mib_us": round(best_microseconds(lambda: sql.matches(large)), 2),
        "tag_us": round(best_microseconds(lambda: tag.matches(message)), 2),
        "compile_us": round(best_microseconds(lambda: parse_filter(FilterKind.SQL, EXPRESSION)), 1),
    }


async def run(folder: Path, count: int) -> dict[str, object]:
    """Measure everything on one node."""
    count -= count % (max(BATCHES) * RARITY)
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
    await app.start()
    engine = app.node.engine(1)
    result: dict[str, object] = {
        "messages": count,
        "one_wanted_in": RARITY,
        "to_reach": TO_REACH,
        "evaluation": evaluation(),
    }
    flows = {
        "tag": parse_filter(FilterKind.TAG, "wanted"),
        "tag_index_not_in_memory": parse_filter(FilterKind.TAG, "wanted"),
        "sql": parse_filter(FilterKind.SQL, EXPRESSION),
        "sql_that_pins_the_tag": parse_filter(FilterKind.SQL, f"TAGS = 'wanted' AND {EXPRESSION}"),
        "no_filter": EVERYTHING,
        "sql_that_lets_all_through": parse_filter(FilterKind.SQL, LET_ALL),
    }
    topic = Topic(7, 0, 8)
    for batch in BATCHES:
        topic = topic._replace(topic_id=topic.topic_id + 1)
        await fill(engine, topic, count, batch)
        for group, (name, wanted) in enumerate(flows.items(), 20):
            # Consuming everything is only there to compare with: a part of it is enough.
            total = count // 10 if name in ALL_THROUGH else count
            if name.endswith("not_in_memory"):
                engine.machine.consume_queues.forget()
            figures = await drain(engine, topic, group, wanted, total)
            result[f"{name}_runs_of_{batch}"] = figures
    result["max_resident_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    await app.stop(1.0)
    return result


def main() -> None:
    """Parse arguments, run, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--folder", type=Path, default=None)
    arguments = parser.parse_args()
    sys.setswitchinterval(0.0001)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        print(json.dumps(asyncio.run(run(Path(folder), arguments.messages)), indent=2))


if __name__ == "__main__":
    main()
