"""Replicated sends on a cluster of this machine, beside a standalone node in the same run.

    python bench/cluster.py [--seconds 10] [--name cluster]

Three nameservers, three storage nodes, one broker, all on loopback and one disk; an answer follows
fsync on a majority. Writes JSON into bench/results and prints a table.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.measure import Bench  # noqa: E402
from bench.rows import REQUESTS_OF_32, UNARY  # noqa: E402
from bench.run import RESULTS, machine  # noqa: E402
from tests.e2e.cluster import Cluster  # noqa: E402
from tests.e2e.process import resident_bytes  # noqa: E402

LOADS = {
    "unary, 64 in flight": (*UNARY, "-in-flight", "64"),
    "unary, 256 in flight": (*UNARY, "-in-flight", "256"),
    "unary, 1 in flight": (*UNARY, "-in-flight", "1"),
    "requests of 32, 16 in flight": REQUESTS_OF_32,
}
TO_REACH = {"unary, 64 in flight": 2_700, "requests of 32, 16 in flight": 25_000}


def main() -> None:
    """Measure both, write the JSON, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="measured time of a load")
    parser.add_argument("--name", default="cluster")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stratamq-bench-") as folder:
        results = measure(Path(folder), arguments.seconds)
    document = {"machine": machine(), "seconds": arguments.seconds, **results}
    path = RESULTS / f"{arguments.name}.json"
    path.write_text(json.dumps(document, indent=2) + "\n")
    show(results)
    print(f"written to {path.relative_to(ROOT)}")


def measure(folder: Path, seconds: float) -> dict[str, Any]:
    """Return the reports of every load on both, and the memory of the cluster at rest."""
    cluster = Cluster(folder / "cluster", brokers=1)
    try:
        up_s = cluster.up()
        idle_mb = {
            each["name"]: round(resident_bytes(each["pid"]) / 1e6, 1)
            for each in cluster.local("status")
        }
        replicated = loads_on(Bench(folder, cluster.endpoint, seconds))
    finally:
        cluster.down()
    bench = Bench(folder, None, seconds)
    try:
        alone = loads_on(bench)
    finally:
        bench.close()
    return {"up_s": up_s, "idle_mb": idle_mb, "cluster": replicated, "standalone": alone}


def loads_on(bench: Bench) -> dict[str, Any]:
    """Put every load on one system."""
    return {name: bench.load("-topic", bench.new_topic(), *load) for name, load in LOADS.items()}


def show(results: dict[str, Any]) -> None:
    """Print a line per load."""
    for name in LOADS:
        replicated, alone = results["cluster"][name], results["standalone"][name]
        target = f" (to reach {TO_REACH[name]:,})" if name in TO_REACH else ""
        print(
            f"{name:<30} {replicated['messages_per_s']:>9,.0f}/s{target}, p50 "
            f"{replicated['p50_ms']:.1f} p99 {replicated['p99_ms']:.1f} ms; standalone "
            f"{alone['messages_per_s']:,.0f}/s, p99 {alone['p99_ms']:.1f} ms"
        )
    print("idle MB", results["idle_mb"])


if __name__ == "__main__":
    main()
