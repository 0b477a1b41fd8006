"""The ports on which a broker takes calls of other brokers.

They are the port for clients, a port of the broker's own if it shares that one with other workers,
and a port under certificates of the cluster.
"""

from __future__ import annotations

from collections.abc import Callable

from strata_broker.base.failures import Methods
from strata_broker.clients.client_commands import ClientCommands
from strata_broker.clients.connected_clients import ConnectedClients
from strata_broker.clients.group_resets import GroupResets
from strata_broker.clients.replies import Replies
from strata_broker.metadata.shown_revisions import ShownRevisions
from strata_broker.receives.lite_subscriptions import LiteSubscriptions
from strata_broker.servicers.peer import BrokerPeerServicer
from strata_broker.servicers.peer_port import PeerPortServicer
from strata_broker.storage_client.channels import BrokerNetwork
from strata_edge.ports import Edge
from strata_runtime.listening import endpoint_of

Guarded = Callable[[Methods], Methods]
"""Returns where the RPCs of an edge are put, so that their callers are checked."""


class PeerPorts:
    """See the module docstring.

    Args:
        host: under which other brokers reach this one.
        network: its ports for other brokers.
        clients: of this broker.
        commands: to them.
        lite: their subscriptions of lite topics.
        replies: of consumers, to them.
        resets: of consumer groups, told to them.
        shown: waits for revisions of the metadata.
    """

    def __init__(
        self,
        host: str,
        network: BrokerNetwork,
        clients: ConnectedClients,
        *,
        commands: ClientCommands,
        lite: LiteSubscriptions,
        replies: Replies,
        resets: GroupResets,
        shown: ShownRevisions,
    ) -> None:
        self._host = host
        self._network = network
        self._clients = clients
        self._commands = commands
        self._lite = lite
        self._replies = replies
        self._resets = resets
        self._shown = shown

    def register(self, client_edge: Edge, guarded: Guarded) -> None:
        """Serve on every port of a broker that has not started."""
        network = self._network
        servicer = BrokerPeerServicer(
            self._clients,
            self._commands,
            self._lite,
            replies=self._replies,
            resets=self._resets,
            shown=self._shown,
            cluster=network.cluster,
        )
        if network.peers_on_client_port:
            servicer.register(guarded(client_edge))
        if network.peer_edge is not None:
            servicer.register(guarded(network.peer_edge))
        if network.peer_server is not None:
            PeerPortServicer(
                self._clients,
                self._commands,
                self._lite,
                replies=self._replies,
                resets=self._resets,
                shown=self._shown,
            ).register(network.peer_server)

    async def start(self, client_port: int) -> list[str]:
        """Listen; return the endpoints to register: in plaintext, and under certificates if any.

        Args:
            client_port: where clients are served.

        Raises:
            OSError: an address cannot be listened on.
        """
        network, port = self._network, client_port
        if network.peer_edge is not None:
            port = await network.peer_edge.start()
        endpoints = [endpoint_of(self._host, port)]
        if network.peer_server is not None:
            tls_port = int((await network.peer_server.start()).rpartition(":")[2])
            endpoints.append(endpoint_of(self._host, tls_port))
        return endpoints

    async def stop(self) -> None:
        """End the ports of the broker's own."""
        network = self._network
        if network.peer_edge is not None:
            await network.peer_edge.stop(0)
        if network.peer_server is not None:
            await network.peer_server.stop(0)
