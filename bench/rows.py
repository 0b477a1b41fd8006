"""The rows of the benchmark table: the work and the target of each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import grpc

from bench.measure import QUEUES, Bench
from strata.admin.v1 import admin_pb2, admin_pb2_grpc
from strata.meta.v1 import meta_pb2
from tests.e2e.client import Client, RefusedError
from tests.e2e.process import resident_bytes
from tests.e2e.standalone import Standalone

UNARY = ("-mode", "send")
REQUESTS_OF_32 = ("-mode", "send", "-batch", "32", "-in-flight", "16")
RECEIVERS = "8"
TOPICS = 10_000
TOPICS_IN_FLIGHT = 16
SETTLE_S = 3.0


@dataclass(frozen=True)
class Figure:
    """One measured value and what it has to reach: at least, or at most."""

    what: str
    value: float
    to_reach: float
    unit: str
    at_least: bool = False

    @property
    def reached(self) -> bool:
        """Whether the value is good enough."""
        return self.value >= self.to_reach if self.at_least else self.value <= self.to_reach

    @property
    def text(self) -> str:
        """The value for the table."""
        return f"{self.what} {self.value:,.4g} {self.unit}"

    @property
    def target(self) -> str:
        """Targets, for the table."""
        return f"{'>=' if self.at_least else '<='} {self.to_reach:,.6g}"


Measured = tuple[list[Figure], dict[str, Any]]


@dataclass(frozen=True)
class Row:
    """A row; `own_node` says that it starts nodes itself."""

    name: str
    work: str
    measure: Callable[[Bench], Measured]
    own_node: bool = False


def send_row(
    options: tuple[str, ...], *figures: tuple[str, str, float, str, bool]
) -> Callable[[Bench], Measured]:
    """Return the measurement of a send load; a figure is (what, report field, target, ...)."""

    def measure(bench: Bench) -> Measured:
        report = bench.load("-topic", bench.new_topic(), *options)
        return [
            Figure(what, report[key], to_reach, unit, at_least)
            for what, key, to_reach, unit, at_least in figures
        ], report

    return measure


def drain_row(ack_batch: str, to_reach: float) -> Callable[[Bench], Measured]:
    """Return the measurement of a drain of a topic filled beforehand."""

    def measure(bench: Bench) -> Measured:
        topic = bench.new_topic()
        messages = str(int(to_reach * bench.seconds * 1.5) // 32 * 32)
        fill = ("-mode", "fill", "-batch", "32", "-in-flight", "16", "-messages", messages)
        bench.load("-topic", topic, *fill)
        drain = ("-mode", "drain", "-messages", messages, "-ack-batch", ack_batch)
        report = bench.load("-topic", topic, "-in-flight", RECEIVERS, *drain)
        return [Figure("rate", report["messages_per_s"], to_reach, "msg/s", True)], report

    return measure


def flows(bench: Bench) -> Measured:
    """Send FIFO, delayed and transactional messages, between two loads of plain ones."""
    reports = {}
    for name, kind, options in (
        ("plain", "NORMAL", ()),
        ("fifo", "FIFO", ("-kind", "fifo")),
        ("delay", "DELAY", ("-kind", "delay", "-delay", "5")),
        ("transaction", "TRANSACTION", ("-kind", "transaction")),
        ("plain again", "NORMAL", ()),
    ):
        topic = bench.new_topic("--type", kind)
        reports[name] = bench.load("-topic", topic, *UNARY, "-in-flight", "64", *options)
    rates = {name: report["messages_per_s"] for name, report in reports.items()}
    plain = (rates["plain"] + rates["plain again"]) / 2
    return [
        Figure("FIFO", rates["fifo"] / plain, 0.8, "of plain sends", True),
        Figure("delay", rates["delay"] / plain, 0.6, "of plain sends", True),
        Figure("transaction", rates["transaction"] / plain, 0.35, "of plain sends", True),
    ], reports


def end_to_end(bench: Bench) -> Measured:
    """Send 1,000 messages a second, whatever happens, and measure until each is received."""
    report = bench.load("-topic", bench.new_topic(), "-mode", "end-to-end", "-rate", "1000")
    return [
        Figure("p50", report["p50_ms"], 3, "ms"),
        Figure("p99", report["p99_ms"], 20, "ms"),
    ], report


def cpu_behind_edge(bench: Bench) -> Measured:
    """Compare the node's CPU for a message with that of fixed answers behind the same edge."""
    figures = []
    details = {}
    for what, options, to_reach in (
        ("at 64 in flight", (*UNARY, "-in-flight", "64"), 30.0),
        ("in requests of 32", REQUESTS_OF_32, 12.0),
    ):
        node = bench.load("-topic", bench.new_topic(), *options)
        baseline = bench.load_baseline("-topic", "any", *options)
        behind = node["server_cpu_us_per_message"] - baseline["server_cpu_us_per_message"]
        figures.append(Figure(what, behind, to_reach, "us/msg"))
        details[what] = {"node": node, "baseline": baseline}
    return figures, details


def engine(bench: Bench) -> Measured:
    """Append batches of 64 to the storage engine alone, beside bare writes of the same sizes."""
    report = bench.run_engine()
    return [
        Figure("100 B", report["append_100_bytes"]["messages_per_s"], 300_000, "msg/s", True),
        Figure("1 KB, share of bare", report["ratio_to_bare_one_batch"], 0.6, "", True),
    ], report


def start(bench: Bench) -> Measured:
    """Measure from the start of the process to the first accepted send, topic known."""
    node = bench.fresh_node()
    node.start()
    topic = node.create_topic("start", "--queues", str(QUEUES))
    asyncio.run(first_accepted_send(node, topic))
    node.stop()
    began = time.monotonic()
    try:
        ready_s = node.start()
        asyncio.run(first_accepted_send(node, topic))
        accepted_s = time.monotonic() - began
    finally:
        node.close()
    return [Figure("accepted after", accepted_s, 2, "s")], {"ready_s": ready_s}


async def first_accepted_send(node: Standalone, topic: str) -> None:
    """Send until the node accepts."""
    async with Client(node.endpoint) as client, asyncio.timeout(30):
        while True:
            try:
                await client.send(topic, [(client.new_message_id(), b"first")])
            except (grpc.aio.AioRpcError, RefusedError):
                await asyncio.sleep(0.005)
            else:
                return


def memory(bench: Bench) -> Measured:
    """Measure resident memory idle and with 10,000 topics, and how long their creation takes."""
    node = bench.fresh_node()
    node.start()
    try:
        time.sleep(SETTLE_S)
        idle_mb = resident_bytes(node.pid) / 1e6
        created_s = asyncio.run(create_topics(node.endpoint, TOPICS, TOPICS_IN_FLIGHT))
        time.sleep(SETTLE_S)
        loaded_mb = resident_bytes(node.pid) / 1e6
    finally:
        node.close()
    return [
        Figure("idle", idle_mb, 120, "MB"),
        Figure("10,000 topics", loaded_mb, 200, "MB"),
        Figure("created in", created_s, 20, "s"),
    ], {}


async def create_topics(endpoint: str, topics: int, in_flight: int) -> float:
    """Create topics by the admin RPC, so many at a time; return the seconds it took."""
    numbers = count()

    async def work(stub: admin_pb2_grpc.AdminServiceAsyncStub) -> None:
        for number in take_below(numbers, topics):
            topic = meta_pb2.Topic(
                name=f"many-{number}", type=meta_pb2.TOPIC_TYPE_NORMAL, queue_count=QUEUES
            )
            await stub.CreateTopic(admin_pb2.CreateTopicRequest(topic=topic))

    began = time.monotonic()
    async with grpc.aio.insecure_channel(endpoint) as channel, asyncio.TaskGroup() as tasks:
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        for _ in range(in_flight):
            tasks.create_task(work(stub))
    return time.monotonic() - began


def take_below(numbers: Iterator[int], limit: int) -> Iterator[int]:
    """Yield shared numbers until the limit."""
    for number in numbers:
        if number >= limit:
            return
        yield number


RATE = ("rate", "messages_per_s")
ROWS: tuple[Row, ...] = (
    Row(
        "send-64",
        "unary send, 64 in flight",
        send_row(
            (*UNARY, "-in-flight", "64"),
            (*RATE, 6_000, "/s", True),
            ("p99", "p99_ms", 30, "ms", False),
        ),
    ),
    Row(
        "send-256",
        "unary send, 256 in flight",
        send_row((*UNARY, "-in-flight", "256"), (*RATE, 5_500, "/s", True)),
    ),
    Row(
        "send-1",
        "unary send, 1 in flight",
        send_row((*UNARY, "-in-flight", "1"), ("p50", "p50_ms", 1.5, "ms", False)),
    ),
    Row(
        "send-requests-of-32",
        "requests of 32 messages, 16 in flight",
        send_row(REQUESTS_OF_32, (*RATE, 40_000, "msg/s", True)),
    ),
    Row("flows", "FIFO, delay, send and commit; 64 in flight", flows),
    Row("drain-acks-of-32", "receive drain, acks of 32 entries", drain_row("32", 10_000)),
    Row("drain-single-acks", "receive drain, single acks", drain_row("1", 3_500)),
    Row("end-to-end", "end to end, open loop 1,000/s", end_to_end),
    Row("cpu-behind-edge", "CPU behind the edge per message", cpu_behind_edge, own_node=True),
    Row("engine", "engine alone, batches of 64", engine, own_node=True),
    Row("start", "start to first accepted send", start, own_node=True),
    Row("memory", "resident memory", memory, own_node=True),
)
