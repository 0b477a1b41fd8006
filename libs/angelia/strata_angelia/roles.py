"""Roles in calls: the one place that assigns callers and servers to each RPC between the tiers.

With mutual TLS both ends of a connection know each other's role. A server refuses an RPC that is
not for the caller's role; a caller refuses to call a process of another role than the one that
serves the RPC. An RPC that is not in the table is for nobody.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from strata_angelia.ports import FORBIDDEN, AngeliaError
from strata_runtime.roles import PeerRole

BROKER, STORAGE, NAMESERVER, ADMIN = (
    PeerRole.BROKER,
    PeerRole.STORAGE,
    PeerRole.NAMESERVER,
    PeerRole.ADMIN,
)


class RpcAccess(NamedTuple):
    """The callers and the servers of an RPC.

    Attributes:
        callers: roles of the callers.
        servers: roles of the processes that serve it.
        among_equals: caller and server have the same role.
    """

    callers: frozenset[PeerRole]
    servers: frozenset[PeerRole]
    among_equals: bool = False


class _Service(NamedTuple):
    servers: frozenset[PeerRole]
    rpcs: Mapping[tuple[PeerRole, ...], tuple[str, ...]]
    among_equals: bool = False


_META = _Service(
    # Storage nodes serve their copy when no nameserver answers (rule 16).
    frozenset({NAMESERVER, STORAGE}),
    {
        (BROKER,): (
            *("CreateTopic", "CreateTopics", "UpdateTopic", "DeleteTopic"),
            *("CreateConsumerGroup", "UpdateConsumerGroup", "DeleteConsumerGroup"),
            *("ConfirmDropped", "ConfirmRehashed", "DrainNode", "RemoveNode", "ChangeReplicas"),
            *("PreferLeader", "MoveQueue", "MoveSlots", "SetQuota"),
            *("CreateUser", "UpdateUser", "DeleteUser", "CreatePolicy", "DeletePolicy"),
            *("RotateClusterKey", "ProposePlan", "ApplyPlan", "SetPlacementModel"),
        ),
        (BROKER, ADMIN): ("ExplainQueue", "GetPlacement"),
        (BROKER, STORAGE): ("GetSnapshot", "Watch"),
        # The kind of the node is compared with the role by the nameserver itself.
        (BROKER, STORAGE, NAMESERVER): ("RegisterNode", "Heartbeat"),
        (BROKER, STORAGE, NAMESERVER, ADMIN): ("GetIdentity",),
        (STORAGE,): (
            *("ReportQueueMoved", "ReportQueueDrained"),
            *("ReportSlotsRevoked", "ReportSlotsGranted"),
        ),
    },
)
_STORAGE = _Service(
    frozenset({STORAGE}),
    {
        (BROKER,): (
            *("Fetch", "ReadMessages", "Pop", "EndPops", "Ack", "Release", "ChangeInvisible"),
            *("ForwardToDeadLetter", "Flush", "GetOffsets", "GetConsumerState"),
            *("GetConsumerTopics", "GetConsumers", "ResetConsumer", "Query", "Trace", "Watch"),
            *("ReportClients", "Seal", "Rehash", "Drop", "EndTransaction", "Recall"),
            *("ListPending", "TransferLeadership", "GetWindow", "Purge", "ReportChecks"),
        ),
        # A storage node forwards pending messages.
        (BROKER, STORAGE): ("Append",),
        (STORAGE,): ("Open",),
        (BROKER, STORAGE, ADMIN): ("GetStatus",),
    },
)
_TIER = _Service(
    frozenset({STORAGE}),
    {
        (BROKER,): (
            *("SetTierPaused", "FlushTier", "ReplaceTierRanges", "PlanTierSweep"),
            "ForgetTierObjects",
        ),
        (BROKER, ADMIN): ("GetTierStatus",),
    },
)
_TABLES = _Service(
    frozenset({STORAGE}),
    {(BROKER,): ("Write", "ReadIndex", "Read", "Scan", "Follow", "Dump", "Describe")},
)
_LITE = _Service(frozenset({STORAGE}), {(BROKER,): ("NumberLiteTopics", "ListLiteTopics")})
_RAFT = _Service(
    frozenset({NAMESERVER, STORAGE}),
    {(NAMESERVER, STORAGE): ("Deliver", "FetchSnapshot")},
    among_equals=True,
)

SERVICES: Mapping[str, _Service] = MappingProxyType(
    {
        "strata.meta.v1.MetaService": _META,
        "strata.meta.v1.PeerService": _Service(
            frozenset({NAMESERVER}), {(NAMESERVER,): ("Hello",)}, among_equals=True
        ),
        "strata.storage.v1.StorageService": _STORAGE,
        "strata.storage.v1.TierService": _TIER,
        "strata.storage.v1.LiteService": _LITE,
        "strata.kv.v1.KvStorageService": _TABLES,
        "strata.raft.v1.RaftService": _RAFT,
        "strata.broker.v1.PeerService": _Service(
            frozenset({BROKER}),
            {
                (BROKER,): (
                    "ListClients",
                    "CommandClient",
                    "CountConnections",
                    "SyncLite",
                    "PushReply",
                    "TellReset",
                    "AwaitRevision",
                )
            },
            among_equals=True,
        ),
    }
)


def _by_path() -> Iterator[tuple[str, RpcAccess]]:
    for name, service in SERVICES.items():
        for callers, rpcs in service.rpcs.items():
            for rpc in rpcs:
                access = RpcAccess(frozenset(callers), service.servers, service.among_equals)
                yield f"/{name}/{rpc}", access


ACCESS_OF: Mapping[str, RpcAccess] = MappingProxyType(dict(_by_path()))
"""By the RPC's path."""


def may_call(
    path: str, caller: PeerRole | None, server: PeerRole, table: Mapping[str, RpcAccess] = ACCESS_OF
) -> bool:
    """Whether a process may call an RPC of another one.

    Args:
        path: `/package.Service/Rpc`.
        caller: role of the caller; None: its certificate names none.
        server: role of the server.
        table: who may call what.
    """
    access = table.get(path)
    if access is None or caller is None or caller not in access.callers:
        return False
    return server in access.servers and (caller is server or not access.among_equals)


def check_caller(
    path: str, caller: PeerRole | None, server: PeerRole, table: Mapping[str, RpcAccess] = ACCESS_OF
) -> None:
    """Refuse a caller that has no business with an RPC.

    Raises:
        AngeliaError: FORBIDDEN.
    """
    if not may_call(path, caller, server, table):
        who = caller.described if caller else "a certificate without a role"
        raise AngeliaError(FORBIDDEN, f"{path} of {server.described} is not for {who}")


def check_server(
    path: str,
    server: PeerRole | None,
    endpoint: str,
    table: Mapping[str, RpcAccess] = ACCESS_OF,
) -> None:
    """Refuse to call a process that does not serve such an RPC, whatever it says.

    Raises:
        AngeliaError: FORBIDDEN.
    """
    access = table.get(path)
    if access is None or server is None or server not in access.servers:
        who = server.described if server else "a process without a role"
        raise AngeliaError(FORBIDDEN, f"{endpoint} is {who}, which does not serve {path}")
