"""Members of a consumer group of remoting clients: how they hear of changes, and how often."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from strata_broker.base.config import SessionSection
from strata_broker.base.remoting_config import RemotingSection
from strata_broker.clients.sessions import Sessions
from strata_broker.remoting import members as members_module
from strata_broker.remoting.heartbeats import RemotingSubscription
from strata_broker.remoting.members import GroupMember, RemotingMembers
from strata_broker.remoting.subscription_room import SubscriptionRoom
from strata_remoting import (
    FrameLimits,
    RemotingCommand,
    RemotingFrameReader,
    RequestCode,
    Serialization,
    encode_frame,
)
from strata_runtime.metrics import Metrics
from strata_testing import ManualClock, until

GROUP = "g"
MEMBERS = 40
NONE: Mapping[str, RemotingSubscription] = {}


class Peer:
    """A connection that keeps what it was told."""

    language = 0

    def __init__(self, client_id: str) -> None:
        self.client_id = self.peer = client_id
        self.told: list[bytes] = []

    def tell_frame(self, frame: bytes) -> None:
        self.told.append(frame)


class CountedMembers(dict[str, GroupMember]):
    """Counts the walks over all members."""

    walks = 0

    def values(self) -> Any:
        self.walks += 1
        return super().values()


class World:
    """Members of one consumer group, and how many frames were encoded for them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = ManualClock()
        self.members = RemotingMembers(
            Sessions(SessionSection(), self.clock),
            self.clock,
            member_timeout_ms=10_000,
            notice_pause_ms=20,
            room=SubscriptionRoom(RemotingSection(), Metrics.disabled()),
            metrics=Metrics.disabled(),
        )
        self.peers: list[Peer] = []
        self.encoded: list[RemotingCommand] = []

        def counting(command: RemotingCommand, serialization: Serialization) -> bytes:
            self.encoded.append(command)
            return encode_frame(command, serialization)

        monkeypatch.setattr(members_module, "encode_frame", counting)

    def join(self, client_id: str) -> None:
        self.peers.append(Peer(client_id))
        self.beat(self.peers[-1])

    def beat(self, peer: Any, subscriptions: Mapping[str, RemotingSubscription] = NONE) -> None:
        self.members.heard(peer, peer.client_id, GROUP, subscriptions)

    async def settled(self) -> None:
        """Wait until the next change would be told at once."""
        await until(lambda: all(one.pause is None for one in self.members._groups.values()))


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """Many members that know of one another."""
    world = World(monkeypatch)
    for number in range(MEMBERS):
        world.join(f"client-{number:02}")
    await world.settled()
    return world


def commands(frames: list[bytes]) -> list[RemotingCommand]:
    reader = RemotingFrameReader(FrameLimits())
    reader.feed(b"".join(frames))
    return [frame.command for frame in reader.frames()]


async def test_changes_that_follow_one_another_are_told_together(world: World) -> None:
    """The first one at once, the others after a pause; each notice is encoded once for all."""
    assert len(world.encoded) == 2
    assert [len(peer.told) for peer in world.peers] == [2] + [1] * (MEMBERS - 1)
    last = {id(peer.told[-1]) for peer in world.peers}
    assert len(last) == 1
    (told,) = commands(world.peers[-1].told)
    assert told.is_oneway
    assert (told.code, told.fields) == (
        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
        {"consumerGroup": GROUP},
    )


async def test_a_single_change_is_told_at_once(world: World) -> None:
    """Nobody waits for a pause when nothing has changed for a while."""
    for peer in world.peers:
        peer.told.clear()
    world.members.left("client-07", GROUP)
    assert [len(peer.told) for peer in world.peers] == [1] * 7 + [0] + [1] * (MEMBERS - 8)
    await world.settled()
    assert sum(len(peer.told) for peer in world.peers) == MEMBERS - 1, "and only once"


async def test_no_change_is_left_untold(world: World) -> None:
    """A member that asks for the list after the last notice gets the last list."""
    seen: dict[str, bytes] = {}
    for peer in world.peers:

        def tell_frame(frame: bytes, client_id: str = peer.client_id) -> None:
            seen[client_id] = world.members.listing(GROUP)

        peer.tell_frame = tell_frame  # type: ignore[method-assign]
    for number in range(MEMBERS // 2):
        world.members.left(f"client-{number:02}", GROUP)
    await world.settled()
    stay = [f"client-{number:02}" for number in range(MEMBERS // 2, MEMBERS)]
    lists = [json.loads(seen[client_id])["consumerIdList"] for client_id in stay]
    assert lists == [stay] * len(stay)


async def test_the_list_is_encoded_once_until_members_change(world: World) -> None:
    """Each member asks for it after a notice; heartbeats and subscriptions do not change it."""
    listing, client_ids = world.members.listing(GROUP), world.members.client_ids(GROUP)
    assert json.loads(listing) == {"consumerIdList": [peer.client_id for peer in world.peers]}
    for peer in world.peers:
        world.beat(peer, {"orders": RemotingSubscription("*")})
        assert world.members.listing(GROUP) is listing
        assert world.members.client_ids(GROUP) is client_ids
    world.join("another")
    assert json.loads(world.members.listing(GROUP))["consumerIdList"][0] == "another"
    world.members.left("another", GROUP)
    assert world.members.listing(GROUP) == listing
    assert world.members.listing("nobody") == b""


async def test_new_subscriptions_are_told_as_well(world: World) -> None:
    """Members divide the queues of topics to which all of them subscribe."""
    told = len(world.peers[0].told)
    world.beat(world.peers[3], {"orders": RemotingSubscription("*")})
    assert len(world.peers[0].told) == told + 1
    await world.settled()
    world.beat(world.peers[3], {"orders": RemotingSubscription("*")})
    assert len(world.peers[0].told) == told + 1


async def test_silent_members_are_looked_for_when_one_may_be_silent(world: World) -> None:
    """Not with every question for the list; those without a heartbeat are gone all the same."""
    group = world.members._groups[GROUP]
    counted = group.members = CountedMembers(group.members)
    world.clock.advance(8)
    for peer in world.peers[1:]:
        world.beat(peer)
    for _ in range(MEMBERS):
        assert len(world.members.client_ids(GROUP)) == MEMBERS
    assert counted.walks == 0
    world.clock.advance(3)
    for _ in range(MEMBERS):
        assert world.members.client_ids(GROUP) == [peer.client_id for peer in world.peers[1:]]
    assert counted.walks <= 3
    world.clock.advance(11)
    assert world.members.client_ids(GROUP) == []
    assert not world.members._groups


async def test_a_group_without_members_leaves_nothing(world: World) -> None:
    """Nor does it keep the first member of the next group from being told at once."""
    for peer in world.peers:
        world.members.disconnected(peer, [GROUP])  # type: ignore[arg-type]
    assert not world.members._groups
    world.join("first")
    assert len(world.peers[-1].told) == 1
