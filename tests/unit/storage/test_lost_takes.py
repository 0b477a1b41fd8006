"""Holders of leases and lost brokers: nothing is walked that did not change (rules 25, 36)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from strata_mq.leases import Columns, Lease, LeaseState, QueueLeases, TakeRequest
from strata_runtime.stalls import OwnStalls
from strata_runtime.tasks import Tasks
from strata_state.ports import StateError
from strata_state.rows import ConsumerKey
from strata_storage.base.config import EngineOptions
from strata_storage.base.errors import Refused
from strata_storage.base.key_index import KeyIndex
from strata_storage.leading.pops.holders import Holders
from strata_storage.leading.pops.lease_calls import QueueHandles
from strata_storage.leading.pops.lease_set import LeaseSet
from strata_storage.upkeep import expiry
from strata_storage.upkeep.instruments import Instruments
from tests.unit.storage.serving_leader import CONSUMER_GROUP_ID, KEY, ServingLeader, lease
from tests.unit.storage.waiting_leader import DEAD_LETTER_TOPIC_ID, GROUP, NOW_MS, TOPIC_ID

LEASED = LeaseState.LEASED
BROKER, OTHER_BROKER, CLIENT = 0xB0B, 0xB0C, 5


@pytest.fixture
async def node() -> ServingLeader:
    return ServingLeader()


def held(holder: int, broker: int = BROKER) -> Lease:
    """Return a row of a client, taken now."""
    row = lease(LEASED, 0, attempts=1)
    return row._replace(holder=holder, auto_renewed=True, broker=broker)


def key_of(queue: int) -> ConsumerKey:
    return CONSUMER_GROUP_ID, TOPIC_ID, queue


def found(node: ServingLeader, key: ConsumerKey = KEY) -> LeaseSet:
    lease_set = node.leading.sets.find(key)
    assert lease_set is not None
    return lease_set


def take(node: ServingLeader, lease_set: LeaseSet, columns: Sequence[Columns]) -> None:
    """Let the client pop a message by way of `BROKER`."""
    request = TakeRequest(
        max_messages=1,
        max_bytes=1_000,
        invisible_ms=1_000,
        auto_renew=True,
        holder=CLIENT,
        attempt=0,
        fifo=False,
        max_attempts=3,
        dead_letter_topic_id=DEAD_LETTER_TOPIC_ID,
        broker=BROKER,
    )
    taken = lease_set.leases.take(request, node.now_ms(), 1_000, columns)
    assert len(taken.leases) == 1
    assert taken.change is not None
    node.leading.sets.propose([(lease_set, taken.change)])


class Losses:
    """Brokers that are lost, one after the other; client `CLIENT` is alive."""

    def __init__(self, node: ServingLeader) -> None:
        self.node = node
        self.holders = Holders(15.0, OwnStalls(0.1))
        self.holders.touch(CLIENT, 0.0)

    def lose(self, broker: int) -> None:
        """Let a broker go without a word, and three seconds pass."""
        self.holders.brokers.watches(broker)
        self.holders.brokers.unwatched(broker, self.node.clock.now_s)
        self.node.clock.advance(3.0)

    def turn(self, limit: int = 1_000) -> tuple[int, list[int]]:
        """Have a turn of the timer; return leases released, and queues that were searched."""
        looked = patch.object(
            QueueLeases, "release_lost", autospec=True, side_effect=QueueLeases.release_lost
        )
        leading = self.node.leading
        with looked as searched:
            assert leading.release(self.holders) == 0, "nobody is dead"
            released = leading.release_lost(limit)
        objects = {id(each.leases): each.key[2] for each in leading.sets.loaded()}
        return released, sorted(objects[id(call.args[0])] for call in searched.call_args_list)


async def test_a_change_is_noted_at_the_cost_of_its_own_holders(node: ServingLeader) -> None:
    """A pop or an ack looks at one of a thousand clients that hold leases of the queue."""
    node.lease_rows(1_000, [(offset, held(1_000 + offset)) for offset in range(999)])
    lease_set = found(node)
    sets = node.leading.sets
    assert len(sets.holders()) == 999
    change = lease_set.leases.release_holder(1_000, NOW_MS)
    assert change is not None
    walked = patch.object(QueueLeases, "holders", side_effect=AssertionError)
    noted = patch.object(KeyIndex, "add", autospec=True, side_effect=KeyIndex.add)
    forgotten = patch.object(KeyIndex, "discard", autospec=True, side_effect=KeyIndex.discard)
    with walked, noted as adds, forgotten as discards:
        sets.propose([(lease_set, change)])
        take(node, lease_set, ())
        handles = QueueHandles([0], [(1, 1, 0, 0)])
        valid, _ = node.leading.leases.ack({KEY: handles})
    assert valid == [True]
    assert [call.args[1:] for call in adds.call_args_list] == [(CLIENT, KEY)]
    assert [call.args[1:] for call in discards.call_args_list] == [(1_000, KEY), (1_001, KEY)]
    assert set(sets.holders()) == {CLIENT, *range(1_002, 1_999)}


async def test_a_set_is_no_more_a_clients_when_its_last_lease_goes(node: ServingLeader) -> None:
    """Nor when the topic is dropped; a set that is to be read again keeps what its rows have."""
    node.lease_rows(2, [(0, held(CLIENT)), (1, held(CLIENT))])
    lease_set, sets = found(node), node.leading.sets
    for offset in (0, 1):
        assert sets.holders() == [CLIENT]
        assert node.leading.leases.ack({KEY: QueueHandles([0], [(offset, 1, 0, 0)])})[0] == [True]
    assert (sets.holders(), list(sets.held_by(CLIENT))) == ([], [])
    node.commit()
    node.lease_rows(1, [(0, held(CLIENT))], key_of(2))
    lease_set = found(node, key_of(2))
    lease_set.leases.remove(0, 1, 0, NOW_MS)
    sets.reload(lease_set)
    sets.note(lease_set)
    assert sets.holders() == [CLIENT]
    assert [each and each.key for each in sets.held_by(CLIENT)] == [key_of(2)]
    sets.forget_queue(TOPIC_ID, 2)
    assert sets.holders() == []


async def test_a_set_is_searched_once_for_each_lost_broker(node: ServingLeader) -> None:
    """However many turns the broker stays lost; the next loss is another one."""
    losses = Losses(node)
    for queue in (1, 2, 3):
        broker = OTHER_BROKER if queue == 3 else BROKER
        node.lease_rows(1, [(0, held(CLIENT, broker))], key_of(queue), known=1)
    assert losses.turn() == (0, [])
    losses.lose(BROKER)
    assert losses.turn() == (2, [1, 2, 3])
    assert [losses.turn() for _ in range(3)] == [(0, [])] * 3
    losses.lose(OTHER_BROKER)
    assert losses.turn() == (1, [3])
    assert losses.turn() == (0, [])
    attempts = [
        row.attempts for queue in (1, 2, 3) for _, row in found(node, key_of(queue)).leases.rows()
    ]
    assert attempts == [0, 0, 0], "nobody was given them"


async def test_what_a_lost_broker_takes_late_is_given_back(node: ServingLeader) -> None:
    """Its set was searched already; a row that a new leader sees late is found, too."""
    losses = Losses(node)
    node.lease_rows(1, [(0, held(CLIENT, OTHER_BROKER))], known=1)
    losses.lose(BROKER)
    assert losses.turn() == (0, [1])
    take(node, found(node), [Columns(1, 1, None, [0], [4])])
    assert losses.turn() == (1, [1])
    assert losses.turn() == (0, [1]), "more may have been there than one change takes"
    assert losses.turn() == (0, [])
    node.lease_rows(1, [(0, held(CLIENT))], key_of(2), known=1)
    assert losses.turn() == (1, [2])
    assert losses.turn() == (0, [])
    node.lease_rows(1, [(0, held(CLIENT))], key_of(3), known=0)
    node.lease_rows(1, [(0, lease(LEASED, NOW_MS + 60_000))], key_of(4))
    for queue in (3, 4):
        found(node, key_of(queue))
    assert len(node.leading.sets.lost) == 1, "nothing of the other one lives as long as its holder"
    assert losses.turn() == (1, [3])


async def test_lost_brokers_sets_are_searched_in_bounded_turns(node: ServingLeader) -> None:
    """A turn ends with the set that fills it; one that cannot be read waits for a later one."""
    losses = Losses(node)
    for queue in (1, 2, 3):
        node.lease_rows(2, [(0, held(CLIENT)), (1, held(CLIENT))], key_of(queue), known=1)
    unreadable = found(node, key_of(3))
    unreadable.in_flight, unreadable.stale = 1, True
    losses.lose(BROKER)
    node.replica.is_full = True
    with pytest.raises(Refused):
        losses.turn(limit=3)
    node.replica.is_full = False
    turns = [losses.turn(limit=3) for _ in range(4)]
    assert sorted(turns)[:3] == [(0, [])] * 3, "the first turn's were kept"
    assert sorted(turns)[3] in ((2, [1]), (2, [2]))
    unreadable.in_flight = 0
    assert losses.turn(limit=3) == (2, [3])
    states = {
        (queue, row.state, row.attempts)
        for queue in (1, 2, 3)
        for _, row in found(node, key_of(queue)).leases.rows()
    }
    assert states == {(queue, LeaseState.WAITING, 0) for queue in (1, 2, 3)}


@pytest.mark.parametrize("is_dead", [False, True])
async def test_what_is_released_stays_in_memory_until_it_is_in_the_rows(*, is_dead: bool) -> None:
    """However many sets are loaded for it: a set read anew would have the leases still."""
    node = ServingLeader(EngineOptions(lease_sets_max=20))
    losses, queues = Losses(node), range(1, 51)
    for queue in queues:
        node.lease_rows(1, [(0, held(CLIENT))], key_of(queue), known=1)
    if is_dead:
        node.clock.advance(20.0)
        assert node.leading.release(losses.holders) == 50
    else:
        losses.lose(BROKER)
        assert losses.turn()[0] == 50
    states = {found(node, key_of(queue)).leases.rows()[0][1].state for queue in queues}
    assert states == {LeaseState.WAITING}
    node.commit()
    assert {queue for queue in queues if found(node, key_of(queue)).in_flight} == set()


async def test_sets_that_cannot_be_read_count_in_a_turn(node: ServingLeader) -> None:
    """The disk may refuse all of them: a turn tries no more than fill it."""
    losses, sets = Losses(node), node.leading.sets
    for queue in range(1, 8):
        node.lease_rows(1, [(0, held(CLIENT))], key_of(queue), known=1)
    losses.lose(BROKER)
    with patch.object(type(node.machine.rows.heads), "get", side_effect=StateError("no")):
        assert losses.turn(limit=3) == (0, [])
        assert len(sets.lost) == 4
    assert [losses.turn(limit=100)[0] for _ in range(2)] == [7, 0]


async def test_the_event_loop_has_other_turns_while_sets_are_searched(
    node: ServingLeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timer's turn only begins it; nothing is searched when the leader's term is over."""
    monkeypatch.setattr(expiry, "_SEARCHED_PER_TURN", 1)
    losses, leading = Losses(node), node.leading
    for queue in (1, 2, 3):
        node.lease_rows(1, [(0, held(CLIENT))], key_of(queue), known=1)
    losses.lose(BROKER)
    brokers: Any = SimpleNamespace(holders=losses.holders)
    terms = [leading, leading, None]
    engine: Any = SimpleNamespace(raft_group=GROUP, active_leader=lambda: terms.pop(0))
    timer = expiry.Expiry(
        lambda: [engine],
        brokers,
        Tasks("expiry", lambda *_: None),
        instruments=Instruments(node.metrics),
        passed_write_ms=1_000,
    )
    turn = asyncio.ensure_future(timer.once(engine, leading, releases=True))
    waiting = []
    while not turn.done():
        await asyncio.sleep(0)
        waiting.append(len(leading.sets.lost))
    assert [count for count, _ in itertools.groupby(waiting)] == [2, 1]
    rows = [row for queue in (1, 2, 3) for _, row in found(node, key_of(queue)).leases.rows()]
    assert [row.state for row in rows] == [LEASED, LeaseState.WAITING, LeaseState.WAITING]
