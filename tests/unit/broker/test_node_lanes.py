"""Loops that send requests to storage nodes, one per node as long as it is a member."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from strata.meta.v1 import meta_pb2
from strata_broker.app import BrokerApp
from strata_broker.storage_client.lanes import NodeLanes
from strata_runtime.tasks import Tasks
from strata_testing import until
from strata_testing.broker.client import Client, message
from strata_testing.broker.fake_meta import RAFT_GROUPS, FakeMeta


class World:
    """Lanes whose requests are sent when a test lets them."""

    def __init__(self) -> None:
        self.tasks = Tasks("test", lambda name, failure: pytest.fail(f"{name}: {failure}"))
        self.lanes = NodeLanes("send", self.tasks, self._exchange)
        self.waiting: list[str] = []
        self.sent: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.under_way = 0

    async def _exchange(self, _: str) -> bool:
        if not self.waiting:
            return False
        self.under_way += 1
        assert self.under_way == 1
        request = self.waiting.pop(0)
        await self.gate.wait()
        self.sent.append(request)
        self.under_way -= 1
        return True

    def send(self, request: str) -> None:
        self.waiting.append(request)
        self.lanes.wake("a")

    @property
    def loops(self) -> list[str]:
        return self.tasks.names


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """Nothing was sent yet."""
    world = World()
    yield world
    await world.tasks.stop()


async def test_the_loop_of_a_node_that_left_ends(world: World) -> None:
    """Nodes that come and go under new names leave nothing; a node that returns has a loop."""
    world.send("1")
    await until(lambda: world.sent == ["1"])
    assert world.loops == ["test.send a"]
    world.lanes.forget("a")
    world.lanes.forget("never seen")
    await until(lambda: not world.loops)
    world.send("2")
    await until(lambda: world.sent == ["1", "2"])
    assert world.loops == ["test.send a"]


async def test_requests_that_wait_are_handled_before_the_loop_ends(world: World) -> None:
    """Those that come meanwhile, too, and by the same loop: one call is under way at a time."""
    world.gate.clear()
    world.send("1")
    await until(lambda: world.under_way == 1)
    world.send("2")
    world.lanes.forget("a")
    world.send("3")
    assert world.loops == ["test.send a"]
    world.gate.set()
    await until(lambda: not world.loops)
    assert world.sent == ["1", "2", "3"]


@pytest.fixture
def meta() -> FakeMeta:
    """The nameserver; two nodes hold both raft groups."""
    fake = FakeMeta(("a", "b"))
    fake.add_topic("orders")
    return fake


def loops_of(*nodes: str) -> set[str]:
    """Return the names of the broker's loops that send appends and acks to nodes."""
    names = {task.get_name() for task in asyncio.all_tasks()}
    return names & {f"broker.{kind} {node}" for kind in ("append", "ack") for node in nodes}


async def test_a_broker_ends_the_loops_of_a_storage_node_that_left(
    app: BrokerApp, client: Client, meta: FakeMeta
) -> None:
    """Both nodes say that they lead; later requests go to the one that is left."""
    await client.send(message("orders", 1))
    (received,) = await client.receive_all("orders", "g")
    await client.ack("orders", "g", received.system_properties.receipt_handle)
    left, kept = ("a", "b") if loops_of("a") else ("b", "a")
    assert loops_of(left) == {f"broker.append {left}", f"broker.ack {left}"}
    for raft_group in RAFT_GROUPS:
        row = meta_pb2.RaftGroup(raft_group=raft_group, broker_name=f"strata-{raft_group}")
        row.replicas.add(replica_id=10 + raft_group, node_id=kept)
        meta.put(meta_pb2.Change(raft_group=row))
    node = meta_pb2.Node(node_id=left, kind=meta_pb2.NODE_KIND_STORAGE)
    meta.put(meta_pb2.Change(node=node, deleted=True))
    await until(lambda: not loops_of(left))
    assert (await client.send(message("orders", 2))).status.code == 20000
    assert loops_of(left, kept) == {f"broker.append {kept}"}
