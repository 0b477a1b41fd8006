"""Goodbyes of remoting consumers: their last positions are stored before others hear of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from strata_broker.access.principals import ANYBODY
from strata_broker.remoting.consumers import RemotingConsumers
from strata_broker.remoting.exchange import Exchange
from strata_broker.remoting.position_updates import PositionUpdates
from strata_broker.remoting.requesters import Requesters
from strata_remoting import RemotingCommand, RequestCode, Serialization

CLIENT_ID = "me"


class Peer:
    """A connection."""

    peer = "127.0.0.1:1"
    client_id = CLIENT_ID
    language = 0
    is_gone = False
    has_room = True


class Members:
    """Keeps who left."""

    def __init__(self) -> None:
        self.gone: list[tuple[str, str]] = []

    def left(self, client: object, group: str) -> None:
        self.gone.append((str(client), group))


class ProducerGroupsStub:
    """Keeps nothing."""

    def left(self, client: object, group: str) -> None:
        """Forget nothing."""


@pytest.fixture
def members() -> Members:
    return Members()


def consumers_with(members: Members, updates: PositionUpdates) -> RemotingConsumers:
    unused: Any = None
    known: Any = members
    groups: Any = ProducerGroupsStub()
    return RemotingConsumers(
        unused,
        known,
        unused,
        producer_groups=groups,
        updates=updates,
        requesters=Requesters(1_000),
        max_groups=4,
        max_json_bytes=1_024,
    )


def goodbye(client: Any) -> Exchange:
    command = RemotingCommand(
        RequestCode.UNREGISTER_CLIENT, fields={"clientID": CLIENT_ID, "consumerGroup": "g"}
    )
    exchange = Exchange(command, client, Serialization.JSON)
    exchange.principal = ANYBODY
    return exchange


async def test_a_goodbye_waits_for_positions_of_its_connection(members: Members) -> None:
    """Clients send them without waiting; whoever takes the queues over asks for them at once."""
    updates = PositionUpdates()
    consumers = consumers_with(members, updates)
    client: Any = Peer()
    with updates.storing(client), updates.storing(client):
        leaving = asyncio.ensure_future(consumers.unregister(goodbye(client)))
        for _ in range(5):
            await asyncio.sleep(0)
        assert members.gone == []
    await leaving
    assert members.gone == [(CLIENT_ID, "g")]


async def test_positions_of_others_do_not_matter(members: Members) -> None:
    """Nor does one that could not be stored: it is settled as well."""
    updates = PositionUpdates()
    consumers = consumers_with(members, updates)
    client: Any = Peer()
    other: Any = Peer()
    with pytest.raises(ConnectionError), updates.storing(client):
        raise ConnectionError
    with updates.storing(other):
        await consumers.unregister(goodbye(client))
    assert members.gone == [(CLIENT_ID, "g")]
