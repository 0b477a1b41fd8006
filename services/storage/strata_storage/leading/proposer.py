"""How a leader's decisions get into the raft log, and what it knows to be under way.

Invariant: speculative state changes only for commands that were proposed (or are kept to be
proposed next, `LeaseLog`); a proposal that is refused at once leaves no trace.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.group_time import GroupTime
from strata_multiraft.base import LogFull, NotLeader, Overloaded, ReadOnly
from strata_runtime.clock import Clock
from strata_storage.base.errors import Refused

Payload = tuple[bytes, ...]


class LeaderReplica(Protocol):
    """The part of `strata_multiraft.Replica` that an engine needs."""

    @property
    def leader_replica_id(self) -> int:
        """Replica that leads, 0 if unknown."""

    @property
    def read_only(self) -> str:
        """Why the replica takes no entries for good; empty if it does."""

    @property
    def disk_mark(self) -> int:
        """The worst disk mark that a quorum of the raft group needs (rule 11)."""

    @property
    def installing(self) -> bool:
        """Whether a snapshot is being taken in: rows are not whole."""

    @property
    def is_handing_over(self) -> bool:
        """Whether the leadership is on its way to another replica."""

    def is_sole(self) -> bool:
        """Whether this replica is its raft group's only one."""

    def is_ready_leader(self) -> bool:
        """Whether this replica leads and the no-op of its term is applied."""

    def propose(self, payload: Payload) -> asyncio.Future[int]:
        """Propose an entry; the future gives its index once it is committed."""

    async def read_barrier(self) -> int:
        """Wait until what was committed at the call is applied."""

    async def applied(self, index: int) -> None:
        """Wait until an index is applied here."""


class Proposer:
    """Proposes for one leader in one term.

    Args:
        replica: the raft group's replica on this node.
        clock: for group time.
        last_stamp_ms: group time of the last applied entry.
    """

    __slots__ = ("_applied_callbacks", "_clock", "_dropped", "_in_flight", "_time", "replica")

    def __init__(self, replica: LeaderReplica, clock: Clock, last_stamp_ms: int) -> None:
        self.replica = replica
        self._clock = clock
        self._time = GroupTime(last_stamp_ms)
        self._time.start_term(clock.monotonic_s(), clock.wall_ms())
        # Proposals whose rows are not in the store yet, in log order, and what to do when they are.
        self._in_flight: deque[tuple[asyncio.Future[int], Callable[[], None]]] = deque()
        self._dropped = False

    def __len__(self) -> int:
        return len(self._in_flight)

    def now_ms(self) -> int:
        """Return the group time."""
        return self._time.now(self._clock.monotonic_s(), self._clock.wall_ms())

    def propose(
        self, payload: Payload, when_applied: Callable[[], None] = lambda: None
    ) -> asyncio.Future[int]:
        """Propose an entry; the future gives its index once it is committed.

        Args:
            payload: a command.
            when_applied: called when the entry's rows are in the store.

        Raises:
            Refused: nothing was proposed.
        """
        if self._dropped:
            # The replica may lead again, in another term: what was decided in this one is void.
            raise self._lost_leadership()
        try:
            future = self.replica.propose(payload)
        except (NotLeader, Overloaded, ReadOnly, LogFull) as error:
            raise refusal_of(error) from error
        except ValueError as error:
            raise Refused(pb.OUTCOME_INVALID, str(error)) from error
        self._in_flight.append((future, when_applied))
        return future

    def on_applied(self, index: int) -> None:
        """Take in that everything up to `index` is in the store."""
        in_flight = self._in_flight
        while in_flight:
            future, when_applied = in_flight[0]
            if not future.done() or future.cancelled() or future.exception() is not None:
                return
            if future.result() > index:
                return
            in_flight.popleft()
            when_applied()

    def drop(self) -> None:
        """Forget what is in flight: leadership was lost, whoever waits has been told.

        Nobody waits for some proposals, such as expiries; their failure is no news.
        """
        for future, _ in self._in_flight:
            if future.done() and not future.cancelled():
                future.exception()
        self._in_flight.clear()
        self._dropped = True

    async def settled(self) -> None:
        """Wait until everything proposed before the call is committed.

        A caller that decided to do nothing relied on it: when it fails, the caller may not say
        that it was done either.

        Raises:
            Refused: leadership was lost; whether all of it will be committed is unknown.
        """
        if self._in_flight:
            await committed(self._in_flight[-1][0])
        if self._dropped:
            raise self._lost_leadership()

    def _lost_leadership(self) -> Refused:
        leader_replica_id = self.replica.leader_replica_id
        return Refused(pb.OUTCOME_NOT_LEADER, "leadership was lost", leader_replica_id)

    async def applied(self) -> None:
        """Wait until everything proposed before the call is applied.

        Raises:
            Refused: leadership was lost; whether all of it will be committed is unknown.
        """
        await self.settled()
        try:
            await self.replica.read_barrier()
        except (NotLeader, Overloaded, ReadOnly) as error:
            raise refusal_of(error) from error


async def committed(future: asyncio.Future[int]) -> int:
    """Wait for a proposal; return its index.

    Raises:
        Refused: leadership was lost; whether the entry will be committed is unknown.
    """
    try:
        # Several calls may wait for one proposal; a cancelled one must not cancel it.
        return await asyncio.shield(future)
    except (NotLeader, Overloaded, ReadOnly, LogFull) as error:
        raise refusal_of(error) from error


def refusal_of(error: NotLeader | Overloaded | ReadOnly | LogFull) -> Refused:
    """Translate why the driver took no proposal."""
    if isinstance(error, NotLeader):
        return Refused(pb.OUTCOME_NOT_LEADER, str(error), error.leader_replica_id)
    if isinstance(error, Overloaded):
        return Refused(pb.OUTCOME_OVERLOADED, str(error))
    if isinstance(error, LogFull):
        return Refused(pb.OUTCOME_DISK_FULL, str(error))
    return Refused(pb.OUTCOME_READ_ONLY, str(error))
