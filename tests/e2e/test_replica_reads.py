"""Many consumer groups read one queue of a cluster with three replicas: all replicas give bytes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import urllib.request
from collections import Counter
from collections.abc import Iterator

import pytest

from strata_testing import NotYet
from tests.e2e.client import Client
from tests.e2e.cluster import Cluster

TOPIC = "read-much"
# STRATA_TEST_READERS=100 is what the design asks for; sixteen show the same in less time.
GROUPS = [f"reader-{number}" for number in range(int(os.environ.get("STRATA_TEST_READERS", "16")))]
MESSAGES, BODY_BYTES = 60, 20_000
MOST_OF_ONE = 0.45
ROUNDS = 5
_SERVED = re.compile(r"^strata_storage_served_bytes_total(?:{[^}]*})? ([0-9.e+]+)$", re.MULTILINE)
_REPLICA_READS = re.compile(r"^strata_broker_replica_reads_total.*$", re.MULTILINE)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One nameserver, four storage nodes, one broker, and a topic of one queue."""
    folder = tmp_path_factory.mktemp("reads")
    made = Cluster(folder / "c", nameservers=1, storage=4, brokers=1)
    made.up()
    made.settle()
    made.create_topic(TOPIC, "--queues", "1")
    yield made
    made.down()


def served(cluster: Cluster) -> Counter[str]:
    """Return how many bytes of messages each storage process has given, by its metrics."""
    found = Counter[str]()
    plan = json.loads((cluster.data_dir / "cluster.json").read_text())
    for member in plan["members"]:
        if member["role"] not in ("storage", "broker"):
            continue
        url = f"http://{member['host']}:{member['metrics_port']}/metrics"
        with urllib.request.urlopen(url, timeout=10) as page:
            text = page.read().decode()
        if member["role"] == "storage":
            found[member["name"]] = int(sum(map(float, _SERVED.findall(text))))
        else:
            print(*_REPLICA_READS.findall(text), sep="\n")
    return found


async def fill(cluster: Cluster) -> dict[str, bytes]:
    """Store messages; return their bodies by id."""
    sent: dict[str, bytes] = {}
    async with Client(cluster.endpoint) as client:
        for number in range(MESSAGES):
            message_id = client.new_message_id()
            sent[message_id] = b"%08d" % number * (BODY_BYTES // 8)
            await client.send(TOPIC, [(message_id, sent[message_id])])
    return sent


async def consume(cluster: Cluster, group: str, count: int) -> dict[str, bytes]:
    """Receive and acknowledge so many messages; return their bodies by id."""
    bodies: dict[str, bytes] = {}
    async with Client(cluster.endpoint) as client:
        [queue] = await client.queues(TOPIC)
        async with asyncio.timeout(120):
            while len(bodies) < count:
                messages = await client.receive(queue, group)
                for message in messages:
                    assert message.message_id not in bodies, "nothing comes twice"
                    bodies[message.message_id] = message.body
                if messages:
                    await client.ack(TOPIC, group, messages)
    return bodies


async def read_by_all(cluster: Cluster, sent: dict[str, bytes], groups: list[str]) -> Counter[str]:
    """Let every group read everything; return what each storage process gave meanwhile."""
    before = await asyncio.to_thread(served, cluster)
    async with asyncio.TaskGroup() as tasks:
        readers = [tasks.create_task(consume(cluster, group, len(sent))) for group in groups]
    assert all(reader.result() == sent for reader in readers)
    return await asyncio.to_thread(served, cluster) - before


@pytest.mark.timeout(300)
async def test_no_replica_serves_most_of_what_many_groups_read(cluster: Cluster) -> None:
    """All three give about a third; with a read replica added meanwhile four share the reading."""
    sent = await fill(cluster)
    await asyncio.to_thread(cluster.settle)
    given = await read_evenly(cluster, sent, "reader")
    assert len([name for name, size in given.items() if size > 0]) == 3

    shown = await asyncio.to_thread(
        cluster.strata, "topic", "update", TOPIC, "--read-replicas", "1"
    )
    assert shown["name"] == TOPIC
    [reader] = await asyncio.to_thread(learners, cluster, 1)
    await until_it_serves(cluster, sent, reader)
    given = await read_evenly(cluster, sent, "again", least_of_one=0.1)
    assert given[reader] > 0

    await asyncio.to_thread(cluster.strata, "topic", "update", TOPIC, "--read-replicas", "0")
    assert await asyncio.to_thread(learners, cluster, 0) == []
    given = await read_by_all(cluster, sent, ["one-more"])
    assert given.total() >= MESSAGES * BODY_BYTES


async def read_evenly(
    cluster: Cluster, sent: dict[str, bytes], name: str, *, least_of_one: float = 0.0
) -> Counter[str]:
    """Let all groups read until no storage process gives more, or less, than its part.

    A replica that lags, on a busy machine, is left alone for a while: then they read once more.
    """
    for number in range(ROUNDS):
        given = await read_by_all(cluster, sent, [f"{name}-{number}-{each}" for each in GROUPS])
        print(given)
        assert given.total() >= len(GROUPS) * MESSAGES * BODY_BYTES
        shares = [given[each] / given.total() for each in cluster.names("storage")]
        if max(shares) <= MOST_OF_ONE and min(shares) >= least_of_one:
            return given
        await asyncio.to_thread(cluster.settle)
    pytest.fail(f"not even in {ROUNDS} rounds: {given}")


async def until_it_serves(cluster: Cluster, sent: dict[str, bytes], reader: str) -> None:
    """Read until a new replica gives something: one that is behind is left alone for a while."""
    for number in range(20):
        given = await read_by_all(cluster, sent, [f"first-{number}"])
        if given[reader]:
            return
        await asyncio.sleep(1)
    pytest.fail(f"{reader} gave nothing in 20 rounds")


def learners(cluster: Cluster, count: int) -> list[str]:
    """Wait until so many read replicas of the topic are in force; return their processes."""
    names = cluster.names_of_nodes()
    number = cluster.strata("queue", "show", TOPIC, "0")["raft_group"]
    found: list[str] = []

    def settled() -> object:
        [group] = [each for each in cluster.raft_groups() if each.health.raft_group == number]
        roles = Counter(replica.role for replica in group.replicas)
        found[:] = [
            names[replica.node_id] for replica in group.replicas if replica.role == "learner"
        ]
        keeps_up = all(replica.state == "serving" for replica in group.replicas)
        is_so = roles == Counter({"voter": 3, **({"learner": count} if count else {})})
        return (is_so and keeps_up) or NotYet(roles)

    cluster.reaches(settled, 60.0)
    return found
