"""The cost of metrics, windows and traces per send, against a node that measures nothing.

    python bench/metrics_overhead.py [--edge] [--folder DIR] [--rounds N] [--count N]

All nodes live in one process and take turns, so that what else the machine does meets all of them
alike. A turn is `--count` sends of 1 KB, 64 under way; the figure is the nodes' process's CPU per
message in the best turn, and its ratio to that of the node without metrics. Without `--edge` sends
are called behind the edge, so that nothing hides what measuring costs; with it a gRPC client in a
process of its own sends, as clients do, and the ratio is that of a whole send. Prints one JSON
object. Spans are collected and thrown away: what a collector takes is not in it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from asyncio.subprocess import PIPE
from collections.abc import Sequence
from pathlib import Path

import grpc

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from apache.rocketmq.v2 import definition_pb2, service_pb2
from bench.behind_edge import EdgelessNode, drive
from bench.micro_broker import send_requests
from strata_broker.app import BrokerApp
from strata_broker.base.identity import BrokerIdentity
from strata_broker.base.window_options import WindowOptions
from strata_broker.storage_client.channels import BrokerNetwork
from strata_cli.processes.data_folder import DataFolder, FolderRole
from strata_cli.processes.standalone import NAMESERVER
from strata_edge.grpcio_edge import GrpcioEdge
from strata_edge.options import EdgeOptions
from strata_runtime import garbage, loop
from strata_runtime.metrics import Metrics
from strata_runtime.runtime import Runtime
from strata_runtime.tracing import TraceOptions, Tracer, current_trace_parent

IN_FLIGHT = 64
SEND = "/apache.rocketmq.v2.MessagingService/SendMessage"
OFF = "nothing"
TRACES = {"traces_1_percent": 0.01, "traces_all": 1.0}


class Sender:
    """The process of the client."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it, before gRPC runs in this process: that does not bear a fork."""
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, __file__, "--client"), stdin=PIPE, stdout=PIPE
        )

    async def send(self, port: int, first: int, count: int) -> float:
        """Send to a node; return the seconds of this process's CPU from first to last answer."""
        began_s = await self._ask(f"prepare {port} {first} {count}")
        return await self._ask("send") - began_s

    async def stop(self) -> None:
        """Let the process end."""
        if self._process is not None:
            await self._process.communicate(b"")

    async def _ask(self, line: str) -> float:
        """Wait until the process has done something; return this one's CPU time."""
        assert self._process is not None, "not started"
        assert self._process.stdin is not None, "made with a pipe"
        assert self._process.stdout is not None, "made with a pipe"
        self._process.stdin.write(f"{line}\n".encode())
        assert await self._process.stdout.readline() == b"done\n"
        return time.process_time()


async def be_client() -> None:
    """Do what the lines on stdin say, and answer each with a line."""
    requests: list[bytes] = []
    port = 0
    while words := (await asyncio.to_thread(sys.stdin.readline)).split():
        if words[0] == "prepare":
            port, first, count = map(int, words[1:])
            requests = send_requests(count, 1, 1024, first=first)
        else:
            await send_all(f"127.0.0.1:{port}", requests)
        print("done", flush=True)


async def send_all(endpoint: str, requests: Sequence[bytes]) -> None:
    """Send requests, some under way at a time; every answer must be OK."""
    waiting = iter(requests)
    async with grpc.aio.insecure_channel(endpoint) as channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(SEND)

        async def one_after_another() -> None:
            for request in waiting:
                answer = service_pb2.SendMessageResponse.FromString(
                    await call(request, metadata=(("x-mq-client-id", "bench"),))
                )
                assert answer.status.code == definition_pb2.OK, answer

        async with asyncio.TaskGroup() as group:
            for _ in range(IN_FLIGHT):
                group.create_task(one_after_another())


class ObservedNode(EdgelessNode):
    """A node that measures as much as its name says, behind an edge or behind none."""

    def __init__(self, folder: DataFolder, kind: str, sender: Sender | None) -> None:
        super().__init__(folder, Metrics.disabled() if kind == OFF else Metrics())
        self._sender = sender
        self._grpc = GrpcioEdge(EdgeOptions(host="127.0.0.1", port=0, front=False), self._metrics)
        ratio = TRACES.get(kind, 0.0)
        self._tracer = Tracer(
            TraceOptions(ratio, follow_parents=False, max_spans=1 << 30), Metrics.disabled()
        )
        self._windows = None if kind == OFF else WindowOptions(publish=True)

    def _broker(self) -> BrokerApp:
        return BrokerApp(
            BrokerIdentity("bench", 1, "127.0.0.1"),
            self._config,
            self.edge if self._sender is None else self._grpc,
            network=BrokerNetwork(
                [f"inproc:{NAMESERVER}"],
                self._network.channel,
                lambda endpoints: self._network.channel(
                    endpoints[0], trace_parent=current_trace_parent
                ),
            ),
            runtime=Runtime(self._clock, lambda: 0.5, self._metrics, self._on_fatal, self._tracer),
            windows=self._windows,
        )

    async def take(self, first: int, count: int) -> float:
        """Be sent messages with these numbers; return the seconds of CPU that it took."""
        if self._sender is not None:
            return await self._sender.send(self._grpc.port, first, count)
        requests = send_requests(count, 1, 1024, first=first)
        began_s = time.process_time()
        await drive(self.edge, requests, IN_FLIGHT)
        return time.process_time() - began_s

    def drop_spans(self) -> int:
        """Throw the collected spans away; return how many there were."""
        return len(self._tracer.buffer.take(1 << 30))


async def measure(
    nodes: dict[str, ObservedNode], rounds: int, count: int
) -> dict[str, dict[str, float]]:
    """Let the nodes take turns."""
    figures: dict[str, list[float]] = {kind: [] for kind in nodes}
    spans = dict.fromkeys(nodes, 0)
    for turn in range(rounds + 1):
        for kind, node in nodes.items():
            took_s = await node.take(turn << 32, count)
            if turn:
                # The first turn warms up.
                figures[kind].append(took_s / count * 1e6)
                spans[kind] += node.drop_spans()
    base = min(figures[OFF])
    return {
        kind: {
            "cpu_us_per_message": round(min(values), 1),
            "ratio": round(min(values) / base, 3),
            "spans_per_message": round(spans[kind] / (rounds * count), 2),
        }
        for kind, values in figures.items()
    }


async def run(
    folder: Path, rounds: int, count: int, sender: Sender | None
) -> dict[str, dict[str, float]]:
    """Start the nodes, measure, stop them."""
    folders = {
        kind: DataFolder.open(folder / kind, FolderRole.STANDALONE)
        for kind in (OFF, "metrics_and_windows", *TRACES)
    }
    if sender is not None:
        await sender.start()
    nodes = {kind: ObservedNode(data, kind, sender) for kind, data in folders.items()}
    for node in nodes.values():
        await node.start()
        await node.create_topic()
    await asyncio.sleep(0.2)
    garbage.freeze_after_start()
    try:
        return await measure(nodes, rounds, count)
    finally:
        if sender is not None:
            await sender.stop()
        for node in nodes.values():
            await node.stop(1.0)
        for data in folders.values():
            data.close()


def main() -> None:
    """Parse arguments, run, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="disk to measure on")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--count", type=int, default=6_400, help="messages of one turn")
    parser.add_argument("--edge", action="store_true", help="send from a client's process")
    parser.add_argument("--client", action="store_true", help="be that process")
    arguments = parser.parse_args()
    if arguments.client:
        loop.run(be_client())
        return
    sender = Sender() if arguments.edge else None
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        figures = loop.run(run(Path(folder), arguments.rounds, arguments.count, sender))
        print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
