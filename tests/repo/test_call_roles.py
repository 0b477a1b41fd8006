"""Every RPC between the tiers says who may call it; what nobody decided is for nobody."""

from __future__ import annotations

import pytest

from strata.broker.v1 import peer_pb2
from strata.kv.v1 import kv_storage_pb2
from strata.meta.v1 import meta_pb2
from strata.raft.v1 import raft_pb2
from strata.storage.v1 import lite_pb2, storage_pb2, tier_pb2
from strata_angelia.roles import ACCESS_OF, SERVICES, may_call
from strata_runtime.roles import PeerRole

FILES = (storage_pb2, tier_pb2, lite_pb2, meta_pb2, raft_pb2, kv_storage_pb2, peer_pb2)
PATHS = {
    f"/{service.full_name}/{rpc.name}"
    for file in FILES
    for service in file.DESCRIPTOR.services_by_name.values()
    for rpc in service.methods
}
META = "/strata.meta.v1.MetaService/"
STORAGE = "/strata.storage.v1.StorageService/"
RAFT = "/strata.raft.v1.RaftService/"
SERVERS = (PeerRole.BROKER, PeerRole.STORAGE, PeerRole.NAMESERVER)


def test_every_rpc_has_callers_and_no_line_is_idle() -> None:
    """The table has exactly the RPCs between the tiers, each on one line."""
    assert set(ACCESS_OF) == PATHS
    named = [rpc for service in SERVICES.values() for rpcs in service.rpcs.values() for rpc in rpcs]
    assert len(named) == len(PATHS)
    for path, access in ACCESS_OF.items():
        assert access.callers, path
        assert access.servers <= set(SERVERS), path


@pytest.mark.parametrize("caller", [*PeerRole, None])
def test_an_unknown_rpc_is_for_nobody(caller: PeerRole | None) -> None:
    """An RPC that the table does not have is refused, whoever asks."""
    for server in SERVERS:
        assert not may_call("/strata.meta.v1.MetaService/Invented", caller, server)


def test_a_certificate_without_a_role_opens_nothing() -> None:
    """To be of this authority is not enough."""
    assert not any(may_call(path, None, server) for path in PATHS for server in SERVERS)


def test_clients_call_nothing_between_the_tiers() -> None:
    """A client's certificate opens no RPC, an admin's only what changes and tells no data."""
    opened = {
        path for path in PATHS for server in SERVERS if may_call(path, PeerRole.CLIENT, server)
    }
    assert opened == set()
    opened = {
        path for path in PATHS for server in SERVERS if may_call(path, PeerRole.ADMIN, server)
    }
    assert opened == {
        META + "GetIdentity",
        META + "ExplainQueue",
        META + "GetPlacement",
        STORAGE + "GetStatus",
        "/strata.storage.v1.TierService/GetTierStatus",
    }


@pytest.mark.parametrize("rpc", ["Deliver", "FetchSnapshot"])
def test_raft_is_among_equals(rpc: str) -> None:
    """A storage node takes raft messages of storage nodes only, a nameserver of nameservers."""
    for server in SERVERS:
        for caller in PeerRole:
            expected = caller is server and server is not PeerRole.BROKER
            assert may_call(RAFT + rpc, caller, server) is expected, (caller, server)


def test_a_broker_is_no_storage_node() -> None:
    """A broker neither reports moves nor opens queues; a storage node changes no topic."""
    for rpc in ("ReportQueueMoved", "ReportQueueDrained", "ReportSlotsRevoked"):
        assert not may_call(META + rpc, PeerRole.BROKER, PeerRole.NAMESERVER)
        assert may_call(META + rpc, PeerRole.STORAGE, PeerRole.NAMESERVER)
    assert not may_call(STORAGE + "Open", PeerRole.BROKER, PeerRole.STORAGE)
    for rpc in ("CreateTopic", "RemoveNode", "CreateUser", "RotateClusterKey"):
        assert may_call(META + rpc, PeerRole.BROKER, PeerRole.NAMESERVER)
        for other in (PeerRole.STORAGE, PeerRole.NAMESERVER, PeerRole.ADMIN, PeerRole.CLIENT):
            assert not may_call(META + rpc, other, PeerRole.NAMESERVER)
