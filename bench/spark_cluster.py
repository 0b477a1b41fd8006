"""Reads a large topic of a whole cluster with Spark and compares it with what was sent.

    python bench/spark_cluster.py [--messages N] [--master URL]

Three storage nodes, two brokers, three replicas of everything, 16 queues. Every body is the number
of its message, filled up to 100 bytes. Two senders fill the topic; then one Spark application reads
it through both brokers, a task per 250,000 offsets of a queue, and computes sums that show a single
lost, duplicated, changed or misplaced message. It needs `make setup-spark` and JDK 17. It prints
one JSON object; `equal` says whether every message was read exactly once.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.spark_rows import run_job
from strata_placement.source.client import BrokerClient
from strata_placement.source.options import SourceOptions
from strata_placement.source.sending import requests_of
from tests.e2e.cluster import Cluster

TOPIC, QUEUES, BODY_BYTES = "numbers", 16, 100
SENDERS = 2
JOB = Path(__file__).with_name("spark_cluster_job.py")


def send(endpoint: str, first: int, end: int) -> None:
    """Send the numbers from `first` up to `end`."""
    options = SourceOptions((endpoint,), TOPIC, batch_messages=1_000)
    rows = ({"body": b"%0*d" % (BODY_BYTES, number)} for number in range(first, end))
    with BrokerClient(options) as client:
        for request in requests_of(rows, options, f"bench-{first}"):
            client.send(request)


def fill(endpoints: list[str], messages: int) -> float:
    """Send all numbers through all brokers; return the seconds it took."""
    began_s = time.perf_counter()
    bounds = [messages * part // SENDERS for part in range(SENDERS + 1)]
    with ProcessPoolExecutor(SENDERS) as pool:
        sent = [
            pool.submit(send, endpoints[part % len(endpoints)], bounds[part], bounds[part + 1])
            for part in range(SENDERS)
        ]
        for each in sent:
            each.result()
    return time.perf_counter() - began_s


def main() -> None:
    """Parse arguments, run, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--master", default="local[2]")
    given = parser.parse_args()
    messages = given.messages
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder) / "cluster", nameservers=1, storage=3, brokers=2)
        cluster.up()
        try:
            cluster.settle()
            cluster.create_topic(TOPIC, "--queues", str(QUEUES))
            endpoints = [cluster.address(name) for name in cluster.names("broker")]
            filled_s = fill(endpoints, messages)
            source = {"endpoint": ",".join(endpoints), "topic": TOPIC}
            read = json.loads(run_job(JOB, "READ ", given.master, json.dumps(source)))
        finally:
            cluster.down()
    wanted = {
        "messages": messages,
        "distinct": messages,
        "sum": messages * (messages - 1) // 2,
        "ids": messages,
        "of_right_length": messages,
        "offsets_without_holes": messages,
    }
    figures = {
        "sent_per_s": round(messages / filled_s),
        "rows_per_s": round(messages / read.pop("took_s")),
        "tasks": read.pop("tasks"),
        "read": read,
        "equal": read == wanted,
    }
    print(json.dumps(figures))
    if not figures["equal"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
