"""One and two workers and shards in one run: what more processes cost, and whether all have work.

    python bench/cores.py [--seconds 5] [--connections 16]

A cluster of this machine with one nameserver, one storage machine and one broker, fsync before the
answer. It prints one JSON object: by number of workers and shards the rate of unary sends and of
requests of 32, their latency, the CPU time of all server processes per message, and each process's
share of it. The load generator runs on the same cores: with two cores a rate cannot double, and the
CPU time per message shows what a machine with free cores could do. Rates of one run may be
compared, rates of two runs may not.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.measure import LOAD, QUEUES, Samples, run_json, sampling  # noqa: E402
from bench.rows import REQUESTS_OF_32, UNARY  # noqa: E402
from tests.e2e.cluster import Cluster  # noqa: E402
from tests.e2e.process import process_tree  # noqa: E402

SIZES = ((1, 1), (2, 1), (1, 2), (2, 2))
"""Workers and shards."""

LOADS = {"unary, 64 in flight": (*UNARY, "-in-flight", "64"), "requests of 32": REQUESTS_OF_32}


def main() -> None:
    """Measure each size, print the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="measured time of a load")
    parser.add_argument("--connections", type=int, default=16, help="of the load generator")
    arguments = parser.parse_args()
    results = []
    for workers, shards in SIZES:
        with tempfile.TemporaryDirectory(prefix="stratamq-bench-") as folder:
            cluster = Cluster(
                Path(folder) / "c",
                nameservers=1,
                storage=1,
                brokers=1,
                workers=workers,
                shards=shards,
                forwarder=False,
            )
            try:
                cluster.up()
                cluster.settle()
                loads = measure(cluster, arguments.seconds, arguments.connections)
            finally:
                cluster.down()
        results.append({"workers": workers, "shards": shards, "loads": loads})
    document = {"cores": os.cpu_count(), "load_before": os.getloadavg()[0], "results": results}
    print(json.dumps(document, indent=2))


def measure(cluster: Cluster, seconds: float, connections: int) -> dict[str, Any]:
    """Return the report of every load."""
    roots = {each["name"]: int(each["pid"]) for each in cluster.local("status")}
    reports = {}
    for number, (name, load) in enumerate(LOADS.items()):
        topic = cluster.create_topic(f"bench-{number}", "--queues", str(QUEUES))
        options = ("-topic", topic, "-connections", str(connections), *load)
        command = [str(LOAD), "-endpoint", cluster.endpoint, "-seconds", str(seconds), *options]
        with ExitStack() as stack:
            sampled = {
                f"{root} {at}": stack.enter_context(sampling(pid))
                for root, first in roots.items()
                for at, pid in enumerate(members(first))
            }
            report = run_json(command, seconds)
        reports[name] = summary(report, sampled)
    return reports


def members(supervisor: int) -> list[int]:
    """Return the processes that do a member's work: itself, or those that it supervises."""
    children = [pid for pid in process_tree(supervisor) if is_child(pid)]
    return children or [supervisor]


def is_child(pid: int) -> bool:
    """Whether a process is a worker or shard."""
    return b"strata_cli.machine.child" in Path(f"/proc/{pid}/cmdline").read_bytes()


def summary(report: dict[str, Any], sampled: dict[str, Samples]) -> dict[str, Any]:
    """Return what matters of a load."""
    window = (report["started_at"], report["finished_at"])
    cpu_s = {name: samples.cpu_between(*window) for name, samples in sampled.items()}
    total_s = sum(cpu_s.values())
    return {
        "messages_per_s": round(report["messages_per_s"]),
        "p50_ms": round(report["p50_ms"], 1),
        "p99_ms": round(report["p99_ms"], 1),
        "errors": report.get("errors", 0),
        "server_cpu_us_per_message": round(total_s / max(report["messages"], 1) * 1e6, 1),
        "share_of_server_cpu": {name: round(used / total_s, 2) for name, used in cpu_s.items()},
    }


if __name__ == "__main__":
    main()
