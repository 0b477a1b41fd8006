"""Key-value tables beside etcd, in one run: puts, gets and compare-and-sets per second, and p99.

    bench/etcd/build.sh
    python bench/kv.py [--seconds 5] [--only standalone] [--keys 10000000]

The same client drives both: grpcio's asyncio client with serialised requests, 1 and 64 in flight,
values of 100 bytes, keys chosen at random out of 10,000. etcd's messages are laid out here by hand,
for its protos are not needed for three calls. Client and servers share the machine, so the CPU time
of all server processes per call says more than calls per second when others are at work on it.
`--keys` instead loads so many items into one table and tells memory and the time of a start.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import grpc

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from strata.kv.v1 import kv_pb2  # noqa: E402
from strata_kv.client import KvClient  # noqa: E402
from strata_kv.model import Operation  # noqa: E402
from tests.e2e.cluster import Cluster  # noqa: E402
from tests.e2e.process import cpu_seconds, resident_bytes  # noqa: E402
from tests.e2e.standalone import HOST, Standalone  # noqa: E402
from tests.parts.ports import free_port  # noqa: E402

ETCD = ROOT / "build" / "bench" / "etcd"
RESULTS = ROOT / "bench" / "results"
KEYS = 10_000
VALUE = b"v" * 100
IN_FLIGHT = (1, 64)
WARM_UP_S = 1.0
START_LIMIT_S = 30.0
START_PAUSE_S = 0.1
LOADED_PER_BATCH = 500

Request = Callable[[bytes], bytes]
"""Gives the serialised request for a key."""
Call = Callable[[bytes], Awaitable[bytes]]


@dataclass(frozen=True)
class Calls:
    """How a system is asked: paths of its calls, and their requests."""

    put: tuple[str, Request]
    get: tuple[str, Request]
    compare_and_set: tuple[str, Request]


@dataclass(frozen=True)
class System:
    """One that runs.

    Attributes:
        name: of it.
        nodes: how many replicas a value has.
        endpoint: which is asked.
        pids: its processes.
        calls: how it is asked.
    """

    name: str
    nodes: int
    endpoint: str
    pids: Sequence[int]
    calls: Calls

    def cpu_seconds(self) -> float:
        """Return the CPU time of all its processes."""
        return sum(map(cpu_seconds, self.pids))


@dataclass(frozen=True)
class Figure:
    """Figures of one load."""

    system: str
    nodes: int
    work: str
    in_flight: int
    per_second: float
    p50_ms: float
    p99_ms: float
    server_cpu_us: float


# Requests ---------------------------------------------------------------------------------------

TABLE = kv_pb2.TableName(name="bench")


def strata_calls() -> Calls:
    """Return the calls of a StrataMQ broker."""

    def put(key: bytes) -> bytes:
        return kv_pb2.PutRequest(table=TABLE, key=key, value=VALUE).SerializeToString()

    def get(key: bytes) -> bytes:
        return kv_pb2.GetRequest(table=TABLE, key=key).SerializeToString()

    def swap(key: bytes) -> bytes:
        # Every item has this value, so every swap wins.
        expected = kv_pb2.Condition(value=VALUE)
        return kv_pb2.CompareAndSetRequest(
            table=TABLE, key=key, expected=expected, value=VALUE
        ).SerializeToString()

    service = "/strata.kv.v1.KvService/"
    return Calls((service + "Put", put), (service + "Get", get), (service + "CompareAndSet", swap))


def etcd_calls() -> Calls:
    """Return the calls of an etcd server."""

    def put(key: bytes) -> bytes:
        return field(1, key) + field(2, VALUE)

    def get(key: bytes) -> bytes:
        return field(1, key)

    def swap(key: bytes) -> bytes:
        # If the value (target 3) is equal (result 0), put.
        compare = number(1, 0) + number(2, 3) + field(3, key) + field(7, VALUE)
        return field(1, compare) + field(2, field(2, put(key)))

    service = "/etcdserverpb.KV/"
    return Calls((service + "Put", put), (service + "Range", get), (service + "Txn", swap))


def field(tag: int, data: bytes) -> bytes:
    """Return a length-delimited protobuf field."""
    return varint(tag << 3 | 2) + varint(len(data)) + data


def number(tag: int, value: int) -> bytes:
    """Return a varint protobuf field."""
    return varint(tag << 3) + varint(value)


def varint(value: int) -> bytes:
    """Return a number as protobuf has it."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# Load -------------------------------------------------------------------------------------------


async def measure(system: System, seconds: float) -> list[Figure]:
    """Measure every kind of work at every number in flight."""
    figures = []
    async with grpc.aio.insecure_channel(system.endpoint) as channel:
        await serving(channel, system.calls)
        await fill(channel, system.calls)
        for work, (path, request) in asdict_of(system.calls).items():
            call = call_of(channel, path)
            for in_flight in IN_FLIGHT:
                await run(call, request, in_flight, WARM_UP_S)
                cpu_before_s = system.cpu_seconds()
                took_ms, elapsed_s = await run(call, request, in_flight, seconds)
                cpu_us = (system.cpu_seconds() - cpu_before_s) * 1e6
                took_ms.sort()
                count = len(took_ms)
                figure = Figure(
                    system.name,
                    system.nodes,
                    work,
                    in_flight,
                    per_second=count / elapsed_s,
                    p50_ms=took_ms[count // 2],
                    p99_ms=took_ms[count * 99 // 100],
                    server_cpu_us=cpu_us / count,
                )
                print(line_of(figure), flush=True)
                figures.append(figure)
    return figures


def line_of(figure: Figure) -> str:
    """Return a figure for people."""
    return (
        f"{figure.system:<8} {figure.nodes} {figure.work:<16} {figure.in_flight:>3} in flight "
        f"{figure.per_second:>8.0f}/s  p50 {figure.p50_ms:>7.2f} ms  p99 {figure.p99_ms:>7.2f} ms  "
        f"{figure.server_cpu_us:>6.0f} us CPU"
    )


def asdict_of(calls: Calls) -> dict[str, tuple[str, Request]]:
    """Return the calls by their names."""
    return {"put": calls.put, "get": calls.get, "compare-and-set": calls.compare_and_set}


def call_of(channel: grpc.aio.Channel, path: str) -> Call:
    """Return a call whose request and answer are bytes."""
    call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(path)
    return call


async def serving(channel: grpc.aio.Channel, calls: Calls) -> None:
    """Wait until a put is answered: an etcd that has just started has no leader yet."""
    path, request = calls.put
    call = call_of(channel, path)
    async with asyncio.timeout(START_LIMIT_S):
        while True:
            try:
                await call(request(key_of(0)))
            except grpc.aio.AioRpcError as error:
                if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNKNOWN):
                    raise
                await asyncio.sleep(START_PAUSE_S)
            else:
                return


async def fill(channel: grpc.aio.Channel, calls: Calls) -> None:
    """Put every key once."""
    path, request = calls.put
    call = call_of(channel, path)
    keys = iter(range(KEYS))

    async def worker() -> None:
        for key in keys:
            await call(request(key_of(key)))

    await asyncio.gather(*(worker() for _ in range(64)))


async def run(
    call: Call, request: Request, in_flight: int, seconds: float
) -> tuple[list[float], float]:
    """Call for some seconds; return how long each call took, in ms, and the time in all."""
    took_ms: list[float] = []
    began_s = time.perf_counter()
    ends_s = began_s + seconds
    chance = random.Random(in_flight)

    async def worker() -> None:
        while (called_s := time.perf_counter()) < ends_s:
            await call(request(key_of(chance.randrange(KEYS))))
            took_ms.append((time.perf_counter() - called_s) * 1_000)

    await asyncio.gather(*(worker() for _ in range(in_flight)))
    return took_ms, time.perf_counter() - began_s


def key_of(number: int) -> bytes:
    """Return a key."""
    return b"key-%012d" % number


# Systems ----------------------------------------------------------------------------------------


@contextmanager
def etcd(folder: Path, nodes: int) -> Iterator[System]:
    """Run etcd; its first node is asked, whether it leads or not."""
    folder.mkdir()
    names = [f"n{number}" for number in range(nodes)]
    peers = {name: f"{HOST}:{free_port()}" for name in names}
    clients = {name: f"{HOST}:{free_port()}" for name in names}
    cluster = ",".join(f"{name}=http://{place}" for name, place in peers.items())
    processes = []
    for name in names:
        options = {
            "name": name,
            "data-dir": str(folder / name),
            "listen-peer-urls": f"http://{peers[name]}",
            "initial-advertise-peer-urls": f"http://{peers[name]}",
            "listen-client-urls": f"http://{clients[name]}",
            "advertise-client-urls": f"http://{clients[name]}",
            "initial-cluster": cluster,
            "log-level": "error",
        }
        command = [str(ETCD), *(f"--{key}={value}" for key, value in options.items())]
        processes.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
    try:
        pids = [process.pid for process in processes]
        yield System("etcd", nodes, clients[names[0]], pids, etcd_calls())
    finally:
        for process in processes:
            process.terminate()
            process.wait()


@contextmanager
def strata(folder: Path, nodes: int) -> Iterator[System]:
    """Run StrataMQ with the plugin."""
    os.environ["STRATA_PLUGINS"] = "kv"
    folder.mkdir()
    if nodes == 1:
        node = Standalone(folder / "data")
        node.start()
        try:
            yield System("strata", nodes, node.endpoint, [node.pid], strata_calls())
        finally:
            node.close()
        return
    cluster = Cluster(folder / "cluster", nameservers=1, storage=nodes, brokers=1)
    cluster.up()
    try:
        cluster.settle()
        pids = [each["pid"] for each in cluster.local("status")]
        # Not the forwarder before the brokers: etcd has none either.
        yield System("strata", nodes, cluster.address("broker-1"), pids, strata_calls())
    finally:
        cluster.down()


def many_keys(folder: Path, count: int) -> dict[str, float]:
    """Load items into a standalone node; return its memory and how long it takes to start."""
    os.environ["STRATA_PLUGINS"] = "kv"
    node = Standalone(folder / "many")
    node.start()
    began_s = time.perf_counter()
    with KvClient(node.endpoint, timeout_s=60) as client:
        table = client.table("many")
        for first in range(0, count, LOADED_PER_BATCH):
            last = min(first + LOADED_PER_BATCH, count)
            table.batch([Operation(key_of(each), VALUE) for each in range(first, last)])
    loaded_s = time.perf_counter() - began_s
    loaded_bytes = resident_bytes(node.pid)
    node.stop()
    start_s = node.start()
    with KvClient(node.endpoint, timeout_s=60) as client:
        assert client.table("many").get(key_of(count - 1)) is not None
    started_bytes = resident_bytes(node.pid)
    node.kill()
    after_kill_s = node.start()
    node.close()
    return {
        "keys": count,
        "load_s": loaded_s,
        "memory_after_load_bytes": loaded_bytes,
        "memory_after_start_bytes": started_bytes,
        "start_s": start_s,
        "start_after_kill_s": after_kill_s,
    }


def main() -> None:
    """Measure, print, and write the JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="per kind of work")
    parser.add_argument("--only", choices=("standalone", "replicas"), help="1 node, or 3")
    parser.add_argument("--keys", type=int, default=0, help="load so many items instead")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stratamq-kv-bench-") as name:
        if arguments.keys:
            many = many_keys(Path(name), arguments.keys)
            print(many, flush=True)
            write("kv-keys.json", many)
            return
        sizes = {"standalone": (1,), "replicas": (3,)}.get(arguments.only, (1, 3))
        figures = compare(Path(name), sizes, arguments.seconds)
        write("kv.json", {"figures": [asdict(figure) for figure in figures]})


def compare(folder: Path, sizes: Sequence[int], seconds: float) -> list[Figure]:
    """Measure both systems, one after the other."""
    figures: list[Figure] = []
    for nodes in sizes:
        with strata(folder / f"strata-{nodes}", nodes) as system:
            figures += asyncio.run(measure(system, seconds))
        if not ETCD.is_file():
            print("no etcd: bench/etcd/build.sh makes it", flush=True)
            continue
        with etcd(folder / f"etcd-{nodes}", nodes) as system:
            figures += asyncio.run(measure(system, seconds))
    return figures


def write(name: str, document: Mapping[str, object]) -> None:
    """Write results as JSON."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / name).write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
