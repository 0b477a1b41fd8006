"""Replies of remoting consumers: what one of them may have under way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from strata.broker.v1 import peer_pb2
from strata_broker.access.principals import ANYBODY
from strata_broker.base.shares import CallShares, most_each
from strata_broker.remoting.exchange import Exchange
from strata_broker.remoting.replies import RemotingReplies
from strata_mq.requests import Code, RequestError
from strata_remoting import (
    RemotingCommand,
    RequestCode,
    ResponseCode,
    Serialization,
    encode_properties,
)
from strata_runtime.metrics import Metrics
from strata_testing import ManualClock

TOPIC = "DefaultCluster_REPLY_TOPIC"


class Peer:
    """A connection."""

    language = 0

    def __init__(self, peer: str) -> None:
        self.peer = self.client_id = peer


class SilentClients:
    """Clients that take no reply until `let_go` is set."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()
        self.asked: list[str] = []

    async def push(self, request: peer_pb2.PushReplyRequest) -> None:
        self.asked.append(request.client_id)
        await self.let_go.wait()


class World:
    """A broker where an address may have three replies under way, and a client two."""

    def __init__(self) -> None:
        self.clients = SilentClients()
        shares = CallShares("remoting replies", most_each(2, 3), metrics=Metrics.disabled())
        self.replies = RemotingReplies(
            TOPIC, lambda: "b:1", ManualClock(), max_body_bytes=100, shares=shares
        )
        passed_by: Any = self.clients
        self.replies.passed_by(passed_by)

    def send(self, client: Any, to: str) -> asyncio.Future[RemotingCommand]:
        fields = {
            "a": "p",
            "b": TOPIC,
            "e": "0",
            "i": encode_properties({"REPLY_TO_CLIENT": to}),
        }
        command = RemotingCommand(RequestCode.SEND_REPLY_MESSAGE_V2, fields=fields, body=b"x")
        exchange = Exchange(command, client, Serialization.JSON)
        exchange.principal = ANYBODY
        return asyncio.ensure_future(self.replies.send(exchange))


async def test_replies_of_one_client_and_address_have_a_share() -> None:
    """A consumer that replies to clients which take nothing leaves room for other consumers."""
    world = World()
    first, second, other = (Peer(peer) for peer in ("10.0.0.1:1", "10.0.0.1:2", "10.0.0.2:1"))
    sent = [world.send(first, f"silent-{number}") for number in range(2)]
    sent.append(world.send(second, "silent-2"))
    await asyncio.sleep(0)
    for client in (first, second):
        with pytest.raises(RequestError) as refused:
            await world.send(client, "silent-3")
        assert refused.value.code is Code.TOO_MANY_REQUESTS
    sent.append(world.send(other, "waiting"))
    await asyncio.sleep(0)
    assert world.clients.asked == ["silent-0", "silent-1", "silent-2", "waiting"]
    world.clients.let_go.set()
    assert {one.code for one in await asyncio.gather(*sent)} == {ResponseCode.SUCCESS}
    assert (await world.send(first, "again")).code == ResponseCode.SUCCESS
