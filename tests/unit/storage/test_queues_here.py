"""Queues of a raft group (rule 17), and those that a pop of "any queue" covers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from strata_mq.commands.rare import OwnCommand, QueueGrant, QueuePlace, SlotGrant
from strata_mq.layout.rows import QueueRow
from strata_state.flush import Flusher
from strata_state.memory_store import MemoryStore
from strata_storage.base.config import EngineOptions
from strata_storage.rows.machine import GroupMachine
from strata_storage.rows.ownership import Topic

GROUP = 3
TOPIC = Topic(8, 0, 8)
DEAD_LETTERS = Topic(7, 0, 0, is_dead_letter=True)


async def run_here(work: Callable[[], None]) -> None:
    work()


class Group:
    """A machine over rows in memory that takes ownership as apply does."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.machine = self.opened()

    def opened(self) -> GroupMachine:
        """Return a machine over the rows as they are."""
        return GroupMachine(
            self.store,
            GROUP,
            Flusher(self.store, run_here),
            options=EngineOptions(queue_rows_max=10, cq_cache_bytes=1_000, broker_row_age_ms=1),
            on_leader=lambda term: None,
            on_follower=lambda term, leader: None,
        )

    def own(
        self, grants: Sequence[SlotGrant], queues: Sequence[QueueGrant] = (), revision: int = 0
    ) -> None:
        batch = self.store.new_batch()
        self.machine.ownership.change(batch, OwnCommand(grants, queues, revision))
        self.store.write(batch)

    def put(self, topic_id: int, queue: int, row: QueueRow) -> None:
        batch = self.store.new_batch()
        self.machine.queues.put(batch, topic_id, queue, row)
        self.store.write(batch)

    def opened_as(self, queue: int, epoch: int) -> None:
        """Open a queue as apply does."""
        self.put(TOPIC.topic_id, queue, QueueRow(9, 9, 0, epoch))
        batch = self.store.new_batch()
        self.machine.ownership.opened(batch, TOPIC.topic_id, queue)
        self.store.write(batch)

    def owned(self) -> list[int]:
        return [queue for queue in range(8) if self.machine.owns_queue(TOPIC, queue)]

    def here(self) -> list[int]:
        return list(self.machine.queues_here(TOPIC))


@pytest.fixture
def group() -> Group:
    """Owns the even slots, so the even queues."""
    made = Group()
    made.own([SlotGrant(slot, 1, True) for slot in range(0, 8, 2)])
    return made


def test_a_queue_with_the_raft_groups_number_is_no_dead_letter_queue(group: Group) -> None:
    """Only of a dead-letter topic does the number make the queue the raft group's (rule 26)."""
    assert not group.machine.owns_queue(TOPIC, GROUP)
    assert not group.machine.serves_queue(TOPIC, GROUP)
    assert group.here() == [0, 2, 4, 6]
    assert list(group.machine.queues_here(DEAD_LETTERS)) == [GROUP]
    assert group.machine.serves_queue(DEAD_LETTERS, GROUP)
    assert not group.machine.serves_queue(DEAD_LETTERS, 0)


def test_a_queue_that_moved_in_is_asked_for_by_number(group: Group) -> None:
    """An epoch that was opened here is owned, and not covered by "any queue", slot or no slot.

    Else an ordered consumer would get it before the older epochs are consumed (rule 18).
    """
    for queue in (4, 5):
        group.opened_as(queue, 1)
    assert group.owned() == [0, 2, 4, 5, 6]
    assert group.here() == [0, 2, 6]
    assert list(group.opened().queues_here(TOPIC)) == [0, 2, 6]


def test_queues_with_state_stay_when_their_slots_go(group: Group) -> None:
    """They are owned and covered as before; the others of these slots are not served any more."""
    group.put(TOPIC.topic_id, 2, QueueRow(9, 4, 0, 0))
    group.own([SlotGrant(2, 3, False)], [QueueGrant(TOPIC.topic_id, 2, QueuePlace.HERE)], 40)
    assert group.owned() == [0, 2, 6]
    assert group.here() == [0, 2, 6]
    assert not group.machine.serves_queue(TOPIC, 4)
    assert group.machine.ownership.revision == 40


def test_a_slot_does_not_bring_what_stayed_elsewhere(group: Group) -> None:
    """Such a queue is not owned until it is opened here, or follows its slot again."""
    away = QueueGrant(TOPIC.topic_id, 1, QueuePlace.ELSEWHERE)
    group.own([SlotGrant(0, 8, True)], [away], 40)
    assert group.owned() == group.here() == [0, 2, 3, 4, 5, 6, 7]
    group.opened_as(1, 1)
    assert 1 in group.owned()
    assert 1 not in group.here()
    group.put(TOPIC.topic_id, 1, QueueRow(9, 9, 0, 0))
    group.own([], [away._replace(place=QueuePlace.BY_SLOT)], 50)
    assert group.owned() == list(range(8))
    assert list(group.machine.ownership.places()) == []


def test_no_queue_begins_in_a_slot_that_is_about_to_go(group: Group) -> None:
    """Those that have rows go on; the others wait for the next owner."""
    group.put(TOPIC.topic_id, 2, QueueRow(9, 4, 0, 0))
    group.machine.ownership.closing = frozenset((2, 4))
    assert group.owned() == group.here() == [0, 2, 6]
    group.machine.ownership.closing = frozenset()
    assert group.owned() == group.here() == [0, 2, 4, 6]


def test_ownership_is_read_again_from_rows(group: Group) -> None:
    """A machine that is opened anew owns the same; what a topic left goes with it."""
    places = [
        QueueGrant(TOPIC.topic_id, 1, QueuePlace.HERE),
        QueueGrant(TOPIC.topic_id, 2, QueuePlace.ELSEWHERE),
        QueueGrant(9, 4, QueuePlace.HERE),
    ]
    group.own([SlotGrant(6, 1, False)], places, 40)
    group.own([SlotGrant(7, 1, True)], (), 30)
    for machine in (group.machine, group.opened()):
        assert machine.ownership.slots.runs() == [(0, 1), (2, 1), (4, 1), (7, 1)]
        assert sorted(machine.ownership.places()) == [(8, 1, True), (8, 2, False), (9, 4, True)]
        assert machine.ownership.revision == 40
    batch = group.store.new_batch()
    group.machine.ownership.drop_topic(batch, TOPIC.topic_id)
    group.store.write(batch)
    for machine in (group.machine, group.opened()):
        assert list(machine.ownership.places()) == [(9, 4, True)]
