"""Loads of storage nodes, from their heartbeats, and which of the nodes are busy.

Soft state of the metadata leader. A node's load is the load that it leads and hands out: it cannot
give away the appends to raft groups that it follows. Means fade with time, not with the number of
heartbeats, so nodes with different intervals compare.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from strata.meta.v1 import meta_pb2
from strata_runtime.clock import Clock


@dataclass(slots=True)
class _Load:
    bytes_per_s: float
    at_s: float


class NodeLoads:
    """Loads of storage nodes.

    Args:
        window_s: time after which a measurement counts 1/e of a new one.
        clock: monotonic time.
    """

    def __init__(self, window_s: float, clock: Clock) -> None:
        self._window_s = window_s
        self._clock = clock
        self._loads: dict[str, _Load] = {}
        # (free, total) of the disk of each node's log.
        self._disks: dict[str, tuple[int, int]] = {}

    def reset(self) -> None:
        """Forget everything."""
        self._loads.clear()
        self._disks.clear()

    def forget(self, node_id: str) -> None:
        """A node is DOWN or starts anew: its load is not known.

        Its disk counts as it was until it says more, lest a full one be given replicas meanwhile.
        """
        self._loads.pop(node_id, None)

    def removed(self, node_id: str) -> None:
        """A node is gone for good."""
        self.forget(node_id)
        self._disks.pop(node_id, None)

    def measured(self, node_id: str, load: meta_pb2.StorageLoad) -> None:
        """Take in what a heartbeat says."""
        now_s = self._clock.monotonic_s()
        known = self._loads.get(node_id)
        if known is None:
            # The first heartbeat does not tell how long it counted.
            known = self._loads[node_id] = _Load(0.0, now_s)
        elapsed_s = now_s - known.at_s
        if elapsed_s > 0:
            rate = (load.led_bytes + load.served_bytes) / elapsed_s
            weight = 1 - math.exp(-elapsed_s / self._window_s)
            known.bytes_per_s += (rate - known.bytes_per_s) * weight
            known.at_s = now_s
        self._disks[node_id] = load.disk_free_bytes, load.disk_total_bytes

    def of(self, node_ids: Iterable[str]) -> dict[str, float]:
        """Return the bytes per second of each node; 0.0 of one that has said nothing."""
        loads = self._loads
        return {node: loads[node].bytes_per_s if node in loads else 0.0 for node in node_ids}

    def disk_bytes(self, node_id: str) -> tuple[int, int]:
        """Return (free, total) of the disk of a node's log; zeros: not known."""
        return self._disks.get(node_id, (0, 0))

    def disk_used(self, node_id: str) -> float:
        """Return what share of the disk of a node's log is used; 0.0: not known."""
        free, total = self.disk_bytes(node_id)
        return 1 - free / total if total else 0.0


def imbalance(loads: Mapping[str, float], floor_bytes_per_s: float) -> float:
    """Return the load of the busiest node / mean; 0.0 when no node is above the floor."""
    most = max(loads.values(), default=0.0)
    return most * len(loads) / sum(loads.values()) if most > floor_bytes_per_s else 0.0


def busy_third(loads: Mapping[str, float], floor_bytes_per_s: float) -> frozenset[str]:
    """Return the third of the nodes with the highest load, those above the floor only.

    One or two nodes are never busy: the load could go nowhere else.
    """
    order = sorted(loads, key=lambda node: (-loads[node], node))
    return frozenset(node for node in order[: len(order) // 3] if loads[node] > floor_bytes_per_s)
