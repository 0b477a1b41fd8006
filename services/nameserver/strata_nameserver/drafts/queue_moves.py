"""Queues that are not where their slot is: the rows of rules 17 and 18.

The nameserver starts a move and records it; the leader of the raft group that holds the queue
carries it out: it sees `moving_to`, seals the queue, opens the next epoch, and reports. Epochs are
numbered from 0, which begins at offset 0 in the raft group that the queue was in first. A queue
whose slot left it behind has that one only.
"""

from __future__ import annotations

from strata.meta.v1 import meta_pb2
from strata_metadata.errors import MetaRefused
from strata_metadata.view import NO_RAFT_GROUP
from strata_mq.requests import is_table_topic
from strata_mq.slots import slot_of
from strata_nameserver.base.config import NameserverConfig
from strata_nameserver.base.errors import invalid
from strata_nameserver.drafts.topics import stored_topic
from strata_nameserver.state.draft import Draft
from strata_state.metadata_keys import queue_override_key, tombstone_key

_MAX_EPOCHS = 16


def move_queue(
    draft: Draft, request: meta_pb2.MoveQueueRequest, config: NameserverConfig
) -> meta_pb2.QueueOverride:
    """Wish a queue into another raft group; wishing the same again changes nothing.

    Raises:
        MetaRefused: NOT_FOUND: no such topic, queue or raft group; INVALID: a queue that stays
            (`what_stays`), or it is there already; CONFLICT: another move is under way, or rows of
            an earlier epoch are still there; LIMIT_REACHED.
    """
    topic = stored_topic(draft, request.namespace, request.topic)
    target = request.to_raft_group
    if what := what_stays(topic):
        raise invalid(f"{what} stay in their raft group")
    if request.queue >= topic.queue_count:
        raise _missing(f"topic {topic.name} has {topic.queue_count} queues")
    if target not in draft.topology.raft_groups:
        raise _missing(f"raft group {target} does not exist")
    override = stored_override(draft, topic.topic_id, request.queue)
    if override is None:
        override = _first_override(draft, topic, request.queue, config)
    if override.moving_to == target:
        return override
    where = f"queue {request.queue} of topic {topic.name}"
    if override.moving_to:
        raise _conflict(f"{where} is on its way to raft group {override.moving_to}")
    if override.epochs[-1].raft_group == target:
        raise invalid(f"{where} is in raft group {target} already")
    if any(epoch.raft_group == target for epoch in override.epochs):
        raise _conflict(f"an earlier epoch of {where} is still being drained there")
    if len(override.epochs) >= _MAX_EPOCHS:
        raise _conflict(f"{where} has {_MAX_EPOCHS} epochs that are not drained")
    override.moving_to = target
    draft.put(override)
    return override


def what_stays(topic: meta_pb2.Topic) -> str:
    """Return which queues of no epochs a topic has, as a refusal names them; empty: they move.

    Items of a table and lite topics are rows of one raft group: they would stay behind.
    """
    if topic.type == meta_pb2.TOPIC_TYPE_DEAD_LETTER:
        return "dead-letter queues"
    if topic.type == meta_pb2.TOPIC_TYPE_LITE:
        return "queues of topics of type LITE"
    return "key-value tables" if is_table_topic(topic.name) else ""


def record_move(draft: Draft, request: meta_pb2.ReportQueueMovedRequest) -> meta_pb2.QueueOverride:
    """Write down that the next epoch of a queue is open; a repeat changes nothing.

    Raises:
        MetaRefused: NOT_FOUND: the queue was never moved, or its topic is gone; CONFLICT: this is
            not the move that was wished for.
    """
    override = _known_override(draft, request.topic_id, request.queue)
    opened, newest = request.opened, override.epochs[-1]
    if opened == newest:
        return override
    if (
        opened.epoch != newest.epoch + 1
        or opened.raft_group != override.moving_to
        or opened.start_offset < newest.start_offset
    ):
        raise _conflict(
            f"epoch {opened.epoch} in raft group {opened.raft_group} does not follow epoch "
            f"{newest.epoch}, which moves to {override.moving_to or 'nowhere'}"
        )
    override.epochs.append(opened)
    override.moving_to = NO_RAFT_GROUP
    draft.put(override)
    return override


def record_drained(
    draft: Draft, request: meta_pb2.ReportQueueDrainedRequest
) -> meta_pb2.QueueOverride:
    """Forget epochs of which nothing is kept; the newest one always stays.

    Raises:
        MetaRefused: NOT_FOUND: the queue was never moved, or its topic is gone.
    """
    override = _known_override(draft, request.topic_id, request.queue)
    kept = [epoch for epoch in override.epochs[:-1] if epoch.epoch > request.epoch]
    kept.append(override.epochs[-1])
    if len(kept) < len(override.epochs):
        del override.epochs[:]
        override.epochs.extend(kept)
        draft.put(override)
    return override


def keep_queue(draft: Draft, topic_id: int, queue: int, raft_group: int) -> None:
    """Write down that a queue stays in a raft group though its slot goes (rule 17).

    One that has moved before is where its row says; one of a deleted topic goes with its data.
    """
    tombstone = draft.get(tombstone_key(meta_pb2.TOMBSTONE_KIND_TOPIC, topic_id))
    if tombstone is None and stored_override(draft, topic_id, queue) is None:
        draft.counters.queue_override_count += 1
        epochs = [meta_pb2.Epoch(raft_group=raft_group)]
        draft.put(meta_pb2.QueueOverride(topic_id=topic_id, queue=queue, epochs=epochs))


def stored_override(draft: Draft, topic_id: int, queue: int) -> meta_pb2.QueueOverride | None:
    """Return a copy of a queue's row; None: the queue is where its slot is."""
    value = draft.get(queue_override_key(topic_id, queue))
    return meta_pb2.QueueOverride.FromString(value) if value is not None else None


def _first_override(
    draft: Draft, topic: meta_pb2.Topic, queue: int, config: NameserverConfig
) -> meta_pb2.QueueOverride:
    if draft.counters.queue_override_count >= config.max_queue_overrides:
        raise MetaRefused(
            meta_pb2.META_OUTCOME_LIMIT_REACHED,
            f"{config.max_queue_overrides} queues were moved already "
            "(nameserver.max_queue_overrides)",
        )
    draft.counters.queue_override_count += 1
    home = draft.topology.slot_owners[slot_of(topic.slot_base, queue)]
    return meta_pb2.QueueOverride(
        topic_id=topic.topic_id, queue=queue, epochs=[meta_pb2.Epoch(raft_group=home)]
    )


def _known_override(draft: Draft, topic_id: int, queue: int) -> meta_pb2.QueueOverride:
    override = stored_override(draft, topic_id, queue)
    if override is None:
        raise _missing(f"queue {queue} of topic {topic_id} was never moved")
    return override


def _missing(reason: str) -> MetaRefused:
    return MetaRefused(meta_pb2.META_OUTCOME_NOT_FOUND, reason)


def _conflict(reason: str) -> MetaRefused:
    return MetaRefused(meta_pb2.META_OUTCOME_CONFLICT, reason)
