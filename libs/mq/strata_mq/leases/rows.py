"""Rows of one (consumer group, queue) and the indexes over them, without decisions.

Every row is in `_rows`; counts and indexes follow from the rows and are kept beside them. Indexes
are lazy: they may name deleted rows, and are rebuilt when more than half of their entries do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from strata_mq.leases.indexes import Deadlines, OffsetsByAttempt, OffsetsByOwner
from strata_mq.leases.order import FifoOrder, Order, PlainOrder
from strata_mq.leases.types import Lease, LeaseChange, LeaseState

# Indexes smaller than this are not worth rebuilding.
_INDEX_SLACK = 1024

_LEASED = LeaseState.LEASED
_WAITING = LeaseState.WAITING
_BLOCKED = LeaseState.BLOCKED


class QueueLeaseRows:
    """The state of `QueueLeases`, which adds the decisions.

    Attributes:
        head: Next offset that was never looked at.
        generation: Raised by `reset`; handles of an older one are void.
        in_flight: Rows that are LEASED.
        waiting: Rows that are WAITING or BLOCKED.
        blocked: Rows that are BLOCKED.
    """

    __slots__ = (
        "_attempts",
        "_auto_renew_limit_ms",
        "_deadlines",
        "_exhausted",
        "_exhausted_unlisted",
        "_fifo",
        "_held",
        "_offsets",
        "_order",
        "_rows",
        "blocked",
        "generation",
        "head",
        "in_flight",
        "waiting",
    )

    def __init__(
        self,
        head: int,
        generation: int,
        rows: Iterable[tuple[int, Lease]],
        *,
        auto_renew_limit_ms: int,
    ) -> None:
        self.head = head
        self.generation = generation
        self._auto_renew_limit_ms = auto_renew_limit_ms
        # By holder of an auto-renewed lease.
        self._held = OffsetsByOwner()
        self._forget_rows()
        self._rows.update(sorted(rows))
        for offset, lease in self._rows.items():
            assert offset < head, f"lease row {offset} at or above head {head}"
            self._adopt(offset, lease)
        self._use_order(fifo=False)

    def cursor(self) -> int:
        """Return the lowest offset that is not consumed."""
        offsets, rows = self._offsets, self._rows
        while offsets and offsets[0] not in rows:
            offsets.popleft()
        return offsets[0] if offsets else self.head

    def rows(self) -> Sequence[tuple[int, Lease]]:
        """Return all rows in order of their offsets; a copy."""
        return tuple(self._rows.items())

    def is_consumed(self, offset: int) -> bool:
        """Whether a message was acked, filtered out, removed or trimmed."""
        return offset < self.head and offset not in self._rows

    def exhausted(self) -> Sequence[tuple[int, Lease]]:
        """Return the rows whose attempts are used up: to the dead-letter topic with them."""
        return [(offset, self._rows[offset]) for offset in self._exhausted]

    def _forget_rows(self) -> None:
        self.in_flight = self.waiting = self.blocked = 0
        # By rising offset: rows are added at the end and never come back.
        self._rows: dict[int, Lease] = {}
        self._offsets: deque[int] = deque()
        self._deadlines = Deadlines(self._rows, self._auto_renew_limit_ms)
        self._held.clear()
        self._attempts = OffsetsByAttempt(self._rows)
        self._exhausted: dict[int, None] = {}
        self._exhausted_unlisted = False

    def _adopt(self, offset: int, lease: Lease) -> None:
        """Index a stored row."""
        self._offsets.append(offset)
        if lease.state is _LEASED:
            self.in_flight += 1
            if lease.auto_renewed:
                self._held.add(lease.holder, (offset,))
            if lease.attempt:
                self._attempts.add(lease.attempt, (offset,), self.in_flight)
            self._deadlines.push(self._deadlines.of(lease), (offset,), self.in_flight)
            return
        self.waiting += 1
        if lease.state is _BLOCKED:
            self.blocked += 1
        if lease.exhausted:
            self._exhausted[offset] = None
            self._exhausted_unlisted = True

    def _use_order(self, *, fifo: bool) -> None:
        self._fifo = fifo
        order: Order = FifoOrder(self._rows) if fifo else PlainOrder(self._rows)
        for offset, lease in self._rows.items():
            order.added(offset, lease)
        self._order = order

    def _delete(self, offset: int, lease: Lease) -> LeaseChange:
        self._remove(offset, lease)
        return LeaseChange(self.generation, self.head, False, (), (offset,))

    def _remove(self, offset: int, lease: Lease) -> None:
        rows = self._rows
        del rows[offset]
        if lease.state is _LEASED:
            self._let_go(offset, lease)
            self.in_flight -= 1
        else:
            self.waiting -= 1
            if lease.state is _BLOCKED:
                self.blocked -= 1
            self._exhausted.pop(offset, None)
        self._order.removed(offset, lease)
        self._shorten_index()

    def _shorten_index(self) -> None:
        """Drop offsets of rows that are gone, once they are the greater part."""
        if len(self._offsets) > 2 * len(self._rows) + _INDEX_SLACK:
            self._offsets = deque(self._rows)

    def _make_visible(
        self, offset: int, lease: Lease, now_ms: int, lease_number: int | None = None
    ) -> Lease:
        """Turn a LEASED row into WAITING."""
        self._let_go(offset, lease)
        number = lease.lease_number if lease_number is None else lease_number
        lease = lease.unheld(_WAITING, number, now_ms)
        self._rows[offset] = lease
        self.in_flight -= 1
        self.waiting += 1
        if lease.exhausted:
            self._exhausted[offset] = None
            self._exhausted_unlisted = True
        self._order.became_visible(offset, lease)
        return lease

    def _let_go(self, offset: int, lease: Lease) -> None:
        """Forget who holds a LEASED row."""
        if lease.auto_renewed:
            self._held.discard(lease.holder, offset)

    def _is_held(self, lease: Lease, lease_number: int, generation: int, now_ms: int) -> bool:
        return (
            lease.state is _LEASED
            and lease.lease_number == lease_number
            and generation == self.generation
            and self._deadlines.of(lease) > now_ms
        )

    def _is_acked(
        self, lease: Lease, lease_number: int, generation: int, visible_at_ms: int, now_ms: int
    ) -> bool:
        """Whether an ack means this lease; 0: of any number, if it ends exactly at its time.

        A client of the remoting protocol that acks in batches returns times only.
        """
        if lease_number:
            return self._is_held(lease, lease_number, generation, now_ms)
        return lease.ends_at(visible_at_ms, now_ms)

    def _puts_change(self, puts: dict[int, Lease]) -> LeaseChange | None:
        if not puts:
            return None
        return LeaseChange(self.generation, self.head, False, tuple(puts.items()))
