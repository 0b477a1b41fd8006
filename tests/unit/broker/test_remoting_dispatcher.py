"""From a remoting request to its answer: an answer for which there is no room."""

from __future__ import annotations

from types import SimpleNamespace

from strata_broker.base.config import BrokerConfig
from strata_broker.base.errors import too_many_requests
from strata_broker.remoting.dispatcher import RemotingDispatcher
from strata_broker.remoting.exchange import Exchange
from strata_mq.requests import Code
from strata_remoting import RemotingCommand, RequestCode, ResponseCode, Serialization
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import RequestTasks
from strata_testing.clock import ManualClock


class FullClient:
    """A connection that has room for small answers alone."""

    peer = client_id = "127.0.0.1:4000"

    def __init__(self) -> None:
        self.got: list[RemotingCommand] = []

    async def answer(self, exchange: Exchange, command: RemotingCommand) -> None:
        if command.body:
            raise too_many_requests("unread")
        self.got.append(command)


async def test_an_answer_without_room_becomes_a_refusal() -> None:
    """Its client is told to come back, and the refusal counts for its pace."""
    refused: list[tuple[str, tuple[Code, ...]]] = []
    pace = SimpleNamespace(refused=lambda peer, codes: refused.append((peer, codes)))
    runtime = SimpleNamespace(
        config=BrokerConfig(),
        access=SimpleNamespace(is_on=False),
        requests=RequestTasks("remoting", Metrics.disabled(), max_tasks=10),
        clock=ManualClock(),
        metrics=Metrics.disabled(),
        recorder=SimpleNamespace(pace=pace),
    )

    async def view(exchange: Exchange) -> RemotingCommand:
        return exchange.request.answered(ResponseCode.SUCCESS, body=bytes(100_000))

    dispatcher = RemotingDispatcher({RequestCode.HEART_BEAT: view}, runtime)  # type: ignore[arg-type]
    client = FullClient()
    request = RemotingCommand(RequestCode.HEART_BEAT, 7)
    await dispatcher.serve(Exchange(request, client, Serialization.JSON))  # type: ignore[arg-type]
    [answer] = client.got
    assert (answer.opaque, answer.code) == (7, ResponseCode.SYSTEM_BUSY)
    assert "unread" in answer.remark
    assert refused == [(client.peer, (Code.TOO_MANY_REQUESTS,))]
