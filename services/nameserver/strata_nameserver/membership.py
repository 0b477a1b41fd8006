"""Which nodes are alive: last heartbeats in memory, never written (they are only worth seconds).

After a restart nobody is known; a node's next heartbeat is answered NOT_FOUND and it registers
again, which changes nothing that is stored.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from strata.meta.v1 import meta_pb2
from strata_nameserver.config import NameserverConfig
from strata_nameserver.errors import MetaError
from strata_runtime.clock import Clock
from strata_runtime.metrics import Metrics


class _Heard(NamedTuple):
    kind: meta_pb2.NodeKind.ValueType
    boot_id: int
    at_s: float


class Membership:
    """Last sign of life per node; holds at most as many as may register.

    Args:
        config: silence after which a node is not alive.
        clock: monotonic time.
        metrics: nodes alive by kind.
    """

    def __init__(self, config: NameserverConfig, clock: Clock, metrics: Metrics) -> None:
        self._timeout_s = config.heartbeat_timeout_ms / 1_000
        self._clock = clock
        self._heard: dict[str, _Heard] = {}
        metrics.gauge("strata_metadata_nodes_alive", self._alive_by_kind)

    def heard(self, node_id: str, kind: meta_pb2.NodeKind.ValueType, boot_id: int) -> None:
        """Note that a node registered."""
        self._heard[node_id] = _Heard(kind, boot_id, self._clock.monotonic_s())

    def heartbeat(self, node_id: str, boot_id: int) -> None:
        """Note a heartbeat.

        Raises:
            MetaError: NOT_FOUND: this boot of the node has not registered since our start.
        """
        known = self._heard.get(node_id)
        if known is None or known.boot_id != boot_id:
            raise MetaError(meta_pb2.META_OUTCOME_NOT_FOUND, f"node {node_id} must register first")
        self.heard(node_id, known.kind, boot_id)

    def alive(self) -> dict[str, bool]:
        """Return for every node heard of whether its last sign of life is recent."""
        since_s = self._clock.monotonic_s() - self._timeout_s
        return {node_id: heard.at_s >= since_s for node_id, heard in self._heard.items()}

    def _alive_by_kind(self) -> list[tuple[float, dict[str, str]]]:
        alive = self.alive()
        kinds = Counter(heard.kind for node_id, heard in self._heard.items() if alive[node_id])
        names = {
            kind: meta_pb2.NodeKind.Name(kind).removeprefix("NODE_KIND_").lower() for kind in kinds
        }
        return [(count, {"kind": names[kind]}) for kind, count in kinds.items()]
