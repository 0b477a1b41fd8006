"""Which raft groups are led on this node, for brokers that watch (route hints)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from strata.storage.v1 import storage_pb2 as pb
from strata_storage.errors import Refused


class RoleWatch:
    """Tells watchers the whole list after every change; a slow one misses what lies between.

    Args:
        max_watchers: limit on watch streams.
    """

    def __init__(self, max_watchers: int = 1_000) -> None:
        self._max_watchers = max_watchers
        self._led: set[int] = set()
        # A dict for its order: they are told in the order in which they came.
        self._watchers: dict[asyncio.Event, None] = {}

    def __len__(self) -> int:
        return len(self._watchers)

    def led_groups(self) -> list[int]:
        """Return the raft groups led here, in order."""
        return sorted(self._led)

    def changed(self, raft_group: int, leads: bool) -> None:
        """Take in that this node leads a raft group, or does not any more."""
        if leads == (raft_group in self._led):
            return
        if leads:
            self._led.add(raft_group)
        else:
            self._led.discard(raft_group)
        for watcher in self._watchers:
            watcher.set()

    async def changes(self) -> AsyncIterator[list[int]]:
        """Yield the list now and after every change.

        Raises:
            Refused: OUTCOME_OVERLOADED, too many watch.
        """
        if len(self._watchers) >= self._max_watchers:
            raise Refused(pb.OUTCOME_OVERLOADED, f"{self._max_watchers} brokers watch already")
        changed = asyncio.Event()
        self._watchers[changed] = None
        try:
            while True:
                changed.clear()
                yield self.led_groups()
                await changed.wait()
        finally:
            del self._watchers[changed]
