"""FIFO, delayed and transactional messages against plain ones in one run, behind the edge.

    python bench/flows.py [--folder DIR] [--count N] [--rounds N] [--profile FLOW]

Calls go straight to the handlers of a standalone node's broker, 64 under way, 1 KB bodies, and
count when they are answered. The flows take turns in rounds, and each is compared with the plain
sends of its own round, so that other work on the machine meets all of them. Prints one JSON object:
per flow messages per second, microseconds of process CPU per message, and the rate as a share of
that of plain sends, by time and by CPU; all are medians of the rounds. `delay_far` is due in an
hour, `delay_now` is due at once, so its delivery to the queue is in the figure too; `transaction`
is a half and its commit. `--profile` prints where the event loop's CPU goes, too. The figures do
not have the cost of the edge: 1 call per message, 2 for a transaction; `bench/run.py --only flows`
has the whole.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import itertools
import json
import pstats
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from apache.rocketmq.v2 import definition_pb2, service_pb2
from bench.behind_edge import EdgelessNode, serving
from bench.micro_broker import BenchCall, BenchEdge, send_requests
from strata.meta.v1 import meta_pb2
from strata_cli.processes.standalone import NAMESERVER
from strata_runtime import loop

IN_FLIGHT = 64
HOUR_MS = 3_600_000
MESSAGE_GROUPS = 64
TOPICS = {
    "plain": meta_pb2.TOPIC_TYPE_NORMAL,
    "fifo": meta_pb2.TOPIC_TYPE_FIFO,
    "delay_far": meta_pb2.TOPIC_TYPE_DELAY,
    "delay_now": meta_pb2.TOPIC_TYPE_DELAY,
    "transaction": meta_pb2.TOPIC_TYPE_TRANSACTION,
}


class TurnEdge(BenchEdge):
    """Hands over the hot calls of a turn together."""

    def __init__(self) -> None:
        self._turn: list[BenchCall] = []

    async def send(self, request: bytes) -> service_pb2.SendResultEntry:
        """Send one message."""
        response = service_pb2.SendMessageResponse.FromString(
            await self._answer("SendMessage", request)
        )
        assert response.status.code == definition_pb2.OK, response
        return response.entries[0]

    async def commit(self, topic: str, entry: service_pb2.SendResultEntry) -> None:
        """Commit a transaction."""
        request = service_pb2.EndTransactionRequest(
            topic=definition_pb2.Resource(name=topic),
            message_id=entry.message_id,
            transaction_id=entry.transaction_id,
            resolution=definition_pb2.COMMIT,
        )
        data = await self._answer("EndTransaction", request.SerializeToString())
        status = service_pb2.EndTransactionResponse.FromString(data).status
        assert status.code == definition_pb2.OK, status

    async def _answer(self, method: str, request: bytes) -> bytes:
        answer: asyncio.Future[Sequence[bytes]] = asyncio.get_running_loop().create_future()
        if not self._turn:
            asyncio.get_running_loop().call_soon(self._hand_over)
        self._turn.append(BenchCall(method, request, answer.set_result))
        (data,) = await answer
        return data

    def _hand_over(self) -> None:
        turn, self._turn = self._turn, []
        self.hot.handle(turn)


async def create_topics(node: EdgelessNode) -> None:
    """Make a topic per flow."""
    channel = node._network.channel(f"inproc:{NAMESERVER}")
    for name, kind in TOPICS.items():
        response = await channel.call(
            "/strata.meta.v1.MetaService/CreateTopic",
            meta_pb2.CreateTopicRequest(topic=meta_pb2.Topic(name=name, type=kind, queue_count=8)),
            meta_pb2.CreateTopicResponse,
        )
        assert response.status.outcome == meta_pb2.META_OUTCOME_OK, response
    await channel.close()


def requests_of(flow: str, count: int, first: int) -> list[bytes]:
    """Serialised requests of one message each."""
    now_ms = time.time_ns() // 1_000_000
    made = []
    for number, data in enumerate(send_requests(count, 1, 1024, first=first)):
        request = service_pb2.SendMessageRequest.FromString(data)
        message = request.messages[0]
        message.topic.name = flow
        properties = message.system_properties
        if flow == "fifo":
            properties.message_type = definition_pb2.FIFO
            properties.message_group = f"group-{number % MESSAGE_GROUPS}"
        elif flow.startswith("delay"):
            properties.message_type = definition_pb2.DELAY
            due_ms = now_ms + (HOUR_MS if flow == "delay_far" else 0)
            properties.delivery_timestamp.FromMilliseconds(due_ms)
        elif flow == "transaction":
            properties.message_type = definition_pb2.TRANSACTION
        made.append(request.SerializeToString())
    return made


async def drive(work: Callable[[bytes], Awaitable[None]], requests: Sequence[bytes]) -> None:
    """Keep a number of flows under way until all are done, as clients do."""
    waiting = iter(requests)

    async def one_client() -> None:
        for request in waiting:
            await work(request)

    async with asyncio.TaskGroup() as clients:
        for _ in range(IN_FLIGHT):
            clients.create_task(one_client())


class Cost(NamedTuple):
    """Times of a flow's messages."""

    wall_s: float
    cpu_s: float


async def measure(edge: TurnEdge, count: int, rounds: int, profiled: str) -> dict[str, object]:
    """Run all flows in turns, once warm."""
    first = itertools.count(step=1 << 32)
    costs: dict[str, list[Cost]] = {flow: [] for flow in TOPICS}
    profiler = cProfile.Profile(time.thread_time)
    for warm in (False, *[True] * rounds):
        for flow in TOPICS:
            requests = requests_of(flow, count, next(first))
            if warm and flow == profiled:
                profiler.enable()
            cost = await cost_of(edge, flow, requests)
            profiler.disable()
            if warm:
                costs[flow].append(cost)
    if profiled:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(45)
    return {flow: figures_of(each, costs["plain"], count) for flow, each in costs.items()}


async def cost_of(edge: TurnEdge, flow: str, requests: Sequence[bytes]) -> Cost:
    """Send messages of a flow and return what they took."""

    async def work(request: bytes) -> None:
        entry = await edge.send(request)
        if flow == "transaction":
            await edge.commit(flow, entry)

    began = time.perf_counter(), time.process_time()
    await drive(work, requests)
    return Cost(time.perf_counter() - began[0], time.process_time() - began[1])


def figures_of(costs: Sequence[Cost], plain: Sequence[Cost], count: int) -> dict[str, float]:
    """Return the medians of a flow's rounds, and of its ratios to plain sends."""
    pairs = list(zip(plain, costs, strict=True))
    return {
        "messages_per_s": round(count / statistics.median(cost.wall_s for cost in costs)),
        "cpu_us_per_message": round(
            statistics.median(cost.cpu_s for cost in costs) / count * 1e6, 1
        ),
        "of_plain": round(statistics.median(base.wall_s / cost.wall_s for base, cost in pairs), 2),
        "of_plain_by_cpu": round(
            statistics.median(base.cpu_s / cost.cpu_s for base, cost in pairs), 2
        ),
    }


async def run(folder: Path, count: int, rounds: int, profiled: str) -> dict[str, object]:
    """Start a node and measure."""
    edge = TurnEdge()
    async with serving(folder, edge, create_topics):
        return await measure(edge, count, rounds, profiled)


def main() -> None:
    """Parse arguments, run, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="disk to measure on")
    parser.add_argument("--count", type=int, default=2_560, help="messages of a flow and round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", default="", choices=("", *TOPICS), metavar="FLOW")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        figures = loop.run(run(Path(folder), arguments.count, arguments.rounds, arguments.profile))
        print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
