"""Parked pops."""

from __future__ import annotations

import asyncio

import pytest

from strata.storage.v1 import storage_pb2 as pb
from strata_storage.base.errors import Refused
from strata_storage.leading.pops.waiters import ParkedPop, Waiters


def park(waiters: Waiters, group: int = 5, queue: int = -1) -> asyncio.Task[bool]:
    return asyncio.ensure_future(waiters.wait(7, group, queue, 10))


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_data_wakes_the_longest_waiting_pop_of_every_group() -> None:
    """One per consumer group; the others stay parked."""
    waiters = Waiters(10, 1_000)
    first, second, other = park(waiters), park(waiters), park(waiters, group=6)
    await turn()
    waiters.wake_topic(7, 0)
    await turn()
    assert (first.done(), second.done(), other.done()) == (True, False, True)
    waiters.wake_group(7, 5)
    assert await second
    assert len(waiters) == 0


async def test_a_pop_of_one_queue_is_not_woken_by_another() -> None:
    """Queue -1 waits for all queues."""
    waiters = Waiters(10, 1_000)
    one, any_queue = park(waiters, queue=3), park(waiters)
    await turn()
    waiters.wake_topic(7, 1)
    await turn()
    assert (one.done(), any_queue.done()) == (False, True)
    waiters.wake_topic(7, 3)
    assert await one


async def test_a_woken_pop_that_is_cancelled_wakes_the_next() -> None:
    """No wake-up is lost with a client that goes away."""
    waiters = Waiters(10, 1_000)
    first, second = park(waiters), park(waiters)
    await turn()
    waiters.wake_group(7, 5)
    first.cancel()
    assert await asyncio.wait_for(second, 60)


async def test_a_pop_of_one_queue_passes_on_to_pops_of_other_queues() -> None:
    """It may have been woken for anything in the consumer group, and looked at its queue only."""
    waiters = Waiters(10, 1_000)
    other = park(waiters, queue=4)
    await turn()
    waiters.pass_on(7, 5, 3)
    assert await asyncio.wait_for(other, 60)


async def test_the_limit_and_a_lost_leadership_refuse() -> None:
    """Above max_waiters: TOO_MANY_WAITERS; when leadership ends, all get its refusal."""
    waiters = Waiters(1, 1_000)
    parked = park(waiters)
    await turn()
    with pytest.raises(Refused) as refused:
        await waiters.wait(7, 5, -1, 1)
    assert refused.value.outcome == pb.OUTCOME_TOO_MANY_WAITERS
    waiters.refuse_all(Refused(pb.OUTCOME_NOT_LEADER, "gone", 12))
    with pytest.raises(Refused, match="gone"):
        await parked
    with pytest.raises(Refused, match="gone"):
        await waiters.wait(7, 5, -1, 1)
    with pytest.raises(Refused, match="gone"):
        waiters.check_open()


async def test_a_pop_whose_time_is_over_leaves_nothing_behind() -> None:
    """False, and the place is free again."""
    waiters = Waiters(1, 1_000)
    assert not await waiters.wait(7, 5, -1, 0.001)
    assert len(waiters) == 0


async def test_requests_of_parked_pops_are_limited_by_their_bytes() -> None:
    """Parked pops have room for so many bytes; one that is woken, or gives up, makes room."""
    waiters = Waiters(10, 1_000)
    parked = [asyncio.ensure_future(waiters.wait(7, 5, -1, 10, 450)) for _ in range(2)]
    await turn()
    with pytest.raises(Refused, match="900 of 1000 bytes") as refused:
        await waiters.wait(7, 6, -1, 10, 101)
    assert refused.value.outcome == pb.OUTCOME_TOO_MANY_WAITERS
    waiters.wake_group(7, 5)
    await turn()
    parked[1].cancel()
    await turn()
    assert (len(waiters), waiters.parked_bytes) == (0, 0)


async def test_a_wake_up_looks_at_one_pop_of_a_queue_however_many_are_parked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pops that wait for other queues, or are awake already, cost a wake-up nothing."""
    looks = []

    class Watched(ParkedPop):
        __slots__ = ()

        def __getattribute__(self, name: str) -> object:
            looks.append(name)
            return super().__getattribute__(name)

    monkeypatch.setattr("strata_storage.leading.pops.waiters.ParkedPop", Watched)
    waiters = Waiters(1_000, 1_000)
    others = [park(waiters, queue=3) for _ in range(500)]
    wanted = [park(waiters, queue=1) for _ in range(50)]
    await turn()
    looks.clear()
    for _ in range(50):
        waiters.wake_topic(7, 1)
    assert len(looks) < 50 * 20
    await turn()
    assert all(pop.done() for pop in wanted)
    assert not any(pop.done() for pop in others)
    for pop in others:
        pop.cancel()


async def test_the_longest_waiting_pop_comes_first_whatever_queue_it_waits_for() -> None:
    """One for a queue, one for all, another for the queue: in the order in which they came."""
    waiters = Waiters(10, 1_000)
    pops = [park(waiters, queue=3), park(waiters), park(waiters, queue=3), park(waiters, queue=4)]
    await turn()
    order = []
    for _ in pops:
        waiters.wake_group(7, 5)
        await turn()
        order.append([pop.done() for pop in pops].count(True))
        assert [pop.done() for pop in pops] == [True] * len(order) + [False] * (4 - len(order))
    assert order == [1, 2, 3, 4]
    assert len(waiters) == 0
