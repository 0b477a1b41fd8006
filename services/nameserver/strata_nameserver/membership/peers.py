"""The nameserver behind each address; kept fresh by asking.

Addresses come from configuration, ids from data folders: an address whose folder was emptied
answers with another replica id. Raft traffic and leader hints are looked up here, so they work
before a single row is known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from strata.meta.v1 import meta_pb2
from strata_angelia.ports import AngeliaError
from strata_metadata.channels import ChannelFactory, Channels
from strata_runtime.logs import get_logger

_HELLO = "/strata.meta.v1.PeerService/Hello"


class PeerDirectory:
    """The other nameservers by address and by replica id.

    Args:
        own: this nameserver.
        endpoints: of all nameservers, this one's among them.
        channel_factory: makes a channel to an address; the channels are owned here.
        interval_s: how often everybody is asked.
        timeout_s: for one answer.

    Attributes:
        endpoints: as given; whether anybody answers there or not.
    """

    def __init__(
        self,
        own: meta_pb2.NameserverPeer,
        endpoints: Sequence[str],
        channel_factory: ChannelFactory,
        *,
        interval_s: float,
        timeout_s: float = 1.0,
    ) -> None:
        self._own = own
        self.endpoints = tuple(endpoints)
        self._others = tuple(endpoint for endpoint in endpoints if endpoint != own.endpoint)
        self._channels = Channels(channel_factory, max(1, len(self._others)))
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._at: dict[str, meta_pb2.NameserverPeer] = {}
        self._by_replica: dict[int, meta_pb2.NameserverPeer] = {own.replica_id: own}
        # Address -> cluster of those that were written about; again when it changes.
        self._foreign: dict[str, str] = {}
        # How this nameserver's disk does; the others are told.
        self.disk_is_full: Callable[[], bool] = bool
        self._logger = get_logger("nameserver")

    @property
    def own(self) -> meta_pb2.NameserverPeer:
        """This nameserver, as the others are told; replaced when the cluster is formed."""
        return self._own

    @own.setter
    def own(self, peer: meta_pb2.NameserverPeer) -> None:
        self._own = self._by_replica[peer.replica_id] = peer

    def introduction(self) -> meta_pb2.NameserverPeer:
        """Return what the others are told of this nameserver now."""
        peer = meta_pb2.NameserverPeer(disk_is_full=self.disk_is_full())
        peer.MergeFrom(self.own)
        return peer

    def full(self) -> list[str]:
        """Return the node ids of the others whose disk is full, as they said last."""
        return sorted(peer.node_id for peer in self._at.values() if peer.disk_is_full)

    def node_of(self, replica_id: int) -> str | None:
        """Return the node id of a replica of the metadata raft group; None: not known yet."""
        peer = self._by_replica.get(replica_id)
        return peer.node_id if peer is not None else None

    def endpoint_of(self, node_id: str) -> str | None:
        """Return the address of a nameserver; None: it does not answer at any now."""
        for peer in (self.own, *self._at.values()):
            if peer.node_id == node_id:
                return peer.endpoint
        return None

    def members(self) -> dict[str, int]:
        """Return the replica id that answered last at each address, of this cluster only."""
        found = {
            endpoint: peer.replica_id
            for endpoint, peer in self._at.items()
            if peer.cluster_id == self.own.cluster_id
        }
        return {self.own.endpoint: self.own.replica_id, **found}

    def addresses(self) -> dict[int, str]:
        """Return where each replica answered last, those that answer no more among them."""
        return {replica_id: peer.endpoint for replica_id, peer in self._by_replica.items()}

    def learned(self, peer: meta_pb2.NameserverPeer) -> None:
        """Take in who a nameserver said it is. One at an address not configured is ignored."""
        if peer.endpoint not in self._others:
            return
        if peer.cluster_id and self.own.cluster_id and peer.cluster_id != self.own.cluster_id:
            if self._foreign.get(peer.endpoint) != peer.cluster_id:
                self._foreign[peer.endpoint] = peer.cluster_id
                self._logger.error(
                    "a nameserver of another cluster",
                    endpoint=peer.endpoint,
                    cluster=peer.cluster_id,
                )
            return
        self._foreign.pop(peer.endpoint, None)
        self._at[peer.endpoint] = peer
        self._by_replica[peer.replica_id] = peer

    async def ask(self) -> list[meta_pb2.NameserverPeer | None]:
        """Ask all others once; return their answers, None for those who gave none."""
        return await asyncio.gather(*(self._ask(endpoint) for endpoint in self._others))

    async def run(self) -> None:
        """Ask again and again until cancelled."""
        while True:
            await self.ask()
            await asyncio.sleep(self._interval_s)

    async def close(self) -> None:
        """Close all channels."""
        await self._channels.close()

    async def _ask(self, endpoint: str) -> meta_pb2.NameserverPeer | None:
        request = meta_pb2.HelloRequest(self=self.introduction())
        try:
            response = await self._channels.get(endpoint).call(
                _HELLO, request, meta_pb2.HelloResponse, timeout_s=self._timeout_s
            )
        except AngeliaError:
            return None
        peer = meta_pb2.NameserverPeer()
        peer.CopyFrom(response.self)
        # It is reached here, whatever it calls itself.
        peer.endpoint = endpoint
        self.learned(peer)
        return peer
