"""How a new set of nameservers becomes one metadata raft group.

Every nameserver draws a replica id with its data folder and asks all others for their identity.
Once all have answered and none belongs to a formed cluster, each of them writes down the same
record: the sorted replica ids, and a cluster id derived from them. A nameserver that meets a formed
cluster takes over that cluster's record. A nameserver that is not among those replica ids came
later, or with an emptied folder: it starts without a configuration, until the leader takes it in
(`members`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from strata.meta.v1 import meta_pb2
from strata_runtime.errors import StrataError


class FormationError(StrataError):
    """The nameservers that were asked do not belong together; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Formation:
    """The record that all nameservers of a cluster have.

    Attributes:
        cluster_id: of the cluster.
        replica_ids: voters that the metadata raft group began with, ascending.
    """

    cluster_id: str
    replica_ids: tuple[int, ...]


def decide_formation(
    own: meta_pb2.NameserverPeer, others: Iterable[meta_pb2.NameserverPeer | None]
) -> Formation | None:
    """Return what to write down; None: ask again.

    Args:
        own: this nameserver, not formed.
        others: what each of the others answered; None: nothing.

    Raises:
        FormationError: they belong to different clusters, or two have one replica id.
    """
    answers = list(others)
    present = [peer for peer in answers if peer is not None]
    formed = {
        Formation(peer.cluster_id, tuple(peer.initial_replica_ids)): peer.endpoint
        for peer in present
        if peer.cluster_id
    }
    if len(formed) > 1:
        raise FormationError(f"{' and '.join(formed.values())} belong to different clusters")
    if formed:
        return next(iter(formed))
    if len(present) < len(answers):
        return None
    replica_ids = tuple(sorted(peer.replica_id for peer in (own, *present)))
    if len(set(replica_ids)) < len(replica_ids):
        raise FormationError("two nameservers have the same replica id: a data folder was copied")
    return Formation(_cluster_id(replica_ids), replica_ids)


def _cluster_id(replica_ids: Iterable[int]) -> str:
    text = ",".join(map(str, replica_ids))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
