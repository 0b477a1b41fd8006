"""Plans the offsets that each task reads: pure arithmetic over spans of offsets.

A span lies in one epoch of one queue: its messages are in one raft group. Spans of a queue do not
overlap; an end of an older epoch is the start of the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

StreamOffset = Mapping[str, int]
"""Queue number as text -> the next offset to be read; what Spark writes into its checkpoint."""


@dataclass(frozen=True, slots=True)
class QueueSpan:
    """Offsets [first, end) of a queue."""

    queue: int
    first: int
    end: int


def divide(spans: Iterable[QueueSpan], max_messages: int) -> list[QueueSpan]:
    """Cut spans into parts of at most `max_messages` offsets, in order; empty ones go."""
    return [
        QueueSpan(span.queue, first, min(first + max_messages, span.end))
        for span in spans
        for first in range(span.first, span.end, max_messages)
    ]


def ends_of(spans: Iterable[QueueSpan]) -> dict[str, int]:
    """Return the end of each queue."""
    ends: dict[str, int] = {}
    for span in spans:
        key = str(span.queue)
        ends[key] = max(ends.get(key, 0), span.end)
    return ends


def starts_of(spans: Iterable[QueueSpan]) -> dict[str, int]:
    """Return where each queue begins: its first span with a message, or its end."""
    starts: dict[str, int] = {}
    ends = ends_of(spans := list(spans))
    for span in spans:
        if span.first < span.end:
            key = str(span.queue)
            starts[key] = min(starts.get(key, span.first), span.first)
    return {key: starts.get(key, end) for key, end in ends.items()}


def not_behind(start: StreamOffset, ends: Mapping[str, int]) -> dict[str, int]:
    """Return where a query goes on, at the end of each queue that ends before where it was."""
    return {key: min(offset, ends.get(key, offset)) for key, offset in start.items()}


def advance(start: StreamOffset, ends: Mapping[str, int], max_messages: int) -> dict[str, int]:
    """Return where a micro-batch ends: everything, or `max_messages` spread fairly over queues.

    A queue that has less than its share leaves the rest to the others. Offsets never go back.

    Args:
        start: where it begins; a queue that is not there is new and begins at 0.
        ends: of the queues now.
        max_messages: 0: no limit.
    """
    left = {key: max(0, end - start.get(key, 0)) for key, end in ends.items()}
    reached = dict(start)
    room = max_messages or sum(left.values())
    # The emptiest first: what it does not use is shared by those that follow.
    for number, key in enumerate(sorted(left, key=lambda key: (left[key], int(key)))):
        share = min(left[key], -(-room // (len(left) - number)))
        room -= share
        reached[key] = start.get(key, 0) + share
    return reached


def between(spans: Sequence[QueueSpan], start: StreamOffset, end: StreamOffset) -> list[QueueSpan]:
    """Return the offsets from `start` to `end`, cut at the borders of epochs.

    Offsets that no span covers any more (they were trimmed) stay part of the result, so that the
    reader notices the loss.
    """
    result = []
    for key in sorted(end, key=int):
        queue, first, last = int(key), start.get(key, 0), end[key]
        borders = {span.first for span in spans if span.queue == queue and span.first < span.end}
        borders |= {span.end for span in spans if span.queue == queue}
        cuts = [first, *sorted(border for border in borders if first < border < last), last]
        result += [QueueSpan(queue, low, high) for low, high in pairwise(cuts) if low < high]
    return result
