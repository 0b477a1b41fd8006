"""Sets to be searched for leases that a lost broker may not have delivered (rule 36).

Invariant: while a broker is lost, each set that may have an auto-renewed lease of it was searched
after the lease came, or waits to be. All sets are searched once for each loss; later only those
that a lost broker's lease, or a load from rows, is added to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from strata_mq.leases import Lease, LeaseChange
from strata_state.rows import ConsumerKey
from strata_storage.leading.brokers import LostBroker


class LostTakes:
    """See the module docstring.

    Attributes:
        since_ms: mark of each broker that is lost -> group time since which its answers may not
            have arrived; always the same object.
        is_unfinished: leases of clients that are gone wait to be released, too.
    """

    __slots__ = ("_known", "_put_off", "_waiting", "is_unfinished", "since_ms")

    def __init__(self) -> None:
        self.since_ms: dict[int, int] = {}
        self.is_unfinished = False
        self._known: frozenset[LostBroker] = frozenset()
        self._waiting: dict[ConsumerKey, None] = {}
        # To be searched again, but not before the next `update`.
        self._put_off: dict[ConsumerKey, None] = {}

    def __len__(self) -> int:
        """Return how many sets wait."""
        return len(self._waiting)

    def __bool__(self) -> bool:
        """Whether there is something to do for who searches sets and releases their leases."""
        return self.is_unfinished or bool(self._waiting)

    def update(
        self, lost: Mapping[LostBroker, int], held: Callable[[], Iterable[ConsumerKey]]
    ) -> None:
        """Take in which brokers are lost now.

        Args:
            lost: each, and the group time since which its answers may not have arrived.
            held: finds all sets with auto-renewed leases; asked when a broker is newly lost.
        """
        self.since_ms.clear()
        self.since_ms.update({broker.mark: since_ms for broker, since_ms in lost.items()})
        if not lost:
            self._waiting.clear()
        else:
            if not lost.keys() <= self._known:
                self._waiting.update(dict.fromkeys(held()))
            self._waiting.update(self._put_off)
        self._put_off.clear()
        self._known = frozenset(lost)

    def changed(self, key: ConsumerKey, change: LeaseChange) -> None:
        """Take in a change of a set: a lost broker's call may have come late."""
        if self.since_ms:
            for _, lease in change.puts:
                self.seen(key, lease)

    def seen(self, key: ConsumerKey, lease: Lease) -> None:
        """Take in a lease of a set."""
        if lease.auto_renewed and lease.broker in self.since_ms:
            self._waiting[key] = None

    def loaded(self, key: ConsumerKey) -> None:
        """Take in that a set with auto-renewed leases was read from rows.

        It may have more of them than was known.
        """
        if self.since_ms:
            self._waiting[key] = None

    def take(self) -> ConsumerKey:
        """Return one of the sets that wait."""
        return self._waiting.popitem()[0]

    def taken(self, key: ConsumerKey) -> None:
        """Take in that a set that was taken is in memory: to load it marked it once more."""
        self._waiting.pop(key, None)

    def put_off(self, key: ConsumerKey) -> None:
        """Search a set again in a while: it cannot be read, or had more than can be released."""
        self._put_off[key] = None
