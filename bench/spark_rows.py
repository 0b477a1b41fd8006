"""Rows per second of the data source `strata` in Spark's local mode, and of a bare scan beside it.

    python bench/spark_rows.py [--messages N]

Fills a topic of a standalone node with messages of 1 KB and waits until its tier, a folder, has all
of them. Reads them through the broker and straight from the tier: once by the source's own client
in one thread (`scan_rows_per_s`), then with `spark-submit --master local[2]`, three times in one
application; the best run counts (`spark_rows_per_s`), so that starting the JVM and its workers does
not. Needs `make setup-spark` and JDK 17. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from strata_placement.source import tier
from strata_placement.source.client import BrokerClient
from strata_placement.source.options import SourceOptions
from strata_placement.source.runs import SourceError
from strata_placement.source.sending import requests_of
from strata_placement.source.tier import TierTopic
from tests.e2e.standalone import Standalone

ROOT = Path(__file__).resolve().parents[1]
SPARK = ROOT / "build" / "spark" / "venv"
TOPIC, QUEUES, BODY = "bench-rows", 8, bytes(1_000)
TIER_TIMEOUT_S = 300
# As soon as there is something: what is measured is reading.
TIER_SETTINGS = {"STRATA_TIER_FLUSH_AGE_MS": "1000", "STRATA_TIER_MANIFEST_INTERVAL_MS": "1000"}


def fill(options: SourceOptions, messages: int) -> None:
    """Send the messages."""
    with BrokerClient(options) as client:
        for request in requests_of(({"body": BODY} for _ in range(messages)), options, "bench"):
            client.send(request)


def scan_broker(options: SourceOptions) -> float:
    """Read everything through the broker in one thread; return rows per second."""
    began_s, rows = time.perf_counter(), 0
    with BrokerClient(options) as client:
        for span in client.spans():
            rows += sum(len(run.offsets) for run in client.scan(span))
    return rows / (time.perf_counter() - began_s)


def scan_tier(options: SourceOptions) -> float:
    """Read everything from the tier in one thread; return rows per second."""
    began_s, rows = time.perf_counter(), 0
    with TierTopic.open(options) as topic:
        for span in topic.spans():
            rows += sum(len(run.offsets) for run in tier.scan(options, span, topic.pieces(span)))
    return rows / (time.perf_counter() - began_s)


def wait_for_tier(options: SourceOptions, messages: int) -> None:
    """Return when the manifests in the tier name all messages."""
    gives_up_s = time.monotonic() + TIER_TIMEOUT_S
    tiered = 0
    while tiered < messages:
        if time.monotonic() > gives_up_s:
            raise SystemExit(f"the tier has {tiered} of {messages} messages")
        time.sleep(1)
        try:
            with TierTopic.open(options) as topic:
                tiered = sum(span.end - span.first for span in topic.spans())
        except SourceError:
            # No manifest was written yet.
            continue


def run_job(job: Path, begins: str, master: str, *arguments: str) -> str:
    """Run an application; return the rest of the line of its output that begins so.

    Raises:
        SystemExit: it failed; the text is what it said.
    """
    environment = os.environ | {
        "PYSPARK_PYTHON": str(SPARK / "bin" / "python"),
        "PYSPARK_DRIVER_PYTHON": str(SPARK / "bin" / "python"),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    settings = ("spark.ui.enabled=false", "spark.python.authenticate.socketTimeout=120s")
    conf = [part for setting in settings for part in ("--conf", setting)]
    submit = [str(SPARK / "bin" / "spark-submit"), "--master", master, *conf]
    done = subprocess.run(
        [*submit, str(job), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    found = [line for line in done.stdout.splitlines() if line.startswith(begins)]
    if done.returncode or not found:
        raise SystemExit(done.stdout + done.stderr)
    return found[0].removeprefix(begins)


def read_with_spark(source: dict[str, str], messages: int) -> float:
    """Run `spark_rows_job.py`; return the rows per second that it prints."""
    job = ROOT / "bench" / "spark_rows_job.py"
    return float(run_job(job, "ROWS_PER_S ", "local[2]", json.dumps(source), str(messages)))


def main() -> None:
    """Parse arguments, run, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000)
    messages = parser.parse_args().messages
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= TIER_SETTINGS | {"STRATA_TIER_URL": f"posix://{folder}/tier"}
        standalone = Standalone(Path(folder) / "data")
        standalone.start()
        try:
            standalone.create_topic(
                TOPIC, "--queues", str(QUEUES), "--tiered-storage-level", "FORCE"
            )
            options = SourceOptions((standalone.endpoint,), TOPIC, batch_messages=500)
            of_tier = SourceOptions((), TOPIC, tier=os.environ["STRATA_TIER_URL"])
            fill(options, messages)
            wait_for_tier(of_tier, messages)
            by_broker = {"endpoint": standalone.endpoint, "topic": TOPIC}
            by_tier = {"tier": of_tier.tier, "topic": TOPIC}
            figures = {
                "messages": messages,
                "broker": {
                    "scan_rows_per_s": round(scan_broker(options)),
                    "spark_rows_per_s": round(read_with_spark(by_broker, messages)),
                },
                "tier": {
                    "scan_rows_per_s": round(scan_tier(of_tier)),
                    "spark_rows_per_s": round(read_with_spark(by_tier, messages)),
                },
            }
        finally:
            standalone.stop()
            standalone.close()
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
