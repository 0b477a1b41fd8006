"""The messages that a leader still has to upload to the tier, and the plan of the next object.

It holds references, not messages: per queue an offset, a number of bytes and a time. Deciding is
sync and reads rows only; `scan` does a bounded piece of that, and others take a step per queue, so
the caller can give other tasks their turn of the event loop. Nothing looks at all queues in one
step: there may be a hundred thousand.

Invariants: a queue without an entry here has nothing to upload, or is found by the next `rescan`.
The bytes of a space are those of its queues that wait; its heap holds all of these, and has one of
them at its front.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from itertools import islice
from typing import Protocol

from strata_mq.layout import CqRow, OffsetRange, QueueRow
from strata_storage.rows.consume_queues import Run
from strata_storage.rows.machine import GroupMachine
from strata_storage.tiering.options import UploadOptions
from strata_tier.objects import DEFAULT_SPACE

QueueKey = tuple[int, int]
"""(topic id, queue)."""

# Queues that one scrape looks at.
_COUNTED_QUEUES_MAX = 10_000


class _Waiting:
    """Messages that wait in one queue: offsets `first` .. `seen` - 1 were read.

    `number` tells it from an earlier one of the same queue; later ones have greater numbers.
    """

    __slots__ = ("first", "message_bytes", "number", "seen", "since_ms", "space")

    def __init__(self, first: int, space: str, number: int) -> None:
        self.space = space
        self.number = number
        self.first = first
        self.seen = first
        self.message_bytes = 0
        self.since_ms: int | None = None

    def take_in(self, base: int, row: CqRow) -> None:
        if self.since_ms is None:
            self.since_ms = row.store_time_ms
        first = max(self.seen - base, 0)
        self.message_bytes += sum(row.lengths[first:])
        self.seen = base + row.count


class UploadedUpTo(Protocol):
    """Says how far queues are in the tier (`tiering.state.TierState`)."""

    def commit_offset(self, topic_id: int, queue: int) -> int | None:
        """Return the offset up to which a queue is in the tier; None: it was never."""


def _default_space(_: int) -> str:
    return DEFAULT_SPACE


class UploadsLeftOut(Protocol):
    """Says what is left out of objects now, because it failed."""

    def is_space_aside(self, space: str, /) -> bool:
        """Whether nothing goes to a space now."""

    def is_queue_aside(self, topic_id: int, queue: int, /) -> bool:
        """Whether nothing of a queue is uploaded now."""


class _Nothing:
    def is_space_aside(self, _: str, /) -> bool:
        return False

    def is_queue_aside(self, _topic_id: int, _queue: int, /) -> bool:
        return False


class _OfSpace:
    """Messages of one space that wait.

    `queues` is a heap of (time of the oldest message, number, queue). An entry of what waits no
    more goes when it comes to the front, which it does as objects are made.
    """

    __slots__ = ("message_bytes", "queues")

    def __init__(self) -> None:
        self.message_bytes = 0
        self.queues: list[tuple[int, int, QueueKey]] = []

    @property
    def oldest_ms(self) -> int:
        """Store time of the oldest message; there is one."""
        return self.queues[0][0]


class Backlog:
    """See the module docstring; of one leader in one term.

    Args:
        machine: applied rows.
        uploaded: how far queues are.
        is_tiered: says whether a topic's messages are uploaded; None: it is not known yet.
        options: when an object is due, and its size.
        space_of: the space that a topic's messages go to; an object is of one space.
        left_out: what waits and is not chosen now.
    """

    __slots__ = (
        "_is_tiered",
        "_left_out",
        "_machine",
        "_next_number",
        "_options",
        "_space_of",
        "_spaces",
        "_unknown",
        "_unseen",
        "_uploaded",
        "_waiting",
    )

    def __init__(
        self,
        machine: GroupMachine,
        uploaded: UploadedUpTo,
        is_tiered: Callable[[int], bool | None],
        *,
        options: UploadOptions,
        space_of: Callable[[int], str] = _default_space,
        left_out: UploadsLeftOut | None = None,
    ) -> None:
        self._machine = machine
        self._space_of = space_of
        self._uploaded = uploaded
        self._is_tiered = is_tiered
        self._options = options
        self._left_out: UploadsLeftOut = _Nothing() if left_out is None else left_out
        self._waiting: dict[QueueKey, _Waiting] = {}
        self._spaces: dict[str, _OfSpace] = {}
        self._next_number = 0
        # Queues with messages that were not looked at. Taken from its front, which only an
        # OrderedDict does without passing over all that went before.
        self._unseen: OrderedDict[QueueKey, None] = OrderedDict()
        # Those of topics that are not known yet, and those that are left out.
        self._unknown: dict[QueueKey, None] = {}

    def __len__(self) -> int:
        return len(self._waiting.keys() | self._unseen.keys() | self._unknown.keys())

    @property
    def message_bytes(self) -> int:
        """Bytes that are known to wait: of each queue not much more than one object's."""
        return sum(of_space.message_bytes for of_space in self._spaces.values())

    @property
    def oldest_ms(self) -> int | None:
        """Store time of the oldest message that is known to wait."""
        return min((each.oldest_ms for each in self._spaces.values()), default=None)

    def messages_behind(self) -> int:
        """Return how many offsets wait; looks at the queue rows, which are in memory as a rule.

        Queues beyond the first 10 000 are not counted.
        """
        behind = 0
        keys = self._waiting.keys() | self._unseen.keys() | self._unknown.keys()
        for key in islice(keys, _COUNTED_QUEUES_MAX):
            row = self._machine.queues.get(*key)
            if row is None or not self._is_tiered(key[0]):
                continue
            waiting = self._waiting.get(key)
            first = self._first(*key, row) if waiting is None else waiting.first
            behind += row.next_offset - first
        return behind

    def appended(self, topic_id: int, queue: int) -> None:
        """Take in that a queue has new messages."""
        self._unseen[topic_id, queue] = None

    def rescan(self) -> Iterator[None]:
        """Find all queues with something to upload; a step per queue row.

        Those that retention overtook since they were looked at are looked at anew.
        """
        for topic_id, queue, row in self._machine.rows.queues.all():
            first = self._first(topic_id, queue, row)
            waiting = self._waiting.get((topic_id, queue))
            is_overtaken = waiting is not None and waiting.first < first
            if first < row.next_offset or is_overtaken:
                self._unseen[topic_id, queue] = None
            yield

    def committed(self, dispatch: Iterable[OffsetRange]) -> Iterator[None]:
        """Take in that what was dispatched is in the tier, or was given up; a step per queue."""
        for each in dispatch:
            key = each.topic_id, each.queue
            if self._remove(key):
                # Looked at anew from where it begins now.
                self._unseen[key] = None
            yield

    def forget(self) -> None:
        """Forget all that waits, until the next `rescan`."""
        self._waiting.clear()
        self._spaces.clear()
        self._unseen.clear()
        self._unknown.clear()

    def retry_unknown(self) -> None:
        """Look at the queues once more whose topics were not known, or that were left out."""
        unknown, self._unknown = self._unknown, {}
        self._unseen |= unknown

    def scan(self, max_rows: int) -> bool:
        """Look at what came since the last time; False: there is more.

        Args:
            max_rows: consume queue rows, and queues, looked at.
        """
        left = max_rows
        while self._unseen:
            if not left:
                return False
            key = next(iter(self._unseen))
            row = self._machine.queues.get(*key)
            is_tiered = self._is_tiered(key[0])
            is_aside = self._left_out.is_queue_aside(*key)
            if row is None or not is_tiered or is_aside:
                left -= 1
                del self._unseen[key]
                self._remove(key)
                if row is not None and (is_tiered is None or (is_tiered and is_aside)):
                    self._unknown[key] = None
                continue
            first = self._first(*key, row)
            waiting = self._waiting.get(key)
            if waiting is None or waiting.first < first:
                # Retention overtook what was seen of it.
                waiting = self._add(key, first)
            for base, run in self._machine.consume_queues.from_offset(*key, waiting.seen):
                if waiting.message_bytes >= self._options.object_bytes:
                    # Enough for an object: the rest is looked at after that.
                    break
                if not left:
                    return False
                left -= 1
                self._take_in(key, waiting, base, run)
            # Queues of which nothing is left cost time, too.
            left = max(left - 1, 0)
            del self._unseen[key]
            if waiting.since_ms is None:
                # Nothing but offsets without a message: they go with the next one.
                self._remove(key)
        return True

    def ready_ms(self) -> int | None:
        """Return the store time of the oldest message that may be uploaded now; None: none may."""
        return min((self._spaces[each].oldest_ms for each in self._ready()), default=None)

    def is_due(self, now_ms: int) -> bool:
        """Whether there is enough for an object, or something that waited for long enough."""
        options = self._options
        return any(
            now_ms - self._spaces[each].oldest_ms >= options.flush_age_ms
            or self._spaces[each].message_bytes >= options.object_bytes
            for each in self._ready()
        )

    def choose(self, ranges: list[OffsetRange], now_ms: int) -> Iterator[None]:
        """Decide what the next object holds: the queues that wait longest, up to its size.

        All are of one space: that of the oldest message, if that waited for long enough by
        `now_ms` or no space has enough for an object. A step per queue.

        Args:
            ranges: empty; where it is put, complete at the end.
            now_ms: group time.
        """
        left_bytes = self._options.object_bytes
        space = self._next_space(now_ms)
        oldest_first = self._oldest_first(space)
        while left_bytes > 0 and len(ranges) < self._options.ranges_max:
            key = next(oldest_first, None)
            if key is None:
                return
            if self._is_wanted(key):
                waiting = self._waiting[key]
                end = waiting.seen
                if waiting.message_bytes > left_bytes:
                    end = self._cut(key, waiting, left_bytes)
                ranges.append(OffsetRange(*key, waiting.first, end))
                left_bytes -= waiting.message_bytes
            else:
                self._remove(key)
                if self._next_space(now_ms) != space:
                    # It was chosen for messages that are not to be uploaded any more.
                    ranges.clear()
                    left_bytes = self._options.object_bytes
                    space = self._next_space(now_ms)
                    oldest_first = self._oldest_first(space)
            yield

    def _oldest_first(self, space: str | None) -> Iterator[QueueKey]:
        """Yield the queues of a space, in order as far as they are asked for."""
        of_space = None if space is None else self._spaces.get(space)
        left = [] if of_space is None else of_space.queues.copy()
        while left:
            _, number, key = heappop(left)
            if self._is_waiting(key, number):
                yield key

    def _ready(self) -> list[str]:
        """Return the spaces in which something waits and that are not left out."""
        return [each for each in self._spaces if not self._left_out.is_space_aside(each)]

    def _next_space(self, now_ms: int) -> str | None:
        spaces, ready = self._spaces, self._ready()
        if not ready:
            return None
        oldest = min(ready, key=lambda space: spaces[space].oldest_ms)
        if now_ms - spaces[oldest].oldest_ms >= self._options.flush_age_ms:
            return oldest
        fullest = max(ready, key=lambda space: spaces[space].message_bytes)
        is_full = spaces[fullest].message_bytes >= self._options.object_bytes
        return fullest if is_full else oldest

    # Each keeps the sums and the heaps of spaces as the module docstring says.

    def _add(self, key: QueueKey, first: int) -> _Waiting:
        self._remove(key)
        self._next_number += 1
        waiting = _Waiting(first, self._space_of(key[0]), self._next_number)
        self._waiting[key] = waiting
        return waiting

    def _take_in(self, key: QueueKey, waiting: _Waiting, base: int, row: CqRow) -> None:
        of_space = self._spaces.get(waiting.space)
        if of_space is None:
            of_space = self._spaces[waiting.space] = _OfSpace()
        if waiting.since_ms is None:
            heappush(of_space.queues, (row.store_time_ms, waiting.number, key))
        of_space.message_bytes -= waiting.message_bytes
        waiting.take_in(base, row)
        of_space.message_bytes += waiting.message_bytes

    def _remove(self, key: QueueKey) -> bool:
        """Forget what waits of a queue; return whether anything did."""
        waiting = self._waiting.pop(key, None)
        if waiting is None:
            return False
        if waiting.since_ms is not None:
            of_space = self._spaces[waiting.space]
            of_space.message_bytes -= waiting.message_bytes
            queues = of_space.queues
            while queues and not self._is_waiting(queues[0][2], queues[0][1]):
                heappop(queues)
            if not queues:
                del self._spaces[waiting.space]
        return True

    def _is_waiting(self, key: QueueKey, number: int) -> bool:
        waiting = self._waiting.get(key)
        return waiting is not None and waiting.number == number

    def _is_wanted(self, key: QueueKey) -> bool:
        return bool(self._is_tiered(key[0])) and self._machine.queues.get(*key) is not None

    def _cut(self, key: QueueKey, waiting: _Waiting, max_bytes: int) -> int:
        """Return the end of what fits; one run always does."""
        end, taken = waiting.first, 0
        for base, row in self._rows(key, waiting):
            first = max(waiting.first - base, 0)
            run_bytes = sum(row.lengths[first:])
            if taken and taken + run_bytes > max_bytes:
                break
            taken += run_bytes
            end = base + row.count
        return end

    def _rows(self, key: QueueKey, waiting: _Waiting) -> Iterator[Run]:
        for base, row in self._machine.consume_queues.from_offset(*key, waiting.first):
            if base >= waiting.seen:
                return
            yield base, row

    def _first(self, topic_id: int, queue: int, row: QueueRow) -> int:
        """Return where a queue's next range begins: ranges of a queue leave no gap."""
        committed = self._uploaded.commit_offset(topic_id, queue)
        return row.min_offset if committed is None else committed
