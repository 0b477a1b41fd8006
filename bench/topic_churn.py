"""Topics that come and go: `python -m bench.topic_churn [--rounds 10] [--topics 100000]`.

In each round a standalone node gets topics of one queue by `strata topic create --from FILE`, a
message for every topic, and deletes all of them again; the next round makes the same names anew.
The node runs through all rounds. After each, once data that nobody needs has left, its resident
memory, files on disk and rows by kind tell whether anything is left of topics that are gone; after
the last one a start does. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
from rocksdict import AccessType, Options, Rdict

from bench.many_topics import (
    RETRY_S,
    create,
    held,
    name_of,
    restarted,
    sends,
    several,
    size_bytes,
)
from bench.run import machine
from strata.admin.v1 import admin_pb2
from strata_mq.layout import RowKind
from tests.e2e.client import Client
from tests.e2e.process import cpu_seconds
from tests.e2e.standalone import Standalone

# The log gives up what is no longer needed within half a minute.
CONFIG = """
[storage]
log_segment_bytes = 16777216
retention_interval_ms = 10000
"""
SETTLE_S = 25.0
_KIND_AT = 4


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--topics", type=int, default=100_000)
    parser.add_argument("--at-once", type=int, default=64)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = measure(Path(folder), arguments)
    print(json.dumps({"machine": machine(), "rounds": results}, indent=2))


def measure(folder: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the figures of all rounds."""
    names, config = folder / "names", folder / "strata.toml"
    names.write_text("".join(f"{name_of(number)}\n" for number in range(arguments.topics)))
    config.write_text(CONFIG)
    node = Standalone(folder / "data", options=("--config", str(config)))
    results = []
    try:
        node.start()
        for number in range(arguments.rounds):
            figures = {"round": number + 1, **one_round(node, names, arguments)}
            results.append(figures)
            print(json.dumps(figures), file=sys.stderr, flush=True)
        node.stop()
        results[-1]["start"] = restarted(node)
        results[-1]["started"] = held(node)
    finally:
        node.close()
    return results


def one_round(node: Standalone, names: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Create, fill and delete topics; return what that took and what is left."""
    figures: dict[str, Any] = {"create": create(node, names, arguments.topics)}
    figures |= asyncio.run(use(node, arguments))
    time.sleep(SETTLE_S)
    figures["left"] = held(node)
    figures["data_mib"] = round(size_bytes(node.data_dir) / 2**20, 1)
    figures["rows"] = rows_of(node.data_dir / "storage" / "state")
    return figures


async def use(node: Standalone, arguments: argparse.Namespace) -> dict[str, Any]:
    """Send a message to every topic, and delete the topics."""
    topics = [name_of(number) for number in range(arguments.topics)]
    async with Client(node.endpoint) as client:
        figures: dict[str, Any] = {"fill": await sends(node, client, topics, arguments.at_once)}
        figures["filled"] = held(node)
        before_s, began_s = cpu_seconds(node.pid), time.monotonic()

        async def delete(name: str) -> None:
            request = admin_pb2.DeleteTopicRequest(name=name)
            while True:
                try:
                    await client.admin.DeleteTopic(request, metadata=client.metadata)
                except grpc.aio.AioRpcError as error:
                    if error.code() is grpc.StatusCode.NOT_FOUND:
                        # The answer to the try before was lost.
                        return
                    await asyncio.sleep(RETRY_S)
                else:
                    return

        await several(delete, topics, arguments.at_once)
        took_s, cpu_s = time.monotonic() - began_s, cpu_seconds(node.pid) - before_s
        figures["delete"] = {
            "per_s": round(len(topics) / took_s),
            "cpu_us": round(cpu_s * 1e6 / len(topics), 1),
        }
    return figures


def rows_of(folder: Path) -> dict[str, int]:
    """Return how many rows of each kind the storage node has in files."""
    counts: Counter[int] = Counter()
    rows = Rdict(str(folder), Options(raw_mode=True), access_type=AccessType.read_only())
    try:
        for key in rows.keys():  # noqa: SIM118 - no mapping
            assert isinstance(key, bytes)
            counts[key[_KIND_AT]] += 1
    finally:
        rows.close()
    return {RowKind(kind).name.lower(): count for kind, count in sorted(counts.items())}


if __name__ == "__main__":
    main()
