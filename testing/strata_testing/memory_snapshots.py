"""A `SnapshotFetcher` between drivers in one process."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Protocol

from strata_multiraft import SnapshotBroken
from strata_multiraft.base import SnapshotFetch, SnapshotPart


class SnapshotGiver(Protocol):
    """The part of `MultiRaft` that is needed."""

    def snapshot_parts(self, fetch: SnapshotFetch) -> AsyncGenerator[SnapshotPart, None]:
        """See `MultiRaft.snapshot_parts`."""


class MemorySnapshots:
    """Connects nodes by id.

    Args:
        passes: judges each part before it is delivered; raises SnapshotBroken to cut the call.
    """

    def __init__(self, passes: Callable[[SnapshotPart], None] = lambda part: None) -> None:
        self.passes = passes
        self.calls: list[SnapshotFetch] = []
        self._givers: dict[str, SnapshotGiver] = {}

    def connect(self, node_id: str, giver: SnapshotGiver) -> None:
        """Let a node give snapshots; a node that connects again replaces its earlier life."""
        self._givers[node_id] = giver

    async def fetch(self, node_id: str, fetch: SnapshotFetch) -> AsyncGenerator[SnapshotPart, None]:
        """See `ports.SnapshotFetcher`."""
        self.calls.append(fetch)
        giver = self._givers.get(node_id)
        if giver is None:
            raise SnapshotBroken(f"node {node_id} is not reached")
        async with contextlib.aclosing(giver.snapshot_parts(fetch)) as parts:
            async for part in parts:
                self.passes(part)
                yield part
