"""Limits of namespaces and of topics: decided by the metadata leader, held to by the brokers.

A row says only what an operator set; what it leaves out is each broker's own default. A topic's
row goes with the topic.
"""

from __future__ import annotations

from collections.abc import Sequence

from strata.meta.v1 import meta_pb2
from strata_metadata.errors import MetaRefused
from strata_mq.requests import RequestError, check_namespace
from strata_nameserver.base.config import NameserverConfig
from strata_nameserver.base.errors import invalid
from strata_nameserver.drafts.topics import check_mask, stored_topic
from strata_nameserver.state.draft import Draft
from strata_state.metadata_keys import quota_key

TOPIC_LIMITS = ("messages_per_s", "bytes_per_s")
"""Limits that a topic can have."""

NAMESPACE_LIMITS = (*TOPIC_LIMITS, "topics", "consumer_groups", "connections")
"""Limits that a namespace can have."""


def set_quota(
    draft: Draft, wanted: meta_pb2.Quota, mask: Sequence[str], config: NameserverConfig
) -> meta_pb2.Quota:
    """Set the limits that `mask` names and return the row as it is then.

    Args:
        draft: the change.
        wanted: whose limits, and their new values; a named one that is absent becomes the default.
        mask: of `NAMESPACE_LIMITS`, or of `TOPIC_LIMITS` for a topic.
        config: limits.

    Raises:
        MetaRefused: INVALID, LIMIT_REACHED, or NOT_FOUND: there is no such topic.
    """
    _check_subject(draft, wanted)
    check_mask(mask, TOPIC_LIMITS if wanted.topic else NAMESPACE_LIMITS)
    stored = draft.get(quota_key(wanted.namespace, wanted.topic))
    row = meta_pb2.Quota.FromString(stored or b"")
    row.namespace, row.topic = wanted.namespace, wanted.topic
    for limit in mask:
        row.ClearField(limit)  # type: ignore[arg-type]
        if wanted.HasField(limit):  # type: ignore[arg-type]
            setattr(row, limit, getattr(wanted, limit))
    row.updated_at_ms = draft.now_ms
    if any(map(row.HasField, NAMESPACE_LIMITS)):  # type: ignore[arg-type]
        if stored is None:
            _count_one_more(draft, config)
        draft.put(row)
    elif stored is not None:
        draft.counters.quota_count -= 1
        draft.delete(meta_pb2.Quota(namespace=row.namespace, topic=row.topic))
        row.revision = draft.revision
    return row


def _check_subject(draft: Draft, wanted: meta_pb2.Quota) -> None:
    try:
        check_namespace(wanted.namespace)
    except RequestError as error:
        raise invalid(error.text) from None
    if not wanted.topic:
        return
    topic = stored_topic(draft, wanted.namespace, wanted.topic)
    if topic.type == meta_pb2.TOPIC_TYPE_DEAD_LETTER:
        raise invalid(f"topic {wanted.topic}: nobody sends to a dead-letter topic")


def _count_one_more(draft: Draft, config: NameserverConfig) -> None:
    if draft.counters.quota_count >= config.max_quotas:
        raise MetaRefused(
            meta_pb2.META_OUTCOME_LIMIT_REACHED,
            f"{config.max_quotas} namespaces and topics have limits of their own already "
            "(nameserver.max_quotas)",
        )
    draft.counters.quota_count += 1
