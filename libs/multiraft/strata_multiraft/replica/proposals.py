"""Proposals of one replica under way: queued, then waiting with an index, then decided.

Invariant: waiting proposals ascend by index. Each counts against the node's limits until it is
decided.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from strata_multiraft.base.in_flight import InFlightLimits
from strata_multiraft.base.options import FRAME_OVERHEAD_BYTES
from strata_raft import Payload


@dataclass(slots=True)
class _Proposal:
    payload: Payload
    size_bytes: int
    future: asyncio.Future[int]
    index: int = 0


class Proposals:
    """Proposals that are not decided yet.

    Args:
        in_flight: the node's limits.
    """

    __slots__ = ("_in_flight", "_queued", "_waiting")

    def __init__(self, in_flight: InFlightLimits) -> None:
        self._in_flight = in_flight
        self._queued: list[_Proposal] = []
        self._waiting: deque[_Proposal] = deque()

    def __len__(self) -> int:
        return len(self._queued) + len(self._waiting)

    @property
    def has_queued(self) -> bool:
        """Whether any were not taken."""
        return bool(self._queued)

    def queue(self, payload: Payload, size_bytes: int) -> tuple[asyncio.Future[int], bool]:
        """Queue a proposal; return its future and whether it is the first one in the queue.

        Raises:
            Overloaded: a limit is reached.
        """
        self._in_flight.take_proposal(size_bytes)
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._queued.append(_Proposal(payload, size_bytes, future))
        return future, len(self._queued) == 1

    def take(self, first_index: int, max_bytes: int) -> tuple[Payload, ...]:
        """Return queued payloads for one `Propose`; they wait from now on, from this index on.

        Args:
            first_index: of the entry that the first one becomes.
            max_bytes: of their frames; one is always taken, what is left stays queued.
        """
        queued, left_bytes = self._queued, max_bytes
        for number, proposal in enumerate(queued):
            left_bytes -= proposal.size_bytes + FRAME_OVERHEAD_BYTES
            if left_bytes < 0 and number:
                self._queued = queued[number:]
                queued = queued[:number]
                break
        else:
            self._queued = []
        for index, proposal in enumerate(queued, first_index):
            proposal.index = index
        self._waiting.extend(queued)
        return tuple(proposal.payload for proposal in queued)

    def refuse(self, number: int, error: Exception) -> None:
        """Fail the last `number` that were taken."""
        refused = [self._waiting.pop() for _ in range(number)]
        self._fail(refused[::-1], error)

    def fail_queued(self, error: Exception) -> None:
        """Fail what was not taken."""
        queued, self._queued = self._queued, []
        self._fail(queued, error)

    def fail(self, error: Exception) -> None:
        """Fail all."""
        waiting, self._waiting = self._waiting, deque()
        queued, self._queued = self._queued, []
        self._fail([*waiting, *queued], error)

    def committed(self, commit_index: int) -> None:
        """Answer what is committed."""
        waiting = self._waiting
        if not waiting or waiting[0].index > commit_index:
            return
        number = size_bytes = 0
        while waiting and waiting[0].index <= commit_index:
            proposal = waiting.popleft()
            number += 1
            size_bytes += proposal.size_bytes
            if not proposal.future.done():
                proposal.future.set_result(proposal.index)
        self._in_flight.give_back_proposals(number, size_bytes)

    def _fail(self, proposals: Sequence[_Proposal], error: Exception) -> None:
        for proposal in proposals:
            if not proposal.future.done():
                proposal.future.set_exception(error)
        self._in_flight.give_back_proposals(
            len(proposals), sum(proposal.size_bytes for proposal in proposals)
        )
