"""The gRPC health of this broker: SERVING while it runs and can use a raft group."""

from __future__ import annotations

from collections.abc import Iterable

from strata_broker.servicers import admin_rpc, messaging_rpc, rocketmq_rpc
from strata_broker.servicers.plugins import BrokerPlugin
from strata_broker.storage_client.cluster_watch import ClusterWatch
from strata_edge.health import ServiceHealth
from strata_edge.ports import Edge


class Serving:
    """See the module docstring; NOT_SERVING until `begin` and after `end`.

    Args:
        edge: where the health service is added; before its start.
        cluster: knows whether the broker can serve.
        plugins: their services have the same health.
    """

    def __init__(self, edge: Edge, cluster: ClusterWatch, plugins: Iterable[BrokerPlugin]) -> None:
        self._health = ServiceHealth(edge)
        self._cluster = cluster
        self._services = [
            *("", messaging_rpc.SERVICE, admin_rpc.SERVICE, rocketmq_rpc.SERVICE),
            *(plugin.service for plugin in plugins),
        ]
        self._is_running = False
        cluster.on_serving(self._set)
        self._set(serves=False)

    def begin(self) -> None:
        """The broker has started."""
        self._is_running = True
        self._set(self._cluster.health().serves)

    def end(self) -> None:
        """The stop begins."""
        self._is_running = False
        self._set(serves=False)

    def _set(self, serves: bool) -> None:
        for service in self._services:
            self._health.set(service, serving=serves and self._is_running)
