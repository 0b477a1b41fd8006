"""Rows and changes, as bytes in the store and as messages in a watch."""

from __future__ import annotations

from google.protobuf.message import Message

from strata.meta.v1 import meta_pb2
from strata_state.metadata_keys import (
    PLACEMENT_MODEL_KEY,
    MetadataRowKind,
    consumer_group_key,
    kind_of,
    names_of,
    node_key,
    placement_plan_key,
    queue_override_key,
    quota_key,
    raft_group_key,
    slot_move_key,
    slots_key,
    tombstone_key,
    topic_key,
)

StoredRow = (
    meta_pb2.Topic
    | meta_pb2.ConsumerGroup
    | meta_pb2.RaftGroup
    | meta_pb2.Node
    | meta_pb2.SlotRange
    | meta_pb2.Tombstone
    | meta_pb2.QueueOverride
    | meta_pb2.SlotMove
    | meta_pb2.Quota
    | meta_pb2.PlacementPlan
    | meta_pb2.PlacementModel
)
"""A row's value; which of them is told by the key's kind."""

SNAPSHOT_ORDER = (
    MetadataRowKind.NODE,
    MetadataRowKind.RAFT_GROUP,
    MetadataRowKind.SLOTS,
    MetadataRowKind.SLOT_MOVE,
    MetadataRowKind.QUEUE_OVERRIDE,
    MetadataRowKind.CONSUMER_GROUP,
    MetadataRowKind.TOPIC,
    MetadataRowKind.QUOTA,
    MetadataRowKind.TOMBSTONE,
    MetadataRowKind.PLACEMENT_PLAN,
    MetadataRowKind.PLACEMENT_MODEL,
)
"""Kinds of a snapshot: what others refer to comes first."""


def key_of(change: meta_pb2.Change) -> bytes:
    """Return the key of the row that a change is about."""
    match change.WhichOneof("row"):
        case "topic":
            return topic_key(change.topic.namespace, change.topic.name)
        case "consumer_group":
            return consumer_group_key(change.consumer_group.namespace, change.consumer_group.name)
        case "raft_group":
            return raft_group_key(change.raft_group.raft_group)
        case "node":
            return node_key(change.node.node_id)
        case "slots":
            return slots_key(change.slots.first_slot)
        case "tombstone":
            return tombstone_key(change.tombstone.kind, change.tombstone.id)
        case "queue_override":
            return queue_override_key(change.queue_override.topic_id, change.queue_override.queue)
        case "slot_move":
            return slot_move_key(change.slot_move.from_raft_group)
        case "quota":
            return quota_key(change.quota.namespace, change.quota.topic)
        case "placement_plan":
            return placement_plan_key(change.placement_plan.plan_id)
        case "placement_model":
            return PLACEMENT_MODEL_KEY
        case unknown:
            raise ValueError(f"a change of {unknown}")


def value_of(change: meta_pb2.Change) -> bytes | None:
    """Return the row's bytes after a change; None: the row is deleted."""
    if change.deleted:
        return None
    row: Message = getattr(change, str(change.WhichOneof("row")))
    return row.SerializeToString()


def change_of(key: bytes, value: bytes | None) -> meta_pb2.Change:
    """Return the change that brings a reader to this row; a deleted row has only its key fields.

    Raises:
        ValueError: the key is of a kind that watchers do not see.
    """
    change = meta_pb2.Change(deleted=value is None)
    kind = kind_of(key)
    if kind is MetadataRowKind.TOPIC:
        if value is None:
            change.topic.namespace, change.topic.name = names_of(key)
        else:
            change.topic.ParseFromString(value)
    elif kind is MetadataRowKind.CONSUMER_GROUP:
        if value is None:
            change.consumer_group.namespace, change.consumer_group.name = names_of(key)
        else:
            change.consumer_group.ParseFromString(value)
    elif kind is MetadataRowKind.RAFT_GROUP:
        change.raft_group.raft_group = int.from_bytes(key[1:], "big")
        change.raft_group.MergeFromString(value or b"")
    elif kind is MetadataRowKind.NODE:
        change.node.node_id = key[1:].decode()
        change.node.MergeFromString(value or b"")
    elif kind is MetadataRowKind.SLOTS:
        change.slots.first_slot = int.from_bytes(key[1:], "big")
        change.slots.MergeFromString(value or b"")
        # A run that starts at slot 0 has no field set; the oneof must name the row all the same.
        change.slots.SetInParent()
    elif kind is MetadataRowKind.TOMBSTONE:
        change.tombstone.kind = meta_pb2.TombstoneKind.ValueType(key[1])
        change.tombstone.id = int.from_bytes(key[2:], "big")
        change.tombstone.MergeFromString(value or b"")
    elif kind is MetadataRowKind.QUEUE_OVERRIDE:
        change.queue_override.topic_id = int.from_bytes(key[1:5], "big")
        change.queue_override.queue = int.from_bytes(key[5:], "big")
        change.queue_override.MergeFromString(value or b"")
    elif kind is MetadataRowKind.SLOT_MOVE:
        change.slot_move.from_raft_group = int.from_bytes(key[1:], "big")
        change.slot_move.MergeFromString(value or b"")
    elif kind is MetadataRowKind.QUOTA:
        change.quota.namespace, change.quota.topic = names_of(key)
        change.quota.MergeFromString(value or b"")
        # That of the default namespace may have no field set; the oneof must name the row.
        change.quota.SetInParent()
    else:
        _read_placement(change, key, value)
    return change


def _read_placement(change: meta_pb2.Change, key: bytes, value: bytes | None) -> None:
    kind = kind_of(key)
    if kind is MetadataRowKind.PLACEMENT_PLAN:
        change.placement_plan.plan_id = int.from_bytes(key[1:], "big")
        change.placement_plan.MergeFromString(value or b"")
    elif kind is MetadataRowKind.PLACEMENT_MODEL:
        change.placement_model.MergeFromString(value or b"")
        change.placement_model.SetInParent()
    else:
        raise ValueError(f"rows of kind {kind.name} are not watched")


def change_to(row: StoredRow, *, deleted: bool = False) -> meta_pb2.Change:
    """Return the change that writes (or deletes) `row`."""
    if isinstance(row, meta_pb2.Topic):
        return meta_pb2.Change(deleted=deleted, topic=row)
    if isinstance(row, meta_pb2.ConsumerGroup):
        return meta_pb2.Change(deleted=deleted, consumer_group=row)
    if isinstance(row, meta_pb2.RaftGroup):
        return meta_pb2.Change(deleted=deleted, raft_group=row)
    if isinstance(row, meta_pb2.Node):
        return meta_pb2.Change(deleted=deleted, node=row)
    if isinstance(row, meta_pb2.Tombstone):
        return meta_pb2.Change(deleted=deleted, tombstone=row)
    if isinstance(row, meta_pb2.SlotRange):
        return meta_pb2.Change(deleted=deleted, slots=row)
    if isinstance(row, meta_pb2.SlotMove):
        return meta_pb2.Change(deleted=deleted, slot_move=row)
    if isinstance(row, meta_pb2.QueueOverride):
        return meta_pb2.Change(deleted=deleted, queue_override=row)
    if isinstance(row, meta_pb2.PlacementPlan):
        return meta_pb2.Change(deleted=deleted, placement_plan=row)
    if isinstance(row, meta_pb2.PlacementModel):
        return meta_pb2.Change(deleted=deleted, placement_model=row)
    return meta_pb2.Change(deleted=deleted, quota=row)
