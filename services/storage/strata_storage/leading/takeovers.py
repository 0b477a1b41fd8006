"""Auto-renewed leases of earlier leaders whose messages nobody may have been given (rules 25, 36).

A broker and the storage node that leads may die together between a pop and its answer. The client
lives and reports to another broker, so it keeps the lease of a message that it never got. The next
leader releases what the last brokers took last, if it has not heard of these brokers since its node
started: those that live watch each storage node again within the grace time of a new leader.

Nobody knows when an earlier leader died; its last stamp says until when it lived at least. So a
leader writes the time once more when nothing else is written after a take. Invariant: a message
that was taken more than `Brokers.settled_s` before the last stamp was delivered, or its lease was
released. The next leader leaves such leases alone: their clients may be at work.
"""

from __future__ import annotations

from strata_mq.leases import Lease
from strata_storage.leading.brokers import Brokers, LostBroker


class Takeover:
    """Takes around the end of a leader, as the next one knows them in its term.

    Args:
        stamp_ms: last group time that was written before the term.
        since_s: begin of the term by the monotonic clock.
    """

    __slots__ = ("_all_seen", "_asked_at_s", "_newest", "_since_s", "_stamp_ms", "_took_ms")

    def __init__(self, stamp_ms: int, since_s: float) -> None:
        self._stamp_ms = stamp_ms
        self._since_s = since_s
        # Mark of a broker -> its newest auto-renewed take before this term.
        self._newest: dict[int, int] = {}
        self._all_seen = False
        self._asked_at_s: float | None = None
        # Newest auto-renewed take after which the time is to be written; 0: none.
        self._took_ms = 0

    def seen(self, lease: Lease) -> None:
        """Take in a lease that was found at the start of the term."""
        if lease.auto_renewed and lease.taken_at_ms <= self._stamp_ms:
            newest_ms = self._newest.get(lease.broker, 0)
            self._newest[lease.broker] = max(newest_ms, lease.taken_at_ms)
            self.took(lease.taken_at_ms)

    def seen_all(self) -> None:
        """Take in that there are no other leases of before this term."""
        self._all_seen = True

    def took(self, now_ms: int) -> None:
        """Take in that auto-renewed leases are taken."""
        self._took_ms = max(self._took_ms, now_ms)

    def lost(self, brokers: Brokers, now_s: float) -> dict[LostBroker, int]:
        """Return brokers that are lost with the earlier leader, as `LostTakes.update` takes them.

        To be asked once the grace time is over: brokers that live were heard of by then. After a
        while it returns nothing any more.
        """
        if not self._all_seen:
            return {}
        if self._asked_at_s is None:
            self._asked_at_s = now_s
        if now_s - self._asked_at_s >= brokers.remembered_s:
            self._newest.clear()
        since_ms = self._stamp_ms - int(brokers.settled_s * 1_000)
        marks = [mark for mark, taken_ms in self._newest.items() if taken_ms >= since_ms]
        return {
            LostBroker(mark, self._since_s - brokers.settled_s): since_ms
            for mark in brokers.unheard(marks)
        }

    def wants_stamp(self, brokers: Brokers, now_ms: int, stamp_ms: int) -> bool:
        """Whether the time is to be written, so that the next leader knows that takes are settled.

        Args:
            brokers: of the node.
            now_ms: group time.
            stamp_ms: last group time that was written.
        """
        settled_ms = self._took_ms + int(brokers.settled_s * 1_000)
        if stamp_ms > settled_ms:
            self._took_ms = 0
        return self._took_ms > 0 and now_ms > settled_ms

    def stamped(self) -> None:
        """Take in that the time is being written, or that no client holds anything."""
        self._took_ms = 0
