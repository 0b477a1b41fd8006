"""Plans on a real cluster of three storage nodes: made from its loads, carried out, taken back.

One-queue topics make the load of each queue a matter of how much is sent to its topic.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from strata.admin.v1 import admin_pb2, admin_pb2_grpc
from strata.meta.v1 import meta_pb2
from strata_testing import NotYet
from tests.e2e.client import Client, RefusedError
from tests.e2e.cluster import Cluster, ClusterError

TOPICS = [f"load-{number}" for number in range(6)]
BODY = b"x" * 2_000
HEAVY_PAUSE_S, LIGHT_PAUSE_S = 0.02, 1.5
HEAVY_SENDERS = 3
NODES = 3
LED_BY_EACH = 2
SPREAD_LIMIT_S = 60.0
ATTEMPTS = 4
CONFIG = """
[nameserver]
load_window_ms = 2000
busy_node_floor_bytes_per_s = 2000
plan_settle_ms = 5000
placement_interval_ms = 500
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One nameserver, three storage nodes, one broker, and topics of one queue each."""
    folder = tmp_path_factory.mktemp("placement")
    config = folder / "strata.toml"
    config.write_text(CONFIG)
    made = Cluster(folder / "c", nameservers=1, storage=NODES, brokers=1, config=Path(config))
    made.up()
    made.settle()
    spread(made)
    for topic in TOPICS:
        made.create_topic(topic, "--queues", "1")
    yield made
    made.down()


def raft_group_of(cluster: Cluster, topic: str, queue: int = 0) -> int:
    number: int = cluster.strata("queue", "show", topic, str(queue))["raft_group"]
    return number


def leaders(cluster: Cluster) -> dict[int, str]:
    return {group.health.raft_group: group.health.leader_node_id for group in cluster.raft_groups()}


def node_of(cluster: Cluster, topic: str, queue: int = 0) -> str:
    return leaders(cluster)[raft_group_of(cluster, topic, queue)]


def spread(cluster: Cluster) -> None:
    """Wait until every storage node leads as many raft groups as it should lead.

    Leaders are spread some seconds after the nodes came up. Until then they are on their way, and
    what a test calls the hot node may lead none of its queues by the time there is a plan.
    """

    def is_spread() -> object:
        groups = cluster.raft_groups()
        led = Counter(group.health.leader_node_id for group in groups)
        wishes = [
            (group.health.leader_node_id, group.row.preferred_leader_node_id) for group in groups
        ]
        as_wished = all(wish in ("", leader) for leader, wish in wishes)
        return (as_wished and list(led.values()) == [LED_BY_EACH] * NODES) or NotYet((led, wishes))

    cluster.reaches(is_spread, SPREAD_LIMIT_S)


def skewed(cluster: Cluster) -> tuple[str, list[str]]:
    """Return the node that leads most of the topics' queues, and two of these topics."""
    spread(cluster)
    nodes = {topic: node_of(cluster, topic) for topic in TOPICS}
    [(hot, _)] = Counter(nodes.values()).most_common(1)
    return hot, [topic for topic, node in nodes.items() if node == hot][:2]


@asynccontextmanager
async def load(cluster: Cluster, heavy: list[str]) -> AsyncIterator[Counter[str]]:
    """Send meanwhile, much to the heavy topics; yield how many sends each topic has answered."""
    answered: Counter[str] = Counter()
    stop = asyncio.Event()

    async def send(client: Client, topic: str) -> None:
        pause_s = HEAVY_PAUSE_S if topic in heavy else LIGHT_PAUSE_S
        while not stop.is_set():
            message_id = client.new_message_id()
            while True:
                try:
                    await client.send(topic, [(message_id, BODY)])
                    break
                except (grpc.aio.AioRpcError, RefusedError):
                    await asyncio.sleep(0.05)
            answered[topic] += 1
            await asyncio.sleep(pause_s)

    async with Client(cluster.endpoint) as client, asyncio.TaskGroup() as tasks:
        for topic in TOPICS:
            for _ in range(HEAVY_SENDERS if topic in heavy else 1):
                tasks.create_task(send(client, topic))
        try:
            await asyncio.sleep(4)
            yield answered
        finally:
            stop.set()


@asynccontextmanager
async def planned_by_growth(
    cluster: Cluster,
) -> AsyncIterator[tuple[Any, str, list[str], Counter[str]]]:
    """Load a node unevenly and plan; yield plan, hot node, heavy topics and answered sends.

    An election while the loads are measured (a machine may be that busy) makes them those of
    another skew; then all of it begins anew.
    """
    options = ("--loads", "growth", "--sample", "4s", "--max-steps", "2")
    for _ in range(ATTEMPTS):
        hot, heavy = await asyncio.to_thread(skewed, cluster)
        led = await asyncio.to_thread(leaders, cluster)
        async with load(cluster, heavy) as answered:
            planned = await strata(cluster, "placement", "plan", *options)
            if await asyncio.to_thread(leaders, cluster) == led:
                yield planned, hot, heavy, answered
                return
    pytest.fail(f"leaders changed in each of {ATTEMPTS} attempts")


async def strata(cluster: Cluster, *arguments: str) -> Any:
    """Run a command beside the load."""
    return await asyncio.to_thread(cluster.strata, *arguments)


def stored(cluster: Cluster, topic: str) -> int:
    [queue] = cluster.strata("topic", "show", topic)["queue_status"]
    number: int = queue["next_offset"]
    return number


@pytest.mark.timeout(240)
async def test_a_plan_evens_out_a_skewed_cluster(cluster: Cluster) -> None:
    """Made from the growth of queues, applied on request; the busiest node is so no longer."""
    async with planned_by_growth(cluster) as (planned, hot, heavy, answered):
        assert len(heavy) == 2
        assert planned["state"] == "proposed", planned
        moves = [step for step in planned["steps"] if step["action"] == "MoveQueue"]
        assert {step["queue"] for step in moves} & {f"/{topic}/0" for topic in heavy}
        assert hot in planned["steps"][0]["reason"]
        applied = await strata(cluster, "placement", "apply", "--wait")
        explained = await strata(cluster, "placement", "explain")
    print(applied["reason"], [step["note"] for step in applied["steps"]])

    assert applied["state"] == "done"
    assert {step["state"] for step in applied["steps"]} == {"done"}
    first, last = applied["steps"][0], applied["steps"][-1]
    assert last["measured_after"] < first["measured_before"]
    assert explained["plan"]["plan_id"] == applied["plan_id"] == planned["plan_id"]
    nodes = {await asyncio.to_thread(node_of, cluster, topic) for topic in heavy}
    assert len(nodes) == 2, "the two heavy queues have different leaders now"
    for topic in TOPICS:
        assert stored(cluster, topic) >= answered[topic], "no acknowledged message is missing"


@pytest.mark.timeout(240)
async def test_what_makes_it_worse_is_undone(cluster: Cluster) -> None:
    """Both heavy queues on one node by a plan of our own: it is measured, undone and stopped."""
    await asyncio.to_thread(spread, cluster)
    nodes = {topic: await asyncio.to_thread(node_of, cluster, topic) for topic in TOPICS}
    first = TOPICS[0]
    second = next(topic for topic in TOPICS if nodes[topic] != nodes[first])
    source = await asyncio.to_thread(raft_group_of, cluster, second)
    led = await asyncio.to_thread(leaders, cluster)
    kept = await strata(cluster, "queue", "show", second, "0")
    drained = {epoch["raft_group"] for epoch in kept["epochs"]}
    target = next(number for number, node in led.items() if node == nodes[first])
    assert target not in drained
    step = meta_pb2.PlacementStep(
        move_queue=meta_pb2.MoveQueueStep(
            topic=second, queue=0, from_raft_group=source, to_raft_group=target
        ),
        reason="test",
    )
    async with load(cluster, [first, second]):
        async with grpc.aio.insecure_channel(cluster.endpoint) as channel:
            stub = admin_pb2_grpc.AdminServiceStub(channel)
            proposed = await stub.ProposePlan(
                admin_pb2.ProposePlanRequest(
                    plan=meta_pb2.PlacementPlan(planner="test", steps=[step])
                )
            )
        plan_id = str(proposed.plan.plan_id)
        with pytest.raises(ClusterError, match="made it worse"):
            await strata(cluster, "placement", "apply", plan_id, "--wait")
        ended = await strata(cluster, "placement", "show", plan_id)

    print(ended["reason"])
    assert ended["state"] == "stopped"
    assert [step["state"] for step in ended["steps"]] == ["reverted"]
    assert await asyncio.to_thread(node_of, cluster, second) == nodes[second]


async def test_new_queues_avoid_the_busiest_node(cluster: Cluster) -> None:
    """While one node has most of the load, none of nine new queues ends up being led by it."""
    hot, heavy = await asyncio.to_thread(skewed, cluster)
    async with load(cluster, heavy[:1]):

        def is_busy() -> object:
            nodes = cluster.strata("placement", "explain")["nodes"]
            return [node["node"] for node in nodes if node["busy"]] == [hot] or NotYet(nodes)

        await asyncio.to_thread(cluster.reaches, is_busy, 60.0)
        await asyncio.to_thread(cluster.create_topic, "newcomer", "--queues", "9")

        def elsewhere() -> object:
            places = [node_of(cluster, "newcomer", queue) for queue in range(9)]
            return hot not in places or NotYet(f"{places} has {hot}")

        await asyncio.to_thread(cluster.reaches, elsewhere, 60.0)
        reasons = await strata(cluster, "queue", "explain", "newcomer", "0")
    assert any(f"new queues avoid {hot}" in line for line in reasons["reasons"])
