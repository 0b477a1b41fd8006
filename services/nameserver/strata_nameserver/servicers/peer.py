"""PeerService: says who this nameserver is."""

from __future__ import annotations

from strata.meta.v1 import meta_pb2
from strata_angelia.ports import CallContext
from strata_nameserver.membership.peers import PeerDirectory

PEER_SERVICE = meta_pb2.DESCRIPTOR.services_by_name["PeerService"]


class PeerServicer:
    """Serves `strata.meta.v1.PeerService` to the other nameservers."""

    def __init__(self, directory: PeerDirectory) -> None:
        self._directory = directory

    async def hello(
        self, request: meta_pb2.HelloRequest, context: CallContext
    ) -> meta_pb2.HelloResponse:
        """Take in who asks, and answer."""
        peer = meta_pb2.NameserverPeer()
        peer.CopyFrom(request.self)
        self._directory.learned(peer)
        response = meta_pb2.HelloResponse()
        response.self.CopyFrom(self._directory.introduction())
        return response
