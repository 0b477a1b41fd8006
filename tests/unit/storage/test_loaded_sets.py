"""Lease sets leave memory when nobody needs them, and at a cost that does not grow with others."""

from __future__ import annotations

import asyncio

import pytest

from strata_mq.leases import LeaseState, QueueLeases, TakeRequest
from strata_state.rows import ConsumerKey
from strata_storage.base.config import EngineOptions
from strata_storage.leading.pops import loaded_sets
from strata_storage.leading.pops.lease_calls import QueueHandles
from strata_storage.leading.pops.lease_set import LeaseSet
from strata_storage.leading.pops.loaded_sets import LoadedSets
from strata_storage.leading.pops.pop_calls import PopAnswer, PopCall
from strata_storage.rows.ownership import Topic
from tests.unit.storage.serving_leader import CONSUMER_GROUP_ID, ServingLeader, lease
from tests.unit.storage.waiting_leader import NOW_MS, QUEUES, TOPIC_ID, start, turns


def key_of(queue: int) -> ConsumerKey:
    return CONSUMER_GROUP_ID, TOPIC_ID, queue


def added(sets: LoadedSets, queue: int, *, in_flight: int = 0) -> LeaseSet:
    one = LeaseSet(key_of(queue), QueueLeases(head=0))
    one.in_flight = in_flight
    sets.add(one)
    return one


def queues_of(sets: LoadedSets) -> list[int]:
    return sorted(each.key[2] for each in sets.all())


async def pop(node: ServingLeader) -> asyncio.Task[PopAnswer]:
    """Begin to pop from all queues of the topic; its leases are proposed and not committed."""
    take = TakeRequest(
        max_messages=10,
        max_bytes=1_000,
        invisible_ms=60_000,
        auto_renew=False,
        holder=0,
        attempt=0,
        fifo=False,
        max_attempts=3,
        dead_letter_topic_id=0,
    )
    call = PopCall(
        consumer_group_id=CONSUMER_GROUP_ID,
        topic=Topic(TOPIC_ID, 0, QUEUES),
        queue=-1,
        take=take,
        latest=False,
        wait_s=0,
    )
    return await start(node.leading.pops.pop(call))


async def test_a_pop_leases_nothing_twice_however_few_sets_stay_in_memory() -> None:
    """A set that a pop took from is the one in memory until its leases are proposed."""
    node = ServingLeader(EngineOptions(lease_sets_max=1))
    for queue in range(QUEUES):
        node.submit([b"q%d" % queue], queue=queue)
    node.commit()
    first, second = await pop(node), await pop(node)
    while not (first.done() and second.done()):
        node.commit()
        await turns()
    given = [[each.queue for each in task.result().messages] for task in (first, second)]
    assert sorted(given[0]) == list(range(QUEUES))
    assert given[1] == []


async def test_an_ack_of_many_queues_is_seen_by_who_comes_next() -> None:
    """Each queue's set is found before any of them changes, and none leaves in between."""
    node = ServingLeader(EngineOptions(lease_sets_max=1))
    handles = {}
    for queue in range(QUEUES):
        node.lease_rows(1, [(0, lease(LeaseState.LEASED, NOW_MS + 9_000))], key_of(queue))
        handles[key_of(queue)] = QueueHandles([queue], [(0, 1, 0, NOW_MS + 9_000)])
    valid, _ = node.leading.leases.ack(handles)
    assert valid == [True] * QUEUES
    await turns()
    found = [node.leading.sets.find(key_of(queue)) for queue in range(QUEUES)]
    assert [None if each is None else each.leases.in_flight for each in found] == [0] * QUEUES


async def test_the_least_recently_used_sets_leave_between_two_turns() -> None:
    """A caller may find more of them than stay in memory, and has them all until it is done."""
    left: list[ConsumerKey] = []
    sets = LoadedSets(2, left.append)
    for queue in range(4):
        added(sets, queue)
    sets.used(key_of(0))
    assert queues_of(sets) == [0, 1, 2, 3]
    await asyncio.sleep(0)
    assert queues_of(sets) == [0, 3]
    assert left == [key_of(1), key_of(2)]
    assert [len(sets.of_queue(TOPIC_ID, queue)) for queue in range(4)] == [1, 0, 0, 1]
    assert set(sets.keys_of_topic(TOPIC_ID)) == {key_of(0), key_of(3)}


class CountedSet(LeaseSet):
    """A set that counts how often somebody asks whether it has changes under way."""

    __slots__ = ()
    looks = 0

    def __getattribute__(self, name: str) -> object:
        if name == "in_flight":
            CountedSet.looks += 1
        return super().__getattribute__(name)


async def test_sets_with_changes_under_way_are_passed_over() -> None:
    """A set that comes costs the same, however many others have changes that are not applied."""
    sets = LoadedSets(10, lambda key: None)
    busy = [CountedSet(key_of(queue), QueueLeases(head=0)) for queue in range(1_000)]
    for one in busy:
        one.in_flight = 1
        sets.add(one)
    await turns()
    CountedSet.looks = 0
    for queue in range(1_000, 1_200):
        added(sets, queue)
        await turns()
    assert CountedSet.looks <= 5 * 200
    for one in busy:
        one.in_flight = 0
    sets.evict_soon(len(busy))
    await turns()
    assert len(sets) == 10


async def test_one_turn_lets_a_bounded_number_of_sets_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of too many leave, and the event loop has other turns in between."""
    monkeypatch.setattr(loaded_sets, "_LOOKS_PER_TURN", 30)
    sets = LoadedSets(10, lambda key: None)
    for queue in range(100):
        added(sets, queue)
    counts = []
    for _ in range(4):
        counts.append(len(sets))
        await asyncio.sleep(0)
    assert counts == [100, 70, 40, 10]
