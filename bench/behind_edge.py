"""CPU behind the edge: broker, storage and log of a standalone node, with no gRPC in front.

    python bench/behind_edge.py [--folder DIR] [--profile]

The benchmark calls the broker's hot handler directly; a call counts when its messages are durable.
It prints one JSON object: microseconds of CPU per message, of the process and of the event loop's
thread alone. `--profile` prints a profile of the event loop instead.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import pstats
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.micro_broker import BenchCall, BenchEdge, send_requests
from strata.meta.v1 import meta_pb2
from strata_angelia.ports import Channel
from strata_broker.app import BrokerApp
from strata_broker.base.identity import BrokerIdentity
from strata_broker.storage_client.channels import BrokerNetwork
from strata_cli.processes.access_control import with_access_control
from strata_cli.processes.data_folder import DataFolder, FolderRole
from strata_cli.processes.standalone import NAMESERVER, Standalone
from strata_cli.processes.standalone_config import StandaloneConfig
from strata_runtime import garbage, loop
from strata_runtime.clock import SystemClock
from strata_runtime.metrics import Metrics
from strata_runtime.runtime import Runtime

CALL_TYPE: type[BenchCall] = BenchCall
"""Calls that the benchmark hands over; other benchmarks put their own kind here."""

CASES = (("unary_64_in_flight", 1, 64, 12_800), ("requests_of_32_16_in_flight", 32, 16, 1_280))


class EdgelessNode(Standalone):
    """A standalone node whose broker is called directly."""

    def __init__(
        self, folder: DataFolder, metrics: Metrics, access_control: str | None = None
    ) -> None:
        # Handles are signed from the first one on, as on a node that runs for a minute.
        access = {"mode": access_control, "cluster_key_delay_ms": 0}
        config = StandaloneConfig().with_flags(access_control=access)
        super().__init__(
            with_access_control(config),
            folder,
            clock=SystemClock(),
            metrics=metrics,
            on_fatal=lambda name, error: sys.exit(f"{name}: {error!r}"),
        )
        self.edge = BenchEdge()
        self.metrics = metrics

    def _broker(self) -> BrokerApp:
        self.broker = BrokerApp(
            BrokerIdentity("bench", 1, "127.0.0.1"),
            self._config,
            self.edge,
            network=BrokerNetwork(
                [f"inproc:{NAMESERVER}"],
                self._network.channel,
                lambda endpoints: self._network.channel(endpoints[0]),
            ),
            runtime=Runtime(self._clock, lambda: 0.5, self._metrics, self._on_fatal),
        )
        return self.broker

    def nameserver(self) -> Channel:
        """Return a channel to the nameserver."""
        return self._network.channel(f"inproc:{NAMESERVER}")

    async def create_topic(self) -> None:
        """Create the topic that the requests name."""
        channel = self.nameserver()
        topic = meta_pb2.Topic(name="bench", type=meta_pb2.TOPIC_TYPE_NORMAL, queue_count=8)
        response = await channel.call(
            "/strata.meta.v1.MetaService/CreateTopic",
            meta_pb2.CreateTopicRequest(topic=topic),
            meta_pb2.CreateTopicResponse,
        )
        assert response.status.outcome == meta_pb2.META_OUTCOME_OK, response
        await channel.close()


async def drive(
    edge: BenchEdge, requests: Sequence[bytes], in_flight: int, method: str = "SendMessage"
) -> None:
    """Keep a number of requests under way until all are answered, as clients do."""
    waiting = iter(requests)
    finished = asyncio.Event()
    left = len(requests)
    arrived: list[BenchCall] = []
    running = asyncio.get_running_loop()

    def hand_over() -> None:
        calls, arrived[:] = list(arrived), []
        edge.hot.handle(calls)

    def begin() -> None:
        request = next(waiting, None)
        if request is not None:
            if not arrived:
                running.call_soon(hand_over)
            arrived.append(CALL_TYPE(method, request, done))

    def done(responses: Sequence[bytes]) -> None:
        nonlocal left
        left -= 1
        if not left:
            finished.set()
        begin()

    for _ in range(in_flight):
        begin()
    await finished.wait()


async def measure(node: EdgelessNode, profile: bool) -> dict[str, dict[str, float]]:
    """Run every case once warm."""
    figures: dict[str, dict[str, float]] = {}
    for name, size, in_flight, count in CASES:
        requests = send_requests(count * 2, size, 1024, first=len(figures) << 32)
        await drive(node.edge, requests[:count], in_flight)
        profiler = cProfile.Profile()
        began = time.perf_counter(), time.process_time(), time.thread_time()
        if profile:
            profiler.enable()
        await drive(node.edge, requests[count:], in_flight)
        profiler.disable()
        wall, process, thread = (
            end - start
            for end, start in zip(
                (time.perf_counter(), time.process_time(), time.thread_time()), began, strict=True
            )
        )
        messages = count * size
        figures[name] = {
            "messages_per_s": round(messages / wall),
            "cpu_us_per_message": round(process / messages * 1e6, 1),
            "loop_cpu_us_per_message": round(thread / messages * 1e6, 1),
        }
        if profile:
            pstats.Stats(profiler).sort_stats("tottime").print_stats(45)
    return figures


@asynccontextmanager
async def serving(
    folder: Path,
    edge: BenchEdge | None = None,
    create_topics: Callable[[EdgelessNode], Awaitable[None]] = EdgelessNode.create_topic,
    access_control: str | None = None,
) -> AsyncIterator[EdgelessNode]:
    """Start a node, and stop it at the end."""
    data = DataFolder.open(folder / "data", FolderRole.STANDALONE)
    node = EdgelessNode(data, Metrics(), access_control)
    if edge is not None:
        node.edge = edge
    await node.start()
    try:
        await create_topics(node)
        await asyncio.sleep(0.2)
        garbage.freeze_after_start()
        yield node
    finally:
        await node.stop(1.0)
        data.close()


async def run(folder: Path, profile: bool) -> dict[str, dict[str, float]]:
    """Start a node and measure."""
    async with serving(folder) as node:
        return await measure(node, profile)


def main() -> None:
    """Parse arguments, run, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="disk to measure on")
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        print(json.dumps(loop.run(run(Path(folder), arguments.profile)), indent=2))


if __name__ == "__main__":
    main()
