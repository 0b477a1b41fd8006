"""Pulls of remoting consumers: how long they wait."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from strata_broker.access.principals import ANYBODY
from strata_broker.remoting.exchange import Exchange
from strata_broker.remoting.position_resets import PositionResets
from strata_broker.remoting.position_updates import PositionUpdates
from strata_broker.remoting.pulls import RemotingPulls
from strata_remoting import RemotingCommand, RequestCode, Serialization, Store
from strata_runtime.metrics import Metrics
from strata_testing import ManualClock, until


class Peer:
    """A connection."""

    language = 0

    def __init__(self, peer: str) -> None:
        self.peer = self.client_id = peer
        self.is_gone = False


class WaitingFace:
    """Lets every pull wait for a message that does not come."""

    def __init__(self) -> None:
        self.waiting: list[str] = []

    async def pull(self, request: Any, caller: Any, deliver: Any) -> None:
        self.waiting.append(caller.peer)
        try:
            await asyncio.Event().wait()
        finally:
            self.waiting.remove(caller.peer)


class World:
    """Pulls of a broker."""

    def __init__(self) -> None:
        self.face = WaitingFace()
        topic = SimpleNamespace(
            namespace="", name="orders", queue_count=4, is_dead_letter=False, is_table=False
        )
        home = SimpleNamespace(broker_name="b", queues=range(4))
        view: Any = SimpleNamespace(topic=lambda *_: topic, homes=lambda _: (home,))
        face: Any = self.face
        nobody: Any = None
        resets = PositionResets(
            nobody, PositionUpdates(), clock=ManualClock(), metrics=Metrics.disabled()
        )
        self.pulls = RemotingPulls(
            face, view, nobody, resets=resets, store=lambda: Store.of("127.0.0.1", 1)
        )

    def pull(self, client: Any) -> asyncio.Future[None]:
        fields = {
            "consumerGroup": "g",
            "topic": "orders",
            "queueId": "0",
            "queueOffset": "0",
            "maxMsgNums": "1",
            "sysFlag": "6",
            "suspendTimeoutMillis": "20000",
        }
        exchange = Exchange(
            RemotingCommand(RequestCode.PULL_MESSAGE, fields=fields), client, Serialization.JSON
        )
        exchange.principal = ANYBODY
        return asyncio.ensure_future(self.pulls.pull(exchange))

    def lost(self, client: Any) -> None:
        client.is_gone = True
        self.pulls.disconnected(client)


async def test_the_pulls_of_a_connection_end_with_it() -> None:
    """A client that connects anew has its share of pulls that wait; those of others go on."""
    world, client, other = World(), Peer("10.0.0.1:1"), Peer("10.0.0.2:1")
    pulls = [world.pull(client), world.pull(client), world.pull(other)]
    await until(lambda: len(world.face.waiting) == 3)
    world.lost(client)
    await until(lambda: world.face.waiting == [other.peer])
    assert [pull.done() for pull in pulls] == [True, True, False]
    world.lost(other)
    await until(lambda: not world.face.waiting)


async def test_a_pull_of_a_connection_that_is_gone_does_not_begin() -> None:
    """It had arrived before, and its task begins behind the end."""
    world, client = World(), Peer("10.0.0.1:1")
    world.lost(client)
    with pytest.raises(ConnectionResetError):
        await world.pull(client)
    assert world.face.waiting == []
