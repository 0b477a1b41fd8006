"""Cost of waiting: `python bench/waits.py [--consumers 12] [--messages 200] [--parked 10000]`.

A cluster of one nameserver, three storage nodes with six raft groups, and one broker. First simple
consumers wait on a topic of 12 queues, each at one broker name after the other as the official ones
do, and messages are sent one by one: how long does each take from its send to a consumer? Then so
many receives are parked and nothing happens: what do broker and storage nodes use? Prints one JSON
object; the client's own time is in the latencies. A third phase sends beside the parked receives.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import grpc  # noqa: E402

from bench.run import machine  # noqa: E402
from tests.e2e.client import Client  # noqa: E402
from tests.e2e.cluster import Cluster  # noqa: E402
from tests.e2e.process import cpu_seconds, resident_bytes  # noqa: E402

TOPIC, GROUP, IDLE_TOPIC, IDLE_GROUP = "waits", "waits", "idle", "idle"
POLL_S = 20
PARKED_POLL_S = 300
PARKED_PER_CLIENT = 100
SETTLE_S = 3.0
# All clients have one address here.
CONFIG = """
[receive]
max_polling_ms = 300000

[edge]
max_calls_per_address = 15000
"""


class Waits:
    """Consumers that wait, and when each message came."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._sent_s: dict[str, float] = {}
        self._took_s: list[float] = []
        self._messages = 0
        self._all_came = asyncio.Event()

    async def measure(self, consumers: int, messages: int, pause_s: float) -> dict[str, float]:
        """Send messages one by one; return the times from send to delivery in milliseconds."""
        self._messages = messages
        async with asyncio.TaskGroup() as tasks:
            waiting = [tasks.create_task(self._consume(number)) for number in range(consumers)]
            await asyncio.sleep(SETTLE_S)
            async with Client(self._endpoint) as client:
                for _ in range(messages):
                    message_id = client.new_message_id()
                    self._sent_s[message_id] = time.monotonic()
                    await client.send(TOPIC, [(message_id, bytes(1_000))])
                    await asyncio.sleep(pause_s)
            async with asyncio.timeout(POLL_S):
                await self._all_came.wait()
            for task in waiting:
                task.cancel()
        took_ms = sorted(taken * 1_000 for taken in self._took_s)
        hundredths = statistics.quantiles(took_ms, n=100)
        return {
            "p50_ms": round(hundredths[49], 1),
            "p99_ms": round(hundredths[98], 1),
            "max_ms": round(took_ms[-1], 1),
        }

    async def _consume(self, number: int) -> None:
        async with Client(self._endpoint) as client:
            queues = await client.queues(TOPIC)
            while True:
                queue = queues[number % len(queues)]
                number += 1
                messages = await client.receive(queue, GROUP, POLL_S)
                now_s = time.monotonic()
                self._took_s += [now_s - self._sent_s[each.message_id] for each in messages]
                if len(self._took_s) >= self._messages:
                    self._all_came.set()
                if messages:
                    await client.ack(TOPIC, GROUP, messages)


async def parked(cluster: Cluster, count: int, seconds: float) -> dict[str, Any]:
    """Park receives on a topic without messages; return what that costs the servers."""
    before = used(cluster)
    async with AsyncExitStack() as clients, asyncio.TaskGroup() as tasks:
        waiting = []
        for first in range(0, count, PARKED_PER_CLIENT):
            client = await clients.enter_async_context(Client(cluster.endpoint))
            queues = await client.queues(IDLE_TOPIC)
            for number in range(first, min(count, first + PARKED_PER_CLIENT)):
                queue = queues[number % len(queues)]
                waiting.append(tasks.create_task(_park(client, queue, IDLE_GROUP)))
            await asyncio.sleep(0.05)
        await asyncio.sleep(SETTLE_S)
        begun, begun_s = used(cluster), time.monotonic()
        await asyncio.sleep(seconds)
        ended, lasted_s = used(cluster), time.monotonic() - begun_s
        still = sum(not task.done() for task in waiting)
        beside = await Waits(cluster.endpoint).measure(12, 100, 0.02)
        for task in waiting:
            task.cancel()
    return {
        "parked": still,
        "sends_beside": beside,
        "servers": {
            name: {
                "grown_mb": round((ended[name][1] - before[name][1]) / 1e6, 1),
                "of_a_core": round((ended[name][0] - begun[name][0]) / lasted_s, 4),
            }
            for name in before
        },
    }


async def _park(client: Client, queue: Any, group: str) -> None:
    with suppress(grpc.aio.AioRpcError):
        await client.receive(queue, group, PARKED_POLL_S)


def used(cluster: Cluster) -> dict[str, tuple[float, int]]:
    """Return CPU seconds and resident bytes of each process."""
    return {
        each["name"]: (cpu_seconds(each["pid"]), resident_bytes(each["pid"]))
        for each in cluster.local("status")
    }


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--consumers", type=int, default=12)
    parser.add_argument("--messages", type=int, default=200)
    parser.add_argument("--pause-ms", type=float, default=20.0)
    parser.add_argument("--parked", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=10.0, help="while receives are parked")
    return parser.parse_args(arguments)


def main() -> None:
    """Measure and print."""
    options = parse()
    # Else the last channel of a loop ends gRPC's thread, and the loop waits for it forever.
    grpc.aio.init_grpc_aio()
    with tempfile.TemporaryDirectory(prefix="stratamq-bench-") as folder:
        config = Path(folder) / "config.toml"
        config.write_text(CONFIG)
        cluster = Cluster(
            Path(folder) / "cluster", nameservers=1, storage=3, brokers=1, config=config
        )
        try:
            cluster.up()
            cluster.create_topic(TOPIC, "--queues", "12")
            cluster.create_topic(IDLE_TOPIC, "--queues", "12")
            cluster.create_group(GROUP)
            cluster.create_group(IDLE_GROUP)
            waits = Waits(cluster.endpoint)
            delivered = asyncio.run(
                waits.measure(options.consumers, options.messages, options.pause_ms / 1_000)
            )
            idle = asyncio.run(parked(cluster, options.parked, options.seconds))
            raft_groups = len(cluster.raft_groups())
        finally:
            cluster.down()
    document = {"machine": machine(), "raft_groups": raft_groups}
    print(json.dumps({**document, "delivered": delivered, "idle": idle}, indent=2))


if __name__ == "__main__":
    main()
