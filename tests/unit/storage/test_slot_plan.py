"""Slots that a raft group grants and revokes follow the metadata, and never older metadata."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from strata.meta.v1 import meta_pb2 as meta
from strata_metadata import ClusterView
from strata_mq.commands.rare import OwnCommand, QueueGrant, QueuePlace, SlotGrant
from strata_mq.layout.rows import QueueRow
from strata_state.flush import Flusher
from strata_state.memory_store import MemoryStore
from strata_storage.base.config import EngineOptions
from strata_storage.cluster.slot_plan import (
    first_slots,
    grants_of,
    kept_in,
    revocation_of,
    revoked,
)
from strata_storage.rows.machine import GroupMachine

GROUP, OTHER = 3, 4
# Queue q of topic 7 is in slot q; topic 8 holds dead letters, topic 9 is unknown.
TOPIC_ID, DEAD_LETTERS, UNKNOWN = 7, 8, 9


async def run_here(work: Callable[[], None]) -> None:
    work()


class Setup:
    """A machine and the metadata it follows; every slot is another raft group's at first."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.machine = GroupMachine(
            self.store,
            GROUP,
            Flusher(self.store, run_here),
            options=EngineOptions(queue_rows_max=10, cq_cache_bytes=1_000, broker_row_age_ms=1),
            on_leader=lambda term: None,
            on_follower=lambda term, leader: None,
        )
        self.view = ClusterView()
        dead_letters = meta.TOPIC_TYPE_DEAD_LETTER
        self.tell(
            meta.Change(topic=meta.Topic(topic_id=TOPIC_ID, name="t", slot_base=0)),
            meta.Change(topic=meta.Topic(topic_id=DEAD_LETTERS, name="d", type=dead_letters)),
            meta.Change(slots=meta.SlotRange(first_slot=0, slot_count=4_096, raft_group=OTHER)),
        )

    def tell(self, *changes: meta.Change) -> None:
        revision = self.view.revision + 10
        self.view.apply(meta.WatchResponse(revision=revision, changes=changes))

    def give(self, first: int, count: int, raft_group: int = GROUP) -> None:
        slots = meta.SlotRange(first_slot=first, slot_count=count, raft_group=raft_group)
        self.tell(meta.Change(slots=slots))

    def leave(self, *slots: int, began_at_revision: int = 0) -> meta.SlotMove:
        move = meta.SlotMove(
            from_raft_group=GROUP,
            to_raft_group=OTHER,
            slots=slots,
            began_at_revision=began_at_revision or self.view.revision + 10,
        )
        self.tell(meta.Change(slot_move=move))
        return move

    def override(self, queue: int, *raft_groups: int, topic_id: int = TOPIC_ID) -> None:
        epochs = [meta.Epoch(epoch=at, raft_group=each) for at, each in enumerate(raft_groups)]
        row = meta.QueueOverride(topic_id=topic_id, queue=queue, epochs=epochs)
        self.tell(meta.Change(queue_override=row))

    def own(self, command: OwnCommand | None) -> None:
        assert command is not None
        batch = self.store.new_batch()
        self.machine.ownership.change(batch, command)
        self.store.write(batch)

    def granted(self) -> list[SlotGrant]:
        command = grants_of(self.view, self.machine)
        return list(command.slots) if command is not None else []


@pytest.fixture
def setup() -> Setup:
    return Setup()


def test_what_the_rows_give_is_granted_once(setup: Setup) -> None:
    """As runs, with the revision they were read at; then there is nothing to do."""
    assert setup.granted() == []
    setup.give(10, 3)
    setup.give(20, 1)
    command = grants_of(setup.view, setup.machine)
    assert command == OwnCommand(
        [SlotGrant(10, 3, True), SlotGrant(20, 1, True)], [], setup.view.revision
    )
    setup.own(command)
    assert setup.granted() == []
    setup.give(21, 1)
    assert setup.granted() == [SlotGrant(21, 1, True)]


def test_a_slot_that_shall_go_is_not_granted(setup: Setup) -> None:
    """Its revocation may be reported already: only a row that comes after the move counts."""
    setup.give(10, 3)
    setup.leave(11)
    assert setup.granted() == [SlotGrant(10, 1, True), SlotGrant(12, 1, True)]


def test_older_metadata_grant_nothing(setup: Setup) -> None:
    """A leader that lags behind must not take back what was revoked since."""
    setup.give(10, 3)
    setup.own(OwnCommand([SlotGrant(11, 1, False)], [], setup.view.revision + 1))
    assert setup.granted() == []
    setup.tell()
    assert setup.granted() == [SlotGrant(10, 3, True)]


def test_queues_that_are_elsewhere_are_named(setup: Setup) -> None:
    """Also those that left this raft group; not those whose last epoch is here."""
    setup.give(0, 6)
    setup.override(0, OTHER)
    setup.override(1, GROUP, OTHER)
    setup.override(2, OTHER, GROUP)
    setup.override(9, OTHER)
    setup.override(3, OTHER, topic_id=UNKNOWN)
    command = grants_of(setup.view, setup.machine)
    assert command is not None
    assert list(command.queues) == [
        QueueGrant(TOPIC_ID, 0, QueuePlace.ELSEWHERE),
        QueueGrant(TOPIC_ID, 1, QueuePlace.ELSEWHERE),
    ]


def test_rows_tell_what_a_slot_brings(setup: Setup) -> None:
    """A later epoch that is here is named, a first one that has ended here needs no word."""
    setup.give(0, 2)
    setup.override(0, OTHER, GROUP)
    setup.override(1, GROUP, OTHER)
    batch = setup.store.new_batch()
    setup.machine.queues.put(batch, TOPIC_ID, 0, QueueRow(9, 9, 0, 1))
    setup.machine.queues.put(batch, TOPIC_ID, 1, QueueRow(9, 4, 0, 0, True))
    setup.store.write(batch)
    command = grants_of(setup.view, setup.machine)
    assert command is not None
    assert list(command.queues) == [QueueGrant(TOPIC_ID, 0, QueuePlace.ELSEWHERE)]


def test_a_queue_that_stayed_follows_its_slot_when_that_comes_back(setup: Setup) -> None:
    """And one that was elsewhere is not remembered when the slot goes again."""
    setup.give(0, 2)
    setup.own(grants_of(setup.view, setup.machine))
    setup.own(revocation_of(setup.view, setup.machine.ownership, [0], [(TOPIC_ID, 0)]))
    assert kept_in(setup.view, setup.machine.ownership, [0, 1]) == [(TOPIC_ID, 0)]
    setup.give(0, 1)
    setup.override(0, GROUP)
    command = grants_of(setup.view, setup.machine)
    assert command is not None
    assert list(command.queues) == [QueueGrant(TOPIC_ID, 0, QueuePlace.BY_SLOT)]
    setup.own(command)
    assert list(setup.machine.ownership.places()) == []

    setup.own(OwnCommand([], [QueueGrant(TOPIC_ID, 1, QueuePlace.ELSEWHERE)], 0))
    command = revocation_of(setup.view, setup.machine.ownership, [1], [(TOPIC_ID, 1)])
    assert list(command.queues) == [QueueGrant(TOPIC_ID, 1, QueuePlace.BY_SLOT)]


def test_only_what_was_given_up_for_the_move_counts_as_revoked(setup: Setup) -> None:
    """A slot that was never granted is not: a leader that lags behind might still grant it."""
    setup.give(10, 3)
    move = setup.leave(10, 11)
    assert revoked(setup.machine.ownership, move) == []
    setup.own(revocation_of(setup.view, setup.machine.ownership, [10], []))
    assert revoked(setup.machine.ownership, move) == [10, 11]
    setup.own(OwnCommand([SlotGrant(11, 1, True)], [], setup.view.revision))
    assert revoked(setup.machine.ownership, move) == [10]
    later = setup.leave(10, 11)
    assert revoked(setup.machine.ownership, later) == []


def test_slots_go_as_long_as_few_queues_stay() -> None:
    """One slot at least, whatever it holds."""
    queues = {2: [(7, 2), (8, 2)], 4: [(7, 4)], 6: [(7, 6), (8, 6), (9, 6)]}
    assert first_slots([1, 2, 3, 4, 5, 6], queues, 3) == [1, 2, 3, 4, 5]
    assert first_slots([1, 2, 3], queues, 1) == [1]
    assert first_slots([6, 7], queues, 1) == [6]
    assert first_slots([6, 2], queues, 4) == [6]
    assert first_slots([], queues, 4) == []
