"""A broker tells whether the cluster is well: to operators, to probes, to clients, in metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest
from grpc_health.v1 import health_pb2

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_broker.app import BrokerApp
from strata_broker.base.config import BrokerConfig
from strata_runtime.health import Health, Problem, Severity
from strata_runtime.metrics import Metrics
from strata_testing import until
from strata_testing.broker import broker_under_test, network_of
from strata_testing.broker.client import message
from strata_testing.broker.fake_cluster import NODES, FakeCluster
from strata_testing.broker.fake_edge import ADMIN, FakeEdge
from strata_testing.broker.fake_meta import FakeMeta

CHECK = "/grpc.health.v1.Health/Check"


class Broker(NamedTuple):
    app: BrokerApp
    edge: FakeEdge
    cluster: FakeCluster
    meta: FakeMeta
    metrics: Metrics

    async def health(self) -> admin_pb2.GetHealthResponse:
        return await self.edge.call(
            ADMIN + "GetHealth", admin_pb2.GetHealthRequest(), admin_pb2.GetHealthResponse
        )

    async def serving(self) -> bool:
        answer = await self.edge.call(
            CHECK, health_pb2.HealthCheckRequest(), health_pb2.HealthCheckResponse
        )
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def shown(self) -> str:
        self.metrics.read_gauges()
        return self.metrics.render().decode()


@pytest.fixture
async def broker(config: BrokerConfig) -> AsyncIterator[Broker]:
    meta = FakeMeta(NODES)
    meta.add_topic("orders")
    cluster = FakeCluster(meta.slots)
    network = network_of(meta, cluster.channel)
    async with broker_under_test(FakeEdge(), network, config=config) as made:
        app = made.app
        await until(lambda: app.health().problems == () and app.health().serves)
        yield Broker(app, made.edge, cluster, meta, made.metrics)


def states(health: admin_pb2.GetHealthResponse) -> set[tuple[str, str, str]]:
    return {(each.kind, each.name, each.state) for each in health.problems}


async def test_all_is_well(broker: Broker) -> None:
    """Nothing is wrong: healthy, serving, ready, every raft group counted."""
    health = await broker.health()
    assert (health.status, list(health.problems)) == ("healthy", [])
    assert health.raft_groups == {"SERVING": 2, "DEGRADED": 0, "LEADERLESS": 0}
    assert health.broker_node_id == "broker-a"
    assert await broker.serving()
    assert 'strata_cluster_raft_groups{state="SERVING"} 2.0' in broker.shown()
    assert "strata_broker_unreachable_raft_groups 0.0" in broker.shown()


async def test_one_dead_node_is_told_and_taken_back(broker: Broker) -> None:
    """Whom the others lead goes on with fewer replicas: degraded, and the broker is ready."""
    node = broker.cluster.nodes["storage-c"]
    node.die()
    await until(lambda: bool(broker.app.health().problems))
    health = await broker.health()
    assert health.status == "degraded"
    assert states(health) >= {("node", "storage-c", "UNREACHABLE"), ("raft_group", "1", "DEGRADED")}
    shown = await broker.edge.call(
        ADMIN + "GetCluster", admin_pb2.GetClusterRequest(), admin_pb2.GetClusterResponse
    )
    assert [(one.state, one.reason, one.replicas_live) for one in shown.raft_groups] == [
        ("DEGRADED", "2 of 3 replicas; missing: storage-c", 2)
    ] * 2
    assert {one.node_id: one.state for one in shown.conditions}["storage-c"] == "unreachable"
    assert broker.app.health().is_ready
    assert await broker.serving()
    node.dead = False
    await until(lambda: broker.app.health().problems == ())


async def test_an_outage_is_told_everywhere_and_taken_back(broker: Broker) -> None:
    """Nobody leads: down, NOT_SERVING, not ready, in metrics; and a send says which and why."""
    leaders = dict(broker.cluster.leaders)
    for raft_group in leaders:
        broker.cluster.depose(raft_group)
        broker.cluster.hints.pop(raft_group)
    await until(lambda: not broker.app.health().serves)
    health = await broker.health()
    assert health.status == "down"
    assert health.problems[0].severity == "down"
    assert states(health) == {("raft_group", "1", "LEADERLESS"), ("raft_group", "2", "LEADERLESS")}
    assert not await broker.serving()
    assert "strata_broker_unreachable_raft_groups 2.0" in broker.shown()
    assert 'strata_cluster_raft_groups{state="LEADERLESS"} 2.0' in broker.shown()
    assert "strata_cluster_status 2.0" in broker.shown()
    request = service_pb2.SendMessageRequest(messages=[message("orders", 1)])
    call = broker.edge.begin("SendMessage", request, time_left_s=0.2)
    response = service_pb2.SendMessageResponse.FromString((await call.answer)[0])
    assert response.status.code == definition_pb2.HA_NOT_AVAILABLE
    assert "is LEADERLESS: no leader; 3 of 3 replicas can be reached" in response.status.message
    for raft_group, node_id in leaders.items():
        broker.cluster.elect(raft_group, node_id)
    await until(lambda: broker.app.health().serves)
    assert await broker.serving()
    assert (await broker.health()).status == "healthy"


async def test_a_certificate_near_its_end_is_a_reason(broker: Broker) -> None:
    """The cluster is degraded for who asks this broker, which serves on; a new one ends that."""
    problem = Problem("certificate", "a.crt", "ENDS_SOON", Severity.DEGRADED, "in 3 days")
    broker.edge.told = Health(problems=(problem,))
    health = await broker.health()
    assert health.status == "degraded"
    [told] = health.problems
    assert (told.kind, told.name, told.state) == ("certificate", "a.crt", "ENDS_SOON")
    assert told.detail == "in 3 days"
    assert problem in broker.app.health().problems
    assert await broker.serving()
    broker.edge.told = Health()
    assert (await broker.health()).status == "healthy"


async def test_a_broker_that_stops_does_not_serve(broker: Broker) -> None:
    """The health of gRPC is NOT_SERVING from the first moment, whatever the cluster does."""
    await broker.app.stop(0.1)
    assert not await broker.serving()


async def test_what_the_metadata_say_of_nodes_counts(broker: Broker) -> None:
    """A node that the nameservers judge DOWN is told, a drained one is a note."""
    for node_id, changes in (
        ("broker-z", {"state": meta_pb2.NODE_STATE_DOWN}),
        ("broker-y", {"state": meta_pb2.NODE_STATE_UP, "draining": True}),
    ):
        node = meta_pb2.Node(node_id=node_id, kind=meta_pb2.NODE_KIND_BROKER, **changes)
        broker.meta.put(meta_pb2.Change(node=node))
    await until(lambda: len(broker.app.health().problems) == 2)
    health = await broker.health()
    assert states(health) == {("node", "broker-z", "DOWN"), ("node", "broker-y", "DRAINING")}
    assert health.status == "degraded"


async def test_metadata_that_nobody_confirms_are_called_old(broker: Broker) -> None:
    """With no nameserver the last picture is shown, and said to be old; sends go on."""
    broker.meta.down = True
    for watcher in broker.meta.watchers:
        watcher.put_nowait(None)
    await until(lambda: bool(broker.app.health().problems))
    health = await broker.health()
    assert states(health) == {("metadata", "", "STALE")}
    assert health.status == "degraded"
    assert health.metadata_age_ms > 2_000
    shown = await broker.edge.call(
        ADMIN + "GetCluster", admin_pb2.GetClusterRequest(), admin_pb2.GetClusterResponse
    )
    assert shown.metadata_is_stale
    assert {one.state for one in shown.conditions if one.node_id in NODES} == {"up"}
    assert broker.app.health().is_ready
    broker.meta.down = False
    await until(lambda: broker.app.health().problems == ())
