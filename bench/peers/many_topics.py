"""Topics of RocketMQ, as far as it gets: `python -m bench.peers.many_topics [--limit-s 300]`.

A name server, and a broker and proxy in one process, get topics of one queue over a few connections
until the time is over. For each stretch between two marks the rate, the CPU for a topic and the
resident memory are told. `bench/many_topics.py` tells the same of StrataMQ. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.peers import remoting
from bench.peers.processes import cpu_seconds, resident_bytes
from bench.peers.rocketmq import RocketMq
from bench.run import machine

MARKS = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
THREADS = 4
CHUNK = 100


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--limit-s", type=float, default=300.0)
    arguments = parser.parse_args()
    peer = RocketMq()
    peer.install()
    with tempfile.TemporaryDirectory() as folder:
        try:
            peer.start(Path(folder))
            stretches = created(peer, arguments.limit_s)
        finally:
            peer.stop()
    print(
        json.dumps({"machine": machine(), "system": peer.title, "stretches": stretches}, indent=2)
    )


def created(peer: RocketMq, limit_s: float) -> list[dict[str, Any]]:
    """Create topics until the time is over; return the figures of each stretch."""
    (broker,) = peer.masters()
    ends_s = time.monotonic() + limit_s
    stretches: list[dict[str, Any]] = []
    count = 0
    with ThreadPoolExecutor(THREADS) as threads:
        for mark in MARKS:
            began, began_s, cpu_s = count, time.monotonic(), used_s(peer.pids)
            while count < mark and time.monotonic() < ends_s:
                numbers = range(count, min(count + CHUNK, mark))
                list(threads.map(lambda number: create(broker, number), numbers))
                count = numbers.stop
            if count == began:
                break
            took_s = time.monotonic() - began_s
            figures = {
                "topics": count,
                "per_s": round((count - began) / took_s),
                "cpu_us_per_topic": round((used_s(peer.pids) - cpu_s) * 1e6 / (count - began)),
                "rss_mib": round(sum(map(resident_bytes, peer.pids)) / 2**20),
            }
            stretches.append(figures)
            print(json.dumps(figures), file=sys.stderr, flush=True)
    return stretches


def create(broker: str, number: int) -> None:
    """Create a topic."""
    remoting.create_topic(broker, f"topic-{number:08d}", 1)


def used_s(pids: Sequence[int]) -> float:
    """Return the CPU time of some processes."""
    return sum(map(cpu_seconds, pids))


if __name__ == "__main__":
    main()
