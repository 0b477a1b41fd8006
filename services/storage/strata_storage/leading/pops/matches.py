"""A filter's results for the next messages of a queue: known before a pop takes them.

Only filters that must read messages need it. A pop often reads more than it may take; the results
for the rest are kept for the next pop.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Sequence

from strata_mq.filters import MessageFilter


class Matches:
    """A run of offsets that one filter was asked about.

    Attributes:
        message_filter: the filter.
        first: first offset of the run.
        end: first offset behind it.
        steps_per_message: what the filter took for the last one.
        reading: held by the one pop that extends the run; others wait, instead of reading it too.
    """

    __slots__ = ("_matched", "end", "first", "message_filter", "reading", "steps_per_message")

    def __init__(self, message_filter: MessageFilter, first: int) -> None:
        self.message_filter = message_filter
        self.first = self.end = first
        self.steps_per_message = 0
        self.reading = asyncio.Lock()
        # Offsets of messages that match, rising.
        self._matched: list[int] = []

    def goes_on_from(self, message_filter: MessageFilter, head: int) -> bool:
        """Whether the run helps a consumer group whose head is here."""
        return self.message_filter is message_filter and self.first <= head <= self.end

    def extend(self, end: int, matched: Sequence[int]) -> None:
        """Take in what lies from the run's end to another one, and which messages there match."""
        self._matched += matched
        self.end = end

    def forget_below(self, head: int) -> None:
        """Forget what was passed."""
        if head > self.first:
            del self._matched[: bisect_left(self._matched, head)]
            self.first = head

    def count_from(self, offset: int) -> int:
        """Return how many messages match from an offset on."""
        return len(self._matched) - bisect_left(self._matched, offset)

    def ordinals(self, base: int, count: int) -> Sequence[int]:
        """Return which messages of a run of offsets match, counted from its first."""
        matched = self._matched
        found = matched[bisect_left(matched, base) : bisect_left(matched, base + count)]
        return [offset - base for offset in found]
