"""Trace of a simulation: the newest events as text, and a checksum over all events.

Two runs of one seed have the same checksum. A violation is an event that must not happen.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable

_KEPT_EVENTS = 400


class Trace:
    """Events of one run.

    Args:
        now_s: virtual time.
        show: called with every line, for a replay; None: nothing is shown.

    Attributes:
        checksum: over everything noted and counted so far.
        violations: what must not happen and did.
        ended: the run is over; nothing is noted any more.
    """

    def __init__(
        self, now_s: Callable[[], float], show: Callable[[str], None] | None = None
    ) -> None:
        self.checksum = 0
        self.ended = False
        self.violations: list[str] = []
        self._now_s = now_s
        self._show = show
        self._newest: deque[str] = deque(maxlen=_KEPT_EVENTS)

    def note(self, text: str) -> None:
        """Keep an event."""
        if self.ended:
            return
        line = f"{self._now_s():9.4f} {text}"
        self.mix(line)
        self._newest.append(line)
        if self._show is not None:
            self._show(line)

    def detail(self, text: str) -> None:
        """Show an event in a replay; there are too many of its kind to keep."""
        if self.ended:
            return
        line = f"{self._now_s():9.4f} {text}"
        self.mix(line)
        if self._show is not None:
            self._show(line)

    def violation(self, text: str) -> None:
        """Keep an event that must not happen."""
        if self.ended:
            return
        self.violations.append(f"at {self._now_s():.4f}: {text}")
        self.note(f"VIOLATION {text}")

    def mix(self, text: str) -> None:
        """Let an event that nobody wants to read change the checksum."""
        if not self.ended:
            self.checksum = zlib.crc32(text.encode(), self.checksum)

    def newest(self, count: int) -> list[str]:
        """Return the last events, oldest first."""
        return list(self._newest)[-count:]
