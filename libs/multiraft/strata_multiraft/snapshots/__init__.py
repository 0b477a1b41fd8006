"""Snapshots of replicas: where they come from, how they travel, how they are installed."""

from strata_multiraft.snapshots.memory_snapshots import MemorySnapshots

__all__ = [
    "MemorySnapshots",
]
