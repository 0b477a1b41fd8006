"""Fetches that wait: all of a queue are woken at once, none of another one."""

from __future__ import annotations

import asyncio

import pytest

from strata.storage.v1 import storage_pb2 as pb
from strata_storage.base.errors import Refused
from strata_storage.rows.arrivals import Arrivals

TOPIC, QUEUE = 7, 0


async def test_a_message_wakes_all_that_wait_at_its_queue() -> None:
    """Those at other queues wait on."""
    arrivals = Arrivals(10, 1_000)
    here = [asyncio.ensure_future(arrivals.wait(TOPIC, QUEUE, 60)) for _ in range(3)]
    elsewhere = asyncio.ensure_future(arrivals.wait(TOPIC, QUEUE + 1, 60))
    await asyncio.sleep(0)
    arrivals.arrived(TOPIC, QUEUE)
    assert await asyncio.gather(*here) == [True] * 3
    assert (len(arrivals), elsewhere.done()) == (1, False)
    elsewhere.cancel()


async def test_a_wait_ends_with_its_time() -> None:
    """False, and nothing is held any more; a later message is no surprise."""
    arrivals = Arrivals(10, 1_000)
    assert await arrivals.wait(TOPIC, QUEUE, 0.001) is False
    assert len(arrivals) == 0
    arrivals.arrived(TOPIC, QUEUE)


async def test_one_that_is_cancelled_does_not_end_the_others() -> None:
    """They share what they wait for."""
    arrivals = Arrivals(10, 1_000)
    waits = [asyncio.ensure_future(arrivals.wait(TOPIC, QUEUE, 60)) for _ in range(2)]
    await asyncio.sleep(0)
    waits[0].cancel()
    await asyncio.wait(waits[:1])
    arrivals.arrived(TOPIC, QUEUE)
    assert await waits[1] is True


async def test_the_limit_is_kept() -> None:
    """One more than allowed is refused."""
    arrivals = Arrivals(1, 1_000)
    waiting = asyncio.ensure_future(arrivals.wait(TOPIC, QUEUE, 60))
    await asyncio.sleep(0)
    with pytest.raises(Refused) as refusal:
        await arrivals.wait(TOPIC, QUEUE, 60)
    assert refusal.value.outcome == pb.OUTCOME_TOO_MANY_WAITERS
    waiting.cancel()


async def test_lost_leadership_refuses_all() -> None:
    """Those that wait, and those that come later."""
    arrivals = Arrivals(10, 1_000)
    waiting = asyncio.ensure_future(arrivals.wait(TOPIC, QUEUE, 60))
    await asyncio.sleep(0)
    arrivals.refuse_all(Refused(pb.OUTCOME_NOT_LEADER, "elsewhere"))
    for late in (waiting, arrivals.wait(TOPIC, QUEUE, 60)):
        with pytest.raises(Refused, match="elsewhere"):
            await late


async def test_requests_that_wait_are_limited_by_their_bytes() -> None:
    """Requests that wait have room for so many; one that leaves makes room."""
    arrivals = Arrivals(10, 1_000)
    waiting = asyncio.ensure_future(arrivals.wait(TOPIC, QUEUE, 60, 900))
    await asyncio.sleep(0)
    with pytest.raises(Refused, match="900 of 1000 bytes") as refused:
        await arrivals.wait(TOPIC, QUEUE, 60, 101)
    assert refused.value.outcome == pb.OUTCOME_TOO_MANY_WAITERS
    arrivals.arrived(TOPIC, QUEUE)
    assert await waiting
    assert arrivals.waiting_bytes == 0
