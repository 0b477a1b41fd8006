"""Changes of a topic: decided by the metadata leader, in one draft each.

Every function checks, takes ids from the draft and puts rows into it; none waits, none writes.
Homes (rule 20): the public names of a topic's queues, per raft group that owned them when they
were made, in queue order; they are only appended.
"""

from __future__ import annotations

from collections.abc import Sequence

import google_crc32c

from strata.meta.v1 import meta_pb2
from strata_metadata.errors import MetaRefused
from strata_metadata.view import NO_RAFT_GROUP
from strata_mq.lite_policy import lifetime_ms_of
from strata_mq.requests import (
    MAX_PRIORITY_LEVELS,
    ORDERED_TYPES,
    TRACE_TOPIC,
    RequestError,
    check_namespace,
    check_topic,
    is_dead_letter_topic,
)
from strata_mq.slots import slot_base, slot_of
from strata_mq.tier_policy import normalised_attributes
from strata_nameserver.base.config import NameserverConfig
from strata_nameserver.base.errors import invalid
from strata_nameserver.drafts.tombstones import bury
from strata_nameserver.state.draft import Draft
from strata_nameserver.state.topology import Topology
from strata_state.metadata_keys import queue_override_key, quota_key, topic_key

_USER_TYPES = frozenset(meta_pb2.TopicType.values()) - {
    meta_pb2.TOPIC_TYPE_UNSPECIFIED,
    meta_pb2.TOPIC_TYPE_DEAD_LETTER,
}
_MUTABLE = ("queue_count", "retention_ms", "type", "attributes")
_MAX_RETENTION_MS = 100 * 365 * 86_400_000
_MIN_RETENTION_MS = 1_000


def create_topic(draft: Draft, wanted: meta_pb2.Topic, config: NameserverConfig) -> meta_pb2.Topic:
    """Make a topic; what the request leaves out gets its default.

    Raises:
        MetaRefused: INVALID, ALREADY_EXISTS, LIMIT_REACHED, or UNAVAILABLE when no storage node
            has registered yet.
    """
    check_names(wanted.namespace, wanted.name)
    if is_dead_letter_topic(wanted.name):
        raise invalid(f"topic {wanted.name}: dead-letter topics come with their consumer group")
    topic = normalised(wanted, config)
    _check_values(topic, config)
    if draft.get(topic_key(topic.namespace, topic.name)) is not None:
        raise MetaRefused(
            meta_pb2.META_OUTCOME_ALREADY_EXISTS, f"topic {_full_name(topic)} exists already"
        )
    topic.slot_base = slot_base(topic.namespace, topic.name, google_crc32c.value)
    append_homes(topic, range(topic.queue_count), draft.topology)
    put_new_topic(draft, topic, config)
    return topic


def normalised(wanted: meta_pb2.Topic, config: NameserverConfig) -> meta_pb2.Topic:
    """Return the fields of a request, with a default for each that it leaves out.

    Raises:
        MetaRefused: INVALID: attributes that cannot be read.
    """
    return meta_pb2.Topic(
        namespace=wanted.namespace,
        name=wanted.name,
        type=wanted.type or meta_pb2.TOPIC_TYPE_NORMAL,
        queue_count=wanted.queue_count or config.default_queue_count,
        retention_ms=wanted.retention_ms or config.default_retention_ms,
        attributes=_attributes(wanted),
    )


def update_topic(
    draft: Draft, wanted: meta_pb2.Topic, mask: Sequence[str], config: NameserverConfig
) -> meta_pb2.Topic:
    """Change the fields that `mask` names.

    Args:
        draft: the change.
        wanted: names and new values; a revision other than 0 must be the row's.
        mask: queue_count (may only grow), retention_ms, type, attributes.
        config: limits.

    A topic with message groups that grows keeps its old queue count beside the new one until
    brokers confirm that no message group depends on it any more (rule 23).

    Raises:
        MetaRefused: NOT_FOUND, INVALID, or CONFLICT when the row has another revision, or when
            message groups still are where an earlier queue count put them.
    """
    topic = stored_topic(draft, wanted.namespace, wanted.name)
    check_revision("topic", wanted.name, wanted.revision, topic.revision)
    check_mask(mask, _MUTABLE)
    dead_letter = topic.type == meta_pb2.TOPIC_TYPE_DEAD_LETTER
    if dead_letter and set(mask) - {"retention_ms", "attributes"}:
        raise invalid(f"topic {topic.name}: queues and type of a dead-letter topic are fixed")
    old_queue_count, old_type = topic.queue_count, topic.type
    for field in mask:
        if field == "attributes":
            attributes = _attributes(wanted)
            topic.attributes.clear()
            topic.attributes.update(attributes)
        else:
            setattr(topic, field, getattr(wanted, field))
    had_message_groups = topic.had_message_groups or old_type in ORDERED_TYPES
    if had_message_groups and topic.type not in ORDERED_TYPES:
        topic.had_message_groups = True
    if topic.type != old_type and meta_pb2.TOPIC_TYPE_LITE in (topic.type, old_type):
        raise invalid(f"topic {topic.name}: no topic becomes one of type LITE, or ceases to be one")
    if topic.type == meta_pb2.TOPIC_TYPE_LITE and topic.queue_count != old_queue_count:
        raise invalid(
            f"topic {topic.name} is of type LITE: the number of its queues is fixed, because names "
            "of lite topics choose them"
        )
    if topic.queue_count < old_queue_count:
        raise invalid(
            f"topic {topic.name} has {old_queue_count} queues; their number may only grow"
        )
    if not dead_letter:
        _check_values(topic, config)
        append_homes(topic, range(old_queue_count, topic.queue_count), draft.topology)
    if topic.queue_count > old_queue_count and had_message_groups:
        _keep_old_queue_count(topic, old_queue_count)
    topic.updated_at_ms = draft.now_ms
    draft.put(topic)
    return topic


def confirm_rehashed(draft: Draft, request: meta_pb2.ConfirmRehashedRequest) -> meta_pb2.Topic:
    """Forget a topic's old queue count; nothing happens when the topic is another one by now.

    Raises:
        MetaRefused: NOT_FOUND.
    """
    topic = stored_topic(draft, request.namespace, request.name)
    asked = (request.topic_id, request.queue_count)
    if topic.previous_queue_count and asked == (topic.topic_id, topic.queue_count):
        topic.previous_queue_count = 0
        draft.put(topic)
    return topic


def delete_topic(
    draft: Draft, namespace: str, name: str, config: NameserverConfig
) -> meta_pb2.Topic:
    """Delete a topic's row and leave a tombstone; its id is never given again.

    Raises:
        MetaRefused: NOT_FOUND; INVALID for a dead-letter topic, which goes with its group;
            LIMIT_REACHED (see `tombstones.bury`).
    """
    topic = stored_topic(draft, namespace, name)
    if topic.type == meta_pb2.TOPIC_TYPE_DEAD_LETTER:
        raise invalid(f"topic {name}: a dead-letter topic is deleted with its consumer group")
    delete_stored_topic(draft, topic, config)
    return topic


def put_new_topic(draft: Draft, topic: meta_pb2.Topic, config: NameserverConfig) -> None:
    """Give the topic its id and times and put its row.

    Raises:
        MetaRefused: LIMIT_REACHED.
    """
    if draft.counters.topic_count >= config.max_topics:
        raise MetaRefused(
            meta_pb2.META_OUTCOME_LIMIT_REACHED,
            f"there are {config.max_topics} topics already (nameserver.max_topics)",
        )
    topic.topic_id = draft.counters.next_topic_id
    draft.counters.next_topic_id += 1
    draft.counters.topic_count += 1
    topic.created_at_ms = topic.updated_at_ms = draft.now_ms
    draft.put(topic)


def delete_stored_topic(draft: Draft, topic: meta_pb2.Topic, config: NameserverConfig) -> None:
    """Delete a topic's row, those of its moved queues and its quota; leave a tombstone.

    Raises:
        MetaRefused: LIMIT_REACHED.
    """
    tombstone = meta_pb2.Tombstone(
        kind=meta_pb2.TOMBSTONE_KIND_TOPIC,
        id=topic.topic_id,
        namespace=topic.namespace,
        name=topic.name,
    )
    bury(draft, tombstone, config)
    if draft.counters.queue_override_count:
        for queue in range(topic.queue_count):
            if draft.get(queue_override_key(topic.topic_id, queue)) is not None:
                draft.counters.queue_override_count -= 1
                draft.delete(meta_pb2.QueueOverride(topic_id=topic.topic_id, queue=queue))
    quota = quota_key(topic.namespace, topic.name)
    if draft.counters.quota_count and draft.get(quota) is not None:
        draft.counters.quota_count -= 1
        draft.delete(meta_pb2.Quota(namespace=topic.namespace, topic=topic.name))
    draft.counters.topic_count -= 1
    draft.delete(meta_pb2.Topic(namespace=topic.namespace, name=topic.name))


def stored_topic(draft: Draft, namespace: str, name: str) -> meta_pb2.Topic:
    """Return a topic's row.

    Raises:
        MetaRefused: NOT_FOUND.
    """
    value = draft.get(topic_key(namespace, name))
    if value is None:
        wanted = meta_pb2.Topic(namespace=namespace, name=name)
        raise MetaRefused(
            meta_pb2.META_OUTCOME_NOT_FOUND, f"topic {_full_name(wanted)} does not exist"
        )
    return meta_pb2.Topic.FromString(value)


def append_homes(topic: meta_pb2.Topic, queues: Sequence[int], topology: Topology) -> None:
    """Give new queues their public names under the raft groups that own them (rule 20).

    Raises:
        MetaRefused: UNAVAILABLE: a queue's slot has no owner, because no storage node registered.
    """
    homes = {home.raft_group: home for home in topic.homes}
    for queue in queues:
        raft_group = topology.slot_owners[slot_of(topic.slot_base, queue)]
        if raft_group == NO_RAFT_GROUP:
            raise MetaRefused(
                meta_pb2.META_OUTCOME_UNAVAILABLE, "no storage node has registered yet"
            )
        if raft_group not in homes:
            homes[raft_group] = meta_pb2.HomeQueues(raft_group=raft_group)
        homes[raft_group].queues.append(queue)
    ordered = [homes[raft_group] for raft_group in sorted(homes)]
    del topic.homes[:]
    topic.homes.extend(ordered)


def check_names(namespace: str, topic: str) -> None:
    """Raise INVALID, with the text clients know, unless both names may be used."""
    try:
        check_namespace(namespace)
        if topic != TRACE_TOPIC:
            check_topic(topic)
    except RequestError as error:
        raise invalid(error.text) from None


def check_mask(mask: Sequence[str], allowed: Sequence[str]) -> None:
    """Raise INVALID unless the mask names at least one field, and only those that may change."""
    unknown = [field for field in mask if field not in allowed]
    if unknown or not mask:
        what = f"{unknown[0]} cannot be changed" if unknown else "update_mask is empty"
        raise invalid(f"{what}; fields that can: {', '.join(allowed)}")


def check_revision(kind: str, name: str, wanted: int, stored: int) -> None:
    """Raise CONFLICT when the caller read another revision of the row; 0 means any."""
    if wanted not in (0, stored):
        raise MetaRefused(
            meta_pb2.META_OUTCOME_CONFLICT,
            f"{kind} {name} has revision {stored}, the request expects revision {wanted}: read it "
            "again",
        )


def _keep_old_queue_count(topic: meta_pb2.Topic, old_queue_count: int) -> None:
    if topic.previous_queue_count:
        raise MetaRefused(
            meta_pb2.META_OUTCOME_CONFLICT,
            f"topic {topic.name}: message groups are still in the {topic.previous_queue_count} "
            f"queues that it had before it got {old_queue_count}; try again when every consumer "
            "group has consumed those queues",
        )
    topic.previous_queue_count = old_queue_count


def _check_values(topic: meta_pb2.Topic, config: NameserverConfig) -> None:
    if topic.type not in _USER_TYPES:
        raise invalid(f"topic {topic.name}: unknown type {topic.type}")
    if not 1 <= topic.queue_count <= config.max_queues_per_topic:
        raise invalid(
            f"topic {topic.name}: {topic.queue_count} queues, allowed are 1 to "
            f"{config.max_queues_per_topic} (nameserver.max_queues_per_topic)"
        )
    if topic.type == meta_pb2.TOPIC_TYPE_PRIORITY and topic.queue_count > MAX_PRIORITY_LEVELS:
        raise invalid(
            f"topic {topic.name}: {topic.queue_count} queues; a topic of type PRIORITY may have "
            f"{MAX_PRIORITY_LEVELS}, one for each priority"
        )
    if topic.type == meta_pb2.TOPIC_TYPE_LITE:
        try:
            lifetime_ms_of(topic.attributes)
        except ValueError as error:
            raise invalid(f"topic {topic.name}: {error}") from error
    if not _MIN_RETENTION_MS <= topic.retention_ms <= _MAX_RETENTION_MS:
        raise invalid(
            f"topic {topic.name}: retention of {topic.retention_ms} ms, allowed are "
            f"{_MIN_RETENTION_MS} to {_MAX_RETENTION_MS} ms"
        )
    attributes_bytes = sum(len(k.encode()) + len(v.encode()) for k, v in topic.attributes.items())
    if attributes_bytes > config.max_attributes_bytes:
        raise invalid(
            f"topic {topic.name}: {attributes_bytes} bytes of attributes, allowed are "
            f"{config.max_attributes_bytes} (nameserver.max_attributes_bytes)"
        )


def _attributes(wanted: meta_pb2.Topic) -> dict[str, str]:
    """Return the attributes of a request, those that StrataMQ itself reads as it writes them."""
    try:
        return normalised_attributes(wanted.attributes)
    except ValueError as error:
        raise invalid(f"topic {wanted.name}: {error}") from error


def _full_name(topic: meta_pb2.Topic) -> str:
    return f"{topic.name} of namespace {topic.namespace}" if topic.namespace else topic.name
