"""Ends of leases that no consumer asks for: their time is up, or their holder or broker is lost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from strata_mq.leases.rows import QueueLeaseRows
from strata_mq.leases.types import Lease, LeaseChange


class EndingLeases(QueueLeaseRows):
    """State and attributes are those of `QueueLeaseRows`."""

    __slots__ = ("_lost", "_max_changes")

    def __init__(
        self,
        head: int,
        generation: int,
        rows: Iterable[tuple[int, Lease]],
        *,
        auto_renew_limit_ms: int,
        max_changes: int,
        lost: Mapping[int, int],
    ) -> None:
        """Take up state as stored.

        Args:
            head: See `QueueLeaseRows`.
            generation: See `QueueLeaseRows`.
            rows: (offset, lease) below head, in any order.
            auto_renew_limit_ms: Longest life of an auto-renewed lease (rule 25).
            max_changes: Rows after which one `expire` or `release_holder` stops (expire: at the
                end of a batch).
            lost: Mark of each broker that is lost, and the group time since which what it took may
                be undelivered: such a lease that ends was no attempt. The caller updates it.
        """
        super().__init__(head, generation, rows, auto_renew_limit_ms=auto_renew_limit_ms)
        self._lost = lost
        self._max_changes = max_changes

    def expire(self, now_ms: int) -> tuple[LeaseChange | None, Sequence[tuple[int, Lease]]]:
        """Turn leases whose time is up into WAITING; give those whose attempts are used up.

        The second value lists (offset, lease) for the dead-letter topic; their rows stay, and are
        listed again, until `drop_exhausted`. FIFO message groups stay blocked behind them until
        then. More than max_changes leases are left for the next call.
        """
        puts: dict[int, Lease] = {}
        self._expire_due(now_ms, puts)
        self._exhausted_unlisted = False
        return self._puts_change(puts), self.exhausted()

    def drop_exhausted(self, offset: int) -> LeaseChange | None:
        """Take the row of an exhausted message away (it was copied to the dead-letter topic).

        None: there is no such row any more.
        """
        if offset not in self._exhausted:
            return None
        return self._delete(offset, self._rows[offset])

    def release_holder(
        self, holder: int, now_ms: int, taken_before_ms: int | None = None
    ) -> LeaseChange | None:
        """Make the auto-renewed leases of a dead client visible again (rule 25).

        At most max_changes at once: call again until it returns None. With `taken_before_ms` only
        those taken before that group time.
        """
        rows = self._rows
        held = sorted(
            offset
            for offset in self._held.of(holder)
            if taken_before_ms is None or rows[offset].taken_at_ms < taken_before_ms
        )[: self._max_changes]
        return self._puts_change(
            {offset: self._make_visible(offset, rows[offset], now_ms) for offset in held}
        )

    def release_lost(self, holder: int, lost: Mapping[int, int], now_ms: int) -> LeaseChange | None:
        """Make a holder's auto-renewed leases visible that lost brokers may not have delivered.

        Their holder lives and does not know of them, so nobody else would ever end them. Whether
        one was delivered is unknown: a message that nobody was given must not become a dead letter
        for it, so the attempt does not count (rule 36). The lease number rises with that: a broker
        that was only cut off may give the lease back later, and takes no second attempt back. At
        most max_changes at once.

        Args:
            holder: client.
            lost: mark of each lost broker, and the group time since which what it took may be
                undelivered.
            now_ms: group time.
        """
        rows = self._rows
        offsets = [
            offset
            for offset in self._held.of(holder)
            if rows[offset].taken_at_ms >= lost.get(rows[offset].broker, now_ms + 1)
        ]
        return self._puts_change(
            {
                offset: self._end_undelivered(offset, rows[offset], now_ms)
                for offset in sorted(offsets)[: self._max_changes]
            }
        )

    def holders(self) -> Sequence[int]:
        """Return the distinct holders of auto-renewed leases."""
        return self._held.owners()

    def holds(self, holder: int) -> bool:
        """Whether a client holds an auto-renewed lease."""
        return self._held.owns(holder)

    def take_changed_holders(self) -> Sequence[int]:
        """Return the clients whose first such lease came, or whose last one went, since last time.

        At first all holders: so a caller that asks after each change knows them without a walk.
        """
        return self._held.take_changed()

    def next_deadline_ms(self) -> int | None:
        """Return when `expire` has something to do next; 0: now, exhausted rows to list."""
        return 0 if self._exhausted and self._exhausted_unlisted else self._deadlines.first_ms()

    def _expire_due(self, now_ms: int, puts: dict[int, Lease]) -> None:
        rows, lost = self._rows, self._lost
        most = len(puts) + self._max_changes
        while len(puts) < most and (due := self._deadlines.pop_due(now_ms)) is not None:
            for offset in due:
                lease = rows[offset]
                if lost and lease.taken_at_ms >= lost.get(lease.broker, now_ms + 1):
                    puts[offset] = self._end_undelivered(offset, lease, now_ms)
                else:
                    puts[offset] = self._make_visible(offset, lease, now_ms)

    def _end_undelivered(self, offset: int, lease: Lease, now_ms: int) -> Lease:
        """Make a message visible of which the last attempt does not count."""
        return self._make_visible(offset, lease.not_counted(), now_ms, lease.lease_number + 1)
