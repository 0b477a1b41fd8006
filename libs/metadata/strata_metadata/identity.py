"""Metadata rows about a node that asks: only rows of its own cluster know it (rule 32)."""

from __future__ import annotations

from typing import NamedTuple

from strata.meta.v1 import command_pb2, meta_pb2
from strata_metadata.errors import MetaRefused
from strata_state.metadata import MetadataStore
from strata_state.metadata_keys import APPLIED_KEY, MetadataRowKind, kind_range, node_key


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

    Raises:
        MetaRefused: UNAVAILABLE: there are no rows here yet, or a snapshot is replacing them. Rows
            that are not all here would not know nodes whose data is needed.
    """
    applied = store.get(APPLIED_KEY)
    replicas = sum(
        replica.node_id == node_id
        for _, value in store.scan(*kind_range(MetadataRowKind.RAFT_GROUP))
        for row in (meta_pb2.RaftGroup.FromString(value),)
        for replica in (*row.replicas, *row.leaving)
    )
    is_known = replicas > 0 or store.get(node_key(node_id)) is not None
    # While rows are replaced there is no applied row; a thread may have begun or ended meanwhile.
    is_whole = applied is not None and applied == store.get(APPLIED_KEY)
    if not is_whole or not command_pb2.AppliedState.FromString(applied or b"").counters.revision:
        raise MetaRefused(
            meta_pb2.META_OUTCOME_UNAVAILABLE,
            "the metadata is not here, or not all of it: ask another nameserver, or again later",
        )
    return KnownNode(is_known, replicas)
