"""Many topics in one change, so that one raft entry creates them.

A topic that cannot be created fails alone and by name; the other topics of its batch are created.
A batch may be repeated: a topic that exists as it is wanted counts as existing, so a caller that
got no answer sends the batch again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from strata.meta.v1 import meta_pb2
from strata_metadata.errors import MetaRefused
from strata_nameserver.base.config import NameserverConfig
from strata_nameserver.base.errors import invalid
from strata_nameserver.drafts.topics import create_topic, normalised, stored_topic
from strata_nameserver.state.draft import Draft
from strata_state.metadata_keys import topic_key


class Batch(NamedTuple):
    """Counts and failures of the topics of a batch.

    Attributes:
        created: number of new topics.
        existing: number of topics that existed as they were wanted.
        failures: of the other topics, by position.
    """

    created: int
    existing: int
    failures: list[meta_pb2.TopicFailure]


def create_topics(
    draft: Draft,
    wanted: Sequence[meta_pb2.Topic],
    config: NameserverConfig,
    place: Callable[[Draft, meta_pb2.Topic], None],
) -> Batch:
    """Make topics; see the module docstring.

    Args:
        draft: the change.
        wanted: what the request says of each topic.
        config: limits and defaults.
        place: called with each new row; may wish its queues elsewhere.

    Raises:
        MetaRefused: INVALID: the batch is too large; then no topic is created.
    """
    if len(wanted) > config.max_batch_topics:
        raise invalid(
            f"{len(wanted)} topics in one request, allowed are {config.max_batch_topics} "
            "(nameserver.max_batch_topics)"
        )
    created = existing = size_bytes = 0
    # Changes whose bytes are counted: queues that are placed elsewhere have rows, too.
    counted = len(draft.changes)
    failures: list[meta_pb2.TopicFailure] = []
    seen: set[bytes] = set()
    for position, topic in enumerate(wanted):
        key = topic_key(topic.namespace, topic.name)
        try:
            if _is_there(draft, topic, config, is_repeated=key in seen):
                existing += 1
                continue
            seen.add(key)
            row = create_topic(draft, topic, config)
        except MetaRefused as refused:
            failures.append(
                meta_pb2.TopicFailure(
                    position=position, outcome=refused.outcome, reason=refused.reason
                )
            )
            continue
        place(draft, row)
        size_bytes += sum([change.ByteSize() for change in draft.changes[counted:]])
        counted = len(draft.changes)
        if size_bytes > config.max_batch_bytes:
            raise invalid(
                f"the rows of one request have more than {config.max_batch_bytes} bytes "
                "(nameserver.max_batch_bytes); send fewer topics at once"
            )
        created += 1
    return Batch(created, existing, failures)


def _is_there(
    draft: Draft, wanted: meta_pb2.Topic, config: NameserverConfig, *, is_repeated: bool
) -> bool:
    """Tell whether a topic exists as it is wanted.

    Raises:
        MetaRefused: ALREADY_EXISTS: it exists with other settings, or the batch names it twice.
    """
    if is_repeated:
        raise _exists(f"topic {wanted.name} is in the request twice")
    if draft.get(topic_key(wanted.namespace, wanted.name)) is None:
        return False
    stored = stored_topic(draft, wanted.namespace, wanted.name)
    topic = normalised(wanted, config)
    for field in ("type", "queue_count", "retention_ms"):
        has, asked = getattr(stored, field), getattr(topic, field)
        if has != asked:
            raise _exists(f"topic {topic.name} exists with {field} {has}, not {asked}")
    if stored.attributes != topic.attributes:
        raise _exists(f"topic {topic.name} exists with other attributes")
    return True


def _exists(reason: str) -> MetaRefused:
    return MetaRefused(meta_pb2.META_OUTCOME_ALREADY_EXISTS, reason)
