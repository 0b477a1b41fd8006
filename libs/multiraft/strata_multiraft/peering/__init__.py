"""Raft groups of different nodes: transport, store heartbeats, quiescence."""

from strata_multiraft.peering.angelia_transport import PeerIdentity
from strata_multiraft.peering.memory_transport import MemoryNetwork
from strata_multiraft.peering.peering import Peering
from strata_multiraft.peering.peering_options import LivenessOptions
from strata_multiraft.peering.raft_servicer import RAFT_SERVICE
from strata_multiraft.peering.store_liveness import StoreLiveness

__all__ = [
    "RAFT_SERVICE",
    "LivenessOptions",
    "MemoryNetwork",
    "PeerIdentity",
    "Peering",
    "StoreLiveness",
]
