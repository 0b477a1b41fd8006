"""Things that failed and are left alone for a while, so that one of them never stops the others.

A store, an object or a queue that cannot be read is tried again and again: after a pause that
doubles with each failure, up to a limit. Meanwhile the work goes on with the others. It is kept in
memory only: a new leader tries everything at once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from strata_runtime.clock import Clock

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class SetAsideOptions:
    """Limits of what is left alone.

    Attributes:
        pause_ms: pause after the first failure; it doubles with each ...
        pause_max_ms: ... up to this. One that did not fail again for as long after its pause
            counts as mended, or gone.
        most: things at once; beyond that, what failed longest ago is tried again at once.
    """

    pause_ms: int = 30_000
    pause_max_ms: int = 300_000
    most: int = 10_000


class _Failed(NamedTuple):
    """One thing that failed; times are of the monotonic clock."""

    pause_ms: int
    until_s: float
    forgotten_s: float
    reason: str


class SetAside(Generic[Key]):
    """See the module docstring; of one kind of things, for one leader in one term.

    Args:
        options: limits.
        clock: time.
    """

    __slots__ = ("_clock", "_failed", "_options")

    def __init__(self, options: SetAsideOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        # The newest failure last.
        self._failed: OrderedDict[Key, _Failed] = OrderedDict()

    def __len__(self) -> int:
        now_s = self._clock.monotonic_s()
        return sum(1 for each in self._failed.values() if now_s < each.forgotten_s)

    def __contains__(self, key: Key) -> bool:
        """Whether a thing failed the last time, even if its pause is over."""
        failed = self._failed.get(key)
        return failed is not None and self._clock.monotonic_s() < failed.forgotten_s

    @property
    def reason(self) -> str:
        """The reason of the newest failure that still counts; empty: there is none."""
        now_s = self._clock.monotonic_s()
        newest_first = reversed(self._failed.values())
        return next((each.reason for each in newest_first if now_s < each.forgotten_s), "")

    def holds(self, key: Key) -> bool:
        """Whether a thing is to be left alone now."""
        failed = self._failed.get(key)
        return failed is not None and self._clock.monotonic_s() < failed.until_s

    def add(self, key: Key, reason: str) -> bool:
        """Leave a thing alone, because it failed.

        Returns:
            Whether that is news: it worked before, or failed for another reason. For the log.
        """
        options, now_s = self._options, self._clock.monotonic_s()
        before = self._failed.pop(key, None)
        if before is not None and before.forgotten_s <= now_s:
            before = None
        doubled_ms = options.pause_ms if before is None else before.pause_ms * 2
        pause_ms = min(doubled_ms, options.pause_max_ms)
        until_s = now_s + pause_ms / 1_000
        forgotten_s = until_s + options.pause_max_ms / 1_000
        self._failed[key] = _Failed(pause_ms, until_s, forgotten_s, reason)
        while len(self._failed) > options.most:
            self._failed.popitem(last=False)
        return before is None or before.reason != reason

    def remove(self, key: Key) -> bool:
        """Take in that a thing works; return whether it had failed."""
        return self._failed.pop(key, None) is not None

    def retry_all(self) -> None:
        """End all pauses: somebody asks for everything to be tried now."""
        now_s = self._clock.monotonic_s()
        for key, failed in list(self._failed.items()):
            self._failed[key] = failed._replace(until_s=min(failed.until_s, now_s))
