"""Slots on their way between raft groups: the rows of rule 17.

A `SlotMove` row is a wish. The leader of the raft group that owns the slots revokes them and tells
so; only then do the `SlotRange` rows name the new owner, in one change with rows for the queues
that stay. Its leader grants them to itself and tells that too; with the last slot the row goes.
Reports name the move they are about: one that comes late is about no move any more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from strata.meta.v1 import meta_pb2
from strata_metadata.errors import MetaRefused
from strata_mq.slots import SLOT_COUNT, slot_runs
from strata_nameserver.base.config import NameserverConfig
from strata_nameserver.base.errors import invalid
from strata_nameserver.drafts.queue_moves import keep_queue
from strata_nameserver.policies.slots import MoveSlots, count_under_way
from strata_nameserver.state.draft import Draft


class Moving(NamedTuple):
    """How far a run of slots is.

    Attributes:
        moves: to its raft group, under way.
        left: slots that the raft group does not own yet.
    """

    moves: Sequence[meta_pb2.SlotMove]
    left: int


def begin(draft: Draft, steps: Iterable[MoveSlots]) -> list[meta_pb2.SlotMove]:
    """Write moves down; none of their raft groups gives up slots already."""
    moves = []
    for step in steps:
        move = meta_pb2.SlotMove(
            from_raft_group=step.from_raft_group,
            to_raft_group=step.to_raft_group,
            began_at_revision=draft.revision,
            slots=step.slots,
        )
        draft.put(move)
        moves.append(move)
    return moves


def move_slots(
    draft: Draft,
    request: meta_pb2.MoveSlotsRequest,
    led: Collection[int],
    config: NameserverConfig,
) -> Moving:
    """Begin to move a run of slots, as far as the limit on moves allows.

    To be asked again until none is left. Moves that wait for a leader do not count.

    Args:
        draft: the change.
        request: which slots, and where to.
        led: raft groups that have a leader.
        config: limits.

    Raises:
        MetaRefused: INVALID: no such slots; NOT_FOUND: no such raft group; UNAVAILABLE: nobody
            leads it; LIMIT_REACHED: there is no room for queues that would stay.
    """
    topology, target = draft.topology, request.to_raft_group
    end = request.first_slot + request.slot_count
    if not request.slot_count or end > SLOT_COUNT:
        raise invalid(
            f"slots {request.first_slot} to {end - 1} are not a range within 0 to {SLOT_COUNT - 1}"
        )
    if target not in topology.raft_groups:
        raise MetaRefused(meta_pb2.META_OUTCOME_NOT_FOUND, f"raft group {target} does not exist")
    if target not in led:
        raise MetaRefused(meta_pb2.META_OUTCOME_UNAVAILABLE, f"raft group {target} has no leader")
    moving = {
        slot for move in topology.slot_moves.values() for slot in (*move.slots, *move.revoked_slots)
    }
    run = range(request.first_slot, end)
    left = sum(topology.slot_owners[slot] != target or slot in moving for slot in run)
    by_source: defaultdict[int, list[int]] = defaultdict(list)
    for slot in run:
        owner = topology.slot_owners[slot]
        if owner != target and owner in led and slot not in moving:
            by_source[owner].append(slot)
    steps = [
        MoveSlots(source, target, tuple(slots), "an operator wants it")
        for source, slots in sorted(by_source.items())
        if source not in topology.slot_moves
    ]
    under_way = count_under_way(topology.slot_moves.values(), led)
    room = config.max_slot_moves_in_flight - under_way
    steps = steps[: max(room, 0)]
    if steps:
        check_room_for_queues(draft, config)
    known = [move for move in topology.slot_moves.values() if move.to_raft_group == target]
    return Moving([*known, *begin(draft, steps)], left)


def check_room_for_queues(draft: Draft, config: NameserverConfig) -> None:
    """Raise LIMIT_REACHED when no more queues may stay away from their slots.

    How many a move leaves behind is known when its slots are revoked, too late to refuse it: the
    limit may be exceeded by what the moves under way bring.
    """
    if draft.counters.queue_override_count >= config.max_queue_overrides:
        raise MetaRefused(
            meta_pb2.META_OUTCOME_LIMIT_REACHED,
            f"{config.max_queue_overrides} queues lie outside the raft group of their slot already "
            "(nameserver.max_queue_overrides)",
        )


def record_revoked(draft: Draft, request: meta_pb2.ReportSlotsRevokedRequest) -> None:
    """Write down that slots are their new raft group's; a repeat changes nothing.

    Raises:
        MetaRefused: CONFLICT: there is no such move.
    """
    move = _known(draft, request.from_raft_group, request.began_at_revision)
    gone = sorted(set(request.slots) & set(move.slots))
    if not gone:
        return
    for queue in request.kept:
        keep_queue(draft, queue.topic_id, queue.queue, move.from_raft_group)
    _put_owner(draft, gone, move.to_raft_group)
    _put_rest(
        draft,
        move,
        sorted(set(move.slots) - set(gone)),
        sorted({*move.revoked_slots, *gone}),
    )


def record_granted(draft: Draft, request: meta_pb2.ReportSlotsGrantedRequest) -> None:
    """Write down that slots have arrived; a repeat changes nothing.

    Raises:
        MetaRefused: CONFLICT: there is no such move.
    """
    move = _known(draft, request.from_raft_group, request.began_at_revision)
    on_their_way = sorted(set(move.revoked_slots) - set(request.slots))
    if len(on_their_way) < len(move.revoked_slots):
        _put_rest(draft, move, move.slots, on_their_way)


def _known(draft: Draft, from_raft_group: int, began_at_revision: int) -> meta_pb2.SlotMove:
    move = draft.topology.slot_moves.get(from_raft_group)
    if move is None or move.began_at_revision != began_at_revision:
        raise MetaRefused(
            meta_pb2.META_OUTCOME_CONFLICT,
            f"raft group {from_raft_group} gives up no slots since revision {began_at_revision}",
        )
    return move


def _put_rest(
    draft: Draft, move: meta_pb2.SlotMove, slots: Sequence[int], revoked_slots: Sequence[int]
) -> None:
    rest = meta_pb2.SlotMove(
        from_raft_group=move.from_raft_group,
        to_raft_group=move.to_raft_group,
        began_at_revision=move.began_at_revision,
        slots=slots,
        revoked_slots=revoked_slots,
    )
    if slots or revoked_slots:
        draft.put(rest)
    else:
        draft.delete(rest)


def _put_owner(draft: Draft, slots: Iterable[int], raft_group: int) -> None:
    """Write the runs of slots that change; a run that is part of another one now goes."""
    before = draft.topology.slot_owners
    after = before[:]
    for slot in slots:
        after[slot] = raft_group
    known, runs = slot_runs(before), slot_runs(after)
    begins = {first for first, _, _ in runs}
    for first, _, _ in known:
        if first not in begins:
            draft.delete(meta_pb2.SlotRange(first_slot=first))
    for first, count, owner in sorted(set(runs) - set(known)):
        draft.put(meta_pb2.SlotRange(first_slot=first, slot_count=count, raft_group=owner))
