"""How long it holds which consumer groups read a topic that grows."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest

from strata.meta.v1 import meta_pb2
from strata_broker.clients.peers import BrokerPeers
from strata_broker.metadata.metadata import MetadataView, TopicRow
from strata_broker.operators.topic_consumers import TopicConsumers
from strata_broker.storage_client.holder_calls import HolderCalls
from strata_mq.requests.errors import Code, RequestError
from strata_testing import ManualClock

GROUPS = {
    name: SimpleNamespace(consumer_group_id=number, fifo=name != "plain")
    for number, name in enumerate(("first", "second", "plain", "live"), 1)
}


class World:
    """Raft groups, clients and metadata that a test changes."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.stored = [1, 3]
        self.asked = 0
        self.fails = False
        self.live: list[str] = []
        self.clients_asked = 0
        self.consumers = TopicConsumers(
            cast(MetadataView, self),
            cast(HolderCalls, self),
            cast(BrokerPeers, self),
            clock=self.clock,
        )

    def raft_groups(self) -> list[Any]:
        return [SimpleNamespace(raft_group=7)]

    def consumer_group_by_id(self, number: int) -> Any:
        found = [group for group in GROUPS.values() if group.consumer_group_id == number]
        return found[0] if found else None

    def consumer_group(self, namespace: str, name: str) -> Any:
        return GROUPS[name]

    async def clients(self, _: object) -> list[Any]:
        self.clients_asked += 1
        return [SimpleNamespace(consumer_group=name, subscriptions=["t"]) for name in self.live]

    async def of_raft_groups(self, *_: object) -> list[Any]:
        self.asked += 1
        if self.fails:
            raise RequestError(Code.PROXY_TIMEOUT, "no leader")
        return [(7, SimpleNamespace(consumer_group_ids=self.stored))]


def topic(queue_count: int = 8) -> TopicRow:
    return TopicRow(meta_pb2.Topic(topic_id=5, name="t", queue_count=queue_count))


@pytest.fixture
def world() -> World:
    """Consumer groups 1 and 3 have read the topic; 3 is not ordered."""
    return World()


async def test_what_raft_groups_answered_holds_for_a_moment(world: World) -> None:
    """Subscribers are seen a second later; readers whose clients left some seconds later."""
    assert await world.consumers.ordered(topic()) == [1]
    world.stored, world.live = [1, 2], ["live"]
    world.clock.advance(1)
    assert await world.consumers.ordered(topic()) == [1, 4]
    world.clock.advance(8)
    assert await world.consumers.ordered(topic()) == [1, 4]
    assert world.asked == 1
    world.clock.advance(1)
    assert await world.consumers.ordered(topic()) == [1, 2, 4]
    assert world.asked == 2


async def test_brokers_are_asked_for_clients_less_and_less(world: World) -> None:
    """At least every 10 seconds; a topic that grows again is asked about at once."""
    await asked_within(world, 100)
    assert world.clients_asked == 13
    world.live = ["live"]
    world.clock.advance(10)
    assert await world.consumers.ordered(topic()) == [1, 4]
    world.live = ["second"]
    assert await world.consumers.ordered(topic(16)) == [1, 2]
    world.live = []
    world.consumers.forget_others([])
    assert await world.consumers.ordered(topic(16)) == [1]


async def test_a_deleted_group_that_read_a_topic_is_left_out(world: World) -> None:
    """Only the groups that were found are looked up, not all groups of the cluster."""
    world.stored = [2, 1, 99]
    assert await world.consumers.ordered(topic()) == [1, 2]


async def asked_within(world: World, seconds: int) -> int:
    """How often raft groups are asked by a look each second."""
    before = world.asked
    for _ in range(seconds):
        with suppress(RequestError):
            await world.consumers.ordered(topic())
        world.clock.advance(1)
    return world.asked - before


async def test_a_topic_that_waits_for_long_is_asked_about_less_and_less(world: World) -> None:
    """Each look asks all raft groups, at each broker; a new answer is looked for at once again."""
    assert await asked_within(world, 10) == 1
    assert await asked_within(world, 20 + 40 + 80) == 3
    assert await asked_within(world, 800) == 10
    world.stored = [1, 2]
    world.clock.advance(80)
    assert await asked_within(world, 10) == 1
    assert await world.consumers.ordered(topic()) == [1, 2]


async def test_a_raft_group_without_leader_is_asked_less_and_less(world: World) -> None:
    """It is asked at least every 10 seconds; as soon as it has answered that holds."""
    world.fails = True
    assert await asked_within(world, 1 + 2 + 4 + 8) == 4
    assert await asked_within(world, 100) == 10
    world.fails = False
    world.clock.advance(10)
    assert await world.consumers.ordered(topic()) == [1]


async def test_each_growth_asks_anew(world: World) -> None:
    """So does a topic that grew, and grows again."""
    world.fails = True
    with pytest.raises(RequestError, match="no leader"):
        await world.consumers.ordered(topic(4))
    world.fails = False
    assert await world.consumers.ordered(topic()) == [1]
    world.stored = [2]
    assert await world.consumers.ordered(topic(16)) == [2]
    assert world.asked == 3
    world.consumers.forget_others([topic(16)])
    assert await world.consumers.ordered(topic(16)) == [2]
    assert world.asked == 3
    world.consumers.forget_others([])
    assert await world.consumers.ordered(topic(16)) == [2]
    assert world.asked == 4
