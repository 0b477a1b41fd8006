"""Locks of queues: whether a consumer group has any, at a cost that other groups do not raise."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from strata_broker.remoting.queue_locks import QueueKey, QueueLocks
from strata_runtime.metrics import Metrics
from strata_testing import ManualClock


def locks_of(
    clock: ManualClock, most: int, *, per_client: int = 10_000, per_address: int = 10_000
) -> QueueLocks:
    """Locks that hold for ten seconds."""
    return QueueLocks(
        clock,
        lock_ms=10_000,
        max_locks=most,
        max_locks_per_client=per_client,
        max_locks_per_address=per_address,
        metrics=Metrics.disabled(),
    )


class CountedName(str):
    """A group's name that counts how often it is compared."""

    __slots__ = ()
    __hash__ = str.__hash__
    compared = 0

    def __eq__(self, other: object) -> bool:
        CountedName.compared += 1
        return str.__eq__(self, other)


def test_a_group_has_locks_until_all_are_given_back_or_over() -> None:
    """Each lock has its own end, and a renewed lock a later one."""
    clock = ManualClock()
    locks = locks_of(clock, 3)
    keys = [QueueKey("g", "orders", number) for number in range(3)]
    assert not locks.has_any("g")
    assert all(locks.try_lock(key, "me", "a:1") for key in keys[:2])
    locks.unlock(keys[0], "me")
    assert locks.has_any("g")
    assert not locks.has_any("other")
    clock.advance(6)
    assert locks.try_lock(keys[2], "me", "a:1")
    clock.advance(6)
    assert locks.has_any("g")
    assert locks.try_lock(keys[1], "another", "b:1"), "its end has come"
    locks.unlock(keys[1], "another")
    locks.unlock(keys[2], "another")
    assert locks.has_any("g"), "another client's lock stays"
    locks.unlock(keys[2], "me")
    assert not locks.has_any("g")
    assert all(locks.try_lock(key, "me", "a:1") for key in keys)
    clock.advance(11)
    assert locks.try_lock(QueueKey("other", "orders", 0), "me", "a:1"), (
        "locks that are over make room"
    )
    assert not locks.has_any("g")
    assert locks.has_any("other")


def test_a_lock_too_many_does_not_look_at_all() -> None:
    """A request names thousands of queues, of which there may be more than locks."""
    clock = ManualClock()
    locks = locks_of(clock, 1_000)
    looked = 0

    class CountedLocks(OrderedDict[QueueKey, Any]):
        """Counts the locks that are passed over."""

        def items(self) -> Any:
            nonlocal looked
            looked += len(self)
            return super().items()

    locks._locks = CountedLocks()
    keys = [QueueKey("g", "orders", number) for number in range(1_000)]
    assert all(locks.try_lock(key, "me", "a:1") for key in keys)
    assert not any(
        locks.try_lock(QueueKey("h", "orders", n), "another", "b:1") for n in range(1_000)
    )
    clock.advance(6)
    assert all(locks.try_lock(key, "me", "a:1") for key in keys[::2])
    clock.advance(6)
    # The locks that were not renewed are over, and make room.
    more = [locks.try_lock(QueueKey("h", "orders", n), "another", "b:1") for n in range(1_000)]
    assert more == [True] * 500 + [False] * 500
    assert not any(locks.try_lock(key, "another", "b:1") for key in keys[::2])
    assert looked < 1_000


def test_a_client_holds_a_share_of_the_locks() -> None:
    """A client by any name has one connection; locks that are over count no more."""
    clock = ManualClock()
    locks = locks_of(clock, 10, per_client=2)
    keys = [QueueKey("g", "orders", number) for number in range(4)]
    wanted = [("me", "a:1"), ("I", "a:1"), ("myself", "a:1"), ("you", "b:1")]
    taken = [
        locks.try_lock(key, client_id, peer)
        for key, (client_id, peer) in zip(keys, wanted, strict=True)
    ]
    assert taken == [True, True, False, True]
    assert locks.try_lock(keys[0], "me", "a:2"), "a client that has connected anew renews its lock"
    assert locks.try_lock(keys[2], "myself", "a:1"), "the first connection has room again"
    clock.advance(11)
    more = [QueueKey("g", "orders", number) for number in (7, 8)]
    assert all(locks.try_lock(key, "me", "a:1") for key in more)
    locks.unlock(more[0], "me")
    assert locks.try_lock(more[0], "me", "a:1")


def test_an_address_holds_a_share_of_the_locks() -> None:
    """Clients by any name and with any number of connections have one address."""
    clock = ManualClock()
    locks = locks_of(clock, 10, per_client=1, per_address=3)
    keys = [QueueKey("g", "orders", number) for number in range(10)]
    taken = [locks.try_lock(key, f"me-{at}", f"a:{at}") for at, key in enumerate(keys)]
    assert taken == [True] * 3 + [False] * 7
    assert locks.try_lock(keys[9], "you", "b:1"), "another address has room"
    assert locks.try_lock(keys[0], "me-0", "a:77"), "a lock is renewed"
    locks.unlock(keys[1], "me-1")
    assert locks.try_lock(keys[8], "me-8", "a:8"), "the address has room again"
    assert not locks.try_lock(keys[7], "me-7", "a:7")
    clock.advance(11)
    assert [locks.try_lock(key, f"I-{at}", f"a:{at}") for at, key in enumerate(keys[:4])] == [
        *(True, True, True),
        False,
    ]


def test_a_look_for_a_lock_does_not_look_at_all() -> None:
    """A send to a topic of retries asks, so that it must not cost more with more locks."""
    clock = ManualClock()
    locks = locks_of(clock, 5_000)
    for number in range(1_000):
        for name in ("g", "other"):
            assert locks.try_lock(QueueKey(CountedName(name), "orders", number), "me", "a:1")
    CountedName.compared = 0
    assert locks.has_any("g")
    assert not locks.has_any("third")
    assert CountedName.compared < 10
    clock.advance(11)
    assert not locks.has_any("g")
    CountedName.compared = 0
    assert not locks.has_any("g")
    assert CountedName.compared < 10
