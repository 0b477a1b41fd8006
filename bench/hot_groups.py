"""Fairness of many consumers at one topic, behind the edge of a standalone node.

    python bench/hot_groups.py [--groups 200] [--consumers 1000] [--only PHASE] [--profile]

`broadcast`: each of many consumer groups has one receive that waits at one topic; messages are sent
at a rate, and each group has to get each of them. Figures: the longest time from a send to its
delivery, of the fastest, the median and the slowest group. `one_group`: many consumers of one group
wait over few connections; each acknowledges what came and waits again. Figures: the messages of the
consumer with the fewest and the most. `end`: the clients of as many receives go at once. Prints one
JSON object; CPU and times have the benchmark's own client in them. The documented figures are those
of `--groups 1000 --rate 0.5 --consumers 10000`. `--profile` prints where the event loop's CPU goes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from apache.rocketmq.v2 import definition_pb2, service_pb2
from bench.behind_edge import EdgelessNode, serving
from bench.micro_broker import METADATA, first_message_id, send_requests
from bench.receives import ClientCall, Received, measured
from bench.run import machine
from strata.meta.v1 import meta_pb2
from strata_runtime import loop
from strata_testing import until

CONNECTIONS = 20
POLL_S = 60
SENDS = 32
# No message takes as long; a message that is not there by then is lost.
LIMIT_S = 300.0


class ConsumerCall(ClientCall):
    """A call of one of many clients."""

    __slots__ = ("client", "peer")

    def __init__(
        self, method: str, request: bytes, answer: asyncio.Future[Sequence[bytes]], client: int
    ) -> None:
        super().__init__(method, request, answer)
        self.client = client
        # A plain name hides the attribute of all calls.
        self.peer = f"127.0.0.1:{client % CONNECTIONS + 1}"

    @property
    def metadata(self) -> Mapping[str, str]:
        """Headers, with the client's own id."""
        return {**METADATA, "x-mq-client-id": f"bench@{self.client}"}


class Crowd:
    """Clients with a receive each, and what each of them got.

    Attributes:
        got: messages of each client.
        took_s: from send to delivery, by client.
    """

    def __init__(self, node: EdgelessNode) -> None:
        self._edge = node.edge
        self._arrived: list[ConsumerCall] = []
        self._sent_s: dict[str, float] = {}
        self._changed = asyncio.Event()
        self.got: Counter[int] = Counter()
        self.took_s: dict[int, list[float]] = {}
        self.pairs: set[tuple[int, str]] = set()

    async def call(self, method: str, request: bytes, client: int) -> Sequence[bytes]:
        """Make a call with those of the same turn."""
        running = asyncio.get_running_loop()
        answer: asyncio.Future[Sequence[bytes]] = running.create_future()
        if not self._arrived:
            running.call_soon(self._hand_over)
        call = ConsumerCall(method, request, answer, client)
        self._arrived.append(call)
        try:
            return await answer
        except asyncio.CancelledError:
            call.leave()
            raise

    def _hand_over(self) -> None:
        calls, self._arrived = self._arrived, []
        self._edge.hot.handle(calls)

    async def work(self, client: int, group: str, size: int) -> None:
        """Receive and acknowledge forever."""
        request = receive_request(group, size)
        while True:
            found = self._found(await self.call("ReceiveMessage", request, client))
            now_s = time.perf_counter()
            for message_id, _ in found:
                self.pairs.add((client, message_id))
                self.took_s.setdefault(client, []).append(now_s - self._sent_s[message_id])
            self.got[client] += len(found)
            self._changed.set()
            if found:
                await self.call("AckMessage", ack_request(group, found), client)

    def _found(self, responses: Sequence[bytes]) -> list[Received]:
        found = []
        for response in responses:
            parsed = service_pb2.ReceiveMessageResponse.FromString(response)
            if parsed.HasField("message"):
                properties = parsed.message.system_properties
                found.append((properties.message_id, properties.receipt_handle))
        return found

    async def send(self, count: int, rate: float, first: int) -> None:
        """Send messages of their own requests at a rate, at most `SENDS` at the same time."""
        requests = send_requests(count, 1, 100, first=first)
        left = iter(enumerate([(first_message_id(one), one) for one in requests]))
        begun_s = time.perf_counter()

        async def sender() -> None:
            for number, (message_id, request) in left:
                delay_s = begun_s + number / rate - time.perf_counter()
                if delay_s > 0:
                    await asyncio.sleep(delay_s)
                self._sent_s[message_id] = time.perf_counter()
                (answer,) = await self.call("SendMessage", request, -1)
                response = service_pb2.SendMessageResponse.FromString(answer)
                assert response.status.code == definition_pb2.OK, response.status

        async with asyncio.TaskGroup() as tasks:
            for _ in range(SENDS):
                tasks.create_task(sender())

    async def have(self, count: int) -> None:
        """Wait until as many messages came to all clients together."""
        async with asyncio.timeout(LIMIT_S):
            while self.got.total() < count:
                self._changed.clear()
                await self._changed.wait()


def receive_request(group: str, size: int) -> bytes:
    """Serialise a receive that waits."""
    request = service_pb2.ReceiveMessageRequest(batch_size=size, auto_renew=False)
    request.group.name = group
    request.message_queue.topic.name = "bench"
    request.message_queue.id = -1
    request.message_queue.broker.name = "strata-1"
    request.filter_expression.expression = "*"
    request.filter_expression.type = definition_pb2.TAG
    request.invisible_duration.seconds = 120
    request.long_polling_timeout.seconds = POLL_S
    return request.SerializeToString()


def ack_request(group: str, found: Sequence[Received]) -> bytes:
    """Serialise the acknowledgement of messages."""
    request = service_pb2.AckMessageRequest()
    request.topic.name, request.group.name = "bench", group
    for message_id, handle in found:
        request.entries.add(message_id=message_id, receipt_handle=handle)
    return request.SerializeToString()


async def create(node: EdgelessNode, groups: int) -> None:
    """Create the topic, and the consumer groups, which receives may create at a low pace only."""
    await node.create_topic()
    channel = node.nameserver()
    for name in ("bench", *(f"group-{number}" for number in range(groups))):
        response = await channel.call(
            "/strata.meta.v1.MetaService/CreateConsumerGroup",
            meta_pb2.CreateConsumerGroupRequest(consumer_group=meta_pb2.ConsumerGroup(name=name)),
            meta_pb2.CreateConsumerGroupResponse,
        )
        assert response.status.outcome == meta_pb2.META_OUTCOME_OK, response
    await channel.close()


async def until_parked(node: EdgelessNode, count: int) -> float:
    """Wait until so many receives wait; return the seconds that it took."""
    begun_s = time.perf_counter()
    await until(lambda: waiting(node) >= count, limit_s=LIMIT_S, step_s=0.05)
    return time.perf_counter() - begun_s


def waiting(node: EdgelessNode) -> float:
    """Return how many receives wait in the broker."""
    node.metrics.read_gauges()
    for line in node.metrics.render().decode().splitlines():
        if line.startswith("strata_broker_waiting_receives"):
            return float(line.rpartition(" ")[2])
    return 0.0


async def broadcast(node: EdgelessNode, options: argparse.Namespace) -> dict[str, Any]:
    """Send to one topic that many consumer groups read."""
    crowd, count = Crowd(node), options.broadcast_messages
    async with asyncio.TaskGroup() as tasks:
        working = [
            tasks.create_task(crowd.work(number, f"group-{number}", options.batch))
            for number in range(options.groups)
        ]
        parked_s = await until_parked(node, options.groups)
        begun_s = time.perf_counter()
        await crowd.send(count, options.rate, first=1 << 40)
        await crowd.have(options.groups * count)
        lasted_s = time.perf_counter() - begun_s
        for task in working:
            task.cancel()
    longest_ms = sorted(max(took_s) * 1e3 for took_s in crowd.took_s.values())
    return {
        "groups": options.groups,
        "parked_s": round(parked_s, 2),
        "messages": len(crowd.pairs),
        "groups_with_every_message": sum(got == count for got in crowd.got.values()),
        "repeated": crowd.got.total() - len(crowd.pairs),
        "messages_per_s": round(len(crowd.pairs) / lasted_s),
        "longest_ms_fastest_group": round(longest_ms[0], 1),
        "longest_ms_median_group": round(statistics.median(longest_ms), 1),
        "longest_ms_slowest_group": round(longest_ms[-1], 1),
    }


async def one_group(node: EdgelessNode, options: argparse.Namespace) -> dict[str, Any]:
    """Send to many consumers of one consumer group."""
    crowd, consumers = Crowd(node), options.consumers
    async with asyncio.TaskGroup() as tasks:
        working = [
            tasks.create_task(crowd.work(number, "bench", options.batch))
            for number in range(consumers)
        ]
        parked_s = await until_parked(node, consumers)
        count = options.messages_each * consumers
        begun_s = time.perf_counter()
        await crowd.send(count, options.send_rate, first=2 << 40)
        await crowd.have(count)
        lasted_s = time.perf_counter() - begun_s
        for task in working:
            task.cancel()
    got = sorted(crowd.got[number] for number in range(consumers))
    took_ms = sorted(1e3 * took_s for each in crowd.took_s.values() for took_s in each)
    return {
        "consumers": consumers,
        "parked_s": round(parked_s, 2),
        "messages": len(crowd.pairs),
        "repeated": crowd.got.total() - len(crowd.pairs),
        "messages_per_s": round(count / lasted_s),
        "fewest_of_a_consumer": got[0],
        "median_of_a_consumer": statistics.median(got),
        "most_of_a_consumer": got[-1],
        "p50_ms": round(statistics.median(took_ms), 1),
        "p99_ms": round(took_ms[len(took_ms) * 99 // 100], 1),
    }


async def end(node: EdgelessNode, options: argparse.Namespace) -> dict[str, Any]:
    """Let the clients of as many receives as wait go at once; then wait until nobody waits."""
    crowd, consumers = Crowd(node), options.consumers
    async with asyncio.TaskGroup() as tasks:
        working = [
            tasks.create_task(crowd.work(number, "bench", options.batch))
            for number in range(consumers)
        ]
        await until_parked(node, consumers)
        begun_s = time.perf_counter()
        for task in working:
            task.cancel()
    await until(lambda: not waiting(node), limit_s=LIMIT_S, step_s=0.05)
    return {"messages": consumers, "s": round(time.perf_counter() - begun_s, 3)}


async def run(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Start a node for each phase, and measure."""
    figures: dict[str, Any] = {"machine": machine()}
    for name, phase in (("broadcast", broadcast), ("one_group", one_group), ("end", end)):
        if options.only in (None, name):
            # A node of its own: a consumer group begins with the oldest message.
            (folder / name).mkdir()
            prepare = partial(create, groups=options.groups)
            async with serving(folder / name, create_topics=prepare) as node:
                figures[name] = await measured(
                    partial(phase, node, options), profile=options.profile
                )
    return figures


def main() -> None:
    """Parse arguments, run, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="disk to measure on")
    parser.add_argument("--groups", type=int, default=200)
    parser.add_argument("--broadcast-messages", type=int, default=20)
    parser.add_argument("--rate", type=float, default=2.0, help="of them per second")
    parser.add_argument("--consumers", type=int, default=1_000)
    parser.add_argument("--messages-each", type=int, default=4, help="on average, of a consumer")
    parser.add_argument("--send-rate", type=float, default=300.0, help="of them per second")
    parser.add_argument("--batch", type=int, default=1, help="most messages of a receive")
    parser.add_argument("--only", choices=("broadcast", "one_group", "end"))
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        print(json.dumps(loop.run(run(Path(folder), options)), indent=2))


if __name__ == "__main__":
    main()
