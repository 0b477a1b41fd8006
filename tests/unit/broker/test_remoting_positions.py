"""Positions of remoting consumers: stored in the order in which their client sent them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from apache.rocketmq.v2 import service_pb2
from strata.broker.v1 import peer_pb2
from strata_broker.access.principals import ANYBODY
from strata_broker.remoting.exchange import Exchange
from strata_broker.remoting.offsets import RemotingOffsets
from strata_broker.remoting.position_resets import PositionResets
from strata_broker.remoting.position_updates import PositionUpdates
from strata_mq.requests import Code, RequestError
from strata_remoting import RemotingCommand, RequestCode, ResponseCode, Serialization
from strata_runtime.metrics import Metrics
from strata_testing import ManualClock, until


class Peer:
    """A connection."""

    peer = client_id = "127.0.0.1:1"
    language = 0


class PositionsFace:
    """Stores positions; one with a key in `held` waits first, as for a new leader."""

    def __init__(self) -> None:
        self.position = 0
        self.begun: list[int] = []
        self.held: dict[int, asyncio.Event] = {}
        self.failing: set[int] = set()

    async def call(
        self, rpc: str, request: service_pb2.UpdateOffsetRequest, response_type: Any, caller: Any
    ) -> Any:
        assert rpc == "UpdateOffset"
        self.begun.append(request.offset)
        if request.offset in self.held:
            await self.held[request.offset].wait()
        if request.offset in self.failing:
            raise RequestError(Code.PROXY_TIMEOUT, f"no leader for {request.offset}")
        self.position = request.offset
        return response_type()


class World:
    """Positions of one connection."""

    def __init__(self) -> None:
        self.face = PositionsFace()
        topic = SimpleNamespace(
            namespace="", name="orders", queue_count=4, is_dead_letter=False, is_table=False
        )
        home = SimpleNamespace(broker_name="b", queues=range(4))
        view = SimpleNamespace(topic=lambda *_: topic, homes=lambda _: (home,))
        face: Any = self.face
        shown: Any = view
        self.updates = PositionUpdates()
        self.client: Any = Peer()
        self.members: list[Any] = [self.client]
        self.clock = ManualClock()
        members: Any = SimpleNamespace(clients=lambda group: self.members)
        self.resets = PositionResets(
            members, self.updates, clock=self.clock, metrics=Metrics.disabled()
        )
        self.offsets = RemotingOffsets(face, shown, self.updates, resets=self.resets)

    async def reset(self, **state: Any) -> None:
        """Tell of a reset of queue 0."""
        told = peer_pb2.QueueReset(queue=0, **state)
        request = peer_pb2.TellResetRequest(consumer_group="g", topic="orders", queues=[told])
        await self.resets.take_reset(request)

    def store(self, offset: int, queue: int = 0, group: str = "g") -> asyncio.Future[int]:
        """Send a position, as clients do: without waiting for the answer."""
        fields = {
            "consumerGroup": group,
            "topic": "orders",
            "queueId": str(queue),
            "commitOffset": str(offset),
        }
        command = RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, fields=fields)
        exchange = Exchange(command, self.client, Serialization.JSON)
        exchange.principal = ANYBODY

        async def sent() -> int:
            return (await self.offsets.update(exchange)).code

        return asyncio.ensure_future(sent())


async def test_a_position_that_is_slow_is_not_stored_over_a_later_one() -> None:
    """The first one waits for a leader and is tried again; its consumer has gone on meanwhile."""
    world = World()
    world.face.held[100] = asyncio.Event()
    first = world.store(100)
    await until(lambda: world.face.begun == [100])
    second = world.store(200)
    await asyncio.sleep(0.02)
    world.face.held[100].set()
    assert set(await asyncio.gather(first, second)) == {ResponseCode.SUCCESS}
    assert world.face.position == 200


async def test_of_the_positions_that_wait_the_latest_is_stored_for_all() -> None:
    """A long time without a leader leaves two calls to make, not one for each position."""
    world = World()
    world.face.held[100] = asyncio.Event()
    first = world.store(100)
    await until(lambda: world.face.begun == [100])
    others = [world.store(offset) for offset in (200, 300, 150)]
    await asyncio.sleep(0.02)
    world.face.held[100].set()
    assert set(await asyncio.gather(first, *others)) == {ResponseCode.SUCCESS}
    assert world.face.begun == [100, 150]
    assert world.face.position == 150, "a consumer may go back"


async def test_positions_that_wait_fail_with_the_one_that_stands_for_them() -> None:
    """Nobody is told that a position was stored when it was not; a later one is tried anew."""
    world = World()
    world.face.held[100] = asyncio.Event()
    world.face.failing |= {100, 300}
    first = world.store(100)
    await until(lambda: world.face.begun == [100])
    others = [world.store(offset) for offset in (200, 300)]
    await asyncio.sleep(0.02)
    world.face.held[100].set()
    failures = await asyncio.gather(first, *others, return_exceptions=True)
    assert [getattr(one, "text", "") for one in failures] == [
        "no leader for 100",
        "no leader for 300",
        "no leader for 300",
    ]
    assert await world.store(400) == ResponseCode.SUCCESS
    assert world.face.position == 400


@pytest.mark.parametrize(("queue", "group"), [(1, "g"), (0, "h")])
async def test_positions_of_other_queues_and_groups_do_not_wait(queue: int, group: str) -> None:
    """Nor does anything of them remain."""
    world = World()
    world.face.held[100] = asyncio.Event()
    first = world.store(100)
    await until(lambda: world.face.begun == [100])
    assert await world.store(7, queue, group) == ResponseCode.SUCCESS
    world.face.held[100].set()
    await first
    assert len(world.updates) == 0


async def test_a_reset_begins_when_positions_on_their_way_are_stored() -> None:
    """Those that wait behind them are older than the reset, too, and are not stored any more."""
    world = World()
    world.face.held[100] = asyncio.Event()
    first = world.store(100)
    await until(lambda: world.face.begun == [100])
    second = world.store(200)
    await asyncio.sleep(0)
    begun = asyncio.ensure_future(world.reset(begins=True))
    await asyncio.sleep(0.02)
    assert not begun.done()
    world.face.held[100].set()
    await begun
    assert set(await asyncio.gather(first, second, world.store(300))) == {ResponseCode.SUCCESS}
    assert world.face.begun == [100]


async def test_members_go_on_after_a_reset_that_failed() -> None:
    """It is not known whether it took effect; an operator repeats it."""
    world = World()
    await world.reset(begins=True)
    await world.store(100)
    await world.reset(failed=True)
    await world.store(200)
    assert world.face.begun == [200]
    assert len(world.resets) == 0


async def test_a_reset_whose_end_is_not_told_stops_members_for_a_minute() -> None:
    """The broker that carries it out may have ended."""
    world = World()
    await world.reset(begins=True)
    for _ in range(2):
        world.clock.advance(31)
        await world.store(100)
    assert world.face.begun == [100]


async def test_old_positions_do_not_count_as_long_as_they_come() -> None:
    """A member that is stopped by its own limits pulls nothing, and stores them all the same."""
    world = World()
    await world.reset(begins=True)
    await world.reset(offset=10)
    for _ in range(4):
        world.clock.advance(59)
        await world.store(100)
    assert world.face.begun == []
    world.clock.advance(61)
    await world.store(100)
    assert world.face.begun == [100]


async def test_a_member_that_connects_anew_is_told_too() -> None:
    """It has its old positions still, and may store them before it says who it is."""
    world = World()
    await world.reset(begins=True)
    await world.reset(offset=10)
    world.client = Peer()
    await world.store(100)
    assert world.face.begun == []
    assert world.resets.moved_to("g", "orders", 0, 100) == 10
    await world.store(10)
    assert (world.face.begun, len(world.resets)) == ([10], 0)


async def test_a_reset_of_a_group_without_members_is_taken_up_by_nobody() -> None:
    """No client has a position of it."""
    world = World()
    world.members.clear()
    await world.reset(begins=True)
    await world.reset(offset=10)
    await world.store(100)
    assert world.face.begun == [100]
