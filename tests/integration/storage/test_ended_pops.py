"""Pops that their broker ends because nobody waits for them any more."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from strata.storage.v1 import storage_pb2 as pb
from strata_testing.storage_node import (
    CONTEXT,
    GROUP,
    NodeUnderTest,
    lease_of,
    node_under_test,
    pop_request,
)

BROKER = 0xB0B


def begin_pop(node: NodeUnderTest, number: int, **fields: object) -> asyncio.Task[pb.PopResponse]:
    """Begin a pop that may be ended."""
    request = pop_request(max_attempts=1, **fields)
    request.broker_boot_id, request.number = BROKER, number
    return asyncio.ensure_future(node.rpc.pop(request, CONTEXT))


async def end(node: NodeUnderTest, *numbers: int) -> None:
    """End pops."""
    await node.rpc.end_pops(pb.EndPopsRequest(broker_boot_id=BROKER, numbers=numbers), CONTEXT)


async def parked(node: NodeUnderTest, count: int) -> None:
    """Wait until so many pops wait for messages."""
    await node.until_parked(count)


async def test_a_waiting_pop_that_is_ended_is_answered_with_nothing(tmp_path: Path) -> None:
    """At once, and what comes then goes to somebody else; another pop goes on waiting."""
    async with node_under_test(tmp_path) as node:
        ended, stays = begin_pop(node, 1, wait_ms=60_000), begin_pop(node, 2, wait_ms=60_000)
        await parked(node, 2)
        await end(node, 1, 99)
        response = await ended
        assert not response.HasField("refusal")
        assert not response.messages
        await node.append([b"late"])
        (got,) = (await stays).messages
        assert (got.message, got.attempt_count) == (b"late", 1)
        await end(node, 1, 2)


@pytest.mark.parametrize("auto_renew", [False, True])
async def test_a_pop_that_is_ended_keeps_only_what_its_answer_names(
    tmp_path: Path, auto_renew: bool
) -> None:
    """However far it has come; with one attempt in all nothing becomes a dead letter."""
    async with node_under_test(tmp_path) as node:
        await node.append([b"only"])
        for turns in range(1, 60):
            pop = begin_pop(node, turns, auto_renew=auto_renew, holder=5)
            for _ in range(turns):
                await asyncio.sleep(0 if turns < 30 else 0.000_2)
            await end(node, turns)
            response = await pop
            if not response.messages:
                response = await begin_pop(
                    node, 1_000 + turns, auto_renew=auto_renew, holder=5, wait_ms=5_000
                )
            assert [one.message for one in response.messages] == [b"only"], turns
            assert response.messages[0].attempt_count == 1
            given_back = pb.ReleaseRequest(
                raft_group=GROUP, undelivered=[lease_of(response.messages[0])]
            )
            assert (await node.rpc.release(given_back, CONTEXT)).released == 1


async def test_a_call_that_is_cancelled_and_ended_stays_cancelled(tmp_path: Path) -> None:
    """Its caller is gone: there is nobody to answer."""
    async with node_under_test(tmp_path) as node:
        pop = begin_pop(node, 1, wait_ms=60_000)
        await parked(node, 1)
        pop.cancel()
        await end(node, 1)
        await asyncio.wait({pop})
        assert pop.cancelled()
