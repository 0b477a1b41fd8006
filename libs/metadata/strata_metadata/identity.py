"""Whether metadata rows contain a node: only rows of its own cluster can (rule 32)."""

from __future__ import annotations

from strata.meta.v1 import meta_pb2
from strata_state.metadata import MetadataStore
from strata_state.metadata_keys import MetadataRowKind, kind_range, node_key


def knows_node(store: MetadataStore, node_id: str) -> bool:
    """Whether a node is registered, or a replica is listed as its.

    Node ids are random; those of replicas are counted up in every cluster and say nothing alone.
    """
    if store.get(node_key(node_id)) is not None:
        return True
    return any(
        replica.node_id == node_id
        for _, value in store.scan(*kind_range(MetadataRowKind.RAFT_GROUP))
        for row in (meta_pb2.RaftGroup.FromString(value),)
        for replica in (*row.replicas, *row.leaving)
    )
