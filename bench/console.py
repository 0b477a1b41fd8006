"""Measure the console with 10,000 topics and 1,000 consumer groups: API p95, page load.

`python -m bench.console`; the page load is measured where playwright and Chromium are installed
(`make console-test` installs them). The result is bench/results/console.json.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_cli.client import AdminClient
from strata_cli.options import Common

RESULT = Path(__file__).resolve().parent / "results" / "console.json"
_CHROMIUM = "/usr/bin/chromium"
_THREADS = 16


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=200)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stratamq-bench-") as folder, node(folder) as ready:
        create(ready["grpc"], arguments.topics, arguments.groups)
        url = f"http://{ready['console']}"
        result = {
            "machine": {"cpus": os.cpu_count(), "python": platform.python_version()},
            "topics": arguments.topics,
            "groups": arguments.groups,
            "load_average": os.getloadavg()[0],
            "api_ms": api(url, arguments.topics, arguments.groups, arguments.rounds),
            "page_ms": pages(url),
        }
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


@contextmanager
def node(folder: str) -> Iterator[dict[str, str]]:
    """Run a standalone node; give the fields of its ready line."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "strata_cli.main", "standalone", "--data-dir"),
            *(f"{folder}/data", "--grpc-port", "0"),
        ],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"STRATA_NODE_AUDIT_LOG": "false"},
    )
    assert process.stdout is not None
    try:
        yield dict(part.split("=", 1) for part in process.stdout.readline().split()[1:])
    finally:
        process.terminate()
        process.wait()


def create(endpoint: str, topics: int, groups: int) -> None:
    """Create topics with one queue each, and consumer groups."""
    client = AdminClient(Common(endpoint=endpoint, timeout="60s"))

    def topic(number: int) -> None:
        row = meta_pb2.Topic(
            name=f"topic-{number:05}",
            type=meta_pb2.TOPIC_TYPE_NORMAL,
            queue_count=1,
            retention_ms=86_400_000,
        )
        client.call(client.admin.CreateTopic, admin_pb2.CreateTopicRequest(topic=row))

    def group(number: int) -> None:
        row = meta_pb2.ConsumerGroup(name=f"group-{number:04}")
        request = admin_pb2.CreateConsumerGroupRequest(consumer_group=row)
        client.call(client.admin.CreateConsumerGroup, request)

    with ThreadPoolExecutor(_THREADS) as threads:
        list(threads.map(topic, range(topics)))
        list(threads.map(group, range(groups)))
    client.close()


def api(url: str, topics: int, groups: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return the time of each read: the first one, then median, p95 and maximum."""
    chance = random.Random(1)
    reads: dict[str, Callable[[], tuple[str, dict[str, Any]]]] = {
        "topics, search": lambda: ("topics", {"search": f"{chance.randrange(topics):05}"[:3]}),
        "topics, any page": lambda: ("topics", {"first": chance.randrange(topics)}),
        "topics, sorted": lambda: ("topics", {"sort": "updated_at_ms", "descending": 1}),
        "groups, page with lag": lambda: (
            "groups",
            {"first": chance.randrange(groups), "size": 25},
        ),
        "topic": lambda: ("topic", {"name": f"topic-{chance.randrange(topics):05}"}),
        "group": lambda: ("group", {"name": f"group-{chance.randrange(groups):04}"}),
        "overview": lambda: ("overview", {}),
    }
    found: dict[str, dict[str, float]] = {}
    with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
        client.get("/api/session").raise_for_status()
        for name, choose in reads.items():
            times = []
            for _ in range(rounds + 1):
                read, query = choose()
                began = time.perf_counter()
                client.get(f"/api/read/{read}", params=query).raise_for_status()
                times.append((time.perf_counter() - began) * 1_000)
            first, *others = times
            others.sort()
            found[name] = {
                "first": round(first, 1),
                "p50": round(statistics.median(others), 1),
                "p95": round(others[math.ceil(len(others) * 0.95) - 1], 1),
                "max": round(others[-1], 1),
            }
    return found


def pages(url: str) -> dict[str, float] | str:
    """Return the median time from opening the page to its first row, in Chromium."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return "not measured: make console-test installs playwright"
    if not Path(_CHROMIUM).exists():
        return "not measured: Chromium is not installed"
    found = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=_CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        for name in ("cluster", "topics", "groups"):
            times = []
            for _ in range(5):
                # A new context: nothing is cached.
                context = browser.new_context()
                page = context.new_page()
                began = time.perf_counter()
                page.goto(f"{url}/#/{name}")
                page.wait_for_selector("main [data-row]")
                times.append((time.perf_counter() - began) * 1_000)
                context.close()
            found[name] = round(statistics.median(times), 1)
        browser.close()
    return found


if __name__ == "__main__":
    main()
