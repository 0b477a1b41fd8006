"""Releases of auto-renewed leases whose clients, or whose brokers, are gone (rules 25 and 36).

A broker that dies may leave leases of a hundred thousand clients behind. Invariants: one turn
releases a bounded number of leases, and the next turn goes on where it stopped; a client is looked
at again right before its leases are released, for it may have come back (rule 38).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from strata_mq.leases import LeaseChange
from strata_runtime.clock import Clock
from strata_storage.leading.pops.holders import Holders
from strata_storage.leading.pops.lease_set import LeaseSet
from strata_storage.leading.pops.lease_sets import LeaseSets
from strata_storage.leading.proposer import Proposer
from strata_storage.leading.takeovers import Takeover

# Leases released, and sets that were looked at or read for that, in one turn of the event loop.
_RELEASED_PER_TURN = 2_000
# So many clients that live cost as much as one lease.
_LIVING_PER_LEASE = 32


class _Found(NamedTuple):
    """A set in which a client that is gone may have leases."""

    holder: int
    lease_set: LeaseSet


class Releases:
    """The releases of one leader in one term.

    Args:
        sets: of leases.
        proposer: knows the group time.
        clock: for the age of this term.
        takeover: knows brokers that may be lost with an earlier leader.
        grace_s: nothing of silent clients is released for so long (rule 25).
    """

    __slots__ = (
        "_clock",
        "_gone",
        "_grace_s",
        "_proposer",
        "_sets",
        "_since_s",
        "_stalled_before_s",
        "_takeover",
    )

    def __init__(
        self,
        sets: LeaseSets,
        proposer: Proposer,
        clock: Clock,
        *,
        takeover: Takeover,
        grace_s: float,
    ) -> None:
        self._sets = sets
        self._proposer = proposer
        self._clock = clock
        self._takeover = takeover
        self._grace_s = grace_s
        self._since_s = clock.monotonic_s()
        self._stalled_before_s: float | None = None  # not asked yet
        # A search for leases of clients that are gone, where it stopped; None: it is at its end.
        self._gone: tuple[Holders, Iterator[_Found | None]] | None = None

    def release(self, holders: Holders) -> int:
        """Begin to release leases of clients that are gone; return how many it released now.

        Also learns which brokers are lost. `release_lost` goes on; `LeaseSets.lost` is true while
        there is something for it to do.

        Raises:
            Refused: not now; it is tried again.
        """
        now_s, now_ms = self._clock.monotonic_s(), self._proposer.now_ms()
        if self._stalled_before_s is None:
            self._stalled_before_s = holders.stalled_s
        lost = {
            broker: now_ms - int((now_s - broker.delivered_until_s) * 1_000)
            for broker in holders.brokers.lost(now_s)
        }
        if self._is_settled(holders, now_s):
            lost |= self._takeover.lost(holders.brokers, now_s)
        self._sets.lose(lost)
        self._sets.check_open()
        if self._gone is None:
            self._gone = holders, self._search(holders)
        released, _ = self._release_gone(_RELEASED_PER_TURN)
        # Nobody waits for it; changes that are refused are kept and go with the next entry.
        self._sets.flush_kept()
        return released

    def release_lost(self, limit: int) -> int:
        """Go on with `release`, and release leases that lost brokers may not have delivered.

        The holders of the latter live and do not know of them (rule 36). Searches sets until these
        and their leases are `limit`; returns how many leases it released.

        Raises:
            Refused: not now; it is tried again.
        """
        self._sets.check_open()
        released, seen = self._release_gone(limit)
        now_ms, lost = self._proposer.now_ms(), self._sets.lost
        while seen < limit and len(lost):
            seen += 1
            lease_set = self._sets.next_of_lost()
            if lease_set is None:
                continue
            leases = lease_set.leases
            seen += leases.in_flight + leases.waiting
            count = self._keep(
                lease_set,
                [leases.release_lost(holder, lost.since_ms, now_ms) for holder in leases.holders()],
            )
            if count:
                # There may be more of a holder than fit into a change.
                lost.put_off(lease_set.key)
            released += count
        self._sets.flush_kept()
        return released

    def _release_gone(self, limit: int) -> tuple[int, int]:
        """Return how many leases were released, and how much of the limit was used."""
        released = seen = 0
        rows_before = self._sets.rows_read
        while self._gone is not None and seen + self._sets.rows_read - rows_before < limit:
            holders, search = self._gone
            try:
                found = next(search)
            except StopIteration:
                self._gone = None
                break
            seen += 1
            if found is not None:
                count = self._release_of(holders, found)
                released, seen = released + count, seen + count
        self._sets.lost.is_unfinished = self._gone is not None
        return released, seen + self._sets.rows_read - rows_before

    def _search(self, holders: Holders) -> Iterator[_Found | None]:
        """Yield sets with leases of clients that are gone; None: that was some work in vain."""
        for number, holder in enumerate(self._sets.holders()):
            if not self._is_gone(holders, holder):
                if number % _LIVING_PER_LEASE == 0:
                    yield None
                continue
            for lease_set in self._sets.held_by(holder):
                yield None if lease_set is None else _Found(holder, lease_set)

    def _is_gone(self, holders: Holders, holder: int) -> bool:
        now_s = self._clock.monotonic_s()
        return holders.is_dead(holder, now_s, silent_too=self._is_settled(holders, now_s))

    def _is_settled(self, holders: Holders, now_s: float) -> bool:
        """Whether all clients and brokers that live have been heard of in this term."""
        # Brokers cannot report to a node that stands still: it waits for so much longer.
        stalled_s = holders.stalled_s - (self._stalled_before_s or 0.0)
        return now_s - self._since_s - stalled_s >= self._grace_s

    def _release_of(self, holders: Holders, found: _Found) -> int:
        holder, lease_set = found
        if not self._is_gone(holders, holder):
            # It came back since the last turn.
            return 0
        now_s, now_ms = self._clock.monotonic_s(), self._proposer.now_ms()
        settled_s = holders.settled_s(holder, now_s)
        before_ms = None
        if settled_s < now_s:
            before_ms = now_ms - int((now_s - settled_s) * 1_000)
        leases = lease_set.leases
        changes = (
            leases.release_lost(holder, self._sets.lost.since_ms, now_ms),
            leases.release_holder(holder, now_ms, before_ms),
        )
        return self._keep(lease_set, changes)

    def _keep(self, lease_set: LeaseSet, changes: Sequence[LeaseChange | None]) -> int:
        """Keep changes of a set to be proposed, as soon as they are made; return their leases."""
        found = [change for change in changes if change is not None]
        for change in found:
            self._sets.keep(lease_set, change)
        return sum(len(change.puts) for change in found)
