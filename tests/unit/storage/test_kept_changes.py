"""Ended leases of any number reach the log: in entries that it takes, in the order they ended."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import chain

import pytest

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.commands.common import decode_leases, section_bytes
from strata_mq.leases import Columns, LeaseChange, LeaseState, QueueLeases, TakeRequest
from strata_runtime.stalls import OwnStalls
from strata_storage.base.errors import Refused
from strata_storage.leading import leader as leader_module
from strata_storage.leading.pops import kept_changes
from strata_storage.leading.pops.holders import Holders
from strata_storage.leading.pops.kept_changes import KeptChanges
from strata_storage.leading.pops.lease_set import LeaseSet, Section
from strata_storage.leading.proposer import Payload
from tests.unit.storage.serving_leader import CONSUMER_GROUP_ID, KEY, ServingLeader, lease
from tests.unit.storage.waiting_leader import NOW_MS, TOPIC_ID, FakeReplica

LEASED, WAITING = LeaseState.LEASED, LeaseState.WAITING
CLIENT = 5


class SmallReplica(FakeReplica):
    """Takes proposals up to a size, and no more of them than there is room."""

    def __init__(self) -> None:
        super().__init__()
        self.max_bytes = 1 << 20
        self.room = 1 << 20

    def propose(self, payload: Payload) -> asyncio.Future[int]:
        if sum(map(len, payload)) > self.max_bytes:
            raise ValueError("the proposal has more than max_proposal_bytes")
        self.is_full = self.room <= 0
        self.room -= 1
        return super().propose(payload)


class SmallNode(ServingLeader):
    """A leader whose log takes small entries only."""

    def __init__(self) -> None:
        super().__init__()
        self.small = SmallReplica()
        self.replica = self.small
        self.leading.proposer.replica = self.small

    def sizes(self) -> list[int]:
        """Return the bytes of the entries that are proposed and not committed."""
        return [sum(map(len, payload)) for payload, _ in self.replica.proposed]

    def proposed_offsets(self) -> list[list[int]]:
        """Return the offsets of the rows in each entry that is proposed and not committed."""
        entries = [decode_leases(payload[0])[1] for payload, _ in self.replica.proposed]
        return [
            [int.from_bytes(offset, "big") for section in entry for offset, _ in section.puts]
            for entry in entries
        ]

    def states(self, queues: Sequence[int]) -> set[LeaseState]:
        """Return the states of the rows that are stored of queues."""
        return {
            row.state
            for queue in queues
            for _, row in self.machine.rows.leases.of_queue((CONSUMER_GROUP_ID, TOPIC_ID, queue))
        }


@pytest.fixture
async def node() -> SmallNode:
    return SmallNode()


def hold(node: ServingLeader, queues: Sequence[int], rows: int = 1) -> None:
    """Let a client hold leases of queues, which run out never."""
    held = lease(LEASED, 0, attempts=1)._replace(holder=CLIENT, auto_renewed=True)
    for queue in queues:
        key = (CONSUMER_GROUP_ID, TOPIC_ID, queue)
        node.lease_rows(rows, [(offset, held) for offset in range(rows)], key, known=1)


def release(node: ServingLeader) -> int:
    """Release the leases of the client, which nobody has reported for a minute."""
    node.clock.advance(60.0)
    return node.leading.release(Holders(15.0, OwnStalls(0.1)))


async def test_leases_of_many_sets_end_in_several_entries(
    node: SmallNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their one entry would be more than the log takes, again and again, and nothing after it."""
    monkeypatch.setattr(kept_changes, "_ENTRY_BYTES", 1_000)
    node.small.max_bytes = 1_100
    hold(node, range(50))
    assert release(node) == 50
    assert len(node.sizes()) == 5
    node.commit()
    assert node.states(range(50)) == {WAITING}
    assert {each.in_flight for each in node.leading.sets.loaded()} == {0}


async def test_leases_of_one_set_end_in_several_entries(
    node: SmallNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of a set follow each other in the log, each of them once."""
    monkeypatch.setattr(kept_changes, "_ENTRY_BYTES", 1_000)
    node.small.max_bytes = 1_100
    hold(node, [1], rows=100)
    assert release(node) == 100
    entries = node.proposed_offsets()
    assert len(entries) == 8
    assert list(chain(*entries)) == list(range(100))
    lease_set = node.leading.sets.find(KEY)
    assert lease_set is not None
    for left in range(8, 0, -1):
        assert lease_set.in_flight == left
        node.commit(1)
    assert lease_set.in_flight == 0
    assert node.states([1]) == {WAITING}


async def test_a_part_that_the_log_does_not_take_now_keeps_decisions_waiting(
    node: SmallNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory says that the rest is free, the log does not: nobody decides on it before."""
    monkeypatch.setattr(kept_changes, "_ENTRY_BYTES", 1_000)
    hold(node, [1], rows=100)
    node.small.room = 3
    with pytest.raises(Refused):
        release(node)
    with pytest.raises(Refused) as refused:
        node.leading.sets.check_open()
    assert refused.value.outcome == pb.OUTCOME_OVERLOADED
    assert len(node.sizes()) == 3
    node.small.room, node.small.is_full = 1 << 20, False
    node.leading.sets.check_open()
    assert list(chain(*node.proposed_offsets())) == list(range(100))
    node.commit()
    assert node.states([1]) == {WAITING}


async def test_entries_are_as_small_as_the_log_wants_them(node: SmallNode) -> None:
    """A log with small segments takes less than what is usual."""
    hold(node, range(30), rows=10)
    node.small.max_bytes = 2_000
    assert release(node) == 300
    assert max(node.sizes()) <= 2_000
    node.commit()
    assert node.states(range(30)) == {WAITING}


async def test_a_change_that_the_log_never_takes_is_undone(node: SmallNode) -> None:
    """Its set is read again, and the next decisions of the raft group are written."""
    hold(node, [1, 2], rows=3)
    lease_set = node.leading.sets.find(KEY)
    assert lease_set is not None
    node.small.max_bytes = 40
    reset = lease_set.leases.reset(7)
    with pytest.raises(Refused) as refused:
        node.leading.sets.propose([(lease_set, reset)])
    assert refused.value.outcome == pb.OUTCOME_OVERLOADED
    assert lease_set.in_flight == 0
    node.small.max_bytes = 1 << 20
    node.leading.sets.check_open()
    again = node.leading.sets.find(KEY)
    assert again is not None
    assert again is not lease_set
    assert (again.leases.head, again.leases.in_flight) == (3, 3)
    assert release(node) == 6


async def test_a_change_that_cannot_be_encoded_is_undone_alone(node: SmallNode) -> None:
    """Those that were decided before and after it are written."""
    hold(node, [1, 2, 3])
    sets = [node.leading.sets.find((CONSUMER_GROUP_ID, TOPIC_ID, queue)) for queue in (1, 2, 3)]
    for number, lease_set in enumerate(sets):
        assert lease_set is not None
        row = lease(WAITING, -1 if number == 1 else NOW_MS, attempts=1)
        node.leading.sets.keep(lease_set, LeaseChange(0, 1, False, ((0, row),)))
    with pytest.raises(Refused):
        node.leading.sets.flush_kept()
    node.leading.sets.flush_kept()
    node.commit()
    assert [node.states([queue]) for queue in (1, 2, 3)] == [{WAITING}, {LEASED}, {WAITING}]


async def test_changes_stay_whatever_is_raised(node: SmallNode) -> None:
    """Else memory would say that leases have ended, and the log would not, for good."""
    hold(node, [1])
    broken = RuntimeError("not foreseen")

    def fail(payload: Payload) -> asyncio.Future[int]:
        raise broken

    propose, node.small.propose = node.small.propose, fail  # type: ignore[method-assign]
    with pytest.raises(RuntimeError):
        release(node)
    node.small.propose = propose  # type: ignore[method-assign]
    node.leading.sets.check_open()
    node.commit()
    assert node.states([1]) == {WAITING}


async def test_a_pop_is_in_one_entry(node: SmallNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log may end between two: the head would pass over messages that nobody holds."""
    monkeypatch.setattr(kept_changes, "_ENTRY_BYTES", 1_000)
    leases = QueueLeases(head=0)
    request = TakeRequest(
        max_messages=100,
        max_bytes=1 << 20,
        invisible_ms=1_000,
        auto_renew=False,
        holder=0,
        attempt=0,
        fifo=False,
        max_attempts=3,
        dead_letter_topic_id=0,
    )
    taken = leases.take(request, NOW_MS, 100, [Columns(0, 100, None, [0] * 100, [5] * 100)])
    assert taken.change is not None
    node.leading.sets.propose([(LeaseSet(KEY, leases), taken.change)])
    assert node.proposed_offsets() == [list(range(100))]


async def test_no_entry_has_more_sections_than_a_command_counts() -> None:
    """A client of 70,000 lite topics may die; what the counter cannot hold would be no entry."""
    entries: list[list[Section]] = []

    def propose(sections: list[Section]) -> asyncio.Future[int]:
        entries.append(sections)
        return asyncio.get_running_loop().create_future()

    kept = KeptChanges(propose, proposed=lambda *_: None, given_up=lambda _: None)
    lease_set = LeaseSet(KEY, QueueLeases(head=0))
    for head in range(70_000):
        kept.add(lease_set, LeaseChange(0, head, True))
    kept.flush()
    assert max(map(len, entries)) < 0xFFFF
    assert [change.head for entry in entries for _, change in entry] == list(range(70_000))
    assert max(sum(section_bytes(each) for _, each in entry) for entry in entries) <= 512 * 1024


async def test_one_turn_ends_a_bounded_number_of_leases_whose_time_is_up(
    node: SmallNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop has other turns before the timer goes on with the rest."""
    monkeypatch.setattr(leader_module, "_EXPIRED_PER_TURN", 25)
    for queue in range(1, 8):
        rows = [(offset, lease(LEASED, NOW_MS + 5, attempts=1)) for offset in range(10)]
        node.lease_rows(10, rows, (CONSUMER_GROUP_ID, TOPIC_ID, queue), known=1)
        if queue > 3:
            # Sets in memory need not be read: their leases are counted.
            assert node.leading.sets.find((CONSUMER_GROUP_ID, TOPIC_ID, queue)) is not None
    node.clock.now_s = 0.01
    counts = []
    while (deadline_ms := node.leading.sets.next_deadline_ms()) is not None:
        assert deadline_ms <= node.now_ms()
        assert node.leading.expire() == []
        counts.append(sum(map(len, node.proposed_offsets())))
        node.commit()
    assert [count for count in counts if count] == [30, 30, 10]
    assert node.states(range(1, 8)) == {WAITING}
