"""Restore of a cluster, or of some of its topics, from a bucket alone (rules 28 and 29).

A restore uses the newest valid manifest of each raft group with its checkpoint, and the newest rows
of the nameserver. In the restored state the log of every queue is empty: messages in the tier are
read from there, messages that were not uploaded are lost and counted. Consumer groups continue at
the cursors of the checkpoint, so they may receive messages again and miss none below the tier's
commit offset.

The module only reads the bucket; another module writes the rows into a data folder. Objects stay in
the old home; a restored cluster writes to its own home.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from strata_mq.layout import (
    AppliedRow,
    PendingRow,
    QueueRow,
    RowKind,
    encode_local_offset,
    kind_prefix,
    tier_local_key,
)
from strata_state.ports import Row
from strata_tier.base.errors import DamagedObjectError, TierError
from strata_tier.objects.archive import Archive, ArchivedEntry
from strata_tier.ranges.manifest import Manifest
from strata_tier.ranges.metadata_memory import MemoryTierMetadata
from strata_tier.store.ports import ObjectNotFoundError, ObjectStore
from strata_tier.upkeep import bucket

_TOPIC = struct.Struct(">I")
_QUEUE = struct.Struct(">II")
_LEASE = struct.Struct(">IIIQ")
_PENDING = struct.Struct(">QQI")
_KIND_AT = 4
_REST_AT = 5

# Rows with nothing but the topic's, or the queue's, numbers first.
_BY_TOPIC = frozenset(
    (
        RowKind.QUEUE,
        RowKind.MOVE,
        RowKind.QUEUE_PLACE,
        RowKind.RETRACTED,
        RowKind.LITE_PARENT,
        RowKind.LITE_NUMBER,
        RowKind.LITE_NAME,
    )
)
# Consumer group, then topic.
_BY_CONSUMER_GROUP = frozenset((RowKind.HEAD, RowKind.LEASE))
# Written anew, or of brokers and members that are no more.
_LEFT_OUT = frozenset(
    (
        RowKind.APPLIED,
        RowKind.BROKER,
        RowKind.CONFIGURATION,
        # Names of entries of the old log.
        RowKind.ENDED,
        RowKind.TIER_RANGE,
        RowKind.TIER_OBJECT,
        RowKind.TIER_QUEUE,
        RowKind.TIER_LOCAL,
        RowKind.TIER_DISPATCH,
        RowKind.TIER_PAUSED,
    )
)


class QueueRestore(NamedTuple):
    """The part of a queue that comes back.

    Attributes:
        topic_id, queue: which.
        first_offset, commit_offset: what the tier has of it.
        next_offset: where it goes on; what lies between was not uploaded and is lost.
    """

    topic_id: int
    queue: int
    first_offset: int
    commit_offset: int
    next_offset: int

    @property
    def lost(self) -> int:
        """Offsets that were given to messages which were not uploaded."""
        return self.next_offset - self.commit_offset


@dataclass(frozen=True, slots=True)
class RaftGroupRestore:
    """The part of a raft group that comes back.

    Attributes:
        raft_group: its number stays.
        raft_index, term: of the last entry that the rows hold.
        group_time_ms: of that entry; what came later is lost.
        rows: of all kinds that a checkpoint has.
        entries: that messages which wait are in.
        queues: in order.
        lost_waiting: messages that wait and whose entries are not in the bucket.
        damaged: newer manifests that could not be used.
    """

    raft_group: int
    raft_index: int
    term: int
    group_time_ms: int
    rows: Sequence[Row]
    entries: Sequence[ArchivedEntry]
    queues: Sequence[QueueRestore]
    lost_waiting: int
    damaged: Sequence[DamagedObjectError]


@dataclass(frozen=True, slots=True)
class Restore:
    """The part of a cluster that comes back.

    Attributes:
        home: where it was.
        metadata_key, metadata_rows: of the nameserver; "" and nothing if there are none.
        written_at_ms: when those rows were, wall time.
        raft_groups: in order.
    """

    home: str
    metadata_key: str
    metadata_rows: Sequence[Row]
    written_at_ms: int
    raft_groups: Sequence[RaftGroupRestore]


async def plan_restore(
    store: ObjectStore, home: str, topic_ids: Collection[int] | None = None
) -> Restore:
    """Read what there is and decide what comes back.

    Args:
        store: the default store.
        home: id of the cluster.
        topic_ids: only these topics; None: all.

    Raises:
        TierError: a raft group has no valid manifest, or its checkpoint is not there.
        StoreError: the store cannot be read.
    """
    groups: list[RaftGroupRestore] = []
    for raft_group, names in sorted((await bucket.manifests_in(store, home)).items()):
        damaged: list[DamagedObjectError] = []
        for name in reversed(names):
            try:
                manifest = await bucket.read_manifest(store, home, name)
                archive = await bucket.read_archive(store, manifest.checkpoint)
            except ObjectNotFoundError as error:
                damaged.append(DamagedObjectError(error.key, error.reason))
            except DamagedObjectError as error:
                damaged.append(error)
            else:
                groups.append(restored_raft_group(manifest, archive, damaged, topic_ids))
                break
        else:
            raise TierError(f"raft group {raft_group} cannot be restored: {damaged[0]}")
    key, metadata, _ = await bucket.newest_metadata(store, home)
    return Restore(
        home,
        key,
        metadata.rows if metadata is not None else (),
        metadata.description.written_at_ms if metadata is not None else 0,
        groups,
    )


def restored_raft_group(
    manifest: Manifest,
    archive: Archive,
    damaged: Sequence[DamagedObjectError],
    topic_ids: Collection[int] | None,
) -> RaftGroupRestore:
    """Decide what comes back of one raft group.

    Args:
        manifest: its tier state.
        archive: its checkpoint, of the same raft index.
        damaged: newer manifests that could not be used.
        topic_ids: only these topics; None: all.
    """
    raft_group = manifest.name.raft_group
    kept = manifest if topic_ids is None else _of_topics(manifest, topic_ids)
    tier = kept.metadata()
    held = {entry.raft_index for entry in archive.entries}
    rows: list[Row] = []
    queues: list[QueueRestore] = []
    needed: set[int] = set()
    lost_waiting = 0
    for key, value in archive.rows:
        kind, rest = key[_KIND_AT], key[_REST_AT:]
        if kind in _LEFT_OUT or not _is_wanted(kind, rest, value, topic_ids):
            continue
        if kind == RowKind.QUEUE:
            restored, value = _restored_queue(tier, _QUEUE.unpack(rest), value)
            queues.append(restored)
        elif kind == RowKind.LEASE and not _is_in_tier(tier, rest):
            continue
        elif kind == RowKind.PENDING:
            _, raft_index, _ = _PENDING.unpack(rest)
            if raft_index not in held:
                lost_waiting += 1
                continue
            needed.add(raft_index)
        rows.append((key, value))
    description = archive.description
    index, term = description.raft_index, description.term
    applied = AppliedRow(index, term, description.group_time_ms, min(needed, default=index))
    rows.append((kind_prefix(raft_group, RowKind.APPLIED), applied.encode()))
    rows += tier.rows()
    rows += _local_rows(raft_group, tier)
    return RaftGroupRestore(
        raft_group,
        index,
        term,
        description.group_time_ms,
        sorted(rows),
        [entry for entry in archive.entries if entry.raft_index in needed],
        sorted(queues),
        lost_waiting,
        damaged,
    )


def _of_topics(manifest: Manifest, topic_ids: Collection[int]) -> Manifest:
    """Return a manifest with the queues of some topics, and the objects that they are in."""
    queues = [queue for queue in manifest.queues if queue.key[0] in topic_ids]
    named: dict[int, tuple[int, int]] = {}
    for queue in queues:
        for tiered in queue.ranges:
            count, size = named.get(tiered.object_id, (0, 0))
            named[tiered.object_id] = count + 1, size + tiered.bodies_bytes
    objects = [
        replace(
            held,
            live_ranges=named[held.ref.object_id][0],
            live_bytes=named[held.ref.object_id][1],
        )
        for held in manifest.objects
        if held.ref.object_id in named
    ]
    return replace(manifest, queues=queues, objects=objects)


def _is_wanted(kind: int, rest: bytes, value: bytes, topic_ids: Collection[int] | None) -> bool:
    if topic_ids is None:
        return True
    if kind in _BY_TOPIC:
        return _TOPIC.unpack_from(rest)[0] in topic_ids
    if kind in _BY_CONSUMER_GROUP:
        return _TOPIC.unpack_from(rest, _TOPIC.size)[0] in topic_ids
    if kind == RowKind.PENDING:
        return PendingRow.decode(value).topic_id in topic_ids
    # Slots and drops of the raft group; not the tables of plugins.
    return kind in (RowKind.OWNED, RowKind.OWN_REVISION, RowKind.TOMBSTONE)


def _restored_queue(
    tier: MemoryTierMetadata, key: tuple[int, int], value: bytes
) -> tuple[QueueRestore, bytes]:
    row = QueueRow.decode(value)
    offsets = tier.queue(*key)
    if offsets is None:
        # It was never uploaded: it goes on, empty, behind all it ever had.
        restored = QueueRestore(*key, row.min_offset, row.min_offset, row.next_offset)
        return restored, row._replace(min_offset=row.next_offset).encode()
    next_offset = max(row.next_offset, offsets.commit_offset)
    first = max(row.min_offset, offsets.first_offset)
    commit = max(offsets.commit_offset, first)
    row = row._replace(next_offset=next_offset, min_offset=first)
    return QueueRestore(*key, first, commit, next_offset), row.encode()


def _is_in_tier(tier: MemoryTierMetadata, rest: bytes) -> bool:
    _, topic_id, queue, offset = _LEASE.unpack(rest)
    return tier.covering(topic_id, queue, offset) is not None


def _local_rows(raft_group: int, tier: MemoryTierMetadata) -> Iterator[Row]:
    """Say of every queue that its messages are in the tier only."""
    for (topic_id, queue), offsets in tier.queues():
        key = tier_local_key(raft_group, topic_id, queue)
        yield key, encode_local_offset(offsets.commit_offset)
