"""One connection whose calls are refused has a pace; the others do not notice it."""

from __future__ import annotations

from typing import cast

import pytest

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata_broker.app import BrokerApp
from strata_broker.base.config import BrokerConfig
from strata_broker.base.metrics import METRICS
from strata_broker.base.receive_config import RefusalsSection
from strata_broker.base.refusal_pace import RefusalPace
from strata_mq.requests import Code
from strata_runtime.metrics import Metrics
from strata_testing import ManualClock, until
from strata_testing.broker import broker_config
from strata_testing.broker.client import Client, message
from strata_testing.broker.fake_edge import FakeCall, FakeEdge
from tests.unit.broker.test_acks import ack_request, answered, forged, take_one

HOSTILE, OTHER = "127.0.0.1:6666", "127.0.0.1:7777"
BAD = Code.INVALID_RECEIPT_HANDLE


def new_pace(clock: ManualClock, **fields: int) -> RefusalPace:
    config = RefusalsSection.model_validate({"max_entries_per_s": 1_000, **fields})
    return RefusalPace(config, clock, Metrics(METRICS))


def test_a_connection_waits_for_what_it_was_refused_too_much() -> None:
    """A tenth of a second's entries are free; the rest is waited for, entry by entry."""
    clock = ManualClock()
    pace = new_pace(clock, entries_per_call=10)
    pace.refused(HOSTILE, [BAD] * 80)
    assert pace.wait_s(HOSTILE) == 0.0  # 90 of 100 used
    pace.refused(HOSTILE, [BAD] * 290)
    assert pace.wait_s(HOSTILE) == pytest.approx(0.291)
    assert pace.wait_s(OTHER) == 0.0
    clock.advance(0.2)
    assert pace.wait_s(HOSTILE) == pytest.approx(0.091)
    clock.advance(0.1)
    assert pace.wait_s(HOSTILE) == 0.0


def test_answers_of_other_kinds_count_nothing() -> None:
    """Nor do success, an empty queue and what is the server's fault."""
    pace = new_pace(ManualClock(), entries_per_call=1_000)
    for code in (Code.OK, Code.MESSAGE_NOT_FOUND, Code.INTERNAL_SERVER_ERROR, Code.PROXY_TIMEOUT):
        pace.refused(HOSTILE, [code] * 1_000)
    assert pace.wait_s(HOSTILE) == 0.0
    pace.refused(HOSTILE, [Code.OK, BAD])
    assert pace.wait_s(HOSTILE) > 0.0


class _CountedCode(int):
    """A code that counts how often it is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        _CountedCode.compared += 1
        return int(self) == other

    __hash__ = int.__hash__


def test_the_kind_of_a_code_is_found_without_a_walk() -> None:
    """A member of an enum is no plain number: a range would compare it with thousands of others."""
    pace = new_pace(ManualClock(), entries_per_call=1_000)
    pace.refused(HOSTILE, [cast("Code", _CountedCode(Code.TOO_MANY_REQUESTS))])
    assert pace.wait_s(HOSTILE) > 0.0
    assert _CountedCode.compared <= 1


def test_so_many_connections_are_remembered() -> None:
    """The oldest is forgotten first."""
    pace = new_pace(ManualClock(), max_connections=2)
    for peer in ("a:1", "b:1", "c:1"):
        pace.refused(peer, [BAD] * 1_000)
    assert [pace.wait_s(peer) > 0 for peer in ("a:1", "b:1", "c:1")] == [False, True, True]


def paced(**fields: int) -> BrokerConfig:
    """A broker with which a refused call costs its connection a fifth of a second."""
    return broker_config(refusals={"max_entries_per_s": 50, **fields})


def of(edge: FakeEdge, peer: str, *handles: str) -> FakeCall:
    """An ack over a connection."""
    call = FakeCall("AckMessage", ack_request(*handles).SerializeToString())
    call.peer = peer
    assert edge.hot is not None
    edge.hot.handle([call])
    return call


@pytest.mark.parametrize("config", [paced()])
async def test_others_are_answered_while_one_waits(edge: FakeEdge, client: Client) -> None:
    """Calls of the paced connection keep their order; those of others pass it."""
    handle = await take_one(client)
    lie = forged(handle, raft_group=2**32 - 1)
    first = of(edge, HOSTILE, lie)
    assert (await answered(first)).status.code == definition_pb2.INVALID_RECEIPT_HANDLE
    second, third = of(edge, HOSTILE, lie), of(edge, HOSTILE, handle)
    other = of(edge, OTHER, handle)
    assert (await answered(other)).status.code == definition_pb2.OK
    assert not second.done()
    assert not third.done()
    assert (await answered(second)).status.code == definition_pb2.INVALID_RECEIPT_HANDLE
    assert not third.done()


@pytest.mark.parametrize("config", [paced(max_waiting=2)])
async def test_what_waits_is_bounded_and_given_back(
    edge: FakeEdge, client: Client, app: BrokerApp
) -> None:
    """Beyond it a call is refused at once; one whose client has gone is not taken."""
    handle = await take_one(client)
    lie = forged(handle, raft_group=2**32 - 1)
    await answered(of(edge, HOSTILE, lie))
    waiting = [of(edge, HOSTILE, lie) for _ in range(3)]
    assert [call.done() for call in waiting] == [False, False, True]
    assert (await answered(waiting[2])).status.code == definition_pb2.TOO_MANY_REQUESTS
    used = 'strata_limit_used{limit="paced calls",of="calls"}'
    for call in waiting[:2]:
        call.leave()

    def none_waits() -> bool:
        app._metrics.read_gauges()
        return f"{used} 0.0" in app._metrics.render().decode()

    await until(none_waits)
    assert not any(call.answer.done() for call in waiting[:2])


@pytest.mark.parametrize("config", [paced()])
async def test_refused_sends_and_receives_count(edge: FakeEdge, client: Client) -> None:
    """The next call of the connection waits, after a refusal of any method."""
    for method, request in (
        ("SendMessage", service_pb2.SendMessageRequest(messages=[message("nowhere", 1)])),
        ("ReceiveMessage", service_pb2.ReceiveMessageRequest()),
    ):
        calls = []
        for _ in range(2):
            call = FakeCall(method, request.SerializeToString())
            call.peer = method
            assert edge.hot is not None
            edge.hot.handle([call])
            calls.append(call)
        assert [call.done() for call in calls] == [True, False]
