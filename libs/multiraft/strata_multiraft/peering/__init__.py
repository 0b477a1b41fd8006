"""Raft groups of different nodes: transport, store heartbeats, quiescence."""

from strata_multiraft.peering.angelia_transport import PeerIdentity
from strata_multiraft.peering.peer_queue import PeerQueue
from strata_multiraft.peering.peering import Peering, PeerPlaces
from strata_multiraft.peering.peering_options import LivenessOptions, TransportOptions
from strata_multiraft.peering.raft_servicer import RAFT_SERVICE
from strata_multiraft.peering.store_liveness import StoreLiveness

__all__ = [
    "RAFT_SERVICE",
    "LivenessOptions",
    "PeerIdentity",
    "PeerPlaces",
    "PeerQueue",
    "Peering",
    "StoreLiveness",
    "TransportOptions",
]
