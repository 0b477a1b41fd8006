"""The messages that a leader still has to upload to the tier, and the plan of the next object.

It holds references, not messages: per queue an offset, a number of bytes and a time. Deciding is
sync and reads rows only; `scan` does a bounded piece of that, so the caller can give other tasks
their turn of the event loop.

Invariant: a queue without an entry here has nothing to upload, or is found by the next `rescan`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
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

# Behind every time.
_NEVER_MS = 1 << 63


class _Waiting:
    """Messages that wait in one queue: offsets `first` .. `seen` - 1 were read."""

    __slots__ = ("first", "message_bytes", "seen", "since_ms", "space")

    def __init__(self, first: int, space: str) -> None:
        self.space = space
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


class _OfSpace:
    """Messages of one space that wait."""

    __slots__ = ("message_bytes", "oldest_ms")

    def __init__(self) -> None:
        self.message_bytes = 0
        self.oldest_ms = _NEVER_MS


class Backlog:
    """See the module docstring; of one leader in one term.

    Args:
        machine: applied rows.
        uploaded: how far queues are.
        is_tiered: says whether a topic's messages are uploaded; None: it is not known yet.
        options: when an object is due, and its size.
        space_of: the space that a topic's messages go to; an object is of one space.
    """

    __slots__ = (
        "_is_tiered",
        "_machine",
        "_options",
        "_space_of",
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
    ) -> None:
        self._machine = machine
        self._space_of = space_of
        self._uploaded = uploaded
        self._is_tiered = is_tiered
        self._options = options
        self._waiting: dict[QueueKey, _Waiting] = {}
        # Queues with messages that were not looked at. Taken from its front, which only an
        # OrderedDict does without passing over all that went before.
        self._unseen: OrderedDict[QueueKey, None] = OrderedDict()
        # Those of topics that are not known yet.
        self._unknown: dict[QueueKey, None] = {}

    def __len__(self) -> int:
        return len(self._waiting.keys() | self._unseen.keys() | self._unknown.keys())

    @property
    def message_bytes(self) -> int:
        """Bytes that are known to wait: of each queue not much more than one object's."""
        return sum(waiting.message_bytes for waiting in self._waiting.values())

    @property
    def oldest_ms(self) -> int | None:
        """Store time of the oldest message that is known to wait."""
        times = [each.since_ms for each in self._waiting.values() if each.since_ms is not None]
        return min(times, default=None)

    def messages_behind(self) -> int:
        """Return how many offsets wait; looks at the queue rows, which are in memory as a rule.

        Queues beyond the first 10 000 are not counted.
        """
        behind = 0
        for key in islice(self._waiting.keys() | self._unseen.keys(), _COUNTED_QUEUES_MAX):
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
        """Find all queues with something to upload; a step per queue row."""
        for topic_id, queue, row in self._machine.rows.queues.all():
            if self._first(topic_id, queue, row) < row.next_offset:
                self._unseen[topic_id, queue] = None
            yield

    def committed(self) -> None:
        """Take in that what was dispatched is in the tier."""
        for key, waiting in list(self._waiting.items()):
            row = self._machine.queues.get(*key)
            if row is None or self._first(*key, row) > waiting.first:
                # Looked at anew from where it begins now.
                del self._waiting[key]
                self._unseen[key] = None

    def forget(self) -> None:
        """Forget all that waits, until the next `rescan`."""
        self._waiting.clear()
        self._unseen.clear()
        self._unknown.clear()

    def retry_unknown(self) -> None:
        """Look at the queues once more whose topics were not known."""
        unknown, self._unknown = self._unknown, {}
        self._unseen |= unknown

    def scan(self, max_rows: int) -> bool:
        """Look at consume queue rows that came since the last time; False: there are more."""
        left = max_rows
        while self._unseen:
            if not left:
                return False
            key = next(iter(self._unseen))
            row = self._machine.queues.get(*key)
            is_tiered = self._is_tiered(key[0])
            if row is None or not is_tiered:
                left -= 1
                del self._unseen[key]
                self._waiting.pop(key, None)
                if is_tiered is None and row is not None:
                    self._unknown[key] = None
                continue
            first = self._first(*key, row)
            waiting = self._waiting.get(key)
            if waiting is None:
                waiting = self._waiting[key] = _Waiting(first, self._space_of(key[0]))
            for base, run in self._machine.consume_queues.from_offset(*key, waiting.seen):
                if waiting.message_bytes >= self._options.object_bytes:
                    # Enough for an object: the rest is looked at after that.
                    break
                if not left:
                    return False
                left -= 1
                waiting.take_in(base, run)
            del self._unseen[key]
            if waiting.since_ms is None:
                # Nothing but offsets without a message: they go with the next one.
                del self._waiting[key]
        return True

    def is_due(self, now_ms: int) -> bool:
        """Whether there is enough for an object, or something that waited for long enough."""
        options = self._options
        return any(
            now_ms - waiting.oldest_ms >= options.flush_age_ms
            or waiting.message_bytes >= options.object_bytes
            for waiting in self._by_space().values()
        )

    def choose(self, now_ms: int = 0) -> list[OffsetRange]:
        """Return what the next object holds: the queues that wait longest, up to its size.

        All are of one space: that of the oldest message, if that waited for long enough by
        `now_ms` or no space has enough for an object.
        """
        for key in [key for key in self._waiting if not self._is_wanted(key)]:
            del self._waiting[key]
        left_bytes = self._options.object_bytes
        ranges: list[OffsetRange] = []
        space = self._next_space(now_ms)
        of_space = [item for item in self._waiting.items() if item[1].space == space]
        oldest_first = sorted(of_space, key=lambda item: item[1].since_ms or 0)
        for key, waiting in oldest_first[: self._options.ranges_max]:
            if left_bytes <= 0:
                break
            end = waiting.seen
            if waiting.message_bytes > left_bytes:
                end = self._cut(key, waiting, left_bytes)
            ranges.append(OffsetRange(*key, waiting.first, end))
            left_bytes -= waiting.message_bytes
        return ranges

    def _by_space(self) -> dict[str, _OfSpace]:
        found: dict[str, _OfSpace] = {}
        for waiting in self._waiting.values():
            of_space = found.get(waiting.space)
            if of_space is None:
                of_space = found[waiting.space] = _OfSpace()
            of_space.message_bytes += waiting.message_bytes
            if waiting.since_ms is not None:
                of_space.oldest_ms = min(of_space.oldest_ms, waiting.since_ms)
        return found

    def _next_space(self, now_ms: int) -> str:
        by_space = self._by_space()
        oldest = min(by_space, key=lambda space: by_space[space].oldest_ms, default=DEFAULT_SPACE)
        if not by_space or now_ms - by_space[oldest].oldest_ms >= self._options.flush_age_ms:
            return oldest
        fullest = max(by_space, key=lambda space: by_space[space].message_bytes)
        is_full = by_space[fullest].message_bytes >= self._options.object_bytes
        return fullest if is_full else oldest

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
