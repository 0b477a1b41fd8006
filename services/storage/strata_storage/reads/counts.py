"""How many messages wait in a raft group, by kind: counted once per term, then kept up to date.

Rows are counted from one picture of the store, in turns, so that a million of them delays nobody;
what changes meanwhile is counted beside.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import islice

from strata_mq.layout import PartKind
from strata_storage.base.errors import Refused
from strata_storage.base.jobs import RunJob
from strata_storage.rows.machine import GroupMachine

_ROWS_PER_TURN = 10_000
_PAUSE_S = 0.02
# When too many reads wait already.
_RETRY_S = 1.0


class PendingCounts:
    """Counts of one leader.

    Args:
        machine: of the raft group.
        run_read: runs blocking reads.

    Attributes:
        is_stale: rows went without being named, or were never counted: `count` is to be called
            by whoever sets it back.
    """

    __slots__ = ("_changed", "_counted", "_machine", "_picture", "_run_read", "is_stale")

    def __init__(self, machine: GroupMachine, run_read: RunJob) -> None:
        self._machine = machine
        self._run_read = run_read
        self._counted: Counter[int] = Counter()
        self._changed: Counter[int] = Counter()
        # Number of the picture that is counted.
        self._picture = 0
        self.is_stale = True

    def of(self, kind: PartKind) -> int:
        """Return how many messages of a kind wait; too few until all are counted."""
        return max(0, self._counted[kind] + self._changed[kind])

    def changed(self, kind: PartKind, number: int) -> None:
        """Take in that so many more wait, or fewer."""
        self._changed[kind] += number

    async def count(self) -> None:
        """Count the rows; end early when another call begins anew.

        Raises:
            StateError: the rows cannot be read.
        """
        self._picture += 1
        picture = self._picture
        # From here on the picture stands: what is applied later is a change.
        kinds = self._machine.rows.pending.kinds(self._machine.pending_bound)
        self._counted.clear()
        self._changed.clear()
        while True:
            try:
                turn = await self._run_read(lambda: Counter(islice(kinds, _ROWS_PER_TURN)))
            except Refused:
                await asyncio.sleep(_RETRY_S)
                continue
            if picture != self._picture:
                return
            self._counted += turn
            if turn.total() < _ROWS_PER_TURN:
                return
            await asyncio.sleep(_PAUSE_S)
