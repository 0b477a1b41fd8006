"""Connections of a broker: to nameservers by endpoint, to other nodes by node id.

Role: choose a node's endpoint, transport and codec; keep one channel per node, as long as the node
is a member. It knows nothing of leaders and does not repeat calls.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from strata_angelia.cluster_id import ClusterId
from strata_angelia.config import AngeliaSection
from strata_angelia.factory import open_channel
from strata_angelia.http2_channel import Http2Channel
from strata_angelia.ports import UNAVAILABLE, AngeliaError, Channel, Server
from strata_angelia.tls import PeerTls
from strata_broker.base.storage_client_config import StorageClientSection
from strata_broker.metadata.metadata import MetadataView
from strata_edge.ports import Edge
from strata_runtime.health import Health, HealthSource
from strata_runtime.tracing import current_trace_parent

ChannelFactory = Callable[[Sequence[str]], Channel]
"""Makes a channel to a node from the endpoints it registered (`host:port`, `inproc:NAME`).

Raises AngeliaError when none of them can be used.
"""


CallHeaders = Callable[[], Sequence[tuple[str, str]]]
"""Gives headers for a call."""

BrokerChannelFactory = Callable[[Sequence[str], CallHeaders], Channel]
"""As `ChannelFactory`, for channels to brokers; their calls carry the headers."""


def broker_channel(
    endpoints: Sequence[str],
    headers: CallHeaders,
    cluster: ClusterId | None = None,
    tls: PeerTls | None = None,
) -> Channel:
    """Return a channel to another broker: to its port for brokers, else to that for clients.

    Args:
        endpoints: of the broker: for clients, and for brokers if it has certificates.
        headers: say who calls; on the port for brokers its certificate does.
        cluster: of this process; None: it belongs to none.
        tls: certificates of this process; None: plaintext.

    Raises:
        AngeliaError: UNAVAILABLE, it registered none, or none for TLS.
    """
    if not endpoints:
        raise AngeliaError(UNAVAILABLE, "the broker registered no endpoint")
    if tls is not None and len(endpoints) > 1:
        return open_channel(endpoints[1], cluster=cluster, tls=tls)
    if tls is not None and tls.mode == "required":
        raise AngeliaError(UNAVAILABLE, "the broker has no port for other brokers")
    return Http2Channel(endpoints[0], cluster=cluster, headers=headers)


@dataclass(frozen=True, slots=True)
class BrokerNetwork:
    """The addresses and channels of a broker's peers.

    Attributes:
        nameservers: endpoints of all of them.
        metadata_channels: makes a channel to an endpoint that serves MetaService.
        storage_channels: makes a channel to a storage node.
        storage_seeds: endpoints of storage nodes, which give the metadata that they know when no
            nameserver answers (rule 16).
        broker_channels: makes a channel to another broker.
        cluster: that the process belongs to; None: it is not checked.
        peer_server: for other brokers under certificates, not started; None: there are none.
        peers_on_client_port: whether other brokers may call the port for clients.
        peer_edge: an address of this broker's own, not yet started, for other brokers without
            certificates, if it shares the port for clients with others. None: they call that port.
        health: of what the network needs: the certificates of the process.
    """

    nameservers: Sequence[str]
    metadata_channels: Callable[[str], Channel]
    storage_channels: ChannelFactory
    storage_seeds: Sequence[str] = ()
    broker_channels: BrokerChannelFactory = broker_channel
    cluster: ClusterId | None = None
    peer_server: Server | None = None
    peers_on_client_port: bool = True
    peer_edge: Edge | None = None
    health: HealthSource = Health


def cluster_network(
    nameservers: Sequence[str],
    storage_seeds: Sequence[str],
    config: StorageClientSection,
    angelia: AngeliaSection | None = None,
    cluster: ClusterId | None = None,
    tls: PeerTls | None = None,
) -> BrokerNetwork:
    """Return the network of a broker process, without a server.

    Args:
        nameservers: `host:port` of each one's Angelia tcp server.
        storage_seeds: `host:port` of some storage nodes' Angelia tcp servers.
        config: transport and codec of calls to storage nodes, and the time to connect.
        angelia: limits of each class of calls; None: the defaults.
        cluster: that the process belongs to; None: it is not checked.
        tls: certificates of the process; None: plaintext.
    """
    options = (angelia or AngeliaSection()).options(config.connect_timeout_ms / 1000)
    # A storage node registers its tcp endpoint first, its http2 endpoint second.
    number = 0 if config.storage_transport == "tcp" else 1

    def storage_channel(endpoints: Sequence[str]) -> Channel:
        if len(endpoints) <= number:
            raise AngeliaError(
                UNAVAILABLE, f"no {config.storage_transport} endpoint in {list(endpoints)}"
            )
        return open_channel(
            endpoints[number],
            config.storage_transport,
            config.storage_codec,
            options=options,
            trace_parent=current_trace_parent,
            cluster=cluster,
            tls=tls,
        )

    return BrokerNetwork(
        nameservers,
        partial(open_channel, options=options, cluster=cluster, tls=tls),
        storage_channel,
        storage_seeds,
        partial(broker_channel, cluster=cluster, tls=tls),
        cluster,
        peers_on_client_port=tls is None or tls.mode != "required",
    )


class NodeChannels:
    """One channel per node, made when first used, anew when its endpoints change."""

    def __init__(self, view: MetadataView, factory: ChannelFactory) -> None:
        self._view = view
        self._factory = factory
        self._channels: dict[str, tuple[tuple[str, ...], Channel]] = {}
        self._replaced: list[Channel] = []

    def to(self, node_id: str) -> Channel:
        """Return the channel to a node.

        Raises:
            AngeliaError: UNAVAILABLE, the node is not registered or offers no such transport.
        """
        node = self._view.node(node_id)
        known = self._channels.get(node_id)
        if node is None:
            raise AngeliaError(UNAVAILABLE, f"node {node_id} is not registered")
        endpoints = tuple(node.endpoints)
        if known is not None and known[0] == endpoints:
            return known[1]
        if known is not None:
            self._replaced.append(known[1])
        channel = self._factory(endpoints)
        self._channels[node_id] = (endpoints, channel)
        return channel

    def forget(self, node_id: str) -> None:
        """The node is no member any more: its channel is closed with the next `close_replaced`."""
        known = self._channels.pop(node_id, None)
        if known is not None:
            self._replaced.append(known[1])

    def forget_others(self, node_ids: Collection[str]) -> None:
        """Forget all nodes but these."""
        for node_id in self._channels.keys() - set(node_ids):
            self.forget(node_id)

    async def close_replaced(self) -> None:
        """Close the channels that take no new calls."""
        replaced, self._replaced = self._replaced, []
        for channel in replaced:
            await channel.close()

    async def close(self) -> None:
        """Close all channels."""
        channels = [channel for _, channel in self._channels.values()]
        self._channels = {}
        await self.close_replaced()
        for channel in channels:
            await channel.close()
