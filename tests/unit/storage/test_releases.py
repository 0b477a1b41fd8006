"""Leases of clients that are gone: each turn releases some, and the last one has released all."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

import pytest

from strata_mq.leases import LeaseState
from strata_runtime.stalls import OwnStalls
from strata_state.ports import StateError
from strata_storage.base.config import EngineOptions
from strata_storage.leading.pops import releases
from strata_storage.leading.pops.holders import Holders
from tests.unit.storage.serving_leader import CONSUMER_GROUP_ID, ServingLeader, lease
from tests.unit.storage.waiting_leader import TOPIC_ID

LEASED, WAITING = LeaseState.LEASED, LeaseState.WAITING
BROKER = 0xB0B


@pytest.fixture
async def node(monkeypatch: pytest.MonkeyPatch) -> ServingLeader:
    monkeypatch.setattr(releases, "_RELEASED_PER_TURN", 30)
    return ServingLeader(EngineOptions(lease_sets_max=20))


def hold(node: ServingLeader, queue: int, client: int, rows: int = 1) -> None:
    held = lease(LEASED, 0, attempts=1)._replace(holder=client, auto_renewed=True, broker=BROKER)
    key = (CONSUMER_GROUP_ID, TOPIC_ID, queue)
    node.lease_rows(rows, [(offset, held) for offset in range(rows)], key, known=1)


def nobody_reports(node: ServingLeader) -> Holders:
    """Return the clients after a minute without a report."""
    node.clock.advance(60.0)
    return Holders(15.0, OwnStalls(0.1))


def stored(node: ServingLeader, queue: int) -> set[LeaseState]:
    rows = node.machine.rows.leases.of_queue((CONSUMER_GROUP_ID, TOPIC_ID, queue))
    return {row.state for _, row in rows}


async def test_a_turn_releases_some_and_the_next_goes_on(node: ServingLeader) -> None:
    """A broker dies with ten thousand clients: the event loop has other turns in between."""
    for queue in range(100):
        hold(node, queue, client=queue % 7)
    holders = nobody_reports(node)
    counts = [node.leading.release(holders)]
    while node.leading.sets.lost:
        await asyncio.sleep(0)
        counts.append(node.leading.release_lost(30))
        node.commit()
    assert sum(counts) == 100
    assert max(counts) <= 11
    assert {state for queue in range(100) for state in stored(node, queue)} == {WAITING}
    await asyncio.sleep(0)
    assert len(node.leading.sets) <= 20
    assert node.leading.sets.holders() == []


async def test_a_client_that_comes_back_between_two_turns_keeps_its_leases(
    node: ServingLeader,
) -> None:
    """It was silent when the search began, and is looked at again before its leases are."""
    for queue in range(40):
        hold(node, queue, client=5)
    holders = nobody_reports(node)
    released = node.leading.release(holders)
    assert 0 < released < 40
    holders.report(BROKER, [5], (), (), node.clock.now_s, full=True)
    assert node.leading.release_lost(1_000) == 0
    assert not node.leading.sets.lost
    node.commit()
    assert len([queue for queue in range(40) if stored(node, queue) == {LEASED}]) == 40 - released


async def test_sets_that_cannot_be_read_count_in_a_turn(node: ServingLeader) -> None:
    """The disk may refuse all of them: a turn tries some, and the search ends all the same."""
    for queue in range(100):
        hold(node, queue, client=5)
    holders = nobody_reports(node)
    heads = type(node.machine.rows.heads)
    with patch.object(heads, "get", side_effect=StateError("no")) as reads:
        assert node.leading.release(holders) == 0
        assert reads.call_count == 30
        while node.leading.sets.lost:
            assert node.leading.release_lost(30) == 0
        assert reads.call_count == 100
    released = node.leading.release(holders)
    while node.leading.sets.lost:
        released += node.leading.release_lost(30)
    assert released == 100


async def test_clients_that_live_take_turns_too(node: ServingLeader) -> None:
    """A hundred thousand of them are not asked about in one turn of the event loop."""
    for client in range(3_000):
        hold(node, queue=client % 4, client=client, rows=1)
    node.clock.advance(60.0)
    holders = Holders(15.0, OwnStalls(0.1))
    holders.report(BROKER, range(2_999), (), (), node.clock.now_s, full=True)
    asked = patch.object(holders, "is_dead", side_effect=holders.is_dead)
    with asked as questions:
        node.leading.release(holders)
        assert questions.call_count <= 31 * 32
        while node.leading.sets.lost:
            before = questions.call_count
            node.leading.release_lost(30)
            assert questions.call_count - before <= 31 * 32
    assert questions.call_count >= 2_999
