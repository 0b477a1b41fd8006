"""Both edges in one run: a handler that answers at once, and a standalone node, at 1, 64 and 256.

    python bench/edge_compare.py [--seconds 6] [--rounds 2] [--name edge-compare]

The load is unary SendMessage with 1 KiB bodies. The edges take turns, so that a noisy minute of the
machine hits both. All reports of the load generator, with the server's CPU in the measured window,
go to `bench/results/NAME.json`; the table shows the best round of each case.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.measure import BASELINE, LOAD, LOAD_GRACE_S, run_json, sampling, with_server  # noqa: E402
from bench.run import machine  # noqa: E402
from tests.e2e.standalone import HOST, Standalone  # noqa: E402
from tests.parts.ports import free_port  # noqa: E402

EDGES = ("grpcio", "native")
IN_FLIGHT = (1, 64, 256)
QUEUES = 8


@contextmanager
def handler(edge: str, seconds: float) -> Iterator[tuple[int, str, str]]:
    """Serve constants behind an edge; yield pid, endpoint and topic."""
    port = free_port()
    lifetime_s = int(len(IN_FLIGHT) * (seconds + LOAD_GRACE_S))
    command = [sys.executable, str(BASELINE), "--port", str(port), "--edge", edge]
    command += ["--seconds", str(lifetime_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            server.stdout.readline()  # it prints the port when it serves
            yield server.pid, f"{HOST}:{port}", "any"
        finally:
            server.terminate()


@contextmanager
def node(edge: str, folder: Path) -> Iterator[tuple[int, str, str]]:
    """Serve a whole node behind an edge; yield pid, endpoint and topic."""
    os.environ["STRATA_EDGE_ADAPTER"] = edge
    standalone = Standalone(folder)
    try:
        standalone.start()
        topic = standalone.create_topic("bench", "--queues", str(QUEUES))
        yield standalone.pid, standalone.endpoint, topic
    finally:
        standalone.close()


def measure(
    what: str, edge: str, place: tuple[int, str, str], seconds: float
) -> Iterator[dict[str, Any]]:
    """Put each load on a server; yield its reports."""
    pid, endpoint, topic = place
    for in_flight in IN_FLIGHT:
        command = [str(LOAD), "-endpoint", endpoint, "-topic", topic, "-seconds", str(seconds)]
        with sampling(pid) as samples:
            report = run_json([*command, "-in-flight", str(in_flight)], seconds)
        case = {"server": what, "edge": edge, "in_flight": in_flight}
        yield {**case, **with_server(report, samples)}


def main() -> None:
    """Measure, write the JSON, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=6.0, help="measured time of a case")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--name", default="edge-compare")
    given = parser.parse_args()
    reports: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="stratamq-bench-") as folder:
        for number, edge in itertools.product(range(given.rounds), EDGES):
            with handler(edge, given.seconds) as place:
                reports += measure("handler", edge, place, given.seconds)
            with node(edge, Path(folder) / f"{edge}-{number}") as place:
                reports += measure("standalone", edge, place, given.seconds)
    path = ROOT / "bench" / "results" / f"{given.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"machine": machine(), "seconds": given.seconds, "reports": reports}
    path.write_text(json.dumps(document, indent=2) + "\n")
    for key, case in itertools.groupby(sorted(reports, key=_case), key=_case):
        best = max(case, key=lambda report: report["messages_per_s"])
        print(*key, json.dumps({name: best[name] for name in SHOWN if name in best}))
    print(f"written to {path.relative_to(ROOT)}")


SHOWN = ("messages_per_s", "p50_ms", "p99_ms", "server_cpu_us_per_message")


def _case(report: dict[str, Any]) -> tuple[str, int, str]:
    return report["server"], report["in_flight"], report["edge"]


if __name__ == "__main__":
    main()
