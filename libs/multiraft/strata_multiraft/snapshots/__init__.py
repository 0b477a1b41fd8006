"""Snapshots of replicas: their source, their transfer and their installation."""

from strata_multiraft.snapshots.memory_snapshots import MemorySnapshots

__all__ = [
    "MemorySnapshots",
]
