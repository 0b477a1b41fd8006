"""Receives and acks behind the edge of a standalone node, with no gRPC in front.

    python bench/receives.py [--folder DIR] [--rate N] [--seconds S] [--profile PHASE]

Calls go straight to the broker's hot handler. `end_to_end` sends at a rate, whatever happens, to 32
receives that wait; each acknowledges what came and waits again. `drain` takes what lies there in
receives and acks of 32. `receives` takes the same without acks, and `acks_of_one` acknowledges each
of these messages by a call of its own, 64 in flight. Prints one JSON object: microseconds of CPU
per message, of the process and of the event loop's thread alone; messages per second, or
milliseconds from send to receive. `--profile` prints where the event loop's CPU goes in one phase.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import pstats
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from apache.rocketmq.v2 import definition_pb2, service_pb2
from bench.behind_edge import EdgelessNode, drive, serving
from bench.micro_broker import BenchCall, BenchEdge, first_message_id, send_requests
from strata_runtime import loop

RECEIVERS = 32
QUEUES = 8
WARMUP_S = 1.0
DRAINED = 20_000
Received = tuple[str, str]


class ClientCall(BenchCall):
    """A hot call whose client may go."""

    __slots__ = ("_is_over", "_when_gone")

    def __init__(
        self, method: str, request: bytes, answer: asyncio.Future[Sequence[bytes]]
    ) -> None:
        super().__init__(method, request, answer.set_result)
        self._is_over = answer.done
        self._when_gone: list[Callable[[], None]] = []

    def done(self) -> bool:
        """Whether it was answered, or its client has gone."""
        return self._is_over()

    def on_gone(self, callback: Callable[[], None]) -> None:
        """Keep what is to be told."""
        self._when_gone.append(callback)

    def complete(
        self, responses: Sequence[bytes], on_not_taken: Callable[[], None] | None = None
    ) -> None:
        """Give the answer to a client that is there."""
        if not self.done():
            super().complete(responses)
        elif on_not_taken is not None:
            on_not_taken()

    def leave(self) -> None:
        """Let the client go."""
        for callback in self._when_gone:
            callback()


class Consumers:
    """Receives and acks over one edge."""

    def __init__(self, edge: BenchEdge) -> None:
        self._edge = edge
        self._arrived: list[ClientCall] = []
        self.sent_s: dict[str, float] = {}
        self.took_s: list[float] = []
        self.count = 0
        self._wanted = 0
        self._came = asyncio.Event()

    async def have(self, count: int) -> None:
        """Wait until so many messages came."""
        self._wanted = count
        if self.count < count:
            await self._came.wait()

    async def call(self, method: str, request: bytes) -> Sequence[bytes]:
        """Make a call with those of the same turn."""
        answer: asyncio.Future[Sequence[bytes]] = asyncio.get_running_loop().create_future()
        if not self._arrived:
            asyncio.get_running_loop().call_soon(self._hand_over)
        call = ClientCall(method, request, answer)
        self._arrived.append(call)
        try:
            return await answer
        except asyncio.CancelledError:
            call.leave()
            raise

    def _hand_over(self) -> None:
        calls, self._arrived = self._arrived, []
        self._edge.hot.handle(calls)

    async def receive(self, request: bytes) -> list[Received]:
        """Return message id and handle of what comes."""
        found = []
        for response in await self.call("ReceiveMessage", request):
            parsed = service_pb2.ReceiveMessageResponse.FromString(response)
            if parsed.HasField("message"):
                properties = parsed.message.system_properties
                found.append((properties.message_id, properties.receipt_handle))
        now_s = time.perf_counter()
        self.count += len(found)
        if self._wanted and self.count >= self._wanted:
            self._came.set()
        self.took_s += [now_s - self.sent_s.pop(one[0], now_s) for one in found]
        return found

    async def ack(self, found: Sequence[Received]) -> None:
        """Acknowledge messages."""
        await self.call("AckMessage", ack_request(found))

    async def work(self, queue: int, size: int, kept: list[Received] | None = None) -> None:
        """Receive and acknowledge forever, or keep what came."""
        request = receive_request(queue, size)
        while True:
            found = await self.receive(request)
            if kept is not None:
                kept += found
            elif found:
                await self.ack(found)


def ack_request(found: Sequence[Received]) -> bytes:
    """Serialise the acknowledgement of messages."""
    request = service_pb2.AckMessageRequest()
    request.group.name = request.topic.name = "bench"
    for message_id, handle in found:
        request.entries.add(message_id=message_id, receipt_handle=handle)
    return request.SerializeToString()


def receive_request(queue: int, size: int) -> bytes:
    """Serialise a receive that waits."""
    request = service_pb2.ReceiveMessageRequest(batch_size=size, auto_renew=False)
    request.group.name = "bench"
    request.message_queue.topic.name = "bench"
    request.message_queue.id = queue
    request.message_queue.broker.name = f"strata-{queue % 2 + 1}"
    request.filter_expression.expression = "*"
    request.filter_expression.type = definition_pb2.TAG
    request.invisible_duration.seconds = 60
    request.long_polling_timeout.seconds = 15
    return request.SerializeToString()


async def end_to_end(
    node: EdgelessNode, rate: int, seconds: float, *, first: int = 1 << 40
) -> dict[str, float]:
    """Send at a rate to receives that wait."""
    consumers = Consumers(node.edge)
    count = int(rate * seconds)
    requests = send_requests(count, 1, 1024, first=first)
    ids = [first_message_id(request) for request in requests]
    async with asyncio.TaskGroup() as tasks:
        working = [tasks.create_task(consumers.work(-1, 32)) for _ in range(RECEIVERS)]
        begun_s = time.perf_counter()
        for number, (message_id, request) in enumerate(zip(ids, requests, strict=True)):
            delay_s = begun_s + number / rate - time.perf_counter()
            if delay_s > 0:
                await asyncio.sleep(delay_s)
            consumers.sent_s[message_id] = time.perf_counter()
            tasks.create_task(consumers.call("SendMessage", request))
        await consumers.have(count)
        for task in working:
            task.cancel()
    hundredths = statistics.quantiles(consumers.took_s, n=100)
    return {
        "messages": consumers.count,
        "p50_ms": round(hundredths[49] * 1e3, 2),
        "p99_ms": round(hundredths[98] * 1e3, 2),
    }


async def fill(node: EdgelessNode, first: int) -> int:
    """Send what is drained; return how many messages."""
    requests = send_requests(DRAINED // 32, 32, 1024, first=first)
    await drive(node.edge, requests, 16)
    return len(requests) * 32


async def drain(
    node: EdgelessNode, count: int, kept: list[Received] | None = None
) -> dict[str, float]:
    """Take what lies there; with `kept`, which takes its handles, acknowledge nothing."""
    consumers = Consumers(node.edge)
    begun_s = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        working = [tasks.create_task(consumers.work(-1, 32, kept)) for _ in range(QUEUES * 2)]
        await consumers.have(count)
        for task in working:
            task.cancel()
    return {
        "messages": consumers.count,
        "messages_per_s": round(consumers.count / (time.perf_counter() - begun_s)),
    }


async def ack_each(node: EdgelessNode, requests: Sequence[bytes]) -> dict[str, float]:
    """Acknowledge each message by a call of its own."""
    begun_s = time.perf_counter()
    await drive(node.edge, requests, 64, method="AckMessage")
    return {
        "messages": len(requests),
        "messages_per_s": round(len(requests) / (time.perf_counter() - begun_s)),
    }


async def measured(
    phase: Callable[[], Awaitable[dict[str, float]]], *, profile: bool
) -> dict[str, float]:
    """Run a phase; add its CPU per message."""
    profiler = cProfile.Profile()
    began = time.process_time(), time.thread_time()
    if profile:
        profiler.enable()
    figures = await phase()
    profiler.disable()
    if profile:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(60)
    for name, used_s in (
        ("cpu_us_per_message", time.process_time() - began[0]),
        ("loop_cpu_us_per_message", time.thread_time() - began[1]),
    ):
        figures[name] = round(used_s / figures["messages"] * 1e6, 1)
    return figures


async def run(folder: Path, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Start a node and measure."""
    kept: list[Received] = []
    figures = {}

    async def measure(name: str, phase: Callable[[], Awaitable[dict[str, float]]]) -> None:
        if options.profile in (None, name):
            figures[name] = await measured(phase, profile=options.profile == name)
        elif name == "receives" and options.profile == "acks_of_one":
            await phase()

    async with serving(folder) as node:
        await end_to_end(node, options.rate, WARMUP_S, first=3 << 40)
        await measure("end_to_end", lambda: end_to_end(node, options.rate, options.seconds))
        count = await fill(node, 2 << 40)
        await measure("drain", lambda: drain(node, count))
        count = await fill(node, 4 << 40)
        await measure("receives", lambda: drain(node, count, kept))
        requests = [ack_request([one]) for one in kept]
        await measure("acks_of_one", lambda: ack_each(node, requests))
    return figures


def main() -> None:
    """Parse arguments, run, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="disk to measure on")
    parser.add_argument("--rate", type=int, default=1_000, help="messages per second")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--profile", choices=("end_to_end", "drain", "receives", "acks_of_one"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        print(json.dumps(loop.run(run(Path(folder), options)), indent=2))


if __name__ == "__main__":
    main()
