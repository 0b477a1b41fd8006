"""The way of a consumer's reply to the client that asked: brokers, limits, counts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from strata.broker.v1 import peer_pb2
from strata_broker.base import errors
from strata_broker.base.remoting_config import RemotingSection
from strata_broker.clients.client_commands import not_connected
from strata_broker.clients.peers import ReplyPlace
from strata_broker.clients.replies import Replies
from strata_broker.remoting.requesters import Requesters
from strata_mq.requests import Code, RequestError
from strata_runtime.metrics import Metrics
from strata_testing import until


class FakeBrokers:
    """Other brokers, each with some clients; they note who was asked.

    Clients are `owner`'s, if anybody's.
    """

    def __init__(self) -> None:
        self.clients: dict[str, set[str]] = {"b1": set(), "b2": set()}
        self.silent: set[str] = set()
        self.busy: set[str] = set()
        self.owner = ""
        self.asked = 0
        self.pushed: list[tuple[str, str]] = []

    async def takers_of_replies(self, client_id: str) -> list[ReplyPlace]:
        self.asked += 1
        found = [name for name, clients in self.clients.items() if client_id in clients]
        return [ReplyPlace(name, self.owner) for name in found]

    async def push_reply(
        self, node_id: str, request: peer_pb2.PushReplyRequest, timeout_s: float
    ) -> peer_pb2.PushReplyResponse | None:
        assert timeout_s == 4.0, "the client's time and that of a call"
        self.pushed.append((node_id, request.client_id))
        if node_id in self.silent:
            return None
        if node_id in self.busy:
            busy = errors.too_many_requests("too many replies")
            return peer_pb2.PushReplyResponse(status=errors.status_of(busy))
        if request.client_id not in self.clients[node_id] or request.user != self.owner:
            gone = errors.status_of(not_connected(request.client_id))
            return peer_pb2.PushReplyResponse(status=gone)
        return peer_pb2.PushReplyResponse(status=errors.ok_status())


class FakeTaker:
    """Clients of this broker; `held` lets them wait."""

    def __init__(self, *clients: str) -> None:
        self.clients = dict.fromkeys(clients, "")
        self.held: asyncio.Event | None = None
        self.pushed: list[tuple[str, str]] = []

    def user_of(self, client_id: str) -> str | None:
        return self.clients.get(client_id)

    async def push(self, request: peer_pb2.PushReplyRequest) -> None:
        if self.held is not None:
            await self.held.wait()
        if self.clients.get(request.client_id) != request.user:
            raise not_connected(request.client_id)
        self.pushed.append((request.client_id, request.user))


class World:
    """Replies of one broker among others."""

    def __init__(self, clients: Sequence[str] = (), **config: Any) -> None:
        self.metrics = Metrics()
        section = RemotingSection.model_validate({"reply_timeout_ms": 3_000, **config})
        self.replies = Replies(section, 1.0, self.metrics)
        self.brokers, self.taker = FakeBrokers(), FakeTaker(*clients)
        self.replies.passed_by(self.brokers)
        self.replies.taken_by(self.taker)

    async def push(self, client_id: str, body: bytes = b"") -> None:
        await self.replies.push(peer_pb2.PushReplyRequest(client_id=client_id, body=body))

    def counted(self) -> dict[str, float]:
        counter = self.metrics.counter("strata_broker_remoting_replies_total")
        outcomes = ("here", "forwarded", "gone", "failed")
        return {name: counter.value({"outcome": name}) for name in outcomes}


async def test_a_client_of_this_broker_gets_its_reply_here() -> None:
    """No other broker is asked."""
    world = World(["c"])
    await world.push("c")
    assert (world.brokers.asked, world.brokers.pushed) == (0, [])
    assert world.counted() == {"here": 1, "forwarded": 0, "gone": 0, "failed": 0}


async def test_the_broker_of_a_client_is_remembered() -> None:
    """All brokers are asked once; when the client has moved, they are asked again."""
    world = World()
    world.brokers.clients["b1"].add("c")
    for _ in range(3):
        await world.push("c")
    assert world.brokers.asked == 1
    world.brokers.clients = {"b1": set(), "b2": {"c"}}
    await world.push("c")
    assert world.brokers.asked == 2
    assert world.brokers.pushed == [("b1", "c")] * 4 + [("b2", "c")]
    assert world.counted()["forwarded"] == 4


async def test_few_places_are_remembered() -> None:
    """The oldest one is forgotten first."""
    world = World(max_reply_places=2)
    world.brokers.clients["b1"] |= {"c1", "c2", "c3"}
    for client in ("c1", "c2", "c3", "c2", "c1"):
        await world.push(client)
    assert world.brokers.asked == 4
    world.metrics.read_gauges()
    assert b"strata_broker_remoting_reply_places 2.0" in world.metrics.render()


async def test_a_client_that_nobody_has_is_gone() -> None:
    """The error says so, and the reply counts as such."""
    world = World()
    with pytest.raises(RequestError, match="client c is not connected") as refused:
        await world.push("c")
    assert refused.value.code is Code.NOT_FOUND
    assert world.counted()["gone"] == 1


async def test_a_silent_broker_is_not_asked_twice_for_one_reply() -> None:
    """It may have given the reply to the client; the next reply asks all brokers again."""
    world = World()
    world.brokers.clients["b1"].add("c")
    await world.push("c")
    world.brokers.silent.add("b1")
    with pytest.raises(RequestError, match="broker b1 did not answer") as refused:
        await world.push("c")
    assert refused.value.code is Code.REQUEST_TIMEOUT
    assert world.brokers.pushed == [("b1", "c")] * 2
    world.brokers.silent.clear()
    await world.push("c")
    assert world.brokers.asked == 2
    assert world.counted() == {"here": 0, "forwarded": 2, "gone": 0, "failed": 1}


async def test_replies_under_way_are_limited() -> None:
    """One beyond the limit is refused at once; a place is free again afterwards."""
    world = World(["c"], max_replies=2)
    world.taker.held = asyncio.Event()
    under_way = [asyncio.ensure_future(world.push("c")) for _ in range(2)]
    used = "strata_limit_used"

    def is_full() -> bool:
        world.metrics.read_gauges()
        shown = world.metrics.render().decode().splitlines()
        return any(line.startswith(used) and line.endswith(" 2.0") for line in shown)

    await until(is_full)
    with pytest.raises(RequestError, match=r"remoting\.max_replies") as refused:
        await world.push("c")
    assert refused.value.code is Code.TOO_MANY_REQUESTS
    world.taker.held.set()
    await asyncio.gather(*under_way)
    await world.push("c")
    assert world.counted()["here"] == 3


async def test_replies_to_one_client_have_a_share() -> None:
    """One that takes none of them, at whatever broker they came, leaves room for others."""
    world = World(["silent", "c"], max_replies=3, max_replies_per_client=2)
    world.taker.held = asyncio.Event()
    own = asyncio.ensure_future(world.push("silent"))
    other = asyncio.ensure_future(
        world.replies.answer(peer_pb2.PushReplyRequest(client_id="silent"))
    )
    await asyncio.sleep(0)
    with pytest.raises(RequestError, match=r"remoting\.max_replies_per_client") as refused:
        await world.push("silent")
    assert refused.value.code is Code.TOO_MANY_REQUESTS
    last = asyncio.ensure_future(world.push("c"))
    await asyncio.sleep(0)
    world.taker.held.set()
    await asyncio.gather(own, other, last)
    assert world.taker.pushed == [("silent", ""), ("silent", ""), ("c", "")]


async def test_bytes_of_replies_under_way_are_limited() -> None:
    """Those that come from other brokers count, too; all are given back."""
    world = World(["c"], max_reply_bytes=1_024)
    world.taker.held = asyncio.Event()
    own = asyncio.ensure_future(world.push("c", bytes(500)))
    other = asyncio.ensure_future(
        world.replies.answer(peer_pb2.PushReplyRequest(client_id="c", body=bytes(490)))
    )
    used = b'strata_limit_used{limit="remoting replies",of="bytes"}'

    def used_bytes() -> int:
        world.metrics.read_gauges()
        shown = world.metrics.render().splitlines()
        (line,) = (line for line in shown if line.startswith(used))
        return round(float(line.split()[-1]))

    await until(lambda: used_bytes() > 990)
    refused = await world.replies.answer(peer_pb2.PushReplyRequest(client_id="c", body=bytes(100)))
    assert int(refused.status.code) == Code.TOO_MANY_REQUESTS
    assert "remoting.max_reply_bytes" in refused.status.message
    with pytest.raises(RequestError, match=r"remoting\.max_reply_bytes"):
        await world.push("c", bytes(100))
    world.taker.held.set()
    await own
    assert int((await other).status.code) == Code.OK
    assert used_bytes() == 0
    await world.push("c", bytes(1_000))


async def test_replies_of_other_brokers_count_in_the_limit() -> None:
    """A broker passes on no more than it takes itself."""
    world = World(["c"], max_replies=1)
    world.taker.held = asyncio.Event()
    own = asyncio.ensure_future(world.push("c"))
    await asyncio.sleep(0)
    refused = await world.replies.answer(peer_pb2.PushReplyRequest(client_id="c"))
    assert int(refused.status.code) == Code.TOO_MANY_REQUESTS
    world.taker.held.set()
    await own


async def test_a_busy_broker_is_not_forgotten() -> None:
    """The client is still there: nobody asks all brokers for it again."""
    world = World()
    world.brokers.clients["b1"].add("c")
    await world.push("c")
    world.brokers.busy.add("b1")
    with pytest.raises(RequestError, match="too many") as refused:
        await world.push("c")
    assert refused.value.code is Code.TOO_MANY_REQUESTS
    world.brokers.busy.clear()
    await world.push("c")
    assert world.brokers.asked == 1


async def test_brokers_agree_on_the_user_before_the_first_reply() -> None:
    """Where access is controlled; later replies go to that user's connections only."""
    world = World()
    world.taker.clients["c"] = "ann"
    world.brokers.owner = "ann"
    world.brokers.clients["b1"].add("c")
    for _ in range(3):
        await world.push("c")
    assert world.taker.pushed == [("c", "ann")] * 3
    assert (world.brokers.asked, world.brokers.pushed) == (1, [])
    del world.taker.clients["c"]
    await world.push("c")
    assert (world.brokers.asked, world.brokers.pushed) == (2, [("b1", "c")])


async def test_another_user_does_not_get_the_replies_of_a_client() -> None:
    """It uses the client's id at a broker that the client is not connected to."""
    world = World()
    world.brokers.owner = "ann"
    world.brokers.clients["b1"].add("c")
    world.taker.clients["c"] = "bob"
    with pytest.raises(RequestError, match="client c belongs to several users") as refused:
        await world.push("c")
    assert refused.value.code is Code.FORBIDDEN
    assert (world.taker.pushed, world.brokers.pushed) == ([], [])
    del world.taker.clients["c"]
    await world.push("c")
    world.taker.clients["c"] = "bob"
    with pytest.raises(RequestError, match="client c belongs to several users"):
        await world.push("c")
    assert world.taker.pushed == []


async def test_a_reply_for_one_user_is_not_given_to_another() -> None:
    """A broker may remember the place of a client whose id another user has taken there."""
    requesters = Requesters(1_000)
    client: Any = SimpleNamespace(client_id="c")
    requesters.heard(client, "bob")
    assert requesters.user_of("c") == "bob"
    for user in ("ann", ""):
        with pytest.raises(RequestError, match="client c is not connected") as refused:
            await requesters.push(peer_pb2.PushReplyRequest(client_id="c", user=user))
        assert refused.value.code is Code.NOT_FOUND


async def test_another_broker_hears_why_its_reply_failed() -> None:
    """The answer to a broker has the status; without the remoting protocol nobody is here."""
    world = World(["c"])
    for client, code in (("c", Code.OK), ("d", Code.NOT_FOUND)):
        answer = await world.replies.answer(peer_pb2.PushReplyRequest(client_id=client))
        assert int(answer.status.code) == code
    alone = Replies(RemotingSection(), 1.0, Metrics.disabled())
    answer = await alone.answer(peer_pb2.PushReplyRequest(client_id="c"))
    assert int(answer.status.code) == Code.NOT_FOUND
