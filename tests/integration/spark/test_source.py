"""The data source `strata` against a standalone node: Spark in local mode, plain spark-submit."""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
import zlib
from collections import Counter
from pathlib import Path

import pytest

from apache.rocketmq.v2 import definition_pb2
from strata_placement.source.client import BrokerClient
from strata_placement.source.options import SourceOptions
from tests.integration.cli.conftest import Node
from tests.integration.spark.conftest import send
from tests.integration.spark.submitting import NEEDS_SPARK, NO_WORKER, complaint, kill, run, submit

JOBS = Path(__file__).with_name("jobs")
MESSAGES = 10_000 * int(os.environ.get("STRATA_TEST_ROUNDS", "1"))
QUEUES = 4

pytestmark = list(NEEDS_SPARK)


@pytest.fixture(scope="module")
def filled(node: Node) -> str:
    """A topic with MESSAGES messages."""
    node.json("topic", "create", "numbers", "--queues", str(QUEUES))
    send(node, "numbers", MESSAGES)
    return "numbers"


def test_a_batch_read_equals_what_was_sent(node: Node, filled: str) -> None:
    """Every message is read once with all its parts, in parallel; filters find what they should."""
    out, err = run(JOBS / "summarize.py", node.endpoint, filled)
    lines = [line for line in out.splitlines() if line.startswith("RESULT ")]
    assert lines, complaint(err)
    result = json.loads(lines[0].removeprefix("RESULT "))
    assert result["ids"] == MESSAGES
    assert result["checksum"] == sum(
        zlib.crc32(f"body {number}".encode()) for number in range(MESSAGES)
    )
    assert result["topics"] == 1
    assert sum(count for count, _, _ in result["by_queue"].values()) == MESSAGES
    assert all(last - first + 1 == count for count, first, last in result["by_queue"].values())
    # Tasks of the read: 1,500 offsets each.
    assert result["tasks"] >= max(QUEUES, MESSAGES // 1_500)
    assert result["scanned_by_tag"] == MESSAGES // 2
    assert 0 < result["tagged"] < MESSAGES // 2
    assert result["before_and_after"] == MESSAGES
    assert 0 <= result["before"] <= MESSAGES
    first = result["first"]
    number = int(first["properties"]["number"])
    assert first["body"] == f"body {number}"
    assert first["keys"] == [f"key-{number}"]
    assert first["message_type"] == "NORMAL"
    assert {"born_host", "body_encoding"} <= set(first["headers"])


def test_a_killed_stream_ends_with_exactly_the_right_counts(
    node: Node, filled: str, tmp_path: Path
) -> None:
    """Killed at random and started again, the job writes every message once, to files and topic."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    node.json("topic", "create", "copied", "--queues", "2")
    arguments = (node.endpoint, filled, "copied", str(tmp_path), str(MESSAGES))
    kills = 0
    while kills < 3:
        job = submit(JOBS / "copy_stream.py", *arguments)
        if _ended_before_a_kill(job, tmp_path, chance):
            out, err = job.communicate()
            assert "DONE" in out or NO_WORKER in err, complaint(err)
            if "DONE" in out:
                break
        else:
            kill(job)
        kills += 1
    out, err = run(JOBS / "copy_stream.py", *arguments)
    assert f"DONE {MESSAGES} {MESSAGES}" in out, f"{kills} kills\n{out[-500:]}{complaint(err)}"
    options = SourceOptions((node.endpoint,), "copied")
    copied: Counter[str] = Counter()
    with BrokerClient(options) as client:
        for span in client.spans():
            for found in client.scan(span):
                copied.update(map(_number, found.messages))
    assert len(copied) == MESSAGES
    assert set(copied.values()) == {1}, f"{kills} kills"


def _ended_before_a_kill(job: subprocess.Popen[str], folder: Path, chance: random.Random) -> bool:
    """Wait until the job has begun a micro-batch and for a random time more; whether it ended."""
    began = [folder / f"{query}-checkpoint" / "offsets" for query in ("rows", "copy")]

    def micro_batches() -> int:
        return sum(len(list(offsets.glob("[0-9]*"))) for offsets in began)

    before, gives_up_s = micro_batches(), time.monotonic() + 300
    while job.poll() is None and micro_batches() == before and time.monotonic() < gives_up_s:
        time.sleep(0.05)
    kill_at_s = time.monotonic() + chance.uniform(0, 6)
    while job.poll() is None and time.monotonic() < kill_at_s:
        time.sleep(0.05)
    return job.poll() is not None


def _number(message: bytes) -> str:
    return definition_pb2.Message.FromString(message).user_properties["number"]
