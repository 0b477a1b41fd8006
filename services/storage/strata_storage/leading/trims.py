"""Trims of one leader: those of retention and those that operators order, one at a time (rule 10).

A trim says where queues begin, and apply writes it without a comparison (rule 1). So no trim is
decided before the one ahead of it is applied: an older decision would let a queue begin earlier
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from strata_mq.commands import TrimCommand, TrimmedQueue, encode_trim
from strata_storage.leading.pin_sweep import PinSweep
from strata_storage.leading.proposer import Proposer, committed
from strata_storage.rows.machine import GroupMachine

_NOTHING_OLD_MS = 0


def trim_of_queues(machine: GroupMachine, trimmed: Sequence[TrimmedQueue]) -> TrimCommand:
    """Return a trim that frees no rows by their age: by an operator's order, or one of several."""
    return TrimCommand(machine.low_index, _NOTHING_OLD_MS, trimmed)


class Trims:
    """See the module docstring.

    Args:
        machine: rows of the raft group.
        proposer: of this leader.
        queues_max: see the attribute.
        sweep: looks at pins; is told when queues begin later by an operator's order.

    Attributes:
        queues_max: queues of one trim; more are trimmed by several, one after the other.
    """

    def __init__(
        self,
        machine: GroupMachine,
        proposer: Proposer,
        queues_max: int,
        *,
        sweep: PinSweep,
    ) -> None:
        self._machine = machine
        self._proposer = proposer
        self._sweep = sweep
        self.queues_max = queues_max
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Have the turn for a decision about a trim, until the trim is applied.

        The holder before may have left in the middle: its caller was gone, or a wait failed. So the
        turn begins once everything that was proposed before is applied.

        Raises:
            Refused: not the leader, or not now.
        """
        async with self._turn:
            if len(self._proposer):
                await self._proposer.applied()
            yield

    async def purge(self, topic_id: int, starts: Mapping[int, int]) -> int:
        """Let queues of a topic begin at offsets; return how many messages that deletes.

        A queue that begins later already stays as it is, and no queue begins beyond its end. The
        disk gets the space back with the next turns of retention.

        Args:
            topic_id: of the topic.
            starts: queue -> first offset that stays.

        Raises:
            Refused: not the leader, or not now; whether it is done, for some queues or for all,
                may be unknown.
        """
        async with self.turn():
            deleted = 0
            trimmed: list[TrimmedQueue] = []
            for queue, start in starts.items():
                row = self._machine.queues.get(topic_id, queue)
                if row is None or min(start, row.next_offset) <= row.min_offset:
                    continue
                if len(trimmed) >= self.queues_max:
                    await self._begin_later(trimmed)
                    trimmed = []
                min_offset = min(start, row.next_offset)
                deleted += min_offset - row.min_offset
                trimmed.append(TrimmedQueue(topic_id, queue, min_offset))
            if trimmed:
                await self._begin_later(trimmed)
            else:
                await self._proposer.applied()
            return deleted

    async def apply(self, command: TrimCommand) -> None:
        """Propose a trim and wait until it is applied; the caller has the turn.

        Raises:
            Refused: not the leader, or not now; whether it is done may be unknown.
        """
        await committed(self._proposer.propose((encode_trim(command),)))
        await self._proposer.applied()

    async def _begin_later(self, trimmed: Sequence[TrimmedQueue]) -> None:
        self._sweep.look_everywhere()
        await self.apply(trim_of_queues(self._machine, trimmed))
