"""How a storage node learns from the nameserver what it hosts."""

from __future__ import annotations

from collections.abc import Sequence

from strata.meta.v1 import meta_pb2 as meta
from strata_angelia.ports import Channel
from strata_storage.node import HostedGroup

_REGISTER = "/strata.meta.v1.MetaService/RegisterNode"


class RegistrationError(Exception):
    """The nameserver did not take the node; the reason is its own."""


async def register(
    channel: Channel, node_id: str, endpoints: Sequence[str], boot_id: int, *, timeout_s: float
) -> list[HostedGroup]:
    """Register a storage node; return the replicas it hosts. Registering again gives the same.

    Args:
        channel: to a nameserver.
        node_id: the node's id, from its data folder.
        endpoints: where its service listens.
        boot_id: drawn at random when the process started.
        timeout_s: for the call.

    Raises:
        RegistrationError: refused.
        AngeliaError: no nameserver answered.
    """
    node = meta.Node(
        node_id=node_id, kind=meta.NODE_KIND_STORAGE, endpoints=endpoints, boot_id=boot_id
    )
    response = await channel.call(
        _REGISTER,
        meta.RegisterNodeRequest(node=node),
        meta.RegisterNodeResponse,
        timeout_s=timeout_s,
    )
    if response.status.outcome != meta.META_OUTCOME_OK:
        raise RegistrationError(response.status.reason)
    return [hosted_group(replica) for replica in response.replicas]


def hosted_group(replica: meta.HostedReplica) -> HostedGroup:
    """Translate what the nameserver says of a replica."""
    return HostedGroup(
        replica.raft_group.raft_group,
        replica.replica_id,
        {peer.replica_id: peer.node_id for peer in replica.raft_group.replicas},
        [(slots.first_slot, slots.slot_count) for slots in replica.slots],
    )
