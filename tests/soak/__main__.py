"""`python -m tests.soak --minutes 120`: a cluster under a modest load stays as it is.

Three nameservers, three storage nodes, two brokers and a forwarder, each a process; messages of
every kind and a table. Every few seconds memory and descriptors of each process, the sizes of rows
and logs, and the latencies of clients are sampled. A figure is flat if its median in the last third
of the run is not above that in the middle third by more than it may be (`ALLOWED`). Prints one JSON
object; exit code 1 when something grew, a message was not delivered, or the cluster is not healthy.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc

from tests.e2e.cluster import Cluster, ClusterError
from tests.e2e.process import process_tree, resident_bytes
from tests.soak.flatness import Allowed, Course, Sample, course_of
from tests.soak.load import SoakLoad

MB = 1_000_000
SEGMENT_BYTES = 8 * 1024 * 1024
LEAST_SAMPLES = 30
LAST_LINES = 50
"""The result has so many of a text log that grew: they tell what it grew by."""
RETENTION_SHARE = 1 / 12
"""Share of the run: messages are trimmed from the first third on."""
ALLOWED = {
    "memory_mb": Allowed(16, share=0.05),
    "descriptors": Allowed(24),
    # Ids and traces of messages are kept for a day (docs/data-layout.md), so rows grow by them.
    "rows_mb": Allowed(16, per_message=600 / MB),
    "log_mb": Allowed(3 * SEGMENT_BYTES / MB, share=0.1),
    "written_log_mb": Allowed(0.1),
    "p50_ms": Allowed(10, share=0.3),
    "p99_ms": Allowed(250, share=0.5),
}
CONFIG = f"""\
plugins = ["kv"]

[storage]
log_segment_bytes = {SEGMENT_BYTES}
retention_interval_ms = 5000
"""


class Soak:
    """One run.

    Args:
        cluster: not up yet.
        minutes: how long the load lasts.
        rate: of the load, operations per second.
    """

    def __init__(self, cluster: Cluster, minutes: float, rate: float) -> None:
        self._cluster = cluster
        self._seconds = 60 * minutes
        self._rate = rate
        self._samples: dict[str, dict[str, list[Sample]]] = defaultdict(lambda: defaultdict(list))

    async def run(self) -> dict[str, Any]:
        """Return what it showed."""
        cluster = self._cluster
        await asyncio.to_thread(cluster.up)
        await asyncio.to_thread(cluster.settle)
        load = SoakLoad(cluster.endpoint, self._rate)
        retention = f"{max(20, int(self._seconds * RETENTION_SHARE))}s"
        await asyncio.to_thread(load.create, cluster, retention)
        processes = await asyncio.to_thread(cluster.local, "status")
        async with asyncio.TaskGroup() as tasks:
            working = tasks.create_task(load.run(self._seconds))
            sampling = tasks.create_task(self._sample(load, processes))
            await working
            sampling.cancel()
        wrong = [f"{topic}: {count} not delivered" for topic, count in load.missing().items()]
        try:
            await asyncio.to_thread(cluster.settle)
            await asyncio.to_thread(cluster.strata, "cluster", "health")
        except ClusterError as error:
            wrong.append(f"not healthy: {error}")
        courses = self._courses(sum(load.sent.values()) // 3)
        wrong += [
            f"{figure} of {of} grew from {course.middle:g} to {course.last:g}"
            for figure, by_name in courses.items()
            for of, course in by_name.items()
            if not course.is_flat
        ]
        grown = [name for name, course in courses["written_log_mb"].items() if not course.is_flat]
        return {
            "date": datetime.now(UTC).date().isoformat(),
            "minutes": self._seconds / 60,
            "rate": self._rate,
            "flat": not wrong,
            "wrong": wrong,
            "operations": load.operations,
            "delivered": dict(load.delivered),
            "failed_calls": load.failed,
            "errors": list(load.errors),
            "last_lines": {name: self._last_lines(name) for name in grown},
            "figures": {
                figure: {of: shown(course) for of, course in sorted(by_name.items())}
                for figure, by_name in sorted(courses.items())
            },
        }

    def _courses(self, messages: int) -> dict[str, dict[str, Course]]:
        return {
            figure: {
                of: course_of(samples, ALLOWED[figure], self._seconds, messages)
                for of, samples in by_name.items()
            }
            for figure, by_name in self._samples.items()
        }

    def _last_lines(self, name: str) -> list[str]:
        """Return the end of a log: the folder that it is in goes with the run."""
        return (self._cluster.data_dir / name / "log").read_text().splitlines()[-LAST_LINES:]

    async def _sample(self, load: SoakLoad, processes: Sequence[dict[str, Any]]) -> None:
        began_s = time.monotonic()
        pause_s = min(10.0, self._seconds / LEAST_SAMPLES)
        while (at_s := time.monotonic() - began_s) < self._seconds:
            for figure, of, value in await asyncio.to_thread(self._look, processes):
                self._samples[figure][of].append(Sample(at_s, value))
            p50_ms, p99_ms = load.latencies_ms()
            if p99_ms:
                self._samples["p50_ms"]["clients"].append(Sample(at_s, p50_ms))
                self._samples["p99_ms"]["clients"].append(Sample(at_s, p99_ms))
            await asyncio.sleep(pause_s)

    def _look(self, processes: Sequence[dict[str, Any]]) -> list[tuple[str, str, float]]:
        found: list[tuple[str, str, float]] = []
        for process in processes:
            name, pid = process["name"], process["pid"]
            folder = self._cluster.data_dir / name
            found.append(("memory_mb", name, resident_bytes(pid) / MB))
            found.append(("descriptors", name, descriptors(pid)))
            found.append(("written_log_mb", name, (folder / "log").stat().st_size / MB))
            for figure, part in FOLDERS.get(process["role"], {}).items():
                found.append((figure, name, size_bytes(folder / part) / MB))
        return found


FOLDERS = {
    "storage": {"rows_mb": "storage/state", "log_mb": "storage/log"},
    "nameserver": {"rows_mb": "nameserver/meta", "log_mb": "nameserver/log"},
}


def descriptors(pid: int) -> int:
    """Return how many files a process and its descendants have open."""
    count = 0
    for each in process_tree(pid):
        with suppress(FileNotFoundError, ProcessLookupError):
            count += sum(1 for _ in Path(f"/proc/{each}/fd").iterdir())
    return count


def size_bytes(folder: Path) -> int:
    """Return the bytes that a folder's files take on the disk."""
    return sum(512 * blocks for blocks in _blocks(folder))


def _blocks(folder: Path) -> Iterator[int]:
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                yield (Path(parent) / name).stat().st_blocks


def shown(course: Course) -> dict[str, Any]:
    """Return a course as JSON has it."""
    rounded = {name: round(value, 3) for name, value in asdict(course).items()}
    return rounded | {"flat": course.is_flat}


def main() -> int:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--rate", type=float, default=40.0, help="operations per second")
    parser.add_argument("--folder", type=Path, help="where data and logs stay; default: nowhere")
    parser.add_argument("--output", type=Path, help="also write the JSON there")
    arguments = parser.parse_args()
    # Else the last channel of a loop ends gRPC's thread, and the loop waits for it forever.
    grpc.aio.init_grpc_aio()
    with tempfile.TemporaryDirectory(prefix="strata-soak-") as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "strata.toml"
        config.write_text(CONFIG)
        cluster = Cluster(folder / "c", config=config)
        try:
            result = asyncio.run(Soak(cluster, arguments.minutes, arguments.rate).run())
        finally:
            cluster.down()
    text = json.dumps(result, indent=2)
    if arguments.output is not None:
        arguments.output.write_text(text + "\n")
    print(text)
    return 0 if result["flat"] else 1


if __name__ == "__main__":
    sys.exit(main())
