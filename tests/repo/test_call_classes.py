"""Every RPC between the tiers has a class of calls that somebody chose."""

from __future__ import annotations

import pytest

from strata.kv.v1 import kv_storage_pb2
from strata.meta.v1 import meta_pb2
from strata.raft.v1 import raft_pb2
from strata.storage.v1 import storage_pb2, tier_pb2
from strata_angelia.classes import CLASS_OF, CONTROL_SERVICES, CallClass, class_of

FILES = (storage_pb2, tier_pb2, meta_pb2, raft_pb2, kv_storage_pb2)
PATHS = [
    f"/{service.full_name}/{rpc.name}"
    for file in FILES
    for service in file.DESCRIPTOR.services_by_name.values()
    for rpc in service.methods
]


@pytest.mark.parametrize("path", PATHS)
def test_an_rpc_has_a_class(path: str) -> None:
    """A new RPC of a service that has several classes stands in the table of `classes.py`."""
    assert path in CLASS_OF or path.startswith(CONTROL_SERVICES)


def test_every_rpc_of_the_table_exists() -> None:
    """No line of the table speaks of an RPC that is not there."""
    assert set(CLASS_OF) <= set(PATHS)


def test_what_waits_is_no_append_and_no_release() -> None:
    """The classes that the rules name are those of these RPCs."""
    storage = "/strata.storage.v1.StorageService/"
    assert class_of(storage + "Pop") is CallClass.READ
    assert class_of(storage + "Append") is CallClass.APPEND
    assert class_of(storage + "Ack") is CallClass.RELEASE
    assert class_of(storage + "ReportClients") is CallClass.REPORT
    assert class_of("/strata.raft.v1.RaftService/Deliver") is CallClass.CONTROL
