"""Lease sets of a leader: what runs out is seen to, what is set free wakes who waits for it."""

from __future__ import annotations

import asyncio
import gc
from unittest.mock import patch

import pytest

from strata_mq.commands.rare import TrimCommand, TrimmedQueue, encode_trim
from strata_mq.leases.queue_leases import LeaseState, QueueLeases
from strata_storage.base.config import EngineOptions
from strata_storage.base.errors import Refused
from strata_storage.leading.pops.lease_calls import LeaseRef, QueueHandles
from strata_storage.leading.pops.lease_sets import LeaseSets
from strata_storage.leading.pops.set_deadlines import SetDeadlines
from tests.unit.storage.serving_leader import CONSUMER_GROUP_ID, KEY, ServingLeader, lease
from tests.unit.storage.waiting_leader import (
    DEAD_LETTER_TOPIC_ID,
    GROUP,
    NOW_MS,
    TOPIC_ID,
    start,
    turns,
)

LEASED, WAITING = LeaseState.LEASED, LeaseState.WAITING
BODIES = [b"first", b"second", b"third"]


@pytest.fixture
async def node() -> ServingLeader:
    made = ServingLeader()
    made.submit(BODIES, queue=KEY[2])
    made.commit()
    return made


async def move(node: ServingLeader) -> list[str]:
    """Have a turn of the expiry timer; return what became of messages that it moved."""
    moving = asyncio.ensure_future(node.leading.dead_letters.move_exhausted(node.leading.expire()))
    while not moving.done():
        await turns()
        node.commit()
    return await moving


def _sets_alive() -> int:
    """Return how many sets of leases are not freed."""
    return sum(isinstance(each, QueueLeases) for each in gc.get_objects())


async def parked(node: ServingLeader) -> asyncio.Task[bool]:
    """Let a pop of the consumer group wait."""
    return await start(node.leading.waiters.wait(TOPIC_ID, CONSUMER_GROUP_ID, -1, 100))


async def test_a_set_that_was_due_when_it_was_loaded_is_due_again(node: ServingLeader) -> None:
    """A new leader loads a set with a used-up message: later ones of it are moved, too."""
    rows = [(0, lease(WAITING, NOW_MS)), (1, lease(LEASED, NOW_MS + 50))]
    node.lease_rows(2, rows, known=1)
    node.clock.now_s = 0.01
    assert await move(node) == ["moved"]
    node.clock.now_s = 0.1
    assert await move(node) == ["moved"]
    assert node.next_offsets(DEAD_LETTER_TOPIC_ID) == {GROUP: 2}


async def test_a_set_that_cannot_be_read_stays_due(node: ServingLeader) -> None:
    """Others that are due at the same time are seen to, and it is in its turn."""
    other = (CONSUMER_GROUP_ID, TOPIC_ID, 2)
    node.lease_rows(1, [(0, lease(LEASED, NOW_MS + 5))])
    node.lease_rows(1, [(0, lease(LEASED, NOW_MS + 6))], other)
    found = node.leading.sets.find(KEY)
    assert found is not None
    found.in_flight, found.stale = 1, True
    sets = node.leading.sets
    assert [each.key for each in sets.due(NOW_MS + 10, 10)] == [other]
    found.in_flight = 0
    assert [each.key for each in sets.due(NOW_MS + 2_000, 10)] == [KEY]


async def test_used_up_messages_are_listed_again_while_the_log_takes_nothing(
    node: ServingLeader,
) -> None:
    """The turn that finds them may be refused; the next one has them."""
    node.lease_rows(1, [(0, lease(LEASED, NOW_MS + 5))])
    node.clock.now_s = 0.01
    node.replica.is_full = True
    for _ in range(3):
        with pytest.raises(Refused):
            node.leading.expire()
    node.replica.is_full = False
    assert await move(node) == ["moved"]


async def test_what_is_freed_wakes_a_pop_when_the_log_takes_it(node: ServingLeader) -> None:
    """The client that freed it was refused, and does not come again."""
    node.lease_rows(1, [(0, lease(LEASED, NOW_MS + 9_000, attempts=1))])
    waiting = await parked(node)
    node.replica.is_full = True
    ref = LeaseRef(*KEY, 0, 1, 0, 0)
    with pytest.raises(Refused):
        await node.leading.leases.release([ref])
    assert not waiting.done()
    node.replica.is_full = False
    node.leading.sets.flush_kept()
    await turns()
    assert waiting.done()


@pytest.mark.parametrize("as_dead_letter", [False, True])
async def test_a_message_that_goes_wakes_who_waits_behind_it(
    node: ServingLeader, as_dead_letter: bool
) -> None:
    """Consumed or used up: in an ordered group the next one is deliverable now."""
    until_ms = 0 if as_dead_letter else NOW_MS + 9_000
    state = WAITING if as_dead_letter else LEASED
    node.lease_rows(1, [(0, lease(state, until_ms, attempts=3 if as_dead_letter else 1))])
    waiting = await parked(node)
    if as_dead_letter:
        assert await move(node) == ["moved"]
    else:
        valid, _ = node.leading.leases.ack({KEY: QueueHandles([0], [(0, 1, 0, until_ms)])})
        assert valid == [True]
        node.commit()
    await turns()
    assert waiting.done()


async def test_a_trim_looks_at_the_sets_of_its_queues_only(node: ServingLeader) -> None:
    """However many are loaded; what is dropped frees what waited behind it."""
    other = (CONSUMER_GROUP_ID, TOPIC_ID, 2)
    node.lease_rows(2, [(0, lease(WAITING, 0, attempts=1)), (1, lease(WAITING, 0, attempts=1))])
    node.lease_rows(2, [(0, lease(WAITING, 0, attempts=1))], other)
    sets = node.leading.sets
    assert sets.find(KEY) is not None
    assert sets.find(other) is not None
    waiting = await parked(node)
    trim = TrimCommand(NOW_MS, 0, [TrimmedQueue(TOPIC_ID, KEY[2], 1)])
    looked_at = patch.object(LeaseSets, "_trim", autospec=True, side_effect=LeaseSets._trim)
    with patch.object(LeaseSets, "loaded", side_effect=AssertionError), looked_at as trimmed:
        node.apply(encode_trim(trim))
    await turns()
    assert [call.args[1].key for call in trimmed.call_args_list] == [KEY]
    assert waiting.done()
    found = {key: sets.find(key) for key in (KEY, other)}
    assert [each.leases.cursor() for each in found.values() if each is not None] == [1, 0]


async def test_sets_of_a_queue_go_when_they_are_forgotten() -> None:
    """A set that is not in memory any more is in no index of those that are."""
    node = ServingLeader(EngineOptions(lease_sets_max=1))
    sets = node.leading.sets
    for queue in (1, 2, 3):
        key = (CONSUMER_GROUP_ID, TOPIC_ID, queue)
        node.lease_rows(1, [(0, lease(WAITING, 0, attempts=1))], key)
        assert sets.find(key) is not None
    await turns()
    assert [each.key[2] for each in sets.loaded()] == [3]
    assert [len(sets.of_queue(TOPIC_ID, queue)) for queue in (1, 2, 3)] == [0, 0, 1]


async def test_sets_that_leave_memory_need_no_collector() -> None:
    """They leave all the time; a collection of everything that lives stops the event loop."""
    node = ServingLeader(EngineOptions(lease_sets_max=1))
    sets = node.leading.sets
    gc.collect()
    others = _sets_alive()
    gc.disable()
    try:
        for queue in range(1, 8):
            key = (CONSUMER_GROUP_ID, TOPIC_ID, queue)
            held = lease(LEASED, NOW_MS + 9_000, attempts=1)._replace(holder=7, auto_renewed=True)
            node.lease_rows(2, [(0, held), (1, lease(WAITING, 0, attempts=1))], key)
            assert sets.find(key) is not None
        await turns()
        alive = _sets_alive() - others
    finally:
        gc.enable()
    assert [each.key[2] for each in sets.loaded()] == [7]
    assert alive == 1


async def test_the_leases_of_a_holder_are_found_but_for_sets_that_cannot_be_read(
    node: ServingLeader,
) -> None:
    """One that cannot be read keeps no other from being released, and is not forgotten."""
    held = lease(LEASED, 0, attempts=1)._replace(holder=77, auto_renewed=True)
    other = (CONSUMER_GROUP_ID, TOPIC_ID, 2)
    node.lease_rows(1, [(0, held)])
    node.lease_rows(1, [(0, held)], other)
    sets = node.leading.sets
    found = sets.find(KEY)
    assert found is not None
    found.in_flight, found.stale = 1, True
    assert {None if each is None else each.key for each in sets.held_by(77)} == {None, other}
    found.in_flight = 0
    assert {each and each.key for each in sets.held_by(77)} == {KEY, other}


def test_deadlines_take_room_for_sets_not_for_changes() -> None:
    """A set whose deadline comes nearer and is seen to, again and again, has a few entries."""
    deadlines = SetDeadlines()
    deadlines.note((1, 1, 2), 10_000_000)
    for at_ms in range(20_000, 0, -1):
        deadlines.note(KEY, at_ms)
        deadlines.note(KEY, at_ms + 5)
    assert len(deadlines) < 2_000
    assert deadlines.take_due(0) is None
    assert deadlines.take_due(20_000) == KEY
    assert deadlines.take_due(20_000) is None
    assert deadlines.take_due(10_000_000) == (1, 1, 2)


async def test_a_head_that_a_filter_moved_is_not_written_behind_the_end_of_its_queue(
    node: ServingLeader,
) -> None:
    """The row of a lite topic that ends would stay: nothing deletes it any more."""
    lease_set = node.leading.sets.find_or_start(KEY, latest=False)
    node.commit()
    node.leading.sets.passed(lease_set)
    node.leading.sets.held_queues.add(KEY[1:])
    before = len(node.replica.proposed)
    node.leading.sets.write_passed(0)
    assert len(node.replica.proposed) == before
    node.leading.sets.held_queues.clear()
    node.leading.sets.passed(lease_set)
    node.leading.sets.write_passed(0)
    assert len(node.replica.proposed) == before + 1
