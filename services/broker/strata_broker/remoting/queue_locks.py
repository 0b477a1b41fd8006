"""Locks of queues for orderly consumers: one client of a consumer group works on a queue at a time.

A lock holds for a time and is renewed by its client. It lives in memory: all remoting clients of a
topic are at one broker, and after a restart they lock anew, as with a broker of RocketMQ. A client,
a connection and an address hold a share of all locks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from strata_broker.base.shares import Owner, OwnerShares, all_owners_of, most_each
from strata_runtime.clock import Clock
from strata_runtime.metrics import Metrics

# Locks that are over and that are forgotten when another one is wanted.
_MOST_FORGOTTEN = 64


class QueueKey(NamedTuple):
    """A queue as a consumer group locks it."""

    group: str
    topic: str
    queue_id: int


class _Lock(NamedTuple):
    client_id: str
    ends_s: float
    owners: Sequence[Owner]


class QueueLocks:
    """See the module docstring. Used on the event loop only.

    Args:
        clock: monotonic time.
        lock_ms: how long a lock holds.
        max_locks: most locks; a queue beyond them is not locked.
        max_locks_per_client: the same for a client, and for a connection.
        max_locks_per_address: the same for an address of clients.
        metrics: how many there are.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        lock_ms: int,
        max_locks: int,
        max_locks_per_client: int,
        max_locks_per_address: int,
        metrics: Metrics,
    ) -> None:
        self._clock = clock
        self._lock_s = lock_ms / 1000
        self._max_locks = max_locks
        most = most_each(max_locks_per_client, max_locks_per_address)
        self._shares = OwnerShares("locks of queues", most, metrics)
        # The first to end in front: all hold for the same time.
        self._locks: OrderedDict[QueueKey, _Lock] = OrderedDict()
        # The keys of `_locks` by consumer group; a dict keeps their order.
        self._of_group: dict[str, dict[QueueKey, None]] = {}
        metrics.gauge("strata_broker_remoting_locks", lambda: len(self._locks))

    def try_lock(self, key: QueueKey, client_id: str, peer: str) -> bool:
        """Lock a queue for a client, or renew its lock.

        Args:
            key: the queue.
            client_id: who wants the lock.
            peer: `host:port` of its connection.

        Returns:
            False: another client has it, or there is no room.
        """
        now_s = self._clock.monotonic_s()
        self._forget_over(now_s)
        held = self._locks.get(key)
        if held is not None:
            if held.ends_s > now_s and held.client_id != client_id:
                return False
            self._forget(key)
        owners = all_owners_of(client_id, peer)
        if len(self._locks) >= self._max_locks or not self._shares.try_take(owners):
            return False
        self._locks[key] = _Lock(client_id, now_s + self._lock_s, owners)
        self._of_group.setdefault(key.group, {})[key] = None
        return True

    def unlock(self, key: QueueKey, client_id: str) -> None:
        """Give a client's lock back; the lock of another client stays."""
        held = self._locks.get(key)
        if held is not None and held.client_id == client_id:
            self._forget(key)

    def has_any(self, group: str) -> bool:
        """Whether a consumer group has a lock; each lock that is over is looked at once."""
        now_s, over = self._clock.monotonic_s(), list[QueueKey]()
        for key in self._of_group.get(group, ()):
            if self._locks[key].ends_s > now_s:
                break
            over.append(key)
        for key in over:
            self._forget(key)
        return group in self._of_group

    def _forget(self, key: QueueKey) -> None:
        self._shares.give_back(self._locks.pop(key).owners)
        of_group = self._of_group[key.group]
        del of_group[key]
        if not of_group:
            del self._of_group[key.group]

    def _forget_over(self, now_s: float) -> None:
        """Forget some locks that are over: more than are made meanwhile."""
        for _ in range(min(_MOST_FORGOTTEN, len(self._locks))):
            first = next(iter(self._locks))
            if self._locks[first].ends_s > now_s:
                return
            self._forget(first)
