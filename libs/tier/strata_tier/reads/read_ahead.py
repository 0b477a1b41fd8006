"""Window for reading ahead. Pure: additive increase, multiplicative decrease (AIMD).

A reader is one consumer group on one queue. While it reads sequentially and uses the blocks read
ahead, its window grows by one step with each read. At first the window doubles, until it was too
large once (like TCP Tahoe's slow start). When blocks read ahead are not used, the window starts
over, and doubling ends at half of the size that was too large. A reader that jumps gets no window
until it reads sequentially again; a reader that repeats a read keeps its window.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from strata_tier.reads.read_options import TierReadOptions

_SLACK_OFFSETS = 1024
_SLACK_SPANS = 8


class ReaderKey(NamedTuple):
    """A reader and its queue; consumer group 0 represents a reader without a consumer group."""

    consumer_group: int
    topic_id: int
    queue: int


class _Window:
    __slots__ = ("next_offset", "size_bytes", "threshold_bytes")

    def __init__(self, threshold_bytes: int) -> None:
        self.next_offset = -1
        self.size_bytes = 0
        self.threshold_bytes = threshold_bytes


class ReadAhead:
    """The windows of many readers."""

    def __init__(self, options: TierReadOptions) -> None:
        self._options = options
        self._windows: OrderedDict[ReaderKey, _Window] = OrderedDict()

    def __len__(self) -> int:
        return len(self._windows)

    def window_bytes(self, key: ReaderKey) -> int:
        """Return the present window of a reader."""
        window = self._windows.get(key)
        return 0 if window is None else window.size_bytes

    def read(self, key: ReaderKey, first_offset: int, end_offset: int) -> int:
        """Note a read of offsets up to `end_offset`; return how many bytes to read ahead of it."""
        window = self._windows.get(key)
        if window is None:
            window = self._windows[key] = _Window(self._options.ahead_max_bytes)
            if len(self._windows) > self._options.ahead_readers_max:
                self._windows.popitem(last=False)
        else:
            self._windows.move_to_end(key)
        # Retries and messages that a filter passed over make small jumps forward or back.
        slack = _SLACK_OFFSETS + _SLACK_SPANS * (end_offset - first_offset)
        if window.next_offset < 0 or abs(first_offset - window.next_offset) > slack:
            window.size_bytes = 0
        elif end_offset > window.next_offset:
            self._grow(window)
        # Else it reads again what it has read: nothing says that it will go on.
        window.next_offset = end_offset
        return window.size_bytes

    def wasted(self, key: ReaderKey) -> None:
        """Note that a block which was read ahead of a reader went without being used."""
        window = self._windows.get(key)
        if window is not None and window.size_bytes:
            window.threshold_bytes = max(window.size_bytes // 2, self._options.ahead_first_bytes)
            window.size_bytes = min(window.size_bytes, self._options.ahead_first_bytes)

    def _grow(self, window: _Window) -> None:
        options = self._options
        if not window.size_bytes:
            grown = options.ahead_first_bytes
        elif window.size_bytes < window.threshold_bytes:
            grown = min(window.size_bytes * 2, window.threshold_bytes)
        else:
            grown = window.size_bytes + options.ahead_step_bytes
        window.size_bytes = min(grown, options.ahead_max_bytes)
