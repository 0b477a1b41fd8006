"""Order in which rows of one (consumer group, queue) become deliverable again.

Two orders over the same rows: `PlainOrder` (any visible row) and `FifoOrder` (only the first row of
each message group). They hold offsets, never leases; `QueueLeases` owns the rows and reports their
changes. Every step costs O(log n) of the waiting rows, amortised.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heappop, heappush
from typing import Protocol

from strata_mq.leases.types import Lease, LeaseState

Rows = Mapping[int, Lease]


def is_deliverable(lease: Lease) -> bool:
    """Whether a row is neither held nor used up; FIFO may still keep it back."""
    return lease.state is not LeaseState.LEASED and not lease.exhausted


class Order(Protocol):
    """The part of an order that `QueueLeases` needs."""

    def added(self, offset: int, lease: Lease) -> None:
        """Note a new row; offsets only grow."""

    def became_visible(self, offset: int, lease: Lease) -> None:
        """Note that a row is not held any more."""

    def removed(self, offset: int, lease: Lease) -> None:
        """Note that a row is gone."""

    def ready(self) -> bool:
        """Whether `candidates` would give anything."""

    def candidates(self, *, one_per_message_group: bool) -> Iterator[int]:
        """Start a batch: give deliverable offsets in delivery order.

        With `one_per_message_group` a FIFO batch has no second message of a message group, new
        ones included. Each one given is leased before the next is asked for; one that the batch
        has no room for ends the iteration and is given back by `became_visible`.
        """

    def blocks(self, group_hash: int) -> bool:
        """Whether a new message must wait behind rows of its group that are not in the batch."""


class PlainOrder:
    """Every visible row is deliverable, lowest offset first."""

    __slots__ = ("_rows", "_visible")

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        # Heap; may hold offsets whose rows are gone (trimmed).
        self._visible: list[int] = []

    def added(self, offset: int, lease: Lease) -> None:
        """See `Order`."""
        if lease.state is not LeaseState.LEASED:
            self.became_visible(offset, lease)

    def became_visible(self, offset: int, lease: Lease) -> None:
        """See `Order`."""
        if not lease.exhausted:
            heappush(self._visible, offset)

    def removed(self, offset: int, lease: Lease) -> None:
        """See `Order`."""

    def ready(self) -> bool:
        """See `Order`."""
        visible, rows = self._visible, self._rows
        while visible:
            lease = rows.get(visible[0])
            if lease is not None and is_deliverable(lease):
                return True
            heappop(visible)
        return False

    def candidates(self, *, one_per_message_group: bool) -> Iterator[int]:
        """See `Order`."""
        while self.ready():
            yield heappop(self._visible)

    def blocks(self, group_hash: int) -> bool:
        """See `Order`."""
        return False


class FifoOrder:
    """Per message group only the first row is deliverable, and after it those behind it.

    A first row that was delivered before takes along only what was delivered before, too: nothing
    new goes out behind a message that somebody has not acked.

    Invariant: the first offset of every group's list has a row. Behind it the list may name rows
    that are gone: acked out of order within one batch.
    """

    __slots__ = ("_groups", "_one_per_group", "_open", "_ready", "_rows")

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._groups: dict[int, list[int]] = {}
        # Heap of (first offset, message group); entries may be outdated.
        self._ready: list[tuple[int, int]] = []
        # Message groups of which the current batch has every row, each for the first time: new
        # messages may follow.
        self._open: set[int] = set()
        self._one_per_group = False

    def added(self, offset: int, lease: Lease) -> None:
        """See `Order`."""
        group_hash = lease.group_hash
        offsets = self._groups.get(group_hash)
        if offsets is None:
            self._groups[group_hash] = [offset]
            if is_deliverable(lease):
                heappush(self._ready, (offset, group_hash))
            elif not self._one_per_group:
                self._open.add(group_hash)
        else:
            offsets.append(offset)

    def became_visible(self, offset: int, lease: Lease) -> None:
        """See `Order`."""
        if self._groups[lease.group_hash][0] == offset and not lease.exhausted:
            heappush(self._ready, (offset, lease.group_hash))

    def removed(self, offset: int, lease: Lease) -> None:
        """See `Order`."""
        offsets = self._groups[lease.group_hash]
        if offsets[0] != offset:
            return
        rows = self._rows
        gone = 1
        while gone < len(offsets) and offsets[gone] not in rows:
            gone += 1
        if gone == len(offsets):
            del self._groups[lease.group_hash]
            return
        del offsets[:gone]
        if is_deliverable(rows[offsets[0]]):
            heappush(self._ready, (offsets[0], lease.group_hash))

    def ready(self) -> bool:
        """See `Order`."""
        while self._ready:
            offset, group_hash = self._ready[0]
            offsets = self._groups.get(group_hash)
            if offsets and offsets[0] == offset and is_deliverable(self._rows[offset]):
                return True
            heappop(self._ready)
        return False

    def candidates(self, *, one_per_message_group: bool) -> Iterator[int]:
        """See `Order`. A group's rows follow one another, in order, until one has to wait."""
        self._open.clear()
        self._one_per_group = one_per_message_group
        return self._runs()

    def blocks(self, group_hash: int) -> bool:
        """See `Order`."""
        return group_hash in self._groups and group_hash not in self._open

    def _runs(self) -> Iterator[int]:
        while self.ready():
            _, group_hash = heappop(self._ready)
            yield from self._run(group_hash)

    def _run(self, group_hash: int) -> Iterator[int]:
        rows = self._rows
        offsets = self._groups[group_hash]
        was_delivered = False
        position = 0
        while position < len(offsets):
            offset = offsets[position]
            lease = rows.get(offset)
            if lease is None:
                del offsets[position]
                continue
            if not is_deliverable(lease) or (was_delivered and not lease.attempts):
                return
            was_delivered = was_delivered or lease.attempts > 0
            yield offset
            if self._one_per_group:
                return
            position += 1
        if not was_delivered:
            self._open.add(group_hash)
