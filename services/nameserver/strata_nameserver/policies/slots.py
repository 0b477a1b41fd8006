"""Moves of slots between raft groups: plain rules, each with its reason as text.

Pure, like `replicas`. Raft groups own equally many slots, give or take one: where raft groups were
added, slots go to them in small steps, a few moves at a time. The slots that arrived last stay
longest, so the moves of an operator are balanced with other slots and not taken back. Only raft
groups with a leader give and take slots; a move from or to one without stands still, and does not
count as one under way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from strata.meta.v1 import meta_pb2


@dataclass(frozen=True, slots=True)
class SlotRules:
    """Numbers that the placement of slots goes by.

    Attributes:
        max_moves_in_flight: raft groups that give up slots at the same time; moves that wait for a
            leader do not count.
        max_slots_per_move: slots of one move, at most.
    """

    max_moves_in_flight: int = 2
    max_slots_per_move: int = 64


@dataclass(frozen=True, slots=True)
class MoveSlots:
    """Slots, rising, that go from one raft group to another."""

    from_raft_group: int
    to_raft_group: int
    slots: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class SlotFacts:
    """The owners of slots.

    Attributes:
        owners: raft group of each slot.
        owned_since: revision at which each slot came to its owner.
        moves: what is under way.
        led: raft groups that have a leader.
    """

    owners: Sequence[int]
    owned_since: Sequence[int]
    moves: Collection[meta_pb2.SlotMove]
    led: Collection[int]

    def settled(self, raft_group: int) -> list[int]:
        """Return the slots of a raft group that are not on their way, rising."""
        moving = {slot for move in self.moves for slot in (*move.slots, *move.revoked_slots)}
        return [
            slot
            for slot, owner in enumerate(self.owners)
            if owner == raft_group and slot not in moving
        ]


def count_under_way(moves: Iterable[meta_pb2.SlotMove], led: Collection[int]) -> int:
    """Return how many moves can go on: both raft groups have a leader."""
    return sum(move.from_raft_group in led and move.to_raft_group in led for move in moves)


def plan_slots(facts: SlotFacts, rules: SlotRules) -> list[MoveSlots]:
    """Return the moves to begin now; at most one out of each raft group."""
    if not facts.led:
        return []
    counts = Counter(facts.owners)
    for move in facts.moves:
        counts[move.from_raft_group] -= len(move.slots)
        counts[move.to_raft_group] += len(move.slots)
    share, rest = divmod(sum(counts[number] for number in facts.led), len(facts.led))
    most = share + bool(rest)
    # Nobody gives or takes beyond the equal share, so that hardly any slot moves twice; only when
    # all have at most that, single slots even out the rest.
    least = most if max(counts[number] for number in facts.led) > most else share
    led = set(facts.led)
    givers = led - {move.from_raft_group for move in facts.moves}
    in_flight = count_under_way(facts.moves, led)
    steps: list[MoveSlots] = []
    while givers and in_flight + len(steps) < rules.max_moves_in_flight:
        giver = max(givers, key=lambda number: (counts[number], -number))
        taker = min(facts.led, key=lambda number: (counts[number], number))
        number = min(counts[giver] - least, most - counts[taker], rules.max_slots_per_move)
        if number <= 0 or counts[giver] - counts[taker] < 2:
            break
        slots = _choose(facts, giver, number)
        givers.remove(giver)
        if not slots:
            continue
        reason = f"raft group {giver} owns {counts[giver]} slots, {taker} owns {counts[taker]}"
        steps.append(MoveSlots(giver, taker, slots, reason))
        counts[giver] -= len(slots)
        counts[taker] += len(slots)
    return steps


def _choose(facts: SlotFacts, raft_group: int, number: int) -> tuple[int, ...]:
    """Return slots that were owned longest, spread over their whole range.

    Neighbouring slots hold neighbouring queues of a topic; these should not go together.
    """
    slots = facts.settled(raft_group)
    number = min(number, len(slots))
    if not number:
        return ()
    since = sorted(facts.owned_since[slot] for slot in slots)[number - 1]
    oldest = [slot for slot in slots if facts.owned_since[slot] <= since]
    return tuple(oldest[at * len(oldest) // number] for at in range(number))
