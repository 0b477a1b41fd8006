"""Classes of calls: the one place that assigns each RPC to a class (rules 15 and 34).

Each class has its own budget on every hop, in calls and in bytes, so a lower class never uses the
share of a higher class: waiting receives never block a send, sends never block an ack, and nothing
blocks the control calls. `Lane` says which classes share a connection.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from types import MappingProxyType


class CallClass(enum.Enum):
    """Purpose of a call, the most important first."""

    CONTROL = "control"
    """Raft, membership, metadata, moves, operators."""

    RELEASE = "release"
    """Acks and what else lets go of a message: it frees what the others wait for."""

    REPORT = "report"
    """News of who lives. Without it a storage node takes clients for dead."""

    APPEND = "append"
    """Calls that store messages or rows."""

    READ = "read"
    """Calls that return messages, rows or snapshots, and may wait for them."""

    # Each call looks its class up a dozen times; Enum's own hash is a Python function.
    __hash__ = object.__hash__


class Lane(enum.Enum):
    """A connection of a channel. A small message never waits behind a large one in a socket."""

    SMALL = 0
    APPEND = 1
    READ = 2


LANE_OF: Mapping[CallClass, Lane] = MappingProxyType(
    {
        CallClass.CONTROL: Lane.SMALL,
        CallClass.RELEASE: Lane.SMALL,
        CallClass.REPORT: Lane.SMALL,
        CallClass.APPEND: Lane.APPEND,
        CallClass.READ: Lane.READ,
    }
)

_STORAGE = "/strata.storage.v1.StorageService/"
_TIER = "/strata.storage.v1.TierService/"
_META = "/strata.meta.v1.MetaService/"
_PEER = "/strata.meta.v1.PeerService/"
_RAFT = "/strata.raft.v1.RaftService/"
_TABLES = "/strata.kv.v1.KvStorageService/"

_RPCS: Mapping[CallClass, Mapping[str, tuple[str, ...]]] = {
    CallClass.CONTROL: {
        _STORAGE: (
            *("Flush", "ResetConsumer", "Watch", "Seal", "Open", "Rehash", "Drop", "GetStatus"),
            *("TransferLeadership", "Purge"),
        ),
    },
    CallClass.RELEASE: {
        _STORAGE: (
            *("Ack", "Release", "ChangeInvisible", "ForwardToDeadLetter", "EndTransaction"),
            *("Recall", "EndPops"),
        ),
    },
    CallClass.REPORT: {_STORAGE: ("ReportClients", "ReportChecks"), _META: ("Heartbeat",)},
    CallClass.APPEND: {_STORAGE: ("Append",), _TABLES: ("Write",)},
    CallClass.READ: {
        _STORAGE: (
            *("Fetch", "ReadMessages", "Pop", "GetOffsets", "GetConsumerState"),
            *("GetConsumerTopics", "GetConsumers", "Query", "Trace", "ListPending", "GetWindow"),
        ),
        _META: ("GetSnapshot",),
        _RAFT: ("FetchSnapshot",),
        _TABLES: ("ReadIndex", "Read", "Scan", "Follow", "Dump", "Describe"),
    },
}


def _by_path() -> Iterator[tuple[str, CallClass]]:
    for call_class, services in _RPCS.items():
        for service, rpcs in services.items():
            for rpc in rpcs:
                yield service + rpc, call_class


CLASS_OF: Mapping[str, CallClass] = MappingProxyType(dict(_by_path()))
"""By the RPC's path."""

CONTROL_SERVICES = (_META, _PEER, _RAFT, _TIER)
"""Every RPC of these that has no other class is CONTROL, as is every RPC of an unknown service."""


def class_of(path: str, table: Mapping[str, CallClass] = CLASS_OF) -> CallClass:
    """Return the class of an RPC; of an unknown one it is CONTROL."""
    return table.get(path, CallClass.CONTROL)
