"""Sends and pulls of the remoting protocol: a standalone node beside RocketMQ 5.5.0.

    python bench/remoting.py [--seconds S] [--in-flight N] [--size BYTES] [--system NAME ...]

`strata` and `rocketmq-sync` answer after an fsync, `rocketmq` before it. The client is the same for
all of them: one connection per eight sends in flight, and one pull at a time of each queue. It
takes CPU of the same machine, so compare the figures with each other, and not with other tables.
Prints one JSON object: messages per second, milliseconds of a send, and sends that were refused.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from strata_remoting import RequestCode, ResponseCode
from strata_testing.remoting_client import RemotingClient, send_fields
from tests.compat.remoting_node import OldNode
from tests.parts.rocketmq import RocketMq

TOPIC, GROUP, QUEUES = "bench", "bench-group", 4
SENDS_PER_CONNECTION = 8
WARM_UP_S = 1.0
PULLED_IDLE_S = 5.0
ROUTE_LIMIT_S = 60.0
RETRY_S = 0.2


class Load(NamedTuple):
    """The wanted load."""

    seconds: float
    in_flight: int
    size_bytes: int


class Sent(NamedTuple):
    """Sends of a time: milliseconds of each that was taken, how many were refused, seconds."""

    took_ms: list[float]
    refused: int
    seconds: float


@contextmanager
def strata_node(folder: Path) -> Iterator[str]:
    """Run a node with a topic; yield the address of its remoting port."""
    node = OldNode(folder / "data")
    try:
        node.start()
        node.create_topic(TOPIC, "--queues", str(QUEUES))
        yield node.nameserver
    finally:
        node.close()


@contextmanager
def _rocketmq(folder: Path, *, is_synchronous: bool) -> Iterator[str]:
    peer = RocketMq(folder, is_synchronous=is_synchronous)
    try:
        peer.start()
        peer.create_topic(TOPIC, QUEUES)
        yield peer.broker
    finally:
        peer.stop()


SYSTEMS: Mapping[str, Callable[[Path], Any]] = {
    "strata": strata_node,
    "rocketmq-sync": lambda folder: _rocketmq(folder, is_synchronous=True),
    "rocketmq": lambda folder: _rocketmq(folder, is_synchronous=False),
}


async def measured(address: str, load: Load) -> dict[str, float]:
    """Send for a time, then pull everything; return the figures."""
    count = max(1, load.in_flight // SENDS_PER_CONNECTION)
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(RemotingClient(address)) for _ in range(count)]
        await _until_sent(clients[0])
        await _sending(clients, load._replace(seconds=WARM_UP_S))
        sent = await _sending(clients, load)
        started_s = time.perf_counter()
        pulled = sum(
            await asyncio.gather(
                *(_pulling(clients[queue % count], queue) for queue in range(QUEUES))
            )
        )
        pulling_s = time.perf_counter() - started_s
    return {
        "sent_per_s": round(len(sent.took_ms) / sent.seconds),
        "refused": sent.refused,
        "send_p50_ms": round(statistics.median(sent.took_ms), 2),
        "send_p99_ms": round(statistics.quantiles(sent.took_ms, n=100)[98], 2),
        "pulled_per_s": round(pulled / pulling_s),
        "pulled": pulled,
    }


async def _until_sent(client: RemotingClient) -> None:
    """Send until the broker takes a message: a new topic is not there at once."""
    async with asyncio.timeout(ROUTE_LIMIT_S):
        taken = False
        while not taken:
            answer = await client.ask(RequestCode.SEND_MESSAGE_V2, send_fields(TOPIC), b"x")
            taken = answer.code == ResponseCode.SUCCESS
            await asyncio.sleep(RETRY_S)


async def _sending(clients: list[RemotingClient], load: Load) -> Sent:
    """Send for a time; RocketMQ refuses sends that waited for 200 ms."""
    body, took_ms, refused = b"x" * load.size_bytes, list[float](), list[float]()
    begun_s = time.perf_counter()
    ends_s = begun_s + load.seconds

    async def send(number: int) -> None:
        client, queue = clients[number % len(clients)], number % QUEUES
        while (started_s := time.perf_counter()) < ends_s:
            fields = send_fields(TOPIC, queue)
            answer = await client.ask(RequestCode.SEND_MESSAGE_V2, fields, body)
            (refused if answer.code else took_ms).append((time.perf_counter() - started_s) * 1000)

    await asyncio.gather(*map(send, range(load.in_flight)))
    return Sent(took_ms, len(refused), time.perf_counter() - begun_s)


async def _pulling(client: RemotingClient, queue: int) -> int:
    """Pull a queue to its end; return the number of messages."""
    offset = count = 0
    idle_since_s = time.perf_counter()
    while True:
        answer, messages = await client.pull(TOPIC, GROUP, queue, offset)
        offset = int(answer.fields.get("nextBeginOffset", offset))
        count += len(messages)
        now_s = time.perf_counter()
        if messages:
            idle_since_s = now_s
        elif offset >= int(answer.fields.get("maxOffset", 0)):
            return count
        elif now_s - idle_since_s > PULLED_IDLE_S:
            raise TimeoutError(f"queue {queue} gives nothing at offset {offset}: {answer.remark}")


def main() -> None:
    """Measure each system and print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--size", type=int, default=1_024)
    parser.add_argument("--system", action="append", choices=list(SYSTEMS))
    chosen = parser.parse_args()
    load = Load(chosen.seconds, chosen.in_flight, chosen.size)
    report: dict[str, Any] = {"load": load._asdict()}
    for name in chosen.system or list(SYSTEMS):
        with (
            tempfile.TemporaryDirectory(prefix="bench-remoting-") as folder,
            SYSTEMS[name](Path(folder)) as address,
        ):
            report[name] = asyncio.run(measured(address, load))
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
