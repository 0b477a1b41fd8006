"""Finds connections that hold what others wait for and make too little use of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LeastRate:
    """The least that is asked of a connection while others wait for what it holds.

    Attributes:
        window_s: the rate holds on average over so long.
        bytes_per_s: the rate; nobody has to do more than there was to do.
    """

    window_s: float
    bytes_per_s: int


class LeastPace:
    """How far a connection is in its window.

    Args:
        least: what is asked of it.
        now_s: when the window begins.
        done_bytes: that it has done so far.
        left_bytes: that it has yet to do.
    """

    __slots__ = ("_done_bytes", "_due_bytes", "_least", "_since_s")

    def __init__(self, least: LeastRate, now_s: float, done_bytes: int, *, left_bytes: int) -> None:
        self._least = least
        self._since_s = now_s
        self._done_bytes = done_bytes
        self._due_bytes = left_bytes

    def is_too_slow(self, now_s: float, done_bytes: int, *, left_bytes: int) -> bool:
        """Return whether a window has ended with too little; the next one begins then."""
        time_s = now_s - self._since_s
        if time_s < self._least.window_s:
            return False
        due_bytes = min(self._due_bytes, int(self._least.bytes_per_s * time_s))
        is_slow = done_bytes - self._done_bytes < due_bytes
        self._since_s = now_s
        self._done_bytes = done_bytes
        self._due_bytes = left_bytes
        return is_slow
