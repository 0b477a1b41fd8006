"""Slots that a raft group has to grant and to revoke itself, by the metadata (rule 17). Pure.

Safety hangs on three rules. A slot's row names another raft group only after the one before has
revoked it. A raft group never grants itself a slot that it is to give up. And nothing is decided on
older metadata than an earlier decision of the same raft group was (`Ownership.revision`), so a
leader that lags behind cannot take back slots that were given away since.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence

from strata.meta.v1 import meta_pb2 as meta
from strata_metadata import ClusterView
from strata_mq.commands import OwnCommand, QueueGrant, QueuePlace, SlotGrant
from strata_mq.slots import slot_of
from strata_storage.rows.machine import GroupMachine
from strata_storage.rows.ownership import Ownership, slot_runs_of

Queue = tuple[int, int]
"""(topic id, queue)."""


def grants_of(view: ClusterView, machine: GroupMachine) -> OwnCommand | None:
    """Return what the metadata gives a raft group and it does not own yet; None: nothing.

    Queues of these slots that are elsewhere, or here as a later epoch, are named: a slot alone
    would make "any queue" mean them.
    """
    ownership = machine.ownership
    if view.revision < ownership.revision:
        return None
    leaving = view.slot_move(machine.raft_group)
    kept_back = set(leaving.slots) if leaving is not None else set()
    slots = [
        slot
        for slot in view.slots_of(machine.raft_group)
        if slot not in ownership.slots and slot not in kept_back
    ]
    if not slots:
        return None
    taken = frozenset(slots)
    elsewhere = {
        (row.topic_id, row.queue)
        for row in view.queue_overrides()
        if row.epochs and _is_elsewhere(row, machine)
    }
    places = [
        QueueGrant(*queue, QueuePlace.ELSEWHERE) for queue in in_slots(view, elsewhere, taken)
    ]
    stayed = _placed(ownership, is_here=True)
    places += [
        QueueGrant(*queue, QueuePlace.BY_SLOT)
        for queue in in_slots(view, stayed, taken)
        if queue not in elsewhere
    ]
    return OwnCommand(_runs(slots, granted=True), places, view.revision)


def revoked(ownership: Ownership, move: meta.SlotMove) -> list[int]:
    """Return the slots of a move that the raft group has given up for good.

    A slot that it does not own, because it was never granted, does not count: a leader that does
    not know of the move yet might still grant it.
    """
    if ownership.revision < move.began_at_revision:
        return []
    return [slot for slot in move.slots if slot not in ownership.slots]


def revocation_of(
    view: ClusterView, ownership: Ownership, slots: Sequence[int], kept: Iterable[Queue]
) -> OwnCommand:
    """Return the command that gives up slots while queues of them stay.

    Args:
        view: on which it is decided.
        ownership: as it is.
        slots: rising.
        kept: queues of these slots with state.
    """
    away = in_slots(view, _placed(ownership, is_here=False), frozenset(slots))
    places = [QueueGrant(*queue, QueuePlace.BY_SLOT) for queue in away]
    places += [QueueGrant(*queue, QueuePlace.HERE) for queue in sorted(set(kept) - set(away))]
    return OwnCommand(_runs(slots, granted=False), places, view.revision)


def kept_in(view: ClusterView, ownership: Ownership, slots: Collection[int]) -> list[Queue]:
    """Return the queues of revoked slots that stayed, in order."""
    return in_slots(view, _placed(ownership, is_here=True), frozenset(slots))


def first_slots(
    slots: Sequence[int], queues: Mapping[int, Collection[Queue]], max_queues: int
) -> list[int]:
    """Return the first slots that have at most so many queues in all; always one."""
    chosen: list[int] = []
    count = 0
    for slot in slots:
        count += len(queues.get(slot, ()))
        if chosen and count > max_queues:
            break
        chosen.append(slot)
    return chosen


def in_slots(view: ClusterView, queues: Iterable[Queue], slots: Container[int]) -> list[Queue]:
    """Return those queues that are in these slots, in order; of a deleted topic none is."""

    def is_in(topic_id: int, queue: int) -> bool:
        topic = view.topic(topic_id)
        if topic is None or topic.is_dead_letter:
            return False
        return slot_of(topic.slot_base, queue) in slots

    return sorted(each for each in queues if is_in(*each))


def _is_elsewhere(override: meta.QueueOverride, machine: GroupMachine) -> bool:
    row = machine.queues.get(override.topic_id, override.queue)
    if row is None:
        return override.epochs[-1].raft_group != machine.raft_group
    # A first epoch that has ended here is sealed: that says enough.
    return row.epoch > 0


def _placed(ownership: Ownership, *, is_here: bool) -> list[Queue]:
    return [(topic_id, queue) for topic_id, queue, here in ownership.places() if here is is_here]


def _runs(slots: Iterable[int], *, granted: bool) -> list[SlotGrant]:
    return [SlotGrant(first, count, granted) for first, count in slot_runs_of(slots)]
