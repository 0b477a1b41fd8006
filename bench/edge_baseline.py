"""The edge with a broker that answers SendMessage at once: the cost of a call before any work.

Drive it with the load generator of `bench/load`:

    python bench/edge_baseline.py [--port 8081] [--edge grpcio|native] [--direct] [--seconds 20]

It prints the port, then one JSON line per second of load with calls per second and CPU of the
server and of its front, and at the end the totals. `--direct` leaves grpcio's front out (plaintext
only), which shows what the front costs. `bench/edge_compare.py` measures both edges in one run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata_edge.choice import choose_edge
from strata_edge.options import EdgeOptions
from strata_edge.ports import CallInfo, HotCall
from strata_runtime import garbage, loop, tls
from strata_runtime.metrics import Metrics

SERVICE = "apache.rocketmq.v2.MessagingService"


class FixedAnswers:
    """Answers every hot call with a constant, without looking at the request."""

    def __init__(self) -> None:
        ok = definition_pb2.Status(code=definition_pb2.OK, message="OK")
        entry = service_pb2.SendResultEntry(status=ok, message_id="0" * 32, offset=1)
        send = service_pb2.SendMessageResponse(status=ok, entries=[entry])
        none = definition_pb2.Status(code=definition_pb2.MESSAGE_NOT_FOUND)
        receive = service_pb2.ReceiveMessageResponse(status=none)
        self._answers = {
            "SendMessage": [send.SerializeToString()],
            "ReceiveMessage": [receive.SerializeToString()],
            "AckMessage": [service_pb2.AckMessageResponse(status=ok).SerializeToString()],
        }
        self.calls = 0
        self.batches = 0

    def handle(self, calls: Sequence[HotCall]) -> None:
        """See `strata_edge.ports.HotHandler`."""
        self.calls += len(calls)
        self.batches += 1
        for call in calls:
            call.complete(self._answers[call.method])


@dataclass(frozen=True)
class Sample:
    """Counts at one moment."""

    time_s: float
    calls: int
    batches: int
    server_cpu_s: float
    front_cpu_s: float

    def since(self, before: Sample) -> dict[str, float]:
        """Rates between two samples."""
        calls = self.calls - before.calls
        server_cpu_s = self.server_cpu_s - before.server_cpu_s
        front_cpu_s = self.front_cpu_s - before.front_cpu_s
        return {
            "calls_per_s": round(calls / (self.time_s - before.time_s)),
            "calls_per_batch": round(calls / max(1, self.batches - before.batches), 1),
            "calls_per_server_cpu_s": round(calls / server_cpu_s) if server_cpu_s else 0,
            "server_cpu_us_per_call": round(server_cpu_s / calls * 1e6, 1) if calls else 0,
            "front_cpu_us_per_call": round(front_cpu_s / calls * 1e6, 1) if calls else 0,
        }


def sample(answers: FixedAnswers, front_pid: int | None) -> Sample:
    """Read the counts now."""
    front_cpu_s = cpu_s(front_pid) if front_pid is not None else 0.0
    cpu = time.process_time()
    return Sample(time.perf_counter(), answers.calls, answers.batches, cpu, front_cpu_s)


def cpu_s(pid: int) -> float:
    """User and system CPU seconds of another process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def empty(request: bytes, info: CallInfo) -> bytes:
    """Answer a rare RPC with an empty message."""
    return b""


async def serve(arguments: argparse.Namespace, folder: Path) -> None:
    """Serve for the given time and print what was measured."""
    options = EdgeOptions(
        port=arguments.port, front=not arguments.direct, certificate=tls.self_signed(folder)
    )
    edge = choose_edge(arguments.edge, options, Metrics.disabled())
    answers = FixedAnswers()
    edge.set_hot_handler(SERVICE, answers)
    edge.add_unary(f"/{SERVICE}/Heartbeat", empty)
    print(json.dumps({"port": await edge.start()}), flush=True)
    garbage.freeze_after_start()
    first: Sample | None = None
    last = before = sample(answers, edge.front_pid)
    for _ in range(arguments.seconds):
        await asyncio.sleep(1)
        last, before = sample(answers, edge.front_pid), last
        if last.calls > before.calls:
            first = first or before
            print(json.dumps(last.since(before)), flush=True)
    if first is not None:
        print(json.dumps({"total": last.since(first)}), flush=True)
    await edge.stop(1)


def main() -> None:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8081)
    parser.add_argument("--edge", choices=("grpcio", "native"), default="grpcio")
    parser.add_argument("--direct", action="store_true")
    parser.add_argument("--seconds", type=int, default=20)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        loop.run(serve(arguments, Path(folder)))


if __name__ == "__main__":
    main()
