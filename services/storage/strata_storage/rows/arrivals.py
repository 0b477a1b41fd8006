"""Fetches that wait at the end of a queue (bounded).

Unlike pops, fetches share nothing: every one that waits at a queue gets its new messages, so all
of them wait for one future per queue.
"""

from __future__ import annotations

import asyncio

from strata.storage.v1 import storage_pb2 as pb
from strata_storage.base.errors import Refused

_QueueKey = tuple[int, int]


class Arrivals:
    """Waiting fetches of one leader in one term.

    Args:
        max_waiters: limit on fetches that wait.
        max_bytes: limit on their requests, which stay in memory as long.

    Attributes:
        waiting_bytes: of the requests of fetches that wait.
    """

    __slots__ = (
        "_arrived",
        "_max_bytes",
        "_max_waiters",
        "_refusal",
        "_waiting",
        "waiting_bytes",
    )

    def __init__(self, max_waiters: int, max_bytes: int) -> None:
        self._max_waiters = max_waiters
        self._max_bytes = max_bytes
        self.waiting_bytes = 0
        self._waiting = 0
        # (topic, queue) -> done with the next message
        self._arrived: dict[_QueueKey, asyncio.Future[None]] = {}
        self._refusal: Refused | None = None

    def __len__(self) -> int:
        return self._waiting

    async def wait(self, topic_id: int, queue: int, timeout_s: float, size_bytes: int = 0) -> bool:
        """Let a fetch, whose request has this size, wait for a message of a queue.

        Returns:
            False when `timeout_s` passed first.

        Raises:
            Refused: OUTCOME_TOO_MANY_WAITERS, or what `refuse_all` gave.
        """
        if self._refusal is not None:
            raise self._refusal
        if self._waiting >= self._max_waiters:
            raise Refused(pb.OUTCOME_TOO_MANY_WAITERS, f"{self._max_waiters} fetches wait already")
        if self.waiting_bytes + size_bytes > self._max_bytes:
            raise Refused(
                pb.OUTCOME_TOO_MANY_WAITERS,
                f"requests of waiting fetches have {self.waiting_bytes} of {self._max_bytes} bytes",
            )
        key = (topic_id, queue)
        arrived = self._arrived.get(key)
        if arrived is None:
            arrived = self._arrived[key] = asyncio.get_running_loop().create_future()
        self._waiting += 1
        self.waiting_bytes += size_bytes
        try:
            # The future is shared: unlike `wait_for`, this does not cancel it.
            done, _ = await asyncio.wait((arrived,), timeout=timeout_s)
        finally:
            self._waiting -= 1
            self.waiting_bytes -= size_bytes
            if not self._waiting:
                self._arrived.clear()
        if self._refusal is not None:
            raise self._refusal
        return bool(done)

    def arrived(self, topic_id: int, queue: int) -> None:
        """Wake what waits at a queue: it has new messages."""
        if not self._arrived:
            return
        arrived = self._arrived.pop((topic_id, queue), None)
        if arrived is not None:
            arrived.set_result(None)

    def refuse_all(self, refusal: Refused) -> None:
        """End every wait, because this replica does not lead any more."""
        self._refusal = refusal
        arrived, self._arrived = self._arrived, {}
        for future in arrived.values():
            future.set_result(None)
