"""Live clients of a broker as other brokers see them."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

from strata.broker.v1 import peer_pb2
from strata_broker.base.config import PeerSection, SessionSection
from strata_broker.base.slices import SLICE
from strata_broker.clients.connected_clients import ConnectedClients
from strata_broker.clients.sessions import Sessions
from strata_testing import ManualClock

ASKER = "asker"


class NoStreams:
    """Telemetry of clients that have no streams."""

    def stream_of(self, client_id: str) -> None:
        return None


class World:
    """Clients of one broker; those in `takers`, with their users, can be given replies."""

    def __init__(self, **takers: str) -> None:
        self.clock = ManualClock()
        self.sessions = Sessions(SessionSection(), self.clock)
        streams: Any = NoStreams()
        self.clients = ConnectedClients(
            self.sessions,
            streams,
            PeerSection(),
            connections=lambda: 1,
            replied_user=takers.get,
        )

    async def listed(self, **wanted: str) -> list[tuple[str, bool, str]]:
        answer = await self.clients.answer(peer_pb2.ListClientsRequest(**wanted))
        return [(one.client_id, one.takes_replies, one.user) for one in answer.clients]


async def test_a_client_that_takes_replies_is_found_between_its_heartbeats() -> None:
    """Producers say something each 30 s, and a session counts as alive for 15 s only."""
    world = World(asker="ann")
    world.sessions.heard(ASKER, "10.0.0.1:5", "")
    for silent_s in (0, 20, 20, 3_600):
        world.clock.advance(silent_s)
        assert await world.listed(client_id=ASKER) == [(ASKER, True, "ann")]
    world.sessions.live_holders()
    assert world.sessions.find(ASKER) is None
    assert await world.listed(client_id=ASKER) == [(ASKER, True, "ann")], "its session is forgotten"


async def test_other_silent_clients_are_not_listed() -> None:
    """Nor is one that takes replies, unless it is asked for."""
    world = World(asker="ann")
    for client_id in (ASKER, "silent"):
        world.sessions.heard(client_id)
    world.clock.advance(20)
    world.sessions.heard("alive")
    assert await world.listed(client_id="silent") == []
    assert await world.listed(client_id=ASKER, consumer_group="g") == []
    assert await world.listed() == [("alive", False, "")]


async def test_a_client_that_is_asked_for_is_looked_up() -> None:
    """Each new client that asks for replies makes every broker do it: none looks at all clients."""
    world = World()
    for client_id in ("alive", "other"):
        world.sessions.heard(client_id)
    with patch.object(Sessions, "alive", side_effect=AssertionError):
        assert await world.listed(client_id="alive") == [("alive", False, "")]
        assert await world.listed(client_id="alive", consumer_group="g") == []
        assert await world.listed(client_id="nobody") == []
        world.clock.advance(20)
        assert await world.listed(client_id="alive") == []
    world.sessions.heard("other")
    world.sessions.terminated("other")
    assert await world.listed(client_id="other") == []


async def test_other_work_goes_on_while_many_clients_are_listed() -> None:
    """A broker may have tens of thousands; an answer has the first ones by client id."""
    world = World(c00001="ann")
    names = [f"c{number:05d}" for number in range(4 * SLICE)]
    for client_id in reversed(names):
        world.sessions.heard(client_id)
    turns = 0

    async def other_work() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(other_work())
    found = await world.listed()
    assert turns >= 6
    task.cancel()
    assert [client_id for client_id, *_ in found] == names
    assert found[1] == ("c00001", True, "ann")
