"""The jobs, each by `spark-submit`: what they write is right, also when they are killed."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from apache.rocketmq.v2 import definition_pb2
from strata_placement.forecast.learned import LearnedModel
from strata_placement.source.client import BrokerClient
from strata_placement.source.options import SourceOptions
from strata_placement.source.plan import QueueSpan
from strata_placement.source.runs import SourceError
from strata_placement.source.tier import TierTopic
from strata_runtime.windows import WINDOWS_TOPIC, decode
from strata_testing import until_blocking
from strata_tier.objects.names import ManifestName
from strata_tier.ranges.manifest import manifest_of
from strata_tier.store.opening import open_store
from tests.integration.cli.conftest import Node
from tests.integration.spark.conftest import send
from tests.integration.spark.submitting import (
    NEEDS_SPARK,
    ROOT,
    SPARK,
    complaint,
    kill,
    run,
    submit,
)
from tests.unit.tier.objects import (
    HOME,
    RAFT_GROUP,
    Tier,
    messages_of,
    put_manifest,
    queue_of,
)

JOBS = ROOT / "services" / "placement" / "strata_placement" / "jobs"
WAIT_S = 300
# Sets of one size that are worth a compaction.
SETS = 8

pytestmark = list(NEEDS_SPARK)


def result(name: str, *arguments: str) -> dict[str, Any]:
    """Run a job and return what it prints."""
    out, err = run(JOBS / f"{name}.py", *arguments)
    lines = [line for line in out.splitlines() if line.startswith("{")]
    assert lines, complaint(err)
    # spark-submit joins what its application writes to stdout and stderr.
    assert f"strata {name}: " in out, "it says what it does"
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def test_windows_are_landed_once_also_when_the_job_is_killed(node: Node, tmp_path: Path) -> None:
    """Killed in its first micro-batch and run again, it has every window up to its offset once."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    node.json("topic", "create", "watched", "--queues", "2")
    send(node, "watched", 200)
    source = SourceOptions((node.endpoint,), WINDOWS_TOPIC)
    until_blocking(lambda: sum(span.end for span in spans_of(source)) >= 10, WAIT_S, step_s=0.3)
    table = tmp_path / "windows"
    arguments = ("--endpoint", node.endpoint, "--path", str(table), "--once")
    killed = submit(JOBS / "land_metrics.py", *arguments)
    offsets = table / "_checkpoint" / "offsets"
    try:
        until_blocking(
            lambda: killed.poll() is not None or (offsets / "0").exists(), WAIT_S, step_s=0.3
        )
        time.sleep(random.Random(seed).uniform(0, 3))
    finally:
        kill(killed)
    page = tmp_path / "report.html"
    landed = result("land_metrics", *arguments, "--report", str(page))
    newest = max(offsets.glob("[0-9]*"), key=lambda path: int(path.name))
    ends = json.loads(newest.read_text().splitlines()[-1])
    expected: Counter[str] = Counter()
    with BrokerClient(source) as client:
        for queue, end in ends.items():
            for found in client.scan(QueueSpan(int(queue), 0, end)):
                for batch in map(decode, bodies_of(found.messages)):
                    expected[batch.kind.name.lower()] += len(batch)
    assert {row["kind"]: row["count"] for row in landed["rows"]} == dict(expected)
    assert expected["queue"] > 0
    assert expected["node"] > 0
    assert "land_metrics" in page.read_text()


def test_a_topic_is_exported_once_message_by_message(node: Node, tier: str, tmp_path: Path) -> None:
    """Straight from the tier: all there is, then nothing more, then only what is new."""
    node.json("topic", "create", "exported", "--queues", "3", "--tiered-storage-level", "FORCE")
    options = SourceOptions((), "exported", tier=tier)
    arguments = ("--tier", tier, "--topic", "exported", "--path", str(tmp_path / "table"))
    send(node, "exported", 2_000)
    until_blocking(
        lambda: sum(span.end for span in tiered_spans_of(options)) == 2_000, WAIT_S, step_s=0.3
    )
    first = result("export_topic", *arguments)
    assert first["new_messages"] == 2_000
    assert sum(row["count"] for row in first["rows"]) == 2_000
    send(node, "exported", 100, first=2_000)
    until_blocking(
        lambda: sum(span.end for span in tiered_spans_of(options)) == 2_100, WAIT_S, step_s=0.3
    )
    second = result("export_topic", *arguments)
    assert second["new_messages"] == 100
    assert sum(row["count"] for row in second["rows"]) == 2_100
    assert len(second["rows"]) == 3


@pytest.fixture(scope="module")
def windows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of metric windows of four days."""
    path = tmp_path_factory.mktemp("windows") / "table"
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    maker = Path(__file__).with_name("jobs") / "make_windows.py"
    subprocess.run([SPARK / "bin" / "python", maker, path, str(seed)], check=True)
    return path


def test_a_model_is_trained_and_used(windows: Path, tmp_path: Path) -> None:
    """Plain Python evaluates the table that Spark ML learned; forecasts follow the day."""
    model, out = tmp_path / "model.json", tmp_path / "forecasts"
    trained = result(
        "train_model", "--windows", str(windows), "--out", str(model), "--version", "7"
    )
    errors = {row["mean_absolute_error_of"]: row["ratio"] for row in trained["rows"]}
    assert errors["model"] < errors["level"]
    learned = LearnedModel.from_json(json.loads(model.read_text()))
    assert (learned.version, learned.step_ms, len(learned.trees.trees)) == (7, 300_000, 40)
    forecast = result(
        "forecast_loads", "--windows", str(windows), "--out", str(out), "--model", str(model)
    )
    assert forecast["queues"] == 3
    nearest = {row["queue"]: row for row in forecast["rows"]}
    assert {row["forecaster"] for row in nearest.values()} == {"learned"}
    # By day 1 MB, 2 MB and 3 MB per window of 300 s on the average.
    for number in range(3):
        row = nearest[f"/waves/{number}"]
        assert 0.4 < row["expected"] * 300 / (1e6 * (number + 1)) < 1.6
        assert row["lower"] <= row["upper"]


def test_slow_nodes_of_the_past_are_found(windows: Path) -> None:
    """The node that became slow is named, from about when it did; no other one is."""
    found = result("find_slow", "--windows", str(windows))
    assert found["alarms"] >= 1
    assert {row["node_id"] for row in found["rows"]} == {"storage-4"}
    assert 3_500_000 <= found["rows"][0]["since_ms"] <= 3_600_000


def test_a_tier_is_scrubbed_by_all_cores(tmp_path: Path) -> None:
    """Every object is read; a changed byte is found, named, and the job says so by its exit."""
    folder = tmp_path / "tier"

    async def fill() -> None:
        bucket = Tier(await open_store(f"posix://{folder}"))
        for first in range(0, 40, 10):
            await bucket.add([queue_of(messages_of(1, 0, range(first, first + 10)))])
        name = ManifestName(RAFT_GROUP, 2, 1)
        await put_manifest(bucket.store, manifest_of(bucket.metadata, HOME, name, 90, 9_000))
        await bucket.store.close()

    asyncio.run(fill())
    damaged = next(folder.rglob("*.set"))
    data = bytearray(damaged.read_bytes())
    data[100] ^= 1
    damaged.write_bytes(data)
    found = result("scrub_tier", "--tier", f"posix://{folder}")
    assert (found["objects"], found["messages"], found["findings"]) == (4, 30, 1)
    assert damaged.name in found["rows"][0]["finding"]


@pytest.fixture
def lazy_node(tmp_path: Path) -> Iterator[Node]:
    """A node that uploads small sets and leaves them as they are."""
    url = f"posix://{tmp_path / 'tier'}"
    settings = {
        "STRATA_TIER_FLUSH_AGE_MS": "200",
        "STRATA_TIER_MANIFEST_INTERVAL_MS": "1000",
        "STRATA_TIER_COMPACTION": "false",
        "STRATA_TIER_DELETE_GRACE_MS": "0",
        "STRATA_STORAGE_RETENTION_INTERVAL_MS": "1000",
    }
    started = Node(tmp_path / "data", "--tier", url, environment=settings)
    yield started
    code, _, err = started.stop()
    assert code == 0, err


def test_a_tier_is_compacted_and_swept_while_it_serves(lazy_node: Node, tmp_path: Path) -> None:
    """Small objects become few, what is left over is deleted, and every message stays as it was.

    The first compaction is killed somewhere after its first object was written.
    """
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    node, folder, topic = lazy_node, tmp_path / "tier", "small"
    url = f"posix://{folder}"
    # All reads go to the tier.
    level = ("--tiered-storage-level", "FORCE")
    node.json("topic", "create", topic, "--queues", "1", *level)
    stored = SourceOptions((node.endpoint,), topic)
    tiered = SourceOptions((), topic, tier=url)
    for number in range(SETS):
        send(node, topic, 50, first=50 * number)
        until_tiered(tiered, 50 * (number + 1))
    before = everything(stored)
    assert sorted(body for _, _, body in before) == sorted(
        f"body {number}".encode() for number in range(50 * SETS)
    )
    small = set(folder.rglob("*.set"))
    assert len(small) >= SETS
    to = ("--tier", url, "--endpoint", node.endpoint)
    killed = submit(JOBS / "compact_tier.py", *to, "--mib-per-s", "0.01")
    try:
        until_blocking(
            lambda: killed.poll() is not None or bool(set(folder.rglob("*.set")) - small),
            WAIT_S,
            step_s=0.3,
        )
        time.sleep(random.Random(seed).uniform(0, 2))
    finally:
        kill(killed)
    assert everything(stored) == before
    compacted = result("compact_tier", *to)
    assert (compacted["refused"], compacted.get("rows", [])) == (0, [])
    # Either of the two may have done it, whatever the first one left behind.
    until_blocking(lambda: live_objects(node) < SETS, WAIT_S, step_s=0.3)
    assert everything(stored) == before
    # An object that was written in vain, two days ago.
    orphan = sorted(set(folder.rglob("*.set")) - small)[0]
    given_up = orphan.with_name(orphan.name.replace(orphan.name[-20:-4], f"{1:016x}"))
    given_up.write_bytes(b"given up")
    os.utime(given_up, (1.0, 1.0))
    swept = result("sweep_tier", *to)
    assert (swept["refused"], swept["orphans"]) == (0, 1)
    assert not given_up.exists()
    # Nodes delete dropped objects, too.
    until_blocking(lambda: not small & set(folder.rglob("*.set")), WAIT_S, step_s=0.3)
    assert orphan.exists()
    assert everything(stored) == before


def live_objects(node: Node) -> int:
    """Return how many objects readers need."""
    return sum(group["objects"] for group in node.json("tier", "status")["raft_groups"])


def until_tiered(options: SourceOptions, messages: int) -> None:
    """Wait until a manifest says that so many messages of a topic are in the tier."""
    until_blocking(
        lambda: sum(span.end for span in tiered_spans_of(options)) == messages, WAIT_S, step_s=0.3
    )


def everything(options: SourceOptions) -> list[tuple[int, int, bytes]]:
    """Return (queue, offset, body) of all messages, as brokers give them."""
    with BrokerClient(options) as client:
        return [
            (run.queue, offset, body)
            for span in client.spans()
            for run in client.scan(span)
            for offset, body in zip(run.offsets, bodies_of(run.messages), strict=True)
        ]


def spans_of(options: SourceOptions) -> list[QueueSpan]:
    """Return what brokers say there is; nothing while the topic does not exist."""
    try:
        with BrokerClient(options) as client:
            return client.spans()
    except SourceError:
        return []


def tiered_spans_of(options: SourceOptions) -> list[QueueSpan]:
    """Return what the tier has; nothing while no manifest says so."""
    try:
        with TierTopic.open(options) as topic:
            return topic.spans()
    except SourceError:
        return []


def bodies_of(messages: Sequence[bytes]) -> list[bytes]:
    """Return the bodies of stored messages."""
    return [definition_pb2.Message.FromString(message).body for message in messages]
