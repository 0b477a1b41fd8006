"""Limits and times of lite topics in a storage node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from strata_storage.base.config import StorageConfig


@dataclass(frozen=True, slots=True)
class LiteOptions:
    """Limits of one storage node.

    Attributes:
        max_lite_topics: of one raft group.
        max_names: of one request, and of one page of a list.
        expiry_interval_ms: how often the leader looks for lite topics without traffic.
        expiry_batch: lite topics that it looks at each time.
        max_ended: lite topics that it ends each time at most; the rows of each are deleted.
    """

    max_lite_topics: int
    max_names: int = 1_000
    expiry_interval_ms: int = 1_000
    expiry_batch: int = 1_000
    max_ended: int = 100

    @classmethod
    def of(cls, config: StorageConfig) -> LiteOptions:
        """Return those of a node's configuration."""
        return cls(max_lite_topics=config.max_lite_topics)


LifetimeOf = Callable[[int], int | None]
"""Returns the milliseconds that lite topics of a parent topic live without traffic; None: ever."""
