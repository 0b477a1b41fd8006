"""Cost of many topics: `python bench/many_topics.py [--counts 1000,10000,100000]`.

For each count a fresh standalone node gets that many topics of one queue by
`strata topic create --from FILE`. Then routes of random topics are read one by one, messages go to
one topic, to a thousand topics and, as many, to random topics, and a page in the middle of the list
is read. Then the node is stopped and started again. Prints one JSON object. Where a machine is
shared, CPU seconds of the node tell more than seconds of the clock. With `--with-data` every topic
gets a message first, and with `--offsets N` so many offsets of consumer groups are stored, a group
at each of the topics and then the next group; some of them are read again after the start.

Messages to many topics share no batch, so they cost more than messages to one topic, however many
topics there are: `send_thousand_topics` tells this cost. `alone` are sends one after the other.
Limits of the project for a million topics: created in 400 s, start in 20 s, 2 GB, a route in 10 ms
(p99), a send within 1.3 times that with one topic.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import grpc

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from apache.rocketmq.v2 import definition_pb2, service_pb2  # noqa: E402
from bench.run import machine  # noqa: E402
from strata.admin.v1 import admin_pb2  # noqa: E402
from tests.e2e.client import Client, RefusedError, check_status  # noqa: E402
from tests.e2e.process import cpu_seconds, process_tree, resident_bytes  # noqa: E402
from tests.e2e.standalone import STRATA, Standalone  # noqa: E402

Item = TypeVar("Item")
PAGE = 1_000
BODY = b"x" * 100
START_TIMEOUT_S = 600.0
# Rows that the restart writes again and threads that end make the first seconds no measure.
SETTLE_S = 2.0
# Pause between two tries of a call that a node which has just started does not serve yet.
RETRY_S = 0.02


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--counts", default="1000,10000,100000")
    parser.add_argument("--routes", type=int, default=2_000)
    parser.add_argument("--sends", type=int, default=10_000)
    parser.add_argument("--at-once", type=int, default=32)
    parser.add_argument(
        "--with-data", action="store_true", help="send a message to every topic first"
    )
    parser.add_argument("--offsets", type=int, default=0, help="offsets of consumer groups")
    parser.add_argument("--folder", type=Path, help="for the data; default: a temporary folder")
    arguments = parser.parse_args()
    # Without compiled files every start would compile all modules.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    results = []
    for count in map(int, arguments.counts.split(",")):
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            results.append(measure(count, Path(folder), arguments))
    print(json.dumps({"machine": machine(), "results": results}, indent=2))


class Figures(dict[str, Any]):
    """The figures of a run; each is told at once, as a run may take an hour and fail then."""

    def __setitem__(self, name: str, figure: Any) -> None:
        super().__setitem__(name, figure)
        print(json.dumps({"topics": self["topics"], name: figure}), file=sys.stderr, flush=True)


def name_of(number: int) -> str:
    """Return the name of a topic."""
    return f"topic-{number:08d}"


def group_of(number: int) -> str:
    """Return the name of a consumer group."""
    return f"group-{number:04d}"


def measure(count: int, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the figures for a number of topics."""
    names = folder / "names"
    with names.open("w") as file:
        file.writelines(f"{name_of(number)}\n" for number in range(count))
    node = Standalone(folder / "data")
    try:
        node.start()
        node.create_topic("one", "--queues", "1")
        node.stop()
        figures = Figures(topics=count, empty_start=restarted(node))
        figures["empty"] = held(node)
        figures["create"] = create(node, names, count)
        figures["created"] = held(node)
        if arguments.with_data:
            figures["fill"] = asyncio.run(fill(node, count, arguments.at_once))
            figures["filled"] = held(node)
        if arguments.offsets:
            for group in range(-(-arguments.offsets // count)):
                node.create_group(group_of(group))
            figures["offsets"] = asyncio.run(store_offsets(node, count, arguments))
            figures["with_offsets"] = held(node)
        figures["calls"] = asyncio.run(calls(node, count, arguments))
        figures["used"] = held(node)
        began_s = time.monotonic()
        node.stop()
        figures["stop_s"] = round(time.monotonic() - began_s, 2)
        figures["data_mib"] = round(size_bytes(folder / "data") / 2**20, 1)
        figures["start"] = restarted(node)
        figures["started"] = held(node)
        if arguments.offsets:
            figures["read_offsets"] = asyncio.run(read_offsets(node, count, arguments))
        figures["calls_after_start"] = asyncio.run(calls(node, count, arguments))
        figures["after_kill"] = killed(node, count)
    finally:
        node.close()
    return figures


def restarted(node: Standalone) -> dict[str, float]:
    """Start a node and return what that took."""
    start_s = node.start(START_TIMEOUT_S)
    cpu_s = cpu_seconds(node.pid)
    time.sleep(SETTLE_S)
    return {"s": round(start_s, 2), "cpu_s": round(cpu_s, 2)}


def killed(node: Standalone, count: int) -> dict[str, float]:
    """Kill a node and start it; return the seconds from the kill to what it serves again."""
    topic = name_of(random.Random(count).randrange(count))
    began_s = time.monotonic()
    node.kill()
    node.start(START_TIMEOUT_S)
    figures = {"ready_s": round(time.monotonic() - began_s, 2)}
    figures |= asyncio.run(first_calls(node, topic, began_s))
    return figures | {"cpu_s": round(cpu_seconds(node.pid), 2)}


async def first_calls(node: Standalone, topic: str, began_s: float) -> dict[str, float]:
    """Read a route and send a message as soon as the node lets it; return the seconds since."""
    figures = {}
    async with Client(node.endpoint) as client:
        for name, call in (
            ("route_s", lambda: client.queues(topic)),
            ("send_s", lambda: client.send(topic, [(client.new_message_id(), BODY)])),
        ):
            while True:
                try:
                    await call()
                except (RefusedError, grpc.aio.AioRpcError):
                    await asyncio.sleep(RETRY_S)
                else:
                    break
            figures[name] = round(time.monotonic() - began_s, 2)
    return figures


def held(node: Standalone) -> dict[str, float]:
    """Return the memory of the node, and how many files and sockets it has open."""
    handles = sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in process_tree(node.pid))
    return {"rss_mib": round(resident_bytes(node.pid) / 2**20, 1), "handles": handles}


def create(node: Standalone, names: Path, count: int) -> dict[str, float]:
    """Create the topics of a file."""
    before_s, began_s = cpu_seconds(node.pid), time.monotonic()
    command = ["topic", "create", "--from", str(names), "--queues", "1", "--timeout", "60s"]
    done = subprocess.run(
        [str(STRATA), *command, "--endpoint", node.endpoint, "-o", "json"],
        capture_output=True,
        check=True,
        text=True,
    )
    took_s = time.monotonic() - began_s
    result = json.loads(done.stdout)
    # A batch whose answer was late was sent again, and found its topics there.
    assert result["created"] + result["existing"] == count
    cpu_s = cpu_seconds(node.pid) - before_s
    return {
        "s": round(took_s, 2),
        "cpu_s": round(cpu_s, 2),
        "per_s": round(count / took_s),
        "cpu_us_per_topic": round(cpu_s * 1e6 / count, 1),
    }


async def fill(node: Standalone, count: int, at_once: int) -> dict[str, float]:
    """Send a message to every topic, so that every queue has data."""
    async with Client(node.endpoint) as client:
        return await sends(node, client, [name_of(number) for number in range(count)], at_once)


async def store_offsets(
    node: Standalone, count: int, arguments: argparse.Namespace
) -> dict[str, float]:
    """Store offsets of consumer groups, as pull consumers do: what came too late is repeated."""
    repeated = 0
    async with Client(node.endpoint) as client:
        queues = await queues_of(client, range(min(count, arguments.offsets)), arguments.at_once)

        async def store(number: int) -> None:
            group, topic = divmod(number, count)
            request = service_pb2.UpdateOffsetRequest(offset=int(arguments.with_data))
            request.group.name = group_of(group)
            request.message_queue.CopyFrom(queues[topic])
            nonlocal repeated
            while True:
                answer = await client.stub.UpdateOffset(request, metadata=client.metadata)
                if answer.status.code != definition_pb2.PROXY_TIMEOUT:
                    break
                repeated += 1
            check_status(answer.status)

        figures = await timed(node, store, range(arguments.offsets), arguments.at_once)
        return figures | {"repeated": repeated}


async def read_offsets(
    node: Standalone, count: int, arguments: argparse.Namespace
) -> dict[str, float]:
    """Read offsets of consumer groups at random; they are those that were stored."""
    numbers = random.Random(count)
    some = [numbers.randrange(arguments.offsets) for _ in range(arguments.routes)]
    async with Client(node.endpoint) as client:
        topics = sorted({number % count for number in some})
        queues = await queues_of(client, topics, arguments.at_once)

        async def read(number: int) -> None:
            group, topic = divmod(number, count)
            request = service_pb2.GetOffsetRequest()
            request.group.name = group_of(group)
            request.message_queue.CopyFrom(queues[topic])
            answer = await client.stub.GetOffset(request, metadata=client.metadata)
            check_status(answer.status)
            assert answer.offset == int(arguments.with_data), (number, answer.offset)

        return await timed(node, read, some, arguments.at_once)


async def queues_of(
    client: Client, topics: Sequence[int], at_once: int
) -> dict[int, definition_pb2.MessageQueue]:
    """Return the only queue of each topic."""
    queues: dict[int, definition_pb2.MessageQueue] = {}

    async def look_up(topic: int) -> None:
        (queues[topic],) = await client.queues(name_of(topic))

    await several(look_up, topics, at_once)
    return queues


async def calls(node: Standalone, count: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of routes, sends and pages."""
    numbers = random.Random(count)
    anywhere = [name_of(numbers.randrange(count)) for _ in range(arguments.sends)]
    near = [name_of(numbers.randrange(min(count, 1_000))) for _ in range(arguments.sends)]
    one = ["one"] * arguments.sends
    few = arguments.sends // 10
    async with Client(node.endpoint) as client:
        figures: dict[str, Any] = {"route": await routes(client, anywhere[: arguments.routes])}
        await sends(node, client, one[: arguments.sends // 4], arguments.at_once)
        for which, topics, at_once in (
            ("send_one_topic", one, arguments.at_once),
            ("send_any_topic_first", anywhere, arguments.at_once),
            ("send_thousand_topics", near, arguments.at_once),
            ("send_any_topic", anywhere, arguments.at_once),
            ("send_one_topic_again", one, arguments.at_once),
            ("alone_one_topic", one[:few], 1),
            ("alone_any_topic", anywhere[-few:], 1),
        ):
            figures[which] = await sends(node, client, topics, at_once)
        figures["page_ms"] = await page_ms(client, name_of(count // 2))
    return figures


async def routes(client: Client, topics: Sequence[str]) -> dict[str, float]:
    """Read routes, one after the other."""
    took_ms = []
    for topic in topics:
        request = service_pb2.QueryRouteRequest(topic=definition_pb2.Resource(name=topic))
        began_s = time.perf_counter()
        answer = await client.stub.QueryRoute(request, metadata=client.metadata)
        took_ms.append((time.perf_counter() - began_s) * 1_000)
        assert len(answer.message_queues) == 1, answer.status
    percentiles = statistics.quantiles(took_ms, n=100)
    return {"p50_ms": round(percentiles[49], 2), "p99_ms": round(percentiles[98], 2)}


async def sends(
    node: Standalone, client: Client, topics: Sequence[str], at_once: int
) -> dict[str, float]:
    """Send a message to each topic."""

    async def send(topic: str) -> None:
        await client.send(topic, [(client.new_message_id(), BODY)])

    return await timed(node, send, topics, at_once)


async def timed(
    node: Standalone,
    work: Callable[[Item], Awaitable[None]],
    items: Sequence[Item],
    at_once: int,
) -> dict[str, float]:
    """Do work for each item; return its rate and the node's CPU for each."""
    before_s, began_s = cpu_seconds(node.pid), time.monotonic()
    await several(work, items, at_once)
    took_s, cpu_s = time.monotonic() - began_s, cpu_seconds(node.pid) - before_s
    return {
        "per_s": round(len(items) / took_s),
        "cpu_us": round(cpu_s * 1e6 / len(items), 1),
    }


async def page_ms(client: Client, after: str) -> float:
    """Return the time for a page in the middle of the list."""
    request = admin_pb2.ListTopicsRequest(
        namespace="", page_size=PAGE, page_token=f"/{after}", prefix="topic-"
    )
    began_s = time.perf_counter()
    await client.admin.ListTopics(request, metadata=client.metadata)
    return round((time.perf_counter() - began_s) * 1_000, 1)


async def several(
    work: Callable[[Item], Awaitable[None]], items: Sequence[Item], at_once: int
) -> None:
    """Do work for each item, a few at once."""
    left = iter(items)

    async def worker() -> None:
        for item in left:
            await work(item)

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(worker())


def size_bytes(folder: Path) -> int:
    """Return the bytes on disk of the files below a folder."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    main()
