"""Many topics on one node, from outside: made from a file, listed, killed, deleted, made again."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from strata.admin.v1 import admin_pb2
from strata_mq.layout import RowKind
from strata_state.metadata_keys import TOPIC_IDS_KEY, MetadataRowKind
from strata_state.metadata_rocksdb import RocksDbMetadataStore
from strata_state.rocksdb_store import RocksdbStore
from tests.e2e.client import Client
from tests.e2e.standalone import Standalone

TOPICS = 2_000
COMING_AND_GOING = 300
SENT = 50
ROUNDS = 3
AT_ONCE = 16
OF_TOPICS = (RowKind.QUEUE, RowKind.CQ)
DROP_LIMIT_S = 120.0


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Standalone]:
    """A running node."""
    made = Standalone(tmp_path / "data")
    made.start()
    yield made
    made.close()


def named(folder: Path, count: int) -> str:
    """Write a file with the names of many topics; return its path."""
    path = folder / "names"
    path.write_text("".join(f"many-{number:05d}\n" for number in range(count)))
    return str(path)


def test_topics_of_a_file_outlive_a_kill(node: Standalone, tmp_path: Path) -> None:
    """All are there after the command and after kill -9; the command can be repeated."""
    command = ("topic", "create", "--from", named(tmp_path, TOPICS), "--queues", "1")
    made = node.strata(*command)
    # A batch whose answer was late was sent again.
    assert made["created"] + made["existing"] == TOPICS
    node.kill()
    node.start()
    assert node.strata(*command) == {
        "created": 0,
        "existing": TOPICS,
        "failed": 0,
        "failures": [],
    }
    found: list[str] = []
    page = ""
    while True:
        listed = node.strata(
            "topic", "list", "--prefix", "many-01", "--limit", "300", "--page", page
        )
        found += [topic["name"] for topic in listed["topics"]]
        page = listed["next_page"]
        if not page:
            break
    assert found == [f"many-{number:05d}" for number in range(1_000, 2_000)]


async def test_topics_that_come_and_go_leave_no_rows(node: Standalone, tmp_path: Path) -> None:
    """After each round of creation, sends and deletion no row of a topic is left."""
    names = named(tmp_path, COMING_AND_GOING)
    counts = []
    for _ in range(ROUNDS):
        made = await asyncio.to_thread(
            node.strata, "topic", "create", "--from", names, "--queues", "1"
        )
        assert made["created"] + made["existing"] == COMING_AND_GOING
        async with Client(node.endpoint) as client:
            await _send(client)
            await _delete_all(client)
        await asyncio.to_thread(node.stop)
        counts.append(_rows(node.data_dir))
        await asyncio.to_thread(node.start)

    for count in counts:
        assert count["topics"] == 0
        assert count["copied topics"] == 0
        assert count["topics by id"] == 0
        assert count["queues of topics"] == 0
    # Revisions for watchers and tombstones have limits, which later rounds have reached.
    assert counts[-1]["tombstones"] <= 10_000
    assert counts[-1]["changes"] <= 10_000


async def _send(client: Client) -> None:
    for number in range(SENT):
        await client.send(f"many-{number:05d}", [(client.new_message_id(), b"body")])


async def _delete_all(client: Client) -> None:
    numbers = iter(range(COMING_AND_GOING))

    async def worker() -> None:
        for number in numbers:
            request = admin_pb2.DeleteTopicRequest(name=f"many-{number:05d}")
            await client.admin.DeleteTopic(request, metadata=client.metadata)

    async with asyncio.timeout(DROP_LIMIT_S), asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(worker())


def _rows(data_dir: Path) -> Counter[str]:
    """Count the rows that a stopped node has of topics."""
    counts: Counter[str] = Counter()
    for folder, topics in (
        (data_dir / "nameserver" / "meta", "topics"),
        (data_dir / "storage" / "metadata", "copied topics"),
    ):
        named = {
            MetadataRowKind.TOPIC: topics,
            MetadataRowKind.TOMBSTONE: "tombstones",
            MetadataRowKind.CHANGE: "changes",
            MetadataRowKind.TOPIC_ID: "topics by id",
        }
        rows = RocksDbMetadataStore(folder)
        for key, _ in rows.scan(b"\x00", b"\xff"):
            if key[0] in named and key != TOPIC_IDS_KEY:
                counts[named[MetadataRowKind(key[0])]] += 1
        rows.close()
    store = RocksdbStore(data_dir / "storage" / "state")
    counts["queues of topics"] += sum(
        key[4] in OF_TOPICS for key, _ in store.scan(b"", b"\xff" * 8) if len(key) > 4
    )
    store.close()
    return counts
