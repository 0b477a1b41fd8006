"""Rate limit per log event, so that a flood of requests is not a flood of lines.

A client decides how often its bad requests fail, so a line per failure is not acceptable. An event
gets a number of lines per interval; the first line after that says how many were left out.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

_MAX_EVENTS = 1_000  # events are short constant sentences; the oldest is forgotten above this


class LogLimiter:
    """Decides which lines are written. Used from any thread: a race costs a line, not more.

    Args:
        max_lines: of one event in an interval.
        max_stacks: of one event in an interval, when its lines carry a stack.
        interval_s: length of an interval; the first line after its end begins the next.
        monotonic_s: time.
    """

    def __init__(
        self,
        max_lines: int = 100,
        max_stacks: int = 5,
        interval_s: float = 10.0,
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = {False: max_lines, True: max_stacks}
        self._interval_s = interval_s
        self._monotonic_s = monotonic_s
        self._events: OrderedDict[tuple[str, str, bool], _Event] = OrderedDict()

    def admit(self, source: str, event: str, *, stack: bool) -> int | None:
        """Take one line.

        Args:
            source: who writes it.
            event: what happened, the same text for all lines of a kind.
            stack: whether it carries a stack.

        Returns:
            How many lines of the event were left out since the last one that was written; None:
            this one is left out, too.
        """
        now_s = self._monotonic_s()
        key = (source, event, stack)
        found = self._events.get(key)
        if found is None:
            while len(self._events) >= _MAX_EVENTS:
                self._events.popitem(last=False)
            found = self._events[key] = _Event(now_s)
        elif now_s - found.began_s >= self._interval_s:
            found.began_s = now_s
            found.written = 0
        if found.written >= self._most[stack]:
            found.left_out += 1
            return None
        found.written += 1
        left_out, found.left_out = found.left_out, 0
        return left_out


class _Event:
    __slots__ = ("began_s", "left_out", "written")

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self.written = 0
        self.left_out = 0
