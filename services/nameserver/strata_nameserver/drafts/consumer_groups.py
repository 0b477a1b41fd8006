"""Changes of a consumer group; its dead-letter topic is created and deleted with it (rule 26).

One draft holds both rows, so that a consumer group without a dead-letter topic never exists.
"""

from __future__ import annotations

from collections.abc import Sequence

import google_crc32c

from strata.meta.v1 import meta_pb2
from strata_metadata.errors import MetaRefused
from strata_mq.requests import (
    RequestError,
    check_consumer_group,
    check_namespace,
    dead_letter_topic,
)
from strata_mq.slots import slot_base
from strata_nameserver.base.config import NameserverConfig
from strata_nameserver.base.errors import invalid
from strata_nameserver.drafts.tombstones import bury
from strata_nameserver.drafts.topics import (
    check_mask,
    check_revision,
    delete_stored_topic,
    put_new_topic,
    stored_topic,
)
from strata_nameserver.state.draft import Draft
from strata_state.metadata_keys import consumer_group_key

DEFAULT_MAX_ATTEMPTS = 17
"""One delivery and sixteen more, as the group default of RocketMQ 5."""

_MUTABLE = (
    *("fifo", "max_attempts", "backoff", "broadcast", "lite_topic", "lite_exclusive"),
    "pop_topics",
)
_MAX_ATTEMPTS = 1_000
_MAX_POP_TOPICS = 64
_MAX_BACKOFF_STEPS = 64
_MAX_BACKOFF_MS = 7 * 86_400_000


def create_consumer_group(
    draft: Draft, wanted: meta_pb2.ConsumerGroup, config: NameserverConfig
) -> meta_pb2.ConsumerGroup:
    """Make a consumer group and its dead-letter topic.

    Raises:
        MetaRefused: INVALID, ALREADY_EXISTS or LIMIT_REACHED.
    """
    _check_names(wanted.namespace, wanted.name)
    group = meta_pb2.ConsumerGroup()
    group.CopyFrom(wanted)
    group.max_attempts = wanted.max_attempts or DEFAULT_MAX_ATTEMPTS
    _check_values(draft, group)
    if draft.get(consumer_group_key(group.namespace, group.name)) is not None:
        raise MetaRefused(
            meta_pb2.META_OUTCOME_ALREADY_EXISTS, f"consumer group {group.name} exists already"
        )
    if draft.counters.consumer_group_count >= config.max_consumer_groups:
        raise MetaRefused(
            meta_pb2.META_OUTCOME_LIMIT_REACHED,
            f"there are {config.max_consumer_groups} consumer groups already "
            "(nameserver.max_consumer_groups)",
        )
    group.consumer_group_id = draft.counters.next_consumer_group_id
    draft.counters.next_consumer_group_id += 1
    draft.counters.consumer_group_count += 1
    group.dead_letter_topic_id = _put_dead_letter_topic(draft, group, config).topic_id
    group.created_at_ms = group.updated_at_ms = draft.now_ms
    draft.put(group)
    return group


def update_consumer_group(
    draft: Draft, wanted: meta_pb2.ConsumerGroup, mask: Sequence[str]
) -> meta_pb2.ConsumerGroup:
    """Change the fields that `mask` names.

    Args:
        draft: the change.
        wanted: names and new values; a revision other than 0 must be the row's.
        mask: fifo, max_attempts, backoff (the whole oneof), broadcast, lite_topic,
            lite_exclusive, pop_topics.

    Raises:
        MetaRefused: NOT_FOUND, INVALID, or CONFLICT when the row has another revision.
    """
    group = stored_consumer_group(draft, wanted.namespace, wanted.name)
    check_revision("consumer group", wanted.name, wanted.revision, group.revision)
    check_mask(mask, _MUTABLE)
    for field in mask:
        if field == "backoff":
            _set_backoff(group, wanted)
        elif field == "pop_topics":
            group.pop_topics[:] = sorted(set(wanted.pop_topics))
        else:
            setattr(group, field, getattr(wanted, field))
    _check_values(draft, group)
    group.updated_at_ms = draft.now_ms
    draft.put(group)
    return group


def delete_consumer_group(
    draft: Draft, namespace: str, name: str, config: NameserverConfig
) -> meta_pb2.ConsumerGroup:
    """Delete a consumer group and its dead-letter topic; both leave a tombstone.

    Raises:
        MetaRefused: NOT_FOUND; LIMIT_REACHED (see `tombstones.bury`).
    """
    group = stored_consumer_group(draft, namespace, name)
    tombstone = meta_pb2.Tombstone(
        kind=meta_pb2.TOMBSTONE_KIND_CONSUMER_GROUP,
        id=group.consumer_group_id,
        namespace=namespace,
        name=name,
    )
    bury(draft, tombstone, config)
    draft.counters.consumer_group_count -= 1
    delete_stored_topic(draft, stored_topic(draft, namespace, dead_letter_topic(name)), config)
    draft.delete(meta_pb2.ConsumerGroup(namespace=namespace, name=name))
    return group


def stored_consumer_group(draft: Draft, namespace: str, name: str) -> meta_pb2.ConsumerGroup:
    """Return a consumer group's row.

    Raises:
        MetaRefused: NOT_FOUND.
    """
    value = draft.get(consumer_group_key(namespace, name))
    if value is None:
        where = f" of namespace {namespace}" if namespace else ""
        raise MetaRefused(
            meta_pb2.META_OUTCOME_NOT_FOUND, f"consumer group {name}{where} does not exist"
        )
    return meta_pb2.ConsumerGroup.FromString(value)


def _put_dead_letter_topic(
    draft: Draft, group: meta_pb2.ConsumerGroup, config: NameserverConfig
) -> meta_pb2.Topic:
    """Put the topic whose queue numbers are raft group ids: every raft group has its queue.

    Its homes stay empty, because raft groups that come later have a queue of it as well.
    """
    name = dead_letter_topic(group.name)
    topic = meta_pb2.Topic(
        namespace=group.namespace,
        name=name,
        type=meta_pb2.TOPIC_TYPE_DEAD_LETTER,
        retention_ms=config.default_retention_ms,
        slot_base=slot_base(group.namespace, name, google_crc32c.value),
    )
    put_new_topic(draft, topic, config)
    return topic


def _set_backoff(group: meta_pb2.ConsumerGroup, wanted: meta_pb2.ConsumerGroup) -> None:
    group.ClearField("backoff")
    if wanted.WhichOneof("backoff") == "exponential":
        group.exponential.CopyFrom(wanted.exponential)
    elif wanted.WhichOneof("backoff") == "customized":
        group.customized.CopyFrom(wanted.customized)


def _check_names(namespace: str, name: str) -> None:
    try:
        check_namespace(namespace)
        check_consumer_group(name)
    except RequestError as error:
        raise invalid(error.text) from None


def _check_values(draft: Draft, group: meta_pb2.ConsumerGroup) -> None:
    if not 1 <= group.max_attempts <= _MAX_ATTEMPTS:
        raise invalid(
            f"consumer group {group.name}: {group.max_attempts} attempts, allowed are "
            f"1 to {_MAX_ATTEMPTS}"
        )
    if len(group.pop_topics) > _MAX_POP_TOPICS:
        raise invalid(
            f"consumer group {group.name}: {len(group.pop_topics)} topics in POP mode, allowed are "
            f"{_MAX_POP_TOPICS}"
        )
    kind = group.WhichOneof("backoff")
    if kind == "exponential":
        _check_exponential(group)
    elif kind == "customized":
        _check_customized(group)
    if group.lite_topic:
        topic = stored_topic(draft, group.namespace, group.lite_topic)
        if topic.type != meta_pb2.TOPIC_TYPE_LITE:
            raise invalid(f"topic {group.lite_topic} is not of type LITE")


def _check_exponential(group: meta_pb2.ConsumerGroup) -> None:
    backoff = group.exponential
    sane = 1 <= backoff.initial_ms <= backoff.max_ms <= _MAX_BACKOFF_MS
    if not sane or not 1.0 <= backoff.multiplier <= 1_000.0:
        raise invalid(
            f"consumer group {group.name}: exponential backoff needs 1 <= initial <= max <= "
            f"{_MAX_BACKOFF_MS} ms and a multiplier of 1 to 1000"
        )


def _check_customized(group: meta_pb2.ConsumerGroup) -> None:
    steps = group.customized.next_ms
    if not 1 <= len(steps) <= _MAX_BACKOFF_STEPS or not all(
        0 <= step <= _MAX_BACKOFF_MS for step in steps
    ):
        raise invalid(
            f"consumer group {group.name}: customized backoff needs 1 to {_MAX_BACKOFF_STEPS} "
            f"steps of 0 to {_MAX_BACKOFF_MS} ms"
        )
