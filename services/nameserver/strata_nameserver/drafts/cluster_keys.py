"""Changes of cluster keys, with which brokers sign handles and session tokens.

The two newest are valid: what was signed with the key before stays good until the next rotation.
"""

from __future__ import annotations

from collections.abc import Callable

from strata.meta.v1 import meta_pb2
from strata_nameserver.state.draft import Draft
from strata_state.metadata_keys import cluster_key_key

KEY_BYTES = 32
VALID_KEYS = 2


def rotate_cluster_key(
    draft: Draft, random_bytes: Callable[[int], bytes], newest_key_id: int = 0
) -> meta_pb2.ClusterKey:
    """Make a new cluster key, delete those that are not valid any more, return the new row.

    Args:
        draft: of the change.
        random_bytes: of which the key is made.
        newest_key_id: of the key that the caller wants to replace; 0: whatever is the newest. If a
            newer one is there, a call was repeated whose answer was lost: that one is returned, for
            another one would end the key with which brokers sign now.
    """
    known = sorted(draft.access.cluster_keys)
    if newest_key_id and known and known[-1] > newest_key_id:
        return meta_pb2.ClusterKey.FromString(draft.get(cluster_key_key(known[-1])) or b"")
    key = meta_pb2.ClusterKey(
        key_id=known[-1] + 1 if known else 1,
        secret=random_bytes(KEY_BYTES),
        created_at_ms=draft.now_ms,
    )
    draft.put(key)
    for old in known[: len(known) + 1 - VALID_KEYS]:
        draft.delete(meta_pb2.ClusterKey(key_id=old))
    return key


def ensure_cluster_key(draft: Draft, random_bytes: Callable[[int], bytes]) -> None:
    """Make the first cluster key; one that is there leaves the draft empty."""
    if not draft.access.cluster_keys:
        rotate_cluster_key(draft, random_bytes)
