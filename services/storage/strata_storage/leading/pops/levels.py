"""Levels of a topic of type PRIORITY: its queues, by number; the highest comes first (ADR 0051).

A pop of such a topic names the range of levels that it takes from. Its answer tells which queues
may have more, so that the broker can serve the highest level of all raft groups first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class LevelRange(NamedTuple):
    """The levels that a pop takes from, both included."""

    lowest: int
    highest: int

    def chosen(self, queues: Iterable[int]) -> Sequence[int]:
        """Return the queues of the range, the highest level first."""
        return sorted(
            (queue for queue in queues if self.lowest <= queue <= self.highest), reverse=True
        )


def bits_of(levels: Iterable[int]) -> int:
    """Return a number whose bit i is set for each level i."""
    bits = 0
    for level in levels:
        bits |= 1 << level
    return bits
