"""The rate of creating topics in a cluster of nameservers, and their cost, as one JSON object.

Run: `python bench/metadata_scale.py [--topics 100000] [--queues 10] [--nameservers 3] [--batch 1]`.
Every nameserver is a separate process with real files below a temporary folder; one client keeps 16
CreateTopic calls in flight over one connection, or with `--batch` 2 CreateTopics calls. Afterwards
new watchers read everything, one with the rows of a broker and one with those of a storage node,
and all rows are requested at once, if one answer may have them. At the end the nameserver that
leads is killed (kill -9): `failover_s` is the time from the kill to the answer to a change, and
`restarted_s` the time from the start of the killed one until a new watcher has everything from it.
Lag is the delay of the event loops meanwhile.
Limits of the project: 100,000 topics of 10 queues in 120 s, a nameserver within 400 MB.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from strata.meta.v1 import meta_pb2
from strata_angelia.factory import open_channel, open_server
from strata_broker.metadata.metadata import MetadataView
from strata_cli.processes.data_folder import DataFolder, FolderRole
from strata_metadata import (
    ClusterView,
    MetadataCache,
    MetadataClient,
    MetadataClientOptions,
    MetadataFollower,
    MetadataFollowerOptions,
    WatchOptions,
)
from strata_metadata.follower import MetadataSink, MetadataSources
from strata_nameserver.base.config import NameserverConfig
from strata_nameserver.process.app import NameserverApp, NameserverCluster, NameserverIdentity
from strata_runtime import loop
from strata_runtime.clock import SystemClock
from strata_runtime.garbage import freeze_after_start
from strata_runtime.lifecycle import Lifecycle
from strata_runtime.loop import LoopLag
from strata_runtime.metrics import Metrics
from strata_runtime.runtime import Runtime
from strata_state.metadata_rocksdb import RocksDbMetadataStore

IN_FLIGHT = 16
BATCHES_IN_FLIGHT = 2
STORAGE_NODES = 3
LAG_FILE = "lag_ms"
LAG_INTERVAL_S = 0.005
LAG_LOOKS = 150


def main() -> None:
    """Serve as one nameserver, or run the measurement."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--topics", type=int, default=100_000)
    parser.add_argument("--queues", type=int, default=10)
    parser.add_argument("--nameservers", type=int, default=3)
    parser.add_argument("--batch", type=int, default=1, help="topics of a call")
    parser.add_argument("--serve", nargs="*", help="own folder, own endpoint, all endpoints")
    arguments = parser.parse_args()
    if arguments.serve:
        folder, endpoint, *endpoints = arguments.serve
        loop.run(serve(Path(folder), endpoint, endpoints))
    else:
        print(json.dumps(asyncio.run(measure(arguments)), indent=2))


async def serve(folder: Path, endpoint: str, endpoints: Sequence[str]) -> None:
    """Run one nameserver until it is told to stop."""
    lifecycle: Lifecycle
    host, _, port = endpoint.rpartition(":")
    data = DataFolder.open(folder, FolderRole.NAMESERVER)
    app = NameserverApp(
        NameserverConfig(),
        NameserverIdentity(
            f"nameserver-{port}",
            data.identity.metadata_replica_id,
            frozenset(data.identity.initial_metadata_replica_ids),
            random.getrandbits(63),
            data.identity.cluster_id,
        ),
        data.nameserver,
        server=open_server(host, int(port)),
        runtime=Runtime(
            SystemClock(),
            random.random,
            Metrics(service="bench"),
            lambda name, failure: lifecycle.on_fatal(name, failure),
        ),
        cluster=NameserverCluster(endpoint, endpoints, open_channel, data.form),
    )
    lag = WorstLag()
    asyncio.get_running_loop().add_signal_handler(
        signal.SIGUSR1, lambda: tell(folder / LAG_FILE, f"{lag.take_ms()}\n")
    )
    lifecycle = Lifecycle([lag.measured(), app])
    freeze_after_start()
    await lifecycle.run()


def tell(path: Path, text: str) -> None:
    """Write a file that appears with all of its content."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(text)
    unfinished.replace(path)


class WorstLag:
    """How late the event loop was at worst since it was last asked."""

    def __init__(self) -> None:
        self._worst_s = 0.0

    def measured(self) -> LoopLag:
        """Return what measures it."""
        return LoopLag(Metrics.disabled(), interval_s=LAG_INTERVAL_S, on_lag=self._note)

    def take_ms(self) -> int:
        """Return it and begin anew."""
        worst_s, self._worst_s = self._worst_s, 0.0
        return round(worst_s * 1_000)

    def _note(self, lag_s: float) -> None:
        self._worst_s = max(self._worst_s, lag_s)


async def lags_ms(folders: Sequence[Path], processes: Sequence[subprocess.Popen[bytes]]) -> int:
    """Return the worst lag of all nameservers since the last call."""
    for folder, process in zip(folders, processes, strict=True):
        (folder / LAG_FILE).unlink(missing_ok=True)
        process.send_signal(signal.SIGUSR1)
    for _ in range(LAG_LOOKS):
        await asyncio.sleep(0.2)
        if all((folder / LAG_FILE).exists() for folder in folders):
            break
    return max(int((folder / LAG_FILE).read_text()) for folder in folders)


async def measure(arguments: argparse.Namespace) -> dict[str, object]:
    """Make the topics and return the figures."""
    endpoints = free_endpoints(arguments.nameservers)
    with tempfile.TemporaryDirectory() as folder:
        folders = [Path(folder) / str(number) for number in range(len(endpoints))]
        processes = [start(*each, endpoints) for each in zip(folders, endpoints, strict=True)]
        client = MetadataClient(
            endpoints,
            open_channel,
            MetadataClientOptions(call_timeout_ms=120_000),
            random=random.random,
            metrics=Metrics.disabled(),
        )
        try:
            await register(client)
            before = memory_mib(processes)
            cpu_before_s = [cpu_s(process.pid) for process in processes]
            figures = await create(client, arguments)
            figures["cpu_us_per_topic"] = [
                round((cpu_s(process.pid) - before_s) * 1e6 / arguments.topics)
                for process, before_s in zip(processes, cpu_before_s, strict=True)
            ]
            figures |= {"rss_mib_before": before, "rss_mib_after": memory_mib(processes)}
            await lags_ms(folders, processes)
            store = RocksDbMetadataStore(Path(folder) / "copy")
            sinks: dict[str, MetadataSink] = {
                "broker": MetadataView(),
                "storage": MetadataCache(
                    store, WatchOptions(), Metrics.disabled(), sinks=[ClusterView()]
                ),
            }
            for name, sink in sinks.items():
                seconds, lag_ms = await watch(endpoints, sink)
                figures[f"watch_{name}_s"], figures[f"watch_{name}_lag_ms"] = seconds, lag_ms
                figures[f"watch_{name}_source_lag_ms"] = await lags_ms(folders, processes)
            store.close()
            if arguments.topics < WatchOptions().snapshot_rows:
                figures["snapshot_s"] = await snapshot(client, arguments.topics)
                figures["snapshot_source_lag_ms"] = await lags_ms(folders, processes)
            figures["rss_mib_after_watch"] = memory_mib(processes)
            if len(processes) > 1:
                figures |= await failover(client, endpoints, folders, processes)
        finally:
            await client.close()
            for process in processes:
                process.send_signal(signal.SIGTERM)
            for process in processes:
                process.wait(20)
    return {"nameservers": arguments.nameservers, **figures}


async def register(client: MetadataClient) -> None:
    """Register storage nodes, so that slots have owners."""
    for number in range(STORAGE_NODES):
        node = meta_pb2.Node(node_id=f"storage-{number}", kind=meta_pb2.NODE_KIND_STORAGE)
        await client.call(
            "RegisterNode",
            meta_pb2.RegisterNodeRequest(node=node),
            meta_pb2.RegisterNodeResponse,
        )


async def create(client: MetadataClient, arguments: argparse.Namespace) -> dict[str, object]:
    """Make topics with a few calls at a time."""
    topics, queues, batch = arguments.topics, arguments.queues, arguments.batch
    in_flight = IN_FLIGHT if batch == 1 else BATCHES_IN_FLIGHT
    numbers = iter(range(0, topics, batch))
    latencies_ms: list[float] = []
    started_s = time.monotonic()

    async def worker(numbers: Iterator[int]) -> None:
        for first in numbers:
            wanted = [
                meta_pb2.Topic(name=f"topic-{number:07d}", queue_count=queues)
                for number in range(first, min(first + batch, topics))
            ]
            before_s = time.monotonic()
            if batch == 1:
                one = meta_pb2.CreateTopicRequest(topic=wanted[0])
                await client.call("CreateTopic", one, meta_pb2.CreateTopicResponse)
            else:
                many = meta_pb2.CreateTopicsRequest(topics=wanted)
                answer = await client.call("CreateTopics", many, meta_pb2.CreateTopicsResponse)
                assert answer.created + answer.existing == len(wanted), answer.failures[:1]
            latencies_ms.append((time.monotonic() - before_s) * 1_000)

    async with asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(worker(numbers))
    elapsed_s = time.monotonic() - started_s
    percentiles = statistics.quantiles(latencies_ms, n=100)
    return {
        "topics": topics,
        "queues_per_topic": queues,
        "topics_per_call": batch,
        "in_flight": in_flight,
        "elapsed_s": round(elapsed_s, 1),
        "topics_per_s": round(topics / elapsed_s),
        "latency_ms_p50": round(percentiles[49], 1),
        "latency_ms_p99": round(percentiles[98], 1),
    }


async def watch(
    endpoints: Sequence[str], sink: MetadataSink, has_all: Callable[[], bool] = lambda: True
) -> tuple[float, int]:
    """Return how long a new watcher takes until it knows everything, and its worst lag in ms."""
    follower = MetadataFollower(
        MetadataSources(endpoints, open_channel),
        sink,
        options=MetadataFollowerOptions(first_response_timeout_ms=20_000),
        clock=SystemClock(),
        random=random.random,
        metrics=Metrics.disabled(),
    )
    lag = WorstLag()
    measured = lag.measured()
    await measured.start()
    started_s = time.monotonic()
    task = asyncio.ensure_future(follower.run())
    while True:
        if sink.revision and has_all():
            break
        await asyncio.sleep(LAG_INTERVAL_S)
    task.cancel()
    seconds = round(time.monotonic() - started_s, 2)
    await measured.stop(0)
    return seconds, lag.take_ms()


async def snapshot(client: MetadataClient, topics: int) -> float:
    """Return how long one call takes that returns all rows."""
    started_s = time.monotonic()
    response = await client.call(
        "GetSnapshot", meta_pb2.GetSnapshotRequest(), meta_pb2.GetSnapshotResponse
    )
    assert sum(row.HasField("topic") for row in response.rows) >= topics
    return round(time.monotonic() - started_s, 2)


async def failover(
    client: MetadataClient,
    endpoints: Sequence[str],
    folders: Sequence[Path],
    processes: list[subprocess.Popen[bytes]],
) -> dict[str, object]:
    """Kill the nameserver that leads, and start it again; it is replaced in `processes`."""
    number = await leader_of(endpoints)
    probe = meta_pb2.CreateTopicRequest(topic=meta_pb2.Topic(name="after-kill", queue_count=1))
    began_s = time.monotonic()
    processes[number].kill()
    await client.call("CreateTopic", probe, meta_pb2.CreateTopicResponse)
    failover_s = round(time.monotonic() - began_s, 2)
    processes[number].wait(20)
    began_s = time.monotonic()
    processes[number] = start(folders[number], endpoints[number], endpoints)
    view = MetadataView()
    # It may serve what it had until it hears of the others' leader.
    await watch([endpoints[number]], view, lambda: view.topic("", "after-kill") is not None)
    return {
        "failover_s": failover_s,
        "restarted_s": round(time.monotonic() - began_s, 2),
        "rss_mib_after_restart": memory_mib(processes),
    }


async def leader_of(endpoints: Sequence[str]) -> int:
    """Return which nameserver takes changes: the others refuse them."""
    for number, endpoint in enumerate(endpoints):
        channel = open_channel(endpoint)
        topic = meta_pb2.Topic(name="before-kill", queue_count=1)
        answer = await channel.call(
            "/strata.meta.v1.MetaService/CreateTopic",
            meta_pb2.CreateTopicRequest(topic=topic),
            meta_pb2.CreateTopicResponse,
            timeout_s=10,
        )
        await channel.close()
        if answer.status.outcome == meta_pb2.META_OUTCOME_OK:
            return number
    raise AssertionError("no nameserver leads")


def start(folder: Path, endpoint: str, endpoints: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start one nameserver."""
    return subprocess.Popen(
        [sys.executable, __file__, "--serve", str(folder), endpoint, *endpoints]
    )


def memory_mib(processes: Sequence[subprocess.Popen[bytes]]) -> list[int]:
    """Return the resident memory of each process."""
    pages = [
        int(Path(f"/proc/{process.pid}/statm").read_text(encoding="ascii").split()[1])
        for process in processes
    ]
    return [count * 4_096 // 2**20 for count in pages]


def cpu_s(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def free_endpoints(count: int) -> list[str]:
    """Return addresses on loopback that are free now."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    endpoints = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    return endpoints


if __name__ == "__main__":
    main()
