"""Tombstones: the rows of a deletion until the data is deleted everywhere (rule 17).

A tombstone is written in the draft that deletes the row, so no crash lies between the two. It is
done when a broker has confirmed that every raft group dropped the data. Done tombstones are kept as
long as there is space; one that is not done is never given up.
"""

from __future__ import annotations

from strata.meta.v1 import meta_pb2
from strata_metadata.errors import MetaRefused
from strata_nameserver.base.config import NameserverConfig
from strata_nameserver.base.errors import invalid
from strata_nameserver.state.draft import Draft
from strata_state.metadata_keys import tombstone_key


def bury(draft: Draft, tombstone: meta_pb2.Tombstone, config: NameserverConfig) -> None:
    """Put the tombstone of what the draft deletes.

    At the limit the tombstone that has been done for longest goes.

    Raises:
        MetaRefused: LIMIT_REACHED: none is done, so storage has not dropped anything for long.
    """
    excess = draft.counters.tombstone_count + 1 - config.max_tombstones
    if excess > 0:
        oldest = draft.oldest_done_tombstones(excess)
        if len(oldest) < excess:
            raise MetaRefused(
                meta_pb2.META_OUTCOME_LIMIT_REACHED,
                f"the data of {config.max_tombstones} deleted topics and consumer groups is still "
                "to be dropped (nameserver.max_tombstones)",
            )
        for kind, dropped_id in oldest:
            draft.delete(meta_pb2.Tombstone(kind=kind, id=dropped_id))
        draft.counters.tombstone_count -= excess
    draft.counters.tombstone_count += 1
    tombstone.deleted_at_ms = draft.now_ms
    draft.put(tombstone)


def confirm_dropped(draft: Draft, kind: meta_pb2.TombstoneKind.ValueType, dropped_id: int) -> None:
    """Mark a tombstone done; one that is done or gone already leaves the draft empty.

    Raises:
        MetaRefused: INVALID: no such kind.
    """
    if kind not in (meta_pb2.TOMBSTONE_KIND_TOPIC, meta_pb2.TOMBSTONE_KIND_CONSUMER_GROUP):
        raise invalid("kind is missing")
    value = draft.get(tombstone_key(kind, dropped_id))
    if value is None:
        return
    tombstone = meta_pb2.Tombstone.FromString(value)
    if not tombstone.done:
        tombstone.done = True
        draft.put(tombstone)
