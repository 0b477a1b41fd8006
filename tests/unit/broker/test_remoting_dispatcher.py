"""From a remoting request to its answer: what each of them may keep, and for how long."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from strata_broker.base.config import BrokerConfig
from strata_broker.base.errors import too_many_requests
from strata_broker.remoting.dispatcher import RemotingDispatcher
from strata_broker.remoting.exchange import Exchange, Handler
from strata_mq.requests import Code
from strata_remoting import RemotingCommand, RequestCode, ResponseCode, Serialization
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import RequestTasks
from strata_testing.clock import ManualClock


class FullClient:
    """A connection that has room for small answers alone."""

    peer = client_id = "127.0.0.1:4000"
    language = 0

    def __init__(self) -> None:
        self.got: list[RemotingCommand] = []

    async def answer(self, exchange: Exchange, command: RemotingCommand) -> None:
        if command.body:
            raise too_many_requests("unread")
        self.got.append(command)


class World:
    """A dispatcher that holds every pull until `let_go` is set."""

    def __init__(self, **remoting: int) -> None:
        self.refused: list[tuple[str, tuple[Code, ...]]] = []
        self.let_go = asyncio.Event()
        self.pulling: list[int] = []
        self.exchanges: list[Exchange] = []
        handlers: dict[int, Handler] = {
            RequestCode.HEART_BEAT: self.large,
            RequestCode.PULL_MESSAGE: self.pull,
        }
        self.dispatcher = RemotingDispatcher(handlers, self.runtime(remoting))

    def runtime(self, remoting: dict[str, int]) -> Any:
        return SimpleNamespace(
            config=BrokerConfig.model_validate({"remoting": remoting}),
            access=SimpleNamespace(is_on=False, tell_if_refused=lambda *_: None),
            requests=RequestTasks("remoting", Metrics.disabled(), max_tasks=10),
            clock=ManualClock(),
            metrics=Metrics.disabled(),
            recorder=SimpleNamespace(
                pace=SimpleNamespace(refused=lambda peer, codes: self.refused.append((peer, codes)))
            ),
        )

    async def large(self, exchange: Exchange) -> RemotingCommand:
        return exchange.request.answered(ResponseCode.SUCCESS, body=bytes(100_000))

    async def pull(self, exchange: Exchange) -> RemotingCommand:
        self.pulling.append(exchange.request.opaque)
        await self.let_go.wait()
        return exchange.request.answered(ResponseCode.SUCCESS)

    def send(self, code: int, opaque: int, client: Any, size_bytes: int) -> asyncio.Future[None]:
        """Begin a request whose body is nearly all of its frame."""
        request = RemotingCommand(code, opaque, {"queueId": "0"}, bytes(size_bytes))
        exchange = Exchange(request, client, Serialization.JSON, size_bytes=size_bytes)
        self.exchanges.append(exchange)
        return asyncio.ensure_future(self.dispatcher.serve(exchange))


async def test_requests_that_wait_keep_a_share_of_bytes() -> None:
    """A pull may wait with a body of megabytes that nobody reads, and a client has hundreds."""
    world, client, other = World(max_request_bytes_per_client=100_000), FullClient(), FullClient()
    other.client_id = other.peer = "127.0.0.2:4000"
    sent = [world.send(RequestCode.PULL_MESSAGE, number, client, 40_000) for number in range(4)]
    await asyncio.gather(*sent[2:])
    assert world.pulling == [0, 1]
    assert [(one.opaque, one.code) for one in client.got] == [
        (2, ResponseCode.SYSTEM_BUSY),
        (3, ResponseCode.SYSTEM_BUSY),
    ]
    assert "remoting.max_request_bytes_per_client" in client.got[0].remark
    sent.append(world.send(RequestCode.PULL_MESSAGE, 9, other, 40_000))
    world.let_go.set()
    await asyncio.gather(*sent)
    assert [(one.opaque, one.code) for one in other.got] == [(9, ResponseCode.SUCCESS)]
    await world.send(RequestCode.PULL_MESSAGE, 10, client, 90_000)
    assert client.got[-1].code == ResponseCode.SUCCESS


async def test_a_request_above_the_share_is_carried_out_alone() -> None:
    """A frame may be larger than the share of its client: another request waits for its turn."""
    world, client = World(max_request_bytes_per_client=65_536), FullClient()
    first = world.send(RequestCode.PULL_MESSAGE, 1, client, 200_000)
    await world.send(RequestCode.PULL_MESSAGE, 2, client, 1)
    assert [(one.opaque, one.code) for one in client.got] == [(2, ResponseCode.SYSTEM_BUSY)]
    world.let_go.set()
    await first
    assert client.got[-1].code == ResponseCode.SUCCESS


async def test_an_answer_that_waits_keeps_nothing_of_its_request() -> None:
    """Its client may read it much later, and the request is not counted any more."""
    world, client = World(), FullClient()
    reading = asyncio.Event()

    async def answer(exchange: Exchange, command: RemotingCommand) -> None:
        await reading.wait()
        client.got.append(command)

    client.answer = answer  # type: ignore[method-assign]
    world.let_go.set()
    sent = world.send(RequestCode.PULL_MESSAGE, 7, client, 50_000)
    await asyncio.sleep(0.02)
    [exchange] = world.exchanges
    assert (exchange.request.opaque, exchange.request.fields, exchange.request.body) == (7, {}, b"")
    reading.set()
    await sent
    assert client.got[0].opaque == 7


async def test_an_answer_without_room_becomes_a_refusal() -> None:
    """Its client is told to come back, and the refusal counts for its pace."""
    world, client = World(), FullClient()
    await world.send(RequestCode.HEART_BEAT, 7, client, 0)
    [answer] = client.got
    assert (answer.opaque, answer.code) == (7, ResponseCode.SYSTEM_BUSY)
    assert "unread" in answer.remark
    assert world.refused == [(client.peer, (Code.TOO_MANY_REQUESTS,))]
