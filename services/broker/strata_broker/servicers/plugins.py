"""Plugins of a broker: each adds a service, and may take sends that are no messages.

A process gives its broker the plugins that its configuration names. The edge answers calls of
others with UNIMPLEMENTED.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from strata_broker.access.call_runtime import CallRuntime
from strata_broker.access.principals import Principal
from strata_broker.base.audit import AuditTrail
from strata_broker.base.failures import Methods
from strata_broker.storage_client.cluster_access import ClusterAccess
from strata_edge.ports import HotCall
from strata_runtime.backoff import Random

if TYPE_CHECKING:
    from strata_broker.operators.topics import Operations


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginParts:
    """Parts of a broker that a plugin works with.

    Attributes:
        boot_id: of this run of the broker.
        cluster: what the broker knows of the cluster, and asks it.
        operations: on topics and consumer groups.
        calls: what calls of clients run on.
        random: numbers in [0, 1).
        audit: is told what changes.
    """

    boot_id: int
    cluster: ClusterAccess
    operations: Operations
    calls: CallRuntime
    random: Random
    audit: AuditTrail


class TakesSends(Protocol):
    """Checks sends before they are handled as messages."""

    @property
    def marks(self) -> Collection[str]:
        """Names of user properties; a send without any of them is none of the plugin's."""

    def takes_send(self, call: HotCall, principal: Principal) -> bool:
        """Take a SendMessage that is the plugin's own, and answer it; False: it is not.

        Args:
            call: the SendMessage.
            principal: who sends; the plugin checks what it may do.
        """


class BrokerPlugin(TakesSends, Protocol):
    """One plugin of one broker."""

    @property
    def service(self) -> str:
        """Name of its gRPC service."""

    def register(self, edge: Methods, parts: PluginParts) -> None:
        """Serve on an edge that has not started yet."""

    def end_all(self) -> None:
        """End streams: clients are sent to other brokers."""
