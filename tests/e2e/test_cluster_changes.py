"""Changes of a cluster under load: restarts, more and fewer nodes, queues and slots that move.

Clients see latency and no loss. Latencies are printed; with STRATA_TEST_LIMITS=1 they are held
against what is promised.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator

import pytest

from apache.rocketmq.v2.definition_pb2 import MessageQueue
from strata_testing import NotYet, until
from tests.e2e.client import Client
from tests.e2e.cluster import Cluster
from tests.e2e.history import check, skipped
from tests.e2e.load import FIFO_QUEUES, NORMAL_QUEUES, Load, percentile
from tests.limits import within

STEADY_S = 2.0
P99_LIMIT_S = 0.25
CHANGE_LIMIT_S = 120.0
LEAST_ANSWERS = 200
SLOTS = 4_096
FRESH_QUEUES = 6
FRESH_MESSAGES = 60
ROUNDS = max(1, int(os.environ.get("STRATA_TEST_ROUNDS", "1")) // 5)

Change = Callable[[Cluster, Load], Awaitable[None]]


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of its own: these tests change what it is made of."""
    made = Cluster(tmp_path_factory.mktemp("cluster") / "c")
    made.up()
    made.settle()
    yield made
    made.down()


async def change_and_check(
    cluster: Cluster, name: str, change: Change, *, read: Change | None = None
) -> Load:
    """Change the cluster under load, then drain and judge; return the load.

    `read` reads what `change` sent itself.
    """
    load = Load(cluster.endpoint, f"{name}-normal", f"{name}-fifo", f"{name}-consumers")
    load.create_topics(cluster)
    async with load.running():
        await asyncio.sleep(STEADY_S)
        since_s = time.monotonic()
        await change(cluster, load)
        until_s = time.monotonic()
        await asyncio.sleep(STEADY_S)
        await until(lambda: load.count() > LEAST_ANSWERS or NotYet(load.count()))
    latencies = load.latencies_s(since_s, until_s)
    p99_s = percentile(latencies, 0.99)
    print(
        f"{name}: {until_s - since_s:.1f} s, {len(latencies)} answered meanwhile, latency "
        f"p50 {percentile(latencies, 0.5) * 1_000:.0f} ms, p99 {p99_s * 1_000:.0f} ms, "
        f"max {max(latencies):.2f} s; {len(load.errors)} calls repeated, "
        f"errors {sorted(set(load.errors))[:4]}"
    )
    await load.drain()
    if read is not None:
        await read(cluster, load)
    violations = check(load.history)
    print(*violations[:10], sep="\n")
    assert violations == []
    assert skipped(load.history, load.group, load.normal) == []
    within("99th percentile of the latency", p99_s, P99_LIMIT_S)
    return load


async def restart_everything(cluster: Cluster, load: Load) -> None:
    """Stop and start every process in turn, each when the one before serves again."""
    for role in ("nameserver", "storage", "broker"):
        for name in cluster.names(role):
            await asyncio.to_thread(cluster.local, "stop", name)
            await asyncio.to_thread(cluster.local, "start", name)
            await asyncio.to_thread(cluster.settle)


async def hand_leaderships_round(cluster: Cluster, load: Load) -> None:
    """Let every storage node lead every raft group once, and the first one again."""
    names = await asyncio.to_thread(cluster.names_of_nodes)
    nodes = [node_id for node_id, name in names.items() if name.startswith("storage")]
    for node_id in (*nodes, nodes[0]):
        for group in await asyncio.to_thread(cluster.raft_groups):
            await asyncio.to_thread(hand_leadership, cluster, group.health.raft_group, node_id)
        await asyncio.to_thread(cluster.settle)


def hand_leadership(cluster: Cluster, raft_group: int, node_id: str) -> None:
    """Let a node lead a raft group, when the nameserver is not just moving the leadership too."""

    def handed_over() -> bool:
        cluster.strata("leader", "transfer", str(raft_group), "--to", node_id)
        return True

    cluster.reaches(handed_over, CHANGE_LIMIT_S)


async def grow_and_shrink(cluster: Cluster, load: Load) -> None:
    """Add two storage nodes, wait until they hold replicas, then drain them and take them away."""
    added = [
        (await asyncio.to_thread(cluster.local, "add", "storage"))[0]["name"] for _ in range(2)
    ]
    for name in added:
        held = lambda name=name: replicas_on(cluster, name) > 0  # noqa: E731
        await asyncio.to_thread(cluster.reaches, held, CHANGE_LIMIT_S)
    await asyncio.to_thread(cluster.settle, CHANGE_LIMIT_S)
    print(f"{added} hold {[replicas_on(cluster, name) for name in added]} replicas")
    for name in added:
        address = cluster.address(name)
        cluster.strata("node", "drain", address)
        empty = lambda name=name: replicas_on(cluster, name) == 0  # noqa: E731
        await asyncio.to_thread(cluster.reaches, empty, CHANGE_LIMIT_S)
        await asyncio.to_thread(cluster.local, "stop", name)
        # A node that still ran would register again.
        cluster.strata("node", "remove", address)
        await asyncio.to_thread(cluster.local, "remove", name)
    await asyncio.to_thread(cluster.settle)


async def move_every_queue(cluster: Cluster, load: Load) -> None:
    """Move each queue of both topics to another raft group."""
    groups = [group.health.raft_group for group in cluster.raft_groups()]
    for topic, queues in ((load.normal, NORMAL_QUEUES), (load.fifo, FIFO_QUEUES)):
        for queue in range(queues):
            number = str(queue)
            shown = await asyncio.to_thread(cluster.strata, "queue", "show", topic, number)
            at = groups.index(shown["raft_group"])
            to = groups[(at + 1) % len(groups)]
            moved = await asyncio.to_thread(
                cluster.strata, "queue", "move", topic, number, "--to", str(to)
            )
            assert moved["done"], moved
            assert moved["epochs"][-1]["raft_group"] == to


async def move_slots(cluster: Cluster, load: Load) -> None:
    """Move the slots of both topics from one raft group to the next, and those of new topics."""
    numbers = [group.health.raft_group for group in cluster.raft_groups()]
    async with Client(cluster.endpoint) as client:
        for number in range(ROUNDS * 2):
            fresh = f"{load.normal}-fresh-{number}"
            await asyncio.to_thread(cluster.create_topic, fresh, "--queues", str(FRESH_QUEUES))
            target = numbers[number % len(numbers)]
            await asyncio.gather(
                move_slots_of(cluster, load.normal, NORMAL_QUEUES, target),
                move_slots_of(cluster, load.fifo, FIFO_QUEUES, target),
                move_slots_of(cluster, fresh, FRESH_QUEUES, target),
                # Its queues get their first messages while their slots are on their way.
                send_some(client, load, fresh),
            )


async def move_slots_of(cluster: Cluster, topic: str, queues: int, to: int) -> None:
    """Move the slots of a topic's queues, and wait until they are there."""
    shown = await asyncio.to_thread(cluster.strata, "queue", "show", topic, "0")
    first = shown["slot"]
    count = min(queues, SLOTS - first)
    moved = await asyncio.to_thread(
        cluster.strata,
        *("slot", "move", str(first), str(count), "--to", str(to), "--timeout", "80s"),
    )
    assert moved["done"], moved


async def send_some(client: Client, load: Load, topic: str) -> None:
    """Send to a topic for a while; nothing is repeated here."""
    for _ in range(FRESH_MESSAGES):
        message_id = client.new_message_id()
        body = message_id.encode()
        load.history.attempt(topic, message_id, body)
        [offset] = await client.send(topic, [(message_id, body)])
        load.history.answer(message_id, offset)
        await asyncio.sleep(0.02)


async def read_fresh_topics(cluster: Cluster, load: Load) -> None:
    """Read the topics of `move_slots` to their ends and note what came."""
    topics = sorted({send.topic for send in load.history.sends.values()})
    async with Client(cluster.endpoint) as client:
        for topic in topics:
            if topic not in (load.normal, load.fifo):
                for queue in await client.queues(topic):
                    await read_queue(client, load, topic, queue)


async def read_queue(client: Client, load: Load, topic: str, queue: MessageQueue) -> None:
    """Read what is under one broker name."""
    group = f"{topic}-readers"
    while delivered := await client.receive(queue, group, poll_s=2):
        for each in delivered:
            load.history.deliver(group, topic, each.message_id, each.body, each.queue, each.offset)
        await client.ack(topic, group, delivered)


def replicas_on(cluster: Cluster, name: str) -> int:
    """Return how many replicas a process holds, by the configurations of the raft groups."""
    names = cluster.names_of_nodes()
    return sum(
        names.get(replica.node_id) == name
        for group in cluster.raft_groups()
        for replica in group.replicas
    )


@pytest.mark.kill
@pytest.mark.timeout(600)
async def test_rolling_restart(cluster: Cluster) -> None:
    """Everything is stopped and started once; clients notice latency at most."""
    await change_and_check(cluster, "restart", restart_everything)


@pytest.mark.timeout(600)
async def test_leadership_transfers(cluster: Cluster) -> None:
    """A node that leads again after others did knows what was acknowledged meanwhile."""
    await change_and_check(cluster, "transfer", hand_leaderships_round)


@pytest.mark.kill
@pytest.mark.timeout(600)
async def test_three_to_five_to_three(cluster: Cluster) -> None:
    """Storage nodes come and go while messages flow."""
    await change_and_check(cluster, "grow", grow_and_shrink)


@pytest.mark.kill
@pytest.mark.timeout(600)
async def test_queue_moves(cluster: Cluster) -> None:
    """Every queue moves once; offsets, order and consumers are not disturbed."""
    await change_and_check(cluster, "move", move_every_queue)


@pytest.mark.timeout(1200)
async def test_slot_moves(cluster: Cluster) -> None:
    """Slots change hands while their queues are written; clients notice nothing at all."""
    load = await change_and_check(cluster, "slots", move_slots, read=read_fresh_topics)
    assert load.errors == []
