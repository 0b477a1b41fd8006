"""Gives brokers that join an address their share of the clients that are connected already.

A virtual address, such as a Kubernetes Service, picks a broker when a client connects, so a new
broker would get new clients only. Brokers that advertise one endpoint therefore count each other's
connections. A broker with clearly more than the even share asks some clients, a few per second, to
make their next calls over a new connection, for which the address picks a broker anew. No call
fails: HTTP/2's GOAWAY lets the calls under way end.

Nothing happens while the count of any of these brokers is unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from strata.meta.v1 import meta_pb2
from strata_broker.base.balance_config import BalanceSection
from strata_broker.clients.peers import BrokerPeers
from strata_broker.clients.telemetry import Telemetry
from strata_broker.metadata.metadata import MetadataView
from strata_edge.ports import Edge
from strata_runtime.logs import get_logger
from strata_runtime.metrics import Metrics

_PACE_S = 1.0  # the limit is per second


def surplus_connections(own: int, others: Sequence[int], tolerance_share: float) -> int:
    """Return how many connections a broker holds beyond the even share.

    Args:
        own: connections of this broker.
        others: of each other broker behind the address.
        tolerance_share: surplus that counts as none, as a share of the even share.
    """
    share = (own + sum(others)) / (len(others) + 1)
    return int(own - share) if own > share * (1 + tolerance_share) else 0


class ConnectionBalancer:
    """See the module docstring.

    Args:
        node_id: of this broker.
        view: knows the brokers and what they advertise.
        edge: where the clients are connected.
        peers: count the connections of other brokers.
        telemetry: its streams last as long as their connections.
        config: pace and tolerance.
        metrics: what is counted.
    """

    def __init__(
        self,
        node_id: str,
        view: MetadataView,
        edge: Edge,
        *,
        peers: BrokerPeers,
        telemetry: Telemetry,
        config: BalanceSection,
        metrics: Metrics,
    ) -> None:
        self._node_id = node_id
        self._view = view
        self._edge = edge
        self._peers = peers
        self._telemetry = telemetry
        self._config = config
        self._surplus = 0
        self._moved = metrics.counter("strata_broker_moved_connections_total")
        metrics.gauge("strata_broker_surplus_connections", lambda: self._surplus)
        self._log = get_logger("broker")

    async def run(self) -> None:
        """Count and send away until cancelled."""
        while True:
            await asyncio.sleep(self._config.interval_ms / 1_000)
            self._surplus = await self.surplus()
            if self._surplus:
                await self._send_away(self._surplus)

    async def surplus(self) -> int:
        """Return how many clients should connect again; 0 while that cannot be known."""
        others = self._others()
        if not others:
            return 0
        counts = await self._peers.connections(others)
        own = self._edge.connections()
        known = [count for count in counts if count is not None]
        if own is None or len(known) < len(others):
            return 0
        surplus = surplus_connections(own, known, self._config.tolerance_share)
        if surplus:
            self._log.info(
                "clients are asked to connect again: this broker has more than its share",
                connections=own,
                of_others=known,
                surplus=surplus,
            )
        return surplus

    def _others(self) -> list[str]:
        """Return the other brokers that take connections at this broker's advertised endpoint."""
        own = self._view.node(self._node_id)
        if own is None or own.draining or not own.advertised_endpoint:
            return []
        return [
            node.node_id
            for node in self._view.nodes(meta_pb2.NODE_KIND_BROKER)
            if node.node_id != self._node_id
            and node.advertised_endpoint == own.advertised_endpoint
            and node.state != meta_pb2.NODE_STATE_DOWN
            and not node.draining
        ]

    async def _send_away(self, surplus: int) -> None:
        """Send so many clients away, or as many as the pace allows until the next count."""
        config = self._config
        turns = max(1, config.interval_ms // 1_000)
        for turn in range(turns):
            if turn:
                await asyncio.sleep(_PACE_S)
            peers = await self._edge.send_away(min(surplus, config.max_moves_per_s))
            self._telemetry.end_of(frozenset(peers))
            self._moved.add(len(peers))
            surplus -= len(peers)
            if not peers or surplus <= 0:
                return
