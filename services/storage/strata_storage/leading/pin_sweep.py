"""Finds deletable pins: those of trimmed messages and of dropped topics (rule 10).

A leader looks at a bounded number of pins with every trim: at the first ones, because the smallest
remaining pin bounds the low index; and at some more, from where it stopped the last time, because
one message that waits for weeks must not keep the pins of all later ones. These are looked at in
passes, each from the front up to where pins may have become deletable since the pass before it
began: those of messages that are kept, nearly all, are not looked at again and again.

Invariant: a pin that is deletable once stays deletable, and a new pin has a greater index than all
pins looked at before. So a run of such pins is safe to delete whenever the trim is applied.

The pin of a committed message says to whoever repeats the commit that it is done (rule 37). It
stays for a time after its message was trimmed, as this leader saw it: a topic may keep messages for
seconds only. It keeps no entry in the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from strata_mq.commands import DropKind
from strata_mq.layout import PartKind, PendingKey, PendingRef, PinRow, PinRun, PinState
from strata_storage.rows.machine import GroupMachine

# Pins looked at with one trim, at the front and from the last stop on: about 1 s of work at most.
_PINS_PER_SCAN = 250_000
# Pins looked at before the event loop gets a turn.
_PINS_PER_TURN = 500
# Runs, and messages of dropped topics, that one trim removes.
_REMOVED_MAX = 2_000
# A shorter run is removed pin by pin: a range deletion costs readers more than a few deletions.
_RANGE_PINS_MIN = 8

_FIRST = PendingRef(0, 0)
# A raft index behind all, whose next one still fits into a key.
_EVERYWHERE = (1 << 64) - 2


@dataclass(slots=True)
class SweptPins:
    """Findings of a sweep.

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


@dataclass(slots=True)
class _Begin:
    """Where a queue began.

    Attributes:
        long_ago: committed messages before it were trimmed long enough ago.
        lately: where the queue began at `since_ms`.
        since_ms: group time.
    """

    long_ago: int
    lately: int
    since_ms: int


class PinSweep:
    """Looks at the pins of one raft group for the leader of one term.

    Args:
        committed_ms: how long the pin of a committed message stays at least after its message was
            trimmed; at most twice as long, and a turn of retention more.
    """

    def __init__(self, committed_ms: int = 0) -> None:
        self._committed_ms = committed_ms
        # By (topic, queue), of queues in which committed messages were trimmed.
        self._begins: dict[tuple[int, int], _Begin] = {}
        # The first pin that stayed though it keeps no entry; None: there is none.
        self._kept: PendingRef | None = None
        # Where the next scan begins that is not at the front; the first one: a pass begins.
        self._next = _FIRST
        # Last raft index that this pass looks at, and the next one. Nothing is known of earlier
        # leaders, so the first pass looks at everything.
        self._reach, self._next_reach = 0, _EVERYWHERE
        self._drops = 0
        self._is_first = True

    def look_everywhere(self) -> None:
        """Let the next pass look at all pins: any of them may have become deletable."""
        self._next_reach = _EVERYWHERE

    async def sweep(
        self,
        machine: GroupMachine,
        min_offsets: Mapping[tuple[int, int], int],
        now_ms: int,
        reach: int = _EVERYWHERE,
    ) -> SweptPins:
        """Look at some pins.

        Args:
            machine: of the raft group.
            min_offsets: where (topic, queue) will begin; other queues begin where they do.
            now_ms: group time.
            reach: raft index behind which nothing that `min_offsets` trims got its offset, so that
                no pin of these messages lies behind it either.
        """
        found = SweptPins()
        if machine.dropped.additions != self._drops:
            self._drops, reach = machine.dropped.additions, _EVERYWHERE
        self._next_reach = max(self._next_reach, reach)
        judge = _Judge(machine, min_offsets, lambda key, at: self._long_ago(key, at, now_ms))
        scan = _Scan(machine, judge, found)
        # Below the low index there is nothing but tombstones, once it was looked at (rule 27), and
        # pins of committed messages.
        begin = _FIRST if self._is_first else PendingRef(machine.low_index, 0)
        self._is_first = False
        below = None
        if self._kept is not None and self._kept < begin:
            below = await scan.run(self._kept, end=begin)
        stopped = await scan.run(begin, until_held=True)
        self._kept = scan.first_kept or below
        if stopped is not None:
            found.low_index = stopped.raft_index
            # Pins of messages that are in the tier stay below it, until those are trimmed there.
            front = _FIRST if machine.tier.is_used else stopped
            await self._look_on(scan, front, found)
        await self._forget_gone(machine)
        return found

    async def _look_on(self, scan: _Scan, front: PendingRef, found: SweptPins) -> None:
        """Go on with the pass over pins behind the front, or begin the next one."""
        if self._next == _FIRST:
            self._reach, self._next_reach = self._next_reach, 0
        begin, end = max(self._next, front), PendingRef(self._reach + 1, 0)
        self._next = _FIRST
        if begin < end:
            self._next = await scan.run(begin, end=end) or _FIRST
        # Those that are kept for a time go later; those that go now may stay, if the trim fails.
        again = [run.first for run in found.runs]
        if scan.last_kept is not None:
            again.append(scan.last_kept)
        self._next_reach = max([self._next_reach, *(ref.raft_index for ref in again)])

    async def _forget_gone(self, machine: GroupMachine) -> None:
        """Forget where queues began that are gone: their pins need nobody's leave."""
        for count, key in enumerate(list(self._begins), 1):
            if count % _PINS_PER_TURN == 0:
                await asyncio.sleep(0)
            # Past the cache, which is for queues in use.
            if machine.rows.queues.get(*key) is None:
                del self._begins[key]

    def _long_ago(self, key: tuple[int, int], min_offset: int, now_ms: int) -> int:
        """Return below which offset pins of committed messages may go."""
        if not self._committed_ms:
            return min_offset
        begin = self._begins.setdefault(key, _Begin(0, min_offset, now_ms))
        if now_ms - begin.since_ms >= self._committed_ms:
            begin.long_ago, begin.lately, begin.since_ms = begin.lately, min_offset, now_ms
        return begin.long_ago


def holds_entry(machine: GroupMachine, pin: PinRow) -> bool:
    """Whether the log must keep the entry of a pin that stays.

    Not if the message has its place in a queue, and the tier has it instead of the log, or it was
    trimmed.
    """
    if pin.state in (PinState.PENDING, PinState.LOST):
        return True
    row = machine.queues.get(pin.topic_id, pin.queue)
    if row is None or pin.offset < row.min_offset:
        return False
    return pin.offset >= machine.tier.local_offset(pin.topic_id, pin.queue)


class _Judge:
    """Says of pins whether they may go.

    Args:
        machine: of the raft group.
        min_offsets: as `PinSweep.sweep` gets them.
        long_ago: (topic, queue) and where it begins -> the same for committed messages.
    """

    def __init__(
        self,
        machine: GroupMachine,
        min_offsets: Mapping[tuple[int, int], int],
        long_ago: Callable[[tuple[int, int], int], int],
    ) -> None:
        self._machine = machine
        self._long_ago = long_ago
        # None: the queue is gone.
        self._min_offsets: dict[tuple[int, int], int | None] = dict(min_offsets)

    def may_go(self, pin: PinRow) -> bool:
        if pin.state is PinState.LOST:
            return True
        if pin.state is PinState.PENDING:
            return (DropKind.TOPIC, pin.topic_id) in self._machine.dropped
        min_offset = self._min_offset(pin)
        if min_offset is None:
            return True
        if pin.offset >= min_offset:
            return False
        if pin.kind is not PartKind.HALF:
            return True
        return pin.offset < self._long_ago((pin.topic_id, pin.queue), min_offset)

    def is_trimmed(self, pin: PinRow) -> bool:
        """Whether the message of a pin that stays is gone, or goes now."""
        if pin.state in (PinState.PENDING, PinState.LOST):
            return False
        min_offset = self._min_offset(pin)
        return min_offset is None or pin.offset < min_offset

    def _min_offset(self, pin: PinRow) -> int | None:
        key = pin.topic_id, pin.queue
        if key not in self._min_offsets:
            row = self._machine.queues.get(*key)
            self._min_offsets[key] = None if row is None else row.min_offset
        return self._min_offsets[key]


class _Scan:
    """One pass over pins; adds runs of those that may go.

    Attributes:
        first_kept: the first pin that stays though its message was trimmed.
        last_kept: the last one.
    """

    def __init__(self, machine: GroupMachine, judge: _Judge, found: SweptPins) -> None:
        self._machine = machine
        self._judge = judge
        self._found = found
        self._run: list[PendingRef] = []
        self.first_kept: PendingRef | None = None
        self.last_kept: PendingRef | None = None

    async def run(
        self, begin: PendingRef, *, end: PendingRef | None = None, until_held: bool = False
    ) -> PendingRef | None:
        """Look at pins from `begin` on; return where it stopped, None: there are no more.

        Args:
            begin: the first one.
            end: the first one that is not looked at; None: it goes on to the last one.
            until_held: stop at the first one that stays and keeps an entry in the log.
        """
        for count, (ref, pin) in enumerate(self._machine.rows.pins.scan(begin), 1):
            if count % _PINS_PER_TURN == 0:
                await asyncio.sleep(0)
            if end is not None and ref >= end:
                break
            may_go = self._judge.may_go(pin)
            is_kept = not may_go and self._judge.is_trimmed(pin)
            if not may_go:
                self._end_run()
            if is_kept:
                self.first_kept = self.first_kept or ref
                self.last_kept = ref
            is_held = until_held and not (may_go or is_kept) and holds_entry(self._machine, pin)
            if is_held or self._found.is_full or count > _PINS_PER_SCAN:
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
