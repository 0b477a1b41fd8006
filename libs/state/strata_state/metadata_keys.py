"""Keys of the metadata rows: a kind byte, then what names the row (docs/data-layout.md, 7).

Keys sort by kind, then namespace, then name. Numbers are big-endian, so they sort as numbers.
Names of namespaces and topics never hold a zero byte (their character sets are checked before).
"""

from __future__ import annotations

from enum import IntEnum


class MetadataRowKind(IntEnum):
    """First byte of a key."""

    APPLIED = 0
    TOPIC = 1
    CONSUMER_GROUP = 2
    RAFT_GROUP = 3
    NODE = 4
    SLOTS = 5
    CHANGE = 6
    TOMBSTONE = 7
    QUEUE_OVERRIDE = 8
    INSTALLING = 9
    SLOT_MOVE = 10
    QUOTA = 11
    USER = 12
    POLICY = 13
    CLUSTER_KEY = 14
    # Only in the copies of storage nodes.
    TOPIC_ID = 15
    # Only at the nameservers.
    ANSWER = 16
    PLACEMENT_PLAN = 20
    PLACEMENT_MODEL = 21


APPLIED_KEY = bytes([MetadataRowKind.APPLIED])
INSTALLING_KEY = bytes([MetadataRowKind.INSTALLING])
TOPIC_IDS_KEY = bytes([MetadataRowKind.TOPIC_ID])
PLACEMENT_MODEL_KEY = bytes([MetadataRowKind.PLACEMENT_MODEL])


def topic_key(namespace: str, name: str) -> bytes:
    """Return the key of a topic's row."""
    return _name_key(MetadataRowKind.TOPIC, namespace, name)


def topic_id_key(topic_id: int) -> bytes:
    """Return the key of the row that names a topic's row."""
    return TOPIC_IDS_KEY + topic_id.to_bytes(4, "big")


def consumer_group_key(namespace: str, name: str) -> bytes:
    """Return the key of a consumer group's row."""
    return _name_key(MetadataRowKind.CONSUMER_GROUP, namespace, name)


def raft_group_key(raft_group: int) -> bytes:
    """Return the key of a raft group's row."""
    return bytes([MetadataRowKind.RAFT_GROUP]) + raft_group.to_bytes(4, "big")


def node_key(node_id: str) -> bytes:
    """Return the key of a node's row."""
    return bytes([MetadataRowKind.NODE]) + node_id.encode()


def slots_key(first_slot: int) -> bytes:
    """Return the key of the row of the run of slots that starts at `first_slot`."""
    return bytes([MetadataRowKind.SLOTS]) + first_slot.to_bytes(2, "big")


def slot_move_key(from_raft_group: int) -> bytes:
    """Return the key of the row of the slots that a raft group gives up."""
    return bytes([MetadataRowKind.SLOT_MOVE]) + from_raft_group.to_bytes(4, "big")


def queue_override_key(topic_id: int, queue: int) -> bytes:
    """Return the key of the row of a queue that is not where its slot is."""
    return (
        bytes([MetadataRowKind.QUEUE_OVERRIDE])
        + topic_id.to_bytes(4, "big")
        + queue.to_bytes(4, "big")
    )


def quota_key(namespace: str, topic: str) -> bytes:
    """Return the key of the limits of a topic; "": of the namespace as a whole."""
    return _name_key(MetadataRowKind.QUOTA, namespace, topic)


def user_key(name: str) -> bytes:
    """Return the key of a user's row."""
    return bytes([MetadataRowKind.USER]) + name.encode()


def policy_key(policy_id: int) -> bytes:
    """Return the key of a policy's row."""
    return bytes([MetadataRowKind.POLICY]) + policy_id.to_bytes(4, "big")


def cluster_key_key(key_id: int) -> bytes:
    """Return the key of the row of a key that brokers sign with."""
    return bytes([MetadataRowKind.CLUSTER_KEY]) + key_id.to_bytes(4, "big")


def placement_plan_key(plan_id: int) -> bytes:
    """Return the key of a plan's row."""
    return bytes([MetadataRowKind.PLACEMENT_PLAN]) + plan_id.to_bytes(8, "big")


def change_key(revision: int) -> bytes:
    """Return the key of the row that names what a revision changed."""
    return bytes([MetadataRowKind.CHANGE]) + revision.to_bytes(8, "big")


def answer_key(revision: int) -> bytes:
    """Return the key of the row with the answer of the call that a revision carried out."""
    return bytes([MetadataRowKind.ANSWER]) + revision.to_bytes(8, "big")


def revision_of(key: bytes) -> int:
    """Return the revision of the key of a change or of an answer."""
    return int.from_bytes(key[1:], "big")


def tombstone_key(what: int, dropped_id: int) -> bytes:
    """Return the key of the row that says what was deleted: 1 a topic, 2 a consumer group."""
    return bytes([MetadataRowKind.TOMBSTONE, what]) + dropped_id.to_bytes(4, "big")


def kind_of(key: bytes) -> MetadataRowKind:
    """Return what a key names."""
    return MetadataRowKind(key[0])


def names_of(key: bytes) -> tuple[str, str]:
    """Return (namespace, name) of the key of a topic, a consumer group or a quota."""
    namespace, _, name = key[1:].partition(b"\x00")
    return namespace.decode(), name.decode()


def kind_range(kind: MetadataRowKind) -> tuple[bytes, bytes]:
    """Return (first, end) of a scan over all rows of a kind."""
    return bytes([kind]), bytes([kind + 1])


def _name_key(kind: MetadataRowKind, namespace: str, name: str) -> bytes:
    return b"%c%s\x00%s" % (kind, namespace.encode(), name.encode())
