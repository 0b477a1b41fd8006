"""Rows and changes, as bytes in the store and as messages in a watch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

from google.protobuf.message import Message

from strata.meta.v1 import meta_pb2
from strata_state.metadata_keys import (
    PLACEMENT_MODEL_KEY,
    MetadataRowKind,
    cluster_key_key,
    consumer_group_key,
    kind_of,
    names_of,
    node_key,
    placement_plan_key,
    policy_key,
    queue_override_key,
    quota_key,
    raft_group_key,
    slot_move_key,
    slots_key,
    tombstone_key,
    topic_key,
    user_key,
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
    | meta_pb2.User
    | meta_pb2.Policy
    | meta_pb2.ClusterKey
)
"""A row's value; which of them is told by the key's kind."""

ROW_FORMAT = 1
"""Kinds of rows that this version knows, as nodes say it (`Node.row_format`).

1: users, policies and cluster keys; 0: those before.
"""

SNAPSHOT_ORDER = (
    MetadataRowKind.CLUSTER_KEY,
    MetadataRowKind.USER,
    MetadataRowKind.POLICY,
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


class _Form(NamedTuple):
    """How the rows of a kind are found in a change, and what their keys hold.

    Attributes:
        field: of `Change.row`.
        row_type: of the row.
        key_of: the row's key.
        name: writes the fields that a key holds into an empty row.
    """

    field: str
    row_type: type[Message]
    key_of: Callable[[Any], bytes]
    name: Callable[[Any, bytes], None]


def _named(row: Any, key: bytes) -> None:
    row.namespace, row.name = names_of(key)


def _of_quota(row: Any, key: bytes) -> None:
    row.namespace, row.topic = names_of(key)


def _of_tombstone(row: Any, key: bytes) -> None:
    row.kind, row.id = key[1], _number(key[2:])


def _of_override(row: Any, key: bytes) -> None:
    row.topic_id, row.queue = _number(key[1:5]), _number(key[5:])


def _numbered(field: str) -> Callable[[Any, bytes], None]:
    return lambda row, key: setattr(row, field, _number(key[1:]))


def _text(field: str) -> Callable[[Any, bytes], None]:
    return lambda row, key: setattr(row, field, key[1:].decode())


def _number(raw: bytes) -> int:
    return int.from_bytes(raw, "big")


_FORMS: dict[MetadataRowKind, _Form] = {
    MetadataRowKind.TOPIC: _Form(
        "topic", meta_pb2.Topic, lambda row: topic_key(row.namespace, row.name), _named
    ),
    MetadataRowKind.CONSUMER_GROUP: _Form(
        "consumer_group",
        meta_pb2.ConsumerGroup,
        lambda row: consumer_group_key(row.namespace, row.name),
        _named,
    ),
    MetadataRowKind.RAFT_GROUP: _Form(
        "raft_group",
        meta_pb2.RaftGroup,
        lambda row: raft_group_key(row.raft_group),
        _numbered("raft_group"),
    ),
    MetadataRowKind.NODE: _Form(
        "node", meta_pb2.Node, lambda row: node_key(row.node_id), _text("node_id")
    ),
    MetadataRowKind.SLOTS: _Form(
        "slots",
        meta_pb2.SlotRange,
        lambda row: slots_key(row.first_slot),
        _numbered("first_slot"),
    ),
    MetadataRowKind.TOMBSTONE: _Form(
        "tombstone",
        meta_pb2.Tombstone,
        lambda row: tombstone_key(row.kind, row.id),
        _of_tombstone,
    ),
    MetadataRowKind.QUEUE_OVERRIDE: _Form(
        "queue_override",
        meta_pb2.QueueOverride,
        lambda row: queue_override_key(row.topic_id, row.queue),
        _of_override,
    ),
    MetadataRowKind.SLOT_MOVE: _Form(
        "slot_move",
        meta_pb2.SlotMove,
        lambda row: slot_move_key(row.from_raft_group),
        _numbered("from_raft_group"),
    ),
    MetadataRowKind.QUOTA: _Form(
        "quota", meta_pb2.Quota, lambda row: quota_key(row.namespace, row.topic), _of_quota
    ),
    MetadataRowKind.PLACEMENT_PLAN: _Form(
        "placement_plan",
        meta_pb2.PlacementPlan,
        lambda row: placement_plan_key(row.plan_id),
        _numbered("plan_id"),
    ),
    MetadataRowKind.PLACEMENT_MODEL: _Form(
        "placement_model",
        meta_pb2.PlacementModel,
        lambda _: PLACEMENT_MODEL_KEY,
        lambda _, __: None,
    ),
    MetadataRowKind.USER: _Form(
        "user", meta_pb2.User, lambda row: user_key(row.name), _text("name")
    ),
    MetadataRowKind.POLICY: _Form(
        "policy",
        meta_pb2.Policy,
        lambda row: policy_key(row.policy_id),
        _numbered("policy_id"),
    ),
    MetadataRowKind.CLUSTER_KEY: _Form(
        "cluster_key",
        meta_pb2.ClusterKey,
        lambda row: cluster_key_key(row.key_id),
        _numbered("key_id"),
    ),
}
_BY_FIELD = {form.field: form for form in _FORMS.values()}
_BY_TYPE = {form.row_type: form for form in _FORMS.values()}


def key_of(change: meta_pb2.Change) -> bytes:
    """Return the key of the row that a change is about.

    Raises:
        ValueError: the row is of a kind that this version does not know.
    """
    form = _BY_FIELD.get(str(change.WhichOneof("row")))
    if form is None:
        raise ValueError(f"a change of {change.WhichOneof('row')}")
    return form.key_of(getattr(change, form.field))


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
    change = meta_pb2.Change()
    fill_change(change, key, value)
    return change


def fill_change(change: meta_pb2.Change, key: bytes, value: bytes | None) -> None:
    """Fill an empty change with what `change_of` returns.

    Raises:
        ValueError: the key is of a kind that watchers do not see.
    """
    form = _FORMS.get(key[0])  # type: ignore[call-overload]
    if form is None:
        raise ValueError(f"rows of kind {kind_of(key).name} are not watched")
    row = getattr(change, form.field)
    # A row may have no field set: the run of slots from 0, the quota of the default namespace. The
    # oneof must name the row all the same.
    row.SetInParent()
    if value is None:
        change.deleted = True
        form.name(row, key)
    else:
        # A stored row has the fields of its key, too.
        row.MergeFromString(value)


def change_to(row: StoredRow, *, deleted: bool = False) -> meta_pb2.Change:
    """Return the change that writes (or deletes) `row`."""
    change = meta_pb2.Change(deleted=deleted)
    cast("Message", getattr(change, _BY_TYPE[type(row)].field)).CopyFrom(row)
    return change
