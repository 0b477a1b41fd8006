"""Finds deletable pins: those of trimmed messages and of dropped topics (rule 10).

A leader looks at a bounded number of pins with every trim: at the first ones, because the smallest
remaining pin bounds the low index; and at some more, from where it stopped the last time, because
one message that waits for weeks must not keep the pins of all later ones.

Invariant: a pin that is deletable once stays deletable, and a new pin has a greater index than all
pins looked at before. So a run of such pins is safe to delete whenever the trim is applied.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from strata_mq.commands import DropKind
from strata_mq.layout import PendingKey, PendingRef, PinRow, PinRun, PinState
from strata_storage.rows.machine import GroupMachine

# Pins looked at with one trim, at the front and from the last stop on: about 1 s of work at most.
_PINS_PER_LOOK = 250_000
# Pins looked at before the event loop gets a turn.
_PINS_PER_TURN = 500
# Runs, and messages of dropped topics, that one trim removes.
_REMOVED_MAX = 2_000
# A shorter run is removed pin by pin: a range deletion costs readers more than a few deletions.
_RANGE_PINS_MIN = 8

_FIRST = PendingRef(0, 0)


@dataclass(slots=True)
class SweptPins:
    """What a sweep found.

    Attributes:
        low_index: index of the first entry that a pin may keep; None: no pin keeps one.
        runs: pins that may go.
        pending: messages of dropped topics that still wait; their pins are in runs.
    """

    low_index: int | None = None
    runs: list[PinRun] = field(default_factory=list)
    pending: list[PendingKey] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        """Whether the rest is left for the next trim."""
        return len(self.runs) + len(self.pending) >= _REMOVED_MAX


class PinSweep:
    """Looks at the pins of one raft group for the leader of one term."""

    def __init__(self) -> None:
        # Where the next look begins that is not at the front.
        self._next = _FIRST
        self._is_first = True

    async def sweep(
        self, machine: GroupMachine, min_offsets: Mapping[tuple[int, int], int]
    ) -> SweptPins:
        """Look at some pins.

        Args:
            machine: of the raft group.
            min_offsets: where (topic, queue) will begin; other queues begin where they do.
        """
        found = SweptPins()
        look = _Look(machine, _Judge(machine, min_offsets), found)
        # Below the low index there is nothing but tombstones, once it was looked at (rule 27).
        begin = _FIRST if self._is_first else PendingRef(machine.low_index, 0)
        self._is_first = False
        stopped = await look.look(begin, until_held=True)
        if stopped is not None:
            found.low_index = stopped.raft_index
            # Pins of messages that are in the tier stay below it, until those are trimmed there.
            rest = self._next if machine.tier.is_used else max(self._next, stopped)
            self._next = await look.look(rest) or _FIRST
        return found


def holds_entry(machine: GroupMachine, pin: PinRow) -> bool:
    """Whether the log must keep the entry of a pin that stays.

    Not if the message has its place in a queue, and the tier has it instead of the log.
    """
    if pin.state in (PinState.PENDING, PinState.LOST):
        return True
    return pin.offset >= machine.tier.local_offset(pin.topic_id, pin.queue)


class _Judge:
    """Says of pins whether they may go."""

    def __init__(self, machine: GroupMachine, min_offsets: Mapping[tuple[int, int], int]) -> None:
        self._machine = machine
        # None: the queue is gone.
        self._min_offsets: dict[tuple[int, int], int | None] = dict(min_offsets)

    def may_go(self, pin: PinRow) -> bool:
        if pin.state is PinState.LOST:
            return True
        if pin.state is PinState.PENDING:
            return (DropKind.TOPIC, pin.topic_id) in self._machine.dropped
        key = pin.topic_id, pin.queue
        if key not in self._min_offsets:
            row = self._machine.queues.get(*key)
            self._min_offsets[key] = None if row is None else row.min_offset
        min_offset = self._min_offsets[key]
        return min_offset is None or pin.offset < min_offset


class _Look:
    """One pass over pins; adds runs of those that may go."""

    def __init__(self, machine: GroupMachine, judge: _Judge, found: SweptPins) -> None:
        self._machine = machine
        self._judge = judge
        self._found = found
        self._run: list[PendingRef] = []

    async def look(self, begin: PendingRef, *, until_held: bool = False) -> PendingRef | None:
        """Look at pins from `begin` on; return where it stopped, None: there are no more.

        Args:
            begin: the first one.
            until_held: stop at the first one that stays and keeps an entry in the log.
        """
        for count, (ref, pin) in enumerate(self._machine.rows.pins.scan(begin), 1):
            if count % _PINS_PER_TURN == 0:
                await asyncio.sleep(0)
            may_go = self._judge.may_go(pin)
            if not may_go:
                self._end_run()
            is_held = until_held and not may_go and holds_entry(self._machine, pin)
            if is_held or self._found.is_full or count > _PINS_PER_LOOK:
                self._end_run()
                return ref
            if may_go:
                self._run.append(ref)
                if pin.state is PinState.PENDING:
                    self._found.pending.append(PendingKey(pin.due_ms, *ref))
        self._end_run()
        return None

    def _end_run(self) -> None:
        run, self._run = self._run, []
        if len(run) >= _RANGE_PINS_MIN:
            self._found.runs.append(PinRun(run[0], run[-1].following()))
        else:
            self._found.runs += [PinRun(ref, ref.following()) for ref in run]
