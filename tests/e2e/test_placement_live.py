"""Five storage nodes under skewed load that shifts: planned from metric windows, evened out."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from strata_testing import NotYet, until
from tests.e2e.client import Client, RefusedError
from tests.e2e.cluster import Cluster

TOPICS = [f"live-{number}" for number in range(16)]
BODY = b"x" * 4_000
HEAVY_PAUSE_S, LIGHT_PAUSE_S = 0.03, 1.0
WINDOWS_S = 25.0
GROUP = "live-readers"
CONFIG = """
[nameserver]
load_window_ms = 4000
busy_node_floor_bytes_per_s = 4000
plan_settle_ms = 6000
placement_interval_ms = 500
[observability]
windows = true
window_ms = 5000
[storage]
window_ms = 5000
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One nameserver, five storage nodes, one broker, and topics of one queue each."""
    folder = tmp_path_factory.mktemp("live")
    config = folder / "strata.toml"
    config.write_text(CONFIG)
    made = Cluster(folder / "c", nameservers=1, storage=5, brokers=1, config=Path(config))
    made.up()
    made.settle()
    # The node that is busiest must stay it.
    made.spread()
    for topic in TOPICS:
        made.create_topic(topic, "--queues", "1")
    yield made
    made.down()


@dataclass
class Load:
    """Senders to every topic; what was acknowledged, and how long it took."""

    cluster: Cluster
    heavy: set[str]
    acknowledged: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    took_ms: list[float] = field(default_factory=list)
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Send until told to stop."""
        async with Client(self.cluster.endpoint) as client, asyncio.TaskGroup() as tasks:
            for topic in TOPICS:
                tasks.create_task(self._send(client, topic))

    def shift(self, heavy: set[str]) -> None:
        """Send much to other topics from now on."""
        self.heavy = heavy

    def p99_ms(self) -> float:
        """Return the 99th percentile of the sends since the last call."""
        taken, self.took_ms = sorted(self.took_ms), []
        return taken[len(taken) * 99 // 100] if taken else 0.0

    async def _send(self, client: Client, topic: str) -> None:
        while not self.stop.is_set():
            message_id, began_s = client.new_message_id(), time.monotonic()
            while True:
                try:
                    await client.send(topic, [(message_id, BODY)])
                    break
                except (grpc.aio.AioRpcError, RefusedError):
                    await asyncio.sleep(0.05)
            self.took_ms.append((time.monotonic() - began_s) * 1_000)
            self.acknowledged[topic].add(message_id)
            await asyncio.sleep(HEAVY_PAUSE_S if topic in self.heavy else LIGHT_PAUSE_S)


async def strata(cluster: Cluster, *arguments: str) -> Any:
    """Run a command beside the load."""
    return await asyncio.to_thread(cluster.strata, *arguments)


def node_of(cluster: Cluster, topic: str) -> str:
    leader: str = cluster.strata("queue", "show", topic, "0")["leader"]
    return leader


def skewed(cluster: Cluster, besides: Collection[str] = ()) -> tuple[str, set[str]]:
    """Return the node that leads most of the topics' queues, and four of these topics at most."""
    nodes = {topic: node_of(cluster, topic) for topic in TOPICS if topic not in besides}
    [(hot, _)] = Counter(nodes.values()).most_common(1)
    return hot, set([topic for topic, node in nodes.items() if node == hot][:4])


async def imbalance(cluster: Cluster) -> float:
    """Return the measured load of the busiest storage node / mean."""
    nodes = (await strata(cluster, "placement", "explain"))["nodes"]
    loads = [node["bytes_per_s"] for node in nodes]
    assert len(loads) == 5
    return float(max(loads) * len(loads) / sum(loads))


async def received(cluster: Cluster, topic: str, wanted: set[str]) -> set[str]:
    """Consume a topic until everything that was acknowledged has come; return all ids."""
    seen: set[str] = set()
    async with Client(cluster.endpoint) as client:
        for _ in range(200):
            # A queue that has just moved may have no leader for a moment.
            with suppress(grpc.aio.AioRpcError, RefusedError):
                for queue in await client.queues(topic):
                    messages = await client.receive(queue, GROUP, poll_s=5)
                    seen |= {message.message_id for message in messages}
                    if messages:
                        await client.ack(topic, GROUP, messages)
            if wanted <= seen:
                break
    return seen


@dataclass
class Round:
    """One load: how uneven it was and how long sends took, before, during and after the plan."""

    heavy: set[str]
    imbalance: tuple[float, float]
    p99_ms: tuple[float, float, float]
    steps: list[str]


@pytest.mark.timeout(420)
async def test_a_skewed_cluster_is_evened_out_and_loses_nothing(cluster: Cluster) -> None:
    """The busiest node comes nearer to the mean, and again when the load shifts to other topics.

    New queues avoid it, and all that was acked is read.
    """
    hot, heavy = await asyncio.to_thread(skewed, cluster)
    load = Load(cluster, heavy)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(load.run())
        try:
            rounds = [await evened_out(cluster, load, hot)]
            _, heavy = await asyncio.to_thread(skewed, cluster, heavy)
            load.shift(heavy)
            rounds.append(await evened_out(cluster, load, ""))
        finally:
            load.stop.set()
    print(*rounds, sep="\n")

    assert not rounds[0].heavy & rounds[1].heavy
    for each in rounds:
        before, after = each.imbalance
        assert after < 0.9 * before, each
    for topic in rounds[0].heavy | rounds[1].heavy:
        wanted = load.acknowledged[topic]
        missing = wanted - await received(cluster, topic, wanted)
        assert not missing, f"{len(missing)} of {len(wanted)} messages of {topic} are missing"


async def evened_out(cluster: Cluster, load: Load, avoided: str) -> Round:
    """Plan by what a load shows and carry it out under that load.

    Args:
        cluster: that is loaded.
        load: under way.
        avoided: node that a new topic's queues are to avoid; empty: no topic is made.
    """
    heavy = set(load.heavy)
    assert len(heavy) >= 2
    load.p99_ms()
    await asyncio.sleep(WINDOWS_S)
    before, p99_before_ms = await imbalance(cluster), load.p99_ms()
    if avoided:
        await asyncio.to_thread(cluster.create_topic, "newcomer", "--queues", "5")
        await asyncio.to_thread(cluster.reaches, lambda: avoids(cluster, avoided), 30.0)
    planned = await plan(cluster, heavy)
    applied = await strata(cluster, "placement", "apply", "--wait")
    p99_during_ms = load.p99_ms()
    assert (applied["plan_id"], applied["state"]) == (planned["plan_id"], "done"), applied
    after = before

    async def is_evener() -> object:
        nonlocal after
        after = await imbalance(cluster)
        return after < 0.9 * before or NotYet(f"{after:.2f} of {before:.2f}")

    # Windows that begin after the last step show what it did.
    await asyncio.sleep(8)
    await until(is_evener, step_s=1.0)
    p99_after_ms = load.p99_ms()
    assert len({await asyncio.to_thread(node_of, cluster, topic) for topic in heavy}) >= 2
    return Round(
        heavy,
        (before, after),
        (p99_before_ms, p99_during_ms, p99_after_ms),
        [step["note"] for step in applied["steps"]],
    )


async def plan(cluster: Cluster, heavy: set[str]) -> Any:
    """Make a plan from metric windows; it moves queues of the heavy topics."""
    options = ("--loads", "windows", "--history", "1m", "--max-steps", "4")
    planned = await strata(cluster, "placement", "plan", *options)
    assert planned["state"] == "proposed", planned
    assert "metric windows" in planned["forecast"]
    moved = {step["queue"] for step in planned["steps"] if step["action"] == "MoveQueue"}
    assert moved & {f"/{topic}/0" for topic in heavy}, planned["steps"]
    return planned


def avoids(cluster: Cluster, hot: str) -> object:
    """Whether no queue of the new topic is led by a node."""
    shown = cluster.strata("topic", "show", "newcomer")["queue_status"]
    led = {group.health.raft_group: group.health.leader_node_id for group in cluster.raft_groups()}
    places = [led[queue["raft_group"]] for queue in shown]
    return hot not in places or NotYet(f"{places} has {hot}")
