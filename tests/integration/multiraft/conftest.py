"""Nodes in one process that speak to each other over real tcp on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar

import pytest

from strata_angelia.factory import open_channel, open_server
from strata_angelia.options import AngeliaOptions
from strata_angelia.ports import Channel
from strata_multiraft import LogThreads, MultiRaft, MultiRaftOptions, Replica, ReplicaSpec
from strata_multiraft.peering import TransportOptions
from strata_multiraft.peering.angelia_transport import PeerIdentity
from strata_multiraft.peering.peering import Peering
from strata_multiraft.peering.peering_options import LivenessOptions, PeeringOptions
from strata_multiraft.peering.raft_servicer import RAFT_SERVICE
from strata_raft import Role
from strata_runtime.clock import SystemClock
from strata_runtime.metrics import Metrics
from strata_sim.memory_commit_log import MemoryCommitLog
from strata_sim.rows_machine import RowsMachine
from strata_testing import until

Result = TypeVar("Result")

NODES = ("a", "b", "c")


def replica_id(raft_group: int, node_id: str) -> int:
    """The replica of a raft group on a node."""
    return 10 * raft_group + NODES.index(node_id) + 1


def node_of(replica: int) -> str | None:
    """The node of a replica."""
    number = replica % 10 - 1
    return NODES[number] if 0 <= number < len(NODES) else None


class SkewedClock(SystemClock):
    """A clock whose wall time is off."""

    def __init__(self, offset_ms: int) -> None:
        self.offset_ms = offset_ms

    def wall_ms(self) -> int:
        return super().wall_ms() + self.offset_ms


async def in_place(work: Callable[[], Result], /) -> Result:
    """Run at once: the log is in memory."""
    return work()


class PlacesSeenFrom:
    """A `PeerPlaces`; connections can be cut one way."""

    def __init__(self, node_id: str, cluster: Cluster) -> None:
        self._node_id = node_id
        self._cluster = cluster

    def endpoint_of(self, node_id: str, /) -> str | None:
        return self._cluster.endpoint(self._node_id, node_id)

    def node_of(self, replica_id: int, /) -> str | None:
        return node_of(replica_id)


class Node:
    """One life of one node."""

    def __init__(
        self, cluster: Cluster, node_id: str, log: MemoryCommitLog, clock: SystemClock, boot_id: int
    ) -> None:
        self.node_id = node_id
        self.log = log
        self.metrics = Metrics()
        self.fatal: list[tuple[str, BaseException]] = []
        self.machines: dict[int, RowsMachine] = {}
        self.peering = Peering(
            PeerIdentity(node_id, boot_id),
            directory=PlacesSeenFrom(node_id, cluster),
            clock=clock,
            metrics=self.metrics,
            on_fatal=self._on_fatal,
            options=PeeringOptions(liveness=LivenessOptions(quiesce_after_ticks=5)),
            connect=cluster.connect,
        )
        self.multiraft = MultiRaft(
            log,
            clock,
            MultiRaftOptions(),
            metrics=self.metrics,
            threads=LogThreads(in_place),
            on_fatal=self._on_fatal,
            peers=self.peering.links,
        )
        self.peering.attach(self.multiraft)
        self.server = open_server("127.0.0.1", 0, cluster.transport)
        self.server.register(RAFT_SERVICE, self.peering.servicer)

    def host(self, raft_group: int) -> None:
        machine = self.machines[raft_group] = RowsMachine()
        voters = frozenset(replica_id(raft_group, other) for other in NODES)
        own = replica_id(raft_group, self.node_id)
        self.multiraft.add_replica(ReplicaSpec(raft_group, own, voters), machine, machine)

    async def start(self) -> str:
        endpoint = await self.server.start()
        await self.multiraft.start()
        await self.peering.start()
        return endpoint

    async def stop(self) -> None:
        await self.server.stop(0)
        await self.peering.stop()
        await self.multiraft.stop()
        assert not self.fatal

    def leads(self) -> list[Replica]:
        return [r for r in self.multiraft.replicas().values() if r.is_ready_leader()]

    def envelopes_sent(self) -> float:
        counter = self.metrics.counter("strata_raft_messages_total")
        return sum(counter.value({"class": name}) for name in ("control", "append"))

    def _on_fatal(self, task: str, failure: BaseException) -> None:
        self.fatal.append((task, failure))


class Cluster:
    """Three nodes and the wires between them."""

    transport = "tcp"
    codec = "protobuf"

    def __init__(self) -> None:
        self.raft_groups: list[int] = []
        self.nodes: dict[str, Node] = {}
        self.cut: set[tuple[str, str]] = set()
        self.clocks = {node_id: SkewedClock(0) for node_id in NODES}
        self._endpoints: dict[str, str] = {}
        self._boots = 100

    def connect(self, endpoint: str) -> Channel:
        """Return a channel with the pauses that are usual between nodes."""
        usual = TransportOptions()
        options = AngeliaOptions(
            connect_timeout_s=usual.connect_timeout_ms / 1000,
            reconnect_pause_s=usual.reconnect_first_ms / 1000,
        )
        return open_channel(endpoint, self.transport, self.codec, options=options)

    def endpoint(self, source: str, target: str) -> str | None:
        return None if (source, target) in self.cut else self._endpoints.get(target)

    def isolate(self, node_id: str) -> None:
        for other in NODES:
            self.cut |= {(node_id, other), (other, node_id)}

    async def start(self, *raft_groups: int) -> None:
        self.raft_groups = list(raft_groups)
        for node_id in NODES:
            await self.boot(node_id, MemoryCommitLog())

    async def boot(self, node_id: str, log: MemoryCommitLog) -> Node:
        self._boots += 1
        node = self.nodes[node_id] = Node(self, node_id, log, self.clocks[node_id], self._boots)
        for raft_group in self.raft_groups:
            node.host(raft_group)
        self._endpoints[node_id] = await node.start()
        return node

    async def kill(self, node_id: str) -> MemoryCommitLog:
        """End a node's life; return the log that the next one finds."""
        node = self.nodes.pop(node_id)
        log = node.log.crashed()
        await node.stop()
        return log

    async def stop(self) -> None:
        for node in self.nodes.values():
            await node.stop()

    def leader(self, raft_group: int) -> Node | None:
        found = [
            (node.multiraft.replicas()[raft_group].term, node)
            for node in self.nodes.values()
            if node.multiraft.replicas()[raft_group].is_ready_leader()
        ]
        return max(found, key=lambda pair: pair[0])[1] if found else None

    async def wait_leader(self, raft_group: int, timeout_s: float = 30) -> Node:
        await until(lambda: self.leader(raft_group) is not None, timeout_s)
        leader = self.leader(raft_group)
        assert leader is not None
        return leader

    async def propose(self, raft_group: int, payload: bytes) -> None:
        leader = await self.wait_leader(raft_group)
        await leader.multiraft.replicas()[raft_group].propose((payload,))

    def is_quiet(self) -> bool:
        """Whether every replica of every live node rests."""
        return all(
            len(node.multiraft.ticker.resting) == len(self.raft_groups)
            for node in self.nodes.values()
        )

    def all_have(self, raft_group: int, payloads: Sequence[bytes]) -> bool:
        return all(
            node.machines[raft_group].payloads() == list(payloads) for node in self.nodes.values()
        )

    def roles(self, raft_group: int) -> dict[str, Role]:
        return {n: node.multiraft.replicas()[raft_group].role for n, node in self.nodes.items()}


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    """Three nodes, not started."""
    cluster = Cluster()
    yield cluster
    await cluster.stop()
