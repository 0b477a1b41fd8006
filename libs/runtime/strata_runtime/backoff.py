"""Pauses between repeats: doubling, bounded, spread by a random factor that is injected."""

from __future__ import annotations

from collections.abc import Callable

Random = Callable[[], float]
"""A number in [0, 1)."""


class Backoff:
    """The pauses of one run of repeats.

    Args:
        first_ms: the first pause.
        max_ms: no pause is longer.
        random: spreads each pause over [0.5, 1.0) of its length, so that many callers that
            failed together do not come back together.
    """

    __slots__ = ("_first_ms", "_max_ms", "_next_ms", "_random")

    def __init__(self, first_ms: int, max_ms: int, random: Random) -> None:
        self._first_ms = first_ms
        self._max_ms = max_ms
        self._random = random
        self._next_ms = first_ms

    def next_s(self) -> float:
        """Return the pause before the next try, in seconds."""
        pause_ms = self._next_ms
        self._next_ms = min(pause_ms * 2, self._max_ms)
        return pause_ms * (0.5 + self._random() / 2) / 1000

    def reset(self) -> None:
        """Start over after a success."""
        self._next_ms = self._first_ms
