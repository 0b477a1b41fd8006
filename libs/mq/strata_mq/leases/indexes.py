"""Indexes over the leases of one (consumer group, queue): by their end and by their holder.

They hold offsets, never leases; `QueueLeases` owns the rows. No index refers to its owner: sets of
leases leave memory all the time, and a cycle would keep each of them until a collection of the
oldest generation, which stops the event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush

from strata_mq.leases.types import Lease, LeaseState

# A heap, and offsets by attempt, smaller than this are not worth rebuilding.
_SLACK = 1024
_ATTEMPTS_SLACK = 256


class Deadlines:
    """A heap of deadlines in group time that forgets lazily.

    An entry names the leases of one pop, which end together. Leases that were acked or changed
    stay in the heap until it is mostly made of them; the rows say whether one is still meant.
    """

    __slots__ = ("_auto_renew_limit_ms", "_heap", "_offset_count", "_pushes", "_rows")

    def __init__(self, rows: Mapping[int, Lease], auto_renew_limit_ms: int) -> None:
        """Start empty.

        Args:
            rows: The leases by their offsets, always as they are.
            auto_renew_limit_ms: Longest life of an auto-renewed lease (rule 25).
        """
        self._rows = rows
        self._auto_renew_limit_ms = auto_renew_limit_ms
        # (deadline, push number to break ties, offsets).
        self._heap: list[tuple[int, int, Sequence[int]]] = []
        self._offset_count = 0
        self._pushes = 0

    def of(self, lease: Lease) -> int:
        """Return when a LEASED row ends."""
        if lease.auto_renewed:
            return lease.taken_at_ms + self._auto_renew_limit_ms
        return lease.visible_at_ms

    def push(self, deadline_ms: int, offsets: Sequence[int], live_count: int) -> None:
        """Note that the leases on `offsets` end at a deadline; `live_count` leases exist in all."""
        self._pushes += 1
        heappush(self._heap, (deadline_ms, self._pushes, offsets))
        self._offset_count += len(offsets)
        if self._offset_count > 2 * live_count + _SLACK:
            self._rebuild()

    def first_ms(self) -> int | None:
        """Return the earliest deadline of a lease that still ends then."""
        while self._heap:
            deadline_ms, _, offsets = self._heap[0]
            if any(self._ends_at(offset, deadline_ms) for offset in offsets):
                return deadline_ms
            self._pop()
        return None

    def has_due(self, now_ms: int) -> bool:
        """Whether a lease has ended; no lease is looked at before the first of all deadlines."""
        if not self._heap or self._heap[0][0] > now_ms:
            return False
        first_ms = self.first_ms()
        return first_ms is not None and first_ms <= now_ms

    def pop_due(self, now_ms: int) -> Sequence[int] | None:
        """Return the offsets of the earliest entry if its time has come, else None."""
        if not self._heap or self._heap[0][0] > now_ms:
            return None
        deadline_ms, offsets = self._pop()
        return [offset for offset in offsets if self._ends_at(offset, deadline_ms)]

    def _ends_at(self, offset: int, deadline_ms: int) -> bool:
        """Whether the row is LEASED until then."""
        lease = self._rows.get(offset)
        if lease is None or lease.state is not LeaseState.LEASED:
            return False
        return self.of(lease) == deadline_ms

    def _pop(self) -> tuple[int, Sequence[int]]:
        deadline_ms, _, offsets = heappop(self._heap)
        self._offset_count -= len(offsets)
        return deadline_ms, offsets

    def _rebuild(self) -> None:
        rebuilt: list[tuple[int, int, Sequence[int]]] = []
        for deadline_ms, number, offsets in self._heap:
            live = [offset for offset in offsets if self._ends_at(offset, deadline_ms)]
            if live:
                rebuilt.append((deadline_ms, number, live))
        heapify(rebuilt)
        self._heap = rebuilt
        self._offset_count = sum(len(offsets) for _, _, offsets in rebuilt)


class OffsetsByAttempt:
    """Offsets of the leases of each pop, by its attempt; it forgets lazily.

    Hardly any pop is ever asked again, so an ack does no work here: the rows say what still holds.
    """

    __slots__ = ("_offset_count", "_offsets", "_rows")

    def __init__(self, rows: Mapping[int, Lease]) -> None:
        """Start empty.

        Args:
            rows: The leases by their offsets, always as they are.
        """
        self._rows = rows
        self._offsets: dict[int, list[int]] = {}
        self._offset_count = 0

    def add(self, attempt: int, offsets: Sequence[int], live_count: int) -> None:
        """Note leases of an attempt; `live_count` leases exist in all."""
        known = self._offsets.get(attempt)
        if known is None:
            self._offsets[attempt] = list(offsets)
        else:
            known.extend(offsets)
        self._offset_count += len(offsets)
        if self._offset_count > 2 * live_count + _ATTEMPTS_SLACK:
            self._rebuild()

    def of(self, attempt: int) -> Sequence[int]:
        """Return the offsets that are leased for an attempt, in the order of their adding."""
        found: dict[int, None] = {}
        for offset in self._offsets.get(attempt, ()):
            lease = self._rows.get(offset)
            if lease is None or lease.state is not LeaseState.LEASED or lease.attempt != attempt:
                continue
            # Leased once more, it stands where it was added last.
            found.pop(offset, None)
            found[offset] = None
        return tuple(found)

    def _rebuild(self) -> None:
        live = {attempt: list(self.of(attempt)) for attempt in self._offsets}
        self._offsets = {attempt: offsets for attempt, offsets in live.items() if offsets}
        self._offset_count = sum(len(offsets) for offsets in self._offsets.values())


class OffsetsByOwner:
    """Offsets by the client that they belong to. Nobody owns an empty set."""

    __slots__ = ("_changed", "_offsets")

    def __init__(self) -> None:
        # Owners since `take_changed`: those that own their first offset, or their last no more.
        self._changed: dict[int, None] = {}
        # The inner dict is a set that keeps its order.
        self._offsets: dict[int, dict[int, None]] = {}

    def add(self, owner: int, offsets: Iterable[int]) -> None:
        """Give an owner more offsets, at least one."""
        owned = self._offsets.get(owner)
        if owned is None:
            self._offsets[owner] = dict.fromkeys(offsets)
            self._changed[owner] = None
        else:
            owned.update(dict.fromkeys(offsets))

    def discard(self, owner: int, offset: int) -> None:
        """Take an offset that the owner has."""
        owned = self._offsets[owner]
        del owned[offset]
        if not owned:
            del self._offsets[owner]
            self._changed[owner] = None

    def clear(self) -> None:
        """Take everything from everybody."""
        self._changed.update(dict.fromkeys(self._offsets))
        self._offsets = {}

    def owns(self, owner: int) -> bool:
        """Whether an owner has any offset."""
        return owner in self._offsets

    def take_changed(self) -> Sequence[int]:
        """Return the owners that began or ceased to own anything since the last call.

        One that did both is among them, too.
        """
        if not self._changed:
            return ()
        changed, self._changed = self._changed, {}
        return tuple(changed)

    def of(self, owner: int) -> Sequence[int]:
        """Return an owner's offsets in the order of their adding."""
        return tuple(self._offsets.get(owner, ()))

    def owners(self) -> Sequence[int]:
        """Return all who own something."""
        return tuple(self._offsets)
