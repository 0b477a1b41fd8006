"""Metadata rows about a node that asks: only rows of its own cluster know it (rule 32)."""

from __future__ import annotations

from typing import NamedTuple

from strata.meta.v1 import meta_pb2
from strata_state.metadata import MetadataStore
from strata_state.metadata_keys import MetadataRowKind, kind_range, node_key


class KnownNode(NamedTuple):
    """A node in the metadata rows.

    Attributes:
        is_known: it is registered, or a replica is listed as its.
        replicas: listed as its, those that leave it among them.
    """

    is_known: bool
    replicas: int


def look_up_node(store: MetadataStore, node_id: str) -> KnownNode:
    """Return what the rows know of a node.

    Node ids are random; those of replicas are counted up in every cluster and say nothing alone.
    """
    replicas = sum(
        replica.node_id == node_id
        for _, value in store.scan(*kind_range(MetadataRowKind.RAFT_GROUP))
        for row in (meta_pb2.RaftGroup.FromString(value),)
        for replica in (*row.replicas, *row.leaving)
    )
    return KnownNode(replicas > 0 or store.get(node_key(node_id)) is not None, replicas)
