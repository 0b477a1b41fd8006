"""Waits that can be given up from outside, for instance because a raft group has a new leader.

Invariant: an attempt is known from its begin to its end, and is given up at most once. This module
does not know the purpose of a wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from types import TracebackType

from strata_runtime.timeouts import Timeout


class Attempts:
    """Attempts by key: a raft group, a node or a topic. Used on the event loop only."""

    __slots__ = ("_under_way",)

    def __init__(self) -> None:
        self._under_way: dict[Hashable, dict[Attempt, None]] = {}

    def keys(self) -> list[Hashable]:
        """Return the keys of attempts under way."""
        return list(self._under_way)

    def of(self, key: Hashable, asked: str = "") -> Attempt:
        """Return `async with` around an attempt; it raises TimeoutError when it is given up.

        Args:
            key: by which it can be given up.
            asked: the node, or the raft group, that was asked; "" for none.
        """
        return Attempt(self._under_way, key, asked)

    def give_up(self, key: Hashable, *, unless_asked: str = "", grace_s: float = 0.0) -> None:
        """End the attempts of a key after a grace, except those that asked a certain node.

        Those that ask nobody end at once: they only pause. Later ones are not concerned.
        """
        now_s = asyncio.get_running_loop().time()
        for attempt in self._under_way.get(key, ()):
            if not unless_asked or attempt.asked != unless_asked:
                attempt.end(now_s + grace_s if attempt.asked else now_s)


class Attempt:
    """See `Attempts.of`."""

    __slots__ = ("_all", "_key", "_timeout", "asked")

    def __init__(
        self, under_way: dict[Hashable, dict[Attempt, None]], key: Hashable, asked: str
    ) -> None:
        self._all = under_way
        self._key = key
        self._timeout = Timeout(None)
        self.asked = asked

    def end(self, when_s: float) -> None:
        """Give up at a time of the event loop's clock."""
        if self._timeout.when() is None:
            self._timeout.reschedule(when_s)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()
        self._all.setdefault(self._key, {})[self] = None

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        mine = self._all[self._key]
        del mine[self]
        if not mine:
            del self._all[self._key]
        await self._timeout.__aexit__(kind, error, trace)
