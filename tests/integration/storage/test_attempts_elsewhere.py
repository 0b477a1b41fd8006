"""An ordered client that goes on with an attempt at another broker keeps what it gets there.

Its first broker stood still, or its connection to storage did: it goes on later, finds that nobody
waits for the answer any more, and gives back what it holds for taken.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import cast

import pytest

from strata.storage.v1 import storage_pb2 as pb
from strata_storage.base.errors import Refused
from strata_storage.leading.proposer import Proposer
from strata_testing.storage_node import (
    CONTEXT,
    GROUP,
    NodeUnderTest,
    lease_of,
    node_under_test,
)

FIRST, SECOND, CLIENT, ATTEMPT = 0xA, 0xB, 5, 77


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[NodeUnderTest]:
    """A node with three messages of one message group."""
    async with node_under_test(tmp_path) as started:
        await started.append([b"1", b"2", b"3"], queue=0)
        yield started


async def pop(
    node: NodeUnderTest, broker: int, *, attempt: int = ATTEMPT, count: int = 2, **fields: object
) -> list[pb.LeasedMessage]:
    """Pop for the ordered client."""
    response = await node.pop(
        attempt=attempt,
        fifo=True,
        auto_renew=True,
        holder=CLIENT,
        broker_boot_id=broker,
        max_messages=count,
        max_attempts=1,
        **fields,
    )
    assert response.refusal.outcome == pb.OUTCOME_UNSPECIFIED
    return list(response.messages)


async def release(node: NodeUnderTest, messages: list[pb.LeasedMessage]) -> int:
    """Give leases back; return how many held."""
    refs = [lease_of(message) for message in messages]
    request = pb.ReleaseRequest(raft_group=GROUP, undelivered=refs)
    return (await node.rpc.release(request, CONTEXT)).released


async def test_what_the_first_broker_gives_back_stays_with_the_client(node: NodeUnderTest) -> None:
    """The messages behind stay locked until the client has acked, and it is the first attempt."""
    first = await pop(node, FIRST)
    second = await pop(node, SECOND)
    assert [message.message for message in second] == [b"1", b"2"]
    assert [message.attempt_count for message in second] == [1, 1]
    assert await release(node, first) == 0
    assert await pop(node, FIRST, attempt=78) == []
    outcomes = (await node.ack(*(lease_of(message) for message in second))).outcomes
    assert set(outcomes) == {pb.OUTCOME_OK}
    assert [message.message for message in await pop(node, FIRST, attempt=78)] == [b"3"]


async def test_a_late_pop_of_the_first_broker_takes_nothing(node: NodeUnderTest) -> None:
    """Neither what the client has now nor something new; nor does it learn of leases."""
    await pop(node, FIRST, count=1)
    second = await pop(node, SECOND, count=1)
    assert await pop(node, FIRST, repeated=True, taken_only=True) == []
    assert await pop(node, FIRST, repeated=True) == []
    assert await pop(node, FIRST) == []
    again = await pop(node, SECOND, count=1)
    assert [lease_of(one) for one in again] == [lease_of(one) for one in second]
    assert await release(node, second) == 1
    assert [one.message for one in await pop(node, FIRST, attempt=78, count=1)] == [b"1"]


async def test_the_loss_of_the_first_broker_takes_nothing_away(node: NodeUnderTest) -> None:
    """Its last leases may be undelivered; one that went on through another broker is that one's."""
    watched = pb.WatchRequest(broker_boot_id=FIRST)
    watch = cast(AsyncGenerator[pb.WatchResponse, None], node.rpc.watch(watched, CONTEXT))
    async with aclosing(watch):
        await anext(watch)
        await pop(node, FIRST)
        second = await pop(node, SECOND)
    (engine,) = node.app.node.engines()
    for _ in range(6):
        report = pb.ReportClientsRequest(broker_boot_id=SECOND, full=True, live=[CLIENT])
        await node.rpc.report_clients(report, CONTEXT)
        await node.app.node.expire_once(engine, engine.leading())
        assert await pop(node, SECOND, attempt=78) == []
        node.clock.advance(1.0)
    outcomes = (await node.ack(*(lease_of(message) for message in second))).outcomes
    assert set(outcomes) == {pb.OUTCOME_OK}


async def test_what_cannot_be_proposed_stays_with_the_attempt(
    node: NodeUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client may have got it from the first broker; a repeat at the second one gets it."""
    await pop(node, FIRST)

    def refuse(*_: object) -> None:
        raise Refused(pb.OUTCOME_OVERLOADED, "a test wants it so")

    with monkeypatch.context() as patched:
        patched.setattr(Proposer, "propose", refuse)
        refused = await node.pop(
            attempt=ATTEMPT, fifo=True, auto_renew=True, holder=CLIENT, broker_boot_id=SECOND
        )
        assert refused.refusal.outcome == pb.OUTCOME_OVERLOADED
    assert await pop(node, SECOND, attempt=78) == []
    second = await pop(node, SECOND, repeated=True)
    outcomes = (await node.ack(*(lease_of(message) for message in second))).outcomes
    assert list(outcomes) == [pb.OUTCOME_OK] * 2
