"""Locks of queues for orderly consumers: one client of a consumer group works on a queue at a time.

A lock holds for a time and is renewed by its client. It lives in memory: all remoting clients of a
topic are at one broker, and after a restart they lock anew, as with a broker of RocketMQ.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from strata_runtime.clock import Clock
from strata_runtime.metrics import Metrics


class QueueKey(NamedTuple):
    """A queue as a consumer group locks it."""

    group: str
    topic: str
    queue_id: int


class _Lock(NamedTuple):
    client_id: str
    ends_s: float


class QueueLocks:
    """See the module docstring. Used on the event loop only.

    Args:
        clock: monotonic time.
        lock_ms: how long a lock holds.
        max_locks: most locks; a queue beyond them is not locked.
        metrics: how many there are.
    """

    def __init__(self, clock: Clock, *, lock_ms: int, max_locks: int, metrics: Metrics) -> None:
        self._clock = clock
        self._lock_s = lock_ms / 1000
        self._max_locks = max_locks
        # The first to end in front: all hold for the same time.
        self._locks: OrderedDict[QueueKey, _Lock] = OrderedDict()
        # The keys of `_locks` by consumer group; a dict keeps their order.
        self._of_group: dict[str, dict[QueueKey, None]] = {}
        metrics.gauge("strata_broker_remoting_locks", lambda: len(self._locks))

    def try_lock(self, key: QueueKey, client_id: str) -> bool:
        """Lock a queue for a client, or renew its lock; False: another client has it."""
        now_s = self._clock.monotonic_s()
        held = self._locks.get(key)
        if held is not None and held.ends_s > now_s and held.client_id != client_id:
            return False
        if held is None and len(self._locks) >= self._max_locks and not self._make_room(now_s):
            return False
        self._locks[key] = _Lock(client_id, now_s + self._lock_s)
        self._locks.move_to_end(key)
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
        del self._locks[key]
        of_group = self._of_group[key.group]
        del of_group[key]
        if not of_group:
            del self._of_group[key.group]

    def _make_room(self, now_s: float) -> bool:
        """Forget a lock that is over; return whether there was one."""
        first = next(iter(self._locks))
        if self._locks[first].ends_s > now_s:
            return False
        self._forget(first)
        return True
