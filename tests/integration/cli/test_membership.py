"""A running node among itself: heartbeats, deletions that survive a kill, settings that change."""

from __future__ import annotations

import asyncio
import re
import sys
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from apache.rocketmq.v2 import definition_pb2, service_pb2, service_pb2_grpc
from strata_state.rocksdb_store import RocksdbStore
from strata_testing import until_blocking
from tests.parts.ports import free_port

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Node, StartNode

DYING = (sys.executable, str(Path(__file__).with_name("dies_while_deleting.py")))
TOMBSTONE_ROW = 9


class Scraped:
    """The metrics of a node."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/metrics"

    def values(self, name: str) -> dict[str, float]:
        """Return a metric's values by their labels, as they are written; not those of the node."""
        return self.at_once(name)[0]

    def at_once(self, *names: str) -> list[dict[str, float]]:
        """Return the values of several metrics as they were at one moment."""
        with urllib.request.urlopen(self._url, timeout=5) as response:
            text = re.sub(r'(?:cluster|node_id|node_type)="[^"]*",?', "", response.read().decode())
            lines = text.replace(",}", "}").replace("{}", "").splitlines()
        return [
            {
                series.removeprefix(name): float(value)
                for series, _, value in (
                    line.rpartition(" ") for line in lines if line.startswith(name)
                )
            }
            for name in names
        ]


def test_the_members_stay_alive(start_node: StartNode) -> None:
    """The three members of one process are up long after what silence is allowed elsewhere."""
    port = free_port()
    start_node(
        STRATA_NODE_METRICS_PORT=str(port),
        STRATA_NAMESERVER_SUSPECT_AFTER_MS="100",
        STRATA_NAMESERVER_DOWN_AFTER_MS="200",
        STRATA_NAMESERVER_JUDGE_INTERVAL_MS="50",
    )
    time.sleep(1.5)
    nodes = Scraped(port).values("strata_metadata_nodes")
    assert {series for series, count in nodes.items() if count} == {
        '{kind="broker",state="up"}',
        '{kind="nameserver",state="up"}',
        '{kind="storage",state="up"}',
    }


def test_a_deletion_survives_the_death_of_its_broker(start_node: StartNode) -> None:
    """Killed after the row was deleted and before any data was: the next start finishes it."""
    node = start_node(program=DYING)
    topic = node.json("topic", "create", "gone", "--queues", "4")
    for number in range(4):
        node.json("message", "send", "gone", "--body", str(number))
    assert node.strata("topic", "delete", "gone", "--timeout", "5s").returncode == 5
    assert node.process.wait(10) == -9

    port = free_port()
    restarted = start_node(
        STRATA_NODE_METRICS_PORT=str(port), STRATA_METADATA_DROP_RETRY_INTERVAL_MS="200"
    )
    metrics = Scraped(port)
    assert restarted.json("topic", "list")["topics"] == []
    until_blocking(lambda: metrics.values("strata_broker_pending_drops") == {"": 0.0})
    assert restarted.stop()[0] == 0
    assert rows_of_topic(restarted.data_dir, topic["topic_id"]) == {
        1: {TOMBSTONE_ROW},
        2: {TOMBSTONE_ROW},
    }


def rows_of_topic(data_dir: Path, topic_id: int) -> dict[int, set[int]]:
    """Return the kinds of rows that a topic has in each raft group's state."""
    store = RocksdbStore(data_dir / "storage" / "state")
    kinds: dict[int, set[int]] = {}
    for key, _ in store.scan(b"", b"\xff" * 8):
        raft_group, kind = int.from_bytes(key[:4], "big"), key[4]
        # Queue and cq rows begin with the topic's id, tombstones with what they are of.
        at = 6 if kind == TOMBSTONE_ROW else 5
        if kind in (2, 3, TOMBSTONE_ROW) and int.from_bytes(key[at : at + 4], "big") == topic_id:
            kinds.setdefault(raft_group, set()).add(kind)
    store.close()
    return kinds


async def test_a_changed_group_reaches_a_connected_client(start_node: StartNode) -> None:
    """`strata group update` is told on the open stream of the group's client, unasked."""
    node = await asyncio.to_thread(start_node)
    await asyncio.to_thread(node.json, "group", "create", "g")
    said = definition_pb2.Settings(client_type=definition_pb2.PUSH_CONSUMER)
    said.subscription.group.name = "g"
    async with grpc.aio.insecure_channel(node.endpoint) as channel:
        stream = service_pb2_grpc.MessagingServiceStub(channel).Telemetry(
            metadata=(("x-mq-client-id", "c1"), ("x-mq-language", "JAVA")), timeout=30
        )
        await stream.write(service_pb2.TelemetryCommand(settings=said))
        assert (await told(stream)).backoff_policy.max_attempts == 17
        await asyncio.to_thread(update, node, "--max-attempts", "3", "--fifo")
        settings = await told(stream)
        assert settings.backoff_policy.max_attempts == 3
        assert settings.subscription.fifo
        await asyncio.to_thread(update, node, "--backoff-exp", "1000,60000,2")
        policy = (await told(stream)).backoff_policy.exponential_backoff
        assert policy.initial.seconds == 1
        stream.cancel()


def update(node: Node, *arguments: str) -> None:
    """Change the consumer group."""
    node.json("group", "update", "g", *arguments)


async def told(
    stream: grpc.aio.StreamStreamCall[service_pb2.TelemetryCommand, service_pb2.TelemetryCommand],
) -> definition_pb2.Settings:
    """Return the next settings."""
    command = await stream.read()
    assert isinstance(command, service_pb2.TelemetryCommand)
    return command.settings
