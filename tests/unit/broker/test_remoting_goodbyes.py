"""Heartbeats and goodbyes of remoting consumers, also those that cross one another.

The last positions of a consumer are stored before others hear of its goodbye.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from strata_broker.access.principals import ANYBODY, AccessRefused, Principal
from strata_broker.base.config import SessionSection
from strata_broker.base.remoting_config import RemotingSection
from strata_broker.clients.sessions import Sessions
from strata_broker.remoting.consumers import RemotingConsumers
from strata_broker.remoting.exchange import Exchange
from strata_broker.remoting.members import RemotingMembers
from strata_broker.remoting.position_updates import PositionUpdates
from strata_broker.remoting.requesters import Requesters
from strata_broker.remoting.subscription_room import SubscriptionRoom
from strata_mq.requests import RequestError
from strata_remoting import RemotingCommand, RemotingError, RequestCode, Serialization
from strata_runtime.metrics import Metrics
from strata_testing import ManualClock

CLIENT_ID = "me"


class Peer:
    """A connection."""

    peer = "127.0.0.1:1"
    language = 0
    has_room = True

    def __init__(self) -> None:
        self.client_id = self.peer
        self.is_gone = False

    def tell_frame(self, frame: bytes) -> None:
        """Forget it."""


class SessionsFace:
    """Handlers of the broker: only heartbeats, which begin sessions; `held` ones wait first."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self.held: dict[str, asyncio.Event] = {}

    async def call(self, rpc: str, request: object, response_type: object, caller: Any) -> None:
        assert rpc == "Heartbeat"
        client_id = caller.metadata["x-mq-client-id"]
        if client_id in self.held:
            await self.held[client_id].wait()
        self._sessions.heard(client_id, caller.peer, caller.principal.user)


class ProducerGroupsStub:
    """Keeps nothing."""

    def heard(self, *_: object) -> None:
        """Note nothing."""

    def left(self, *_: object) -> None:
        """Forget nothing."""

    def disconnected(self, _: object) -> None:
        """Forget nothing."""


class World:
    """Consumers of one broker."""

    def __init__(self, **remoting: int) -> None:
        self.clock = ManualClock()
        self.sessions = Sessions(SessionSection(), self.clock)
        self.members = RemotingMembers(
            self.sessions,
            self.clock,
            member_timeout_ms=1_000,
            notice_pause_ms=100,
            room=SubscriptionRoom(RemotingSection.model_validate(remoting), Metrics.disabled()),
            metrics=Metrics.disabled(),
        )
        self.updates = PositionUpdates()
        self.requesters = Requesters(1_000)
        self.face = SessionsFace(self.sessions)
        face: Any = self.face
        locks: Any = None
        producer_groups: Any = ProducerGroupsStub()
        self.consumers = RemotingConsumers(
            face,
            self.members,
            locks,
            producer_groups=producer_groups,
            updates=self.updates,
            requesters=self.requesters,
            max_groups=4,
            max_json_bytes=100_000,
        )

    async def heartbeat(
        self, client: Peer, client_id: str, *groups: str, user: str = "", tags: str = "*"
    ) -> None:
        wanted = [{"topic": "orders", "subString": tags}]
        consumers = [{"groupName": group, "subscriptionDataSet": wanted} for group in groups]
        data = {"clientID": client_id, "consumerDataSet": consumers}
        command = RemotingCommand(RequestCode.HEART_BEAT, body=json.dumps(data).encode())
        await self.consumers.heartbeat(_exchange(command, client, user))

    async def goodbye(self, client: Peer, client_id: str = CLIENT_ID) -> None:
        fields = {"clientID": client_id, "consumerGroup": "g"}
        command = RemotingCommand(RequestCode.UNREGISTER_CLIENT, fields=fields)
        await self.consumers.unregister(_exchange(command, client))

    def lost(self, client: Peer) -> None:
        client.is_gone = True
        peer: Any = client
        self.consumers.disconnected(peer)


def _exchange(command: RemotingCommand, client: Any, user: str = "") -> Exchange:
    exchange = Exchange(command, client, Serialization.JSON)
    exchange.principal = (
        Principal(user, "127.0.0.1", policies=(), is_admin=True, max_decisions=1)
        if user
        else ANYBODY
    )
    return exchange


async def _turns() -> None:
    """Let whatever can go on do so."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_goodbye_waits_for_positions_of_its_connection() -> None:
    """Clients send them without waiting; whoever takes the queues over asks for them at once."""
    world = World()
    client: Any = Peer()
    await world.heartbeat(client, CLIENT_ID, "g")
    with world.updates.storing(client), world.updates.storing(client):
        leaving = asyncio.ensure_future(world.goodbye(client))
        await _turns()
        assert world.members.client_ids("g") == [CLIENT_ID]
    await leaving
    assert world.members.client_ids("g") == []


async def test_positions_of_others_do_not_matter() -> None:
    """Nor does one that could not be stored: it is settled as well."""
    world = World()
    client: Any = Peer()
    other: Any = Peer()
    await world.heartbeat(client, CLIENT_ID, "g")
    with pytest.raises(ConnectionError), world.updates.storing(client):
        raise ConnectionError
    with world.updates.storing(other):
        await world.goodbye(client)
    assert world.members.client_ids("g") == []


async def test_a_late_goodbye_leaves_the_next_connection_alone() -> None:
    """The client has connected anew while its last position was being stored."""
    world = World()
    client: Any = Peer()
    await world.heartbeat(client, CLIENT_ID, "g")
    with world.updates.storing(client):
        leaving = asyncio.ensure_future(world.goodbye(client))
        await _turns()
        world.lost(client)
        await world.heartbeat(Peer(), CLIENT_ID, "g")
    await leaving
    assert world.members.client_ids("g") == [CLIENT_ID]


async def test_a_late_goodbye_leaves_the_next_id_alone() -> None:
    """The connection has taken another id meanwhile, with the same group."""
    world = World()
    client: Any = Peer()
    await world.heartbeat(client, CLIENT_ID, "g")
    with world.updates.storing(client):
        leaving = asyncio.ensure_future(world.goodbye(client))
        await _turns()
        await world.heartbeat(client, "other", "g")
    await leaving
    assert world.members.client_ids("g") == ["other"]
    world.lost(client)
    assert world.members.client_ids("g") == []


async def test_heartbeats_side_by_side_leave_no_member_behind() -> None:
    """A connection has one id: the groups of an earlier one are not joined any more."""
    world = World()
    client = Peer()
    held = world.face.held[f"{CLIENT_ID}@g2"] = asyncio.Event()
    first = asyncio.ensure_future(world.heartbeat(client, CLIENT_ID, "g1", "g2"))
    await _turns()
    assert world.members.client_ids("g1") == [CLIENT_ID]
    await world.heartbeat(client, "other", "g3")
    held.set()
    await first
    groups = ("g1", "g2", "g3")
    assert [world.members.client_ids(group) for group in groups] == [[], [], ["other"]]
    world.lost(client)
    assert [world.members.client_ids(group) for group in groups] == [[], [], []]
    assert not any(client.open_calls for client in world.sessions.alive())


async def test_the_id_of_another_users_client_is_not_taken() -> None:
    """The connection keeps the id that it had, and what belongs to that."""
    world = World()
    owner, thief = Peer(), Peer()
    await world.heartbeat(owner, CLIENT_ID, "g", user="ann")
    await world.heartbeat(thief, "own", "g", user="bob")
    with pytest.raises(AccessRefused, match=f"client {CLIENT_ID} belongs to another user"):
        await world.heartbeat(thief, CLIENT_ID, "g", user="bob")
    assert thief.client_id == "own"
    assert world.members.client_ids("g") == [CLIENT_ID, "own"]
    await world.goodbye(thief)
    assert world.members.client_ids("g") == [CLIENT_ID, "own"]


TOO_MANY = r"a client has at most 4 groups \(remoting\.max_groups_per_client\)"


async def test_groups_count_over_all_heartbeats_of_a_connection() -> None:
    """A client that names others each time has no more of them at the end."""
    world, client = World(), Peer()
    await world.heartbeat(client, CLIENT_ID, "g0", "g1", "g2", "g3")
    with pytest.raises(RemotingError, match=TOO_MANY):
        await world.heartbeat(client, CLIENT_ID, "g4")
    await world.heartbeat(client, CLIENT_ID, "g2", "g3")
    assert world.members.client_ids("g4") == []
    goodbye = RemotingCommand(
        RequestCode.UNREGISTER_CLIENT, fields={"clientID": CLIENT_ID, "consumerGroup": "g0"}
    )
    await world.consumers.unregister(_exchange(goodbye, client))
    await world.heartbeat(client, CLIENT_ID, "g4")
    assert world.members.client_ids("g4") == [CLIENT_ID]


async def test_groups_count_over_heartbeats_side_by_side() -> None:
    """Each of them had room when it began."""
    world, client = World(), Peer()
    held = asyncio.Event()
    for number in range(8):
        world.face.held[f"{CLIENT_ID}@g{number}"] = held
    beats = [
        asyncio.ensure_future(world.heartbeat(client, CLIENT_ID, f"g{number}"))
        for number in range(8)
    ]
    await _turns()
    held.set()
    failures = await asyncio.gather(*beats, return_exceptions=True)
    assert [type(one) for one in failures] == [type(None)] * 4 + [RemotingError] * 4
    joined = [number for number in range(8) if world.members.client_ids(f"g{number}")]
    assert joined == [0, 1, 2, 3]


async def test_groups_that_a_client_left_silently_make_room() -> None:
    """Some clients say goodbye to no group: they leave it out of their heartbeats."""
    world, client = World(), Peer()
    await world.heartbeat(client, CLIENT_ID, "g0", "g1", "g2", "g3")
    world.clock.advance(0.6)
    await world.heartbeat(client, CLIENT_ID, "g0")
    world.clock.advance(0.6)
    await world.heartbeat(client, CLIENT_ID, "g0", "g4", "g5", "g6")
    with pytest.raises(RemotingError, match=TOO_MANY):
        await world.heartbeat(client, CLIENT_ID, "g7")
    assert world.members.client_ids("g0") == world.members.client_ids("g6") == [CLIENT_ID]
    assert world.members.client_ids("g1") == []


async def test_subscriptions_of_an_address_have_a_share_of_memory() -> None:
    """A heartbeat may have a megabyte of expressions, and an address thousands of connections."""
    world = World(
        max_subscription_bytes_per_client=65_536, max_subscription_bytes_per_address=100_000
    )
    first, second, other = Peer(), Peer(), Peer()
    second.peer, other.peer = "127.0.0.1:2", "127.0.0.2:1"
    await world.heartbeat(first, "c1", "g", tags="a" * 60_000)
    with pytest.raises(RequestError, match=r"remoting\.max_subscription_bytes"):
        await world.heartbeat(first, "c1", "h", tags="a" * 60_000)
    with pytest.raises(RequestError, match=r"remoting\.max_subscription_bytes"):
        await world.heartbeat(second, "c2", "g", tags="a" * 60_000)
    await world.heartbeat(other, "c3", "g", tags="a" * 60_000)
    assert world.members.client_ids("g") == ["c1", "c3"]
    for _ in range(3):
        # Its own expression is replaced, which needs no more room.
        await world.heartbeat(first, "c1", "g", tags="b" * 60_000)
    with pytest.raises(RequestError, match=r"remoting\.max_subscription_bytes"):
        await world.heartbeat(first, "c1", "g", tags="c" * 70_000)
    kept = world.members.subscription("c1", "g", "orders")
    assert kept is not None
    assert kept.expression == "b" * 60_000
    world.lost(first)
    await world.heartbeat(second, "c2", "g", tags="a" * 60_000)
    assert world.members.client_ids("g") == ["c2", "c3"]
