"""Protobuf to the values of engine calls, and results back. No decision is made here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.commands import PartResolution
from strata_mq.errors import RequestError
from strata_mq.filters import parse_tag_expression
from strata_mq.rare_commands import DropKind
from strata_mq.rows import MoveRow
from strata_storage.errors import Refused
from strata_storage.lease_calls import ConsumerQueue, LeaseRef, ResetTarget
from strata_storage.lookup import Lookup, Stored
from strata_storage.ownership import Topic
from strata_storage.pop import Delivered


async def find(lookup: Lookup, request: pb.QueryRequest, limit: int) -> list[Stored]:
    """Look messages up as a query asks.

    Raises:
        Refused: OUTCOME_INVALID.
    """
    by = request.WhichOneof("by")
    if by == "message_id":
        return await lookup.by_id(request.topic_id, request.message_id)
    if by == "key":
        return await lookup.by_key(request.topic_id, request.key, limit)
    if by == "position":
        position = (request.position.queue, request.position.offset)
        return await lookup.at(request.topic_id, (position,))
    raise Refused(pb.OUTCOME_INVALID, "a query is by message id, key or position")


def dropped(request: pb.DropRequest) -> tuple[DropKind, int]:
    """Return what a drop drops.

    Raises:
        Refused: OUTCOME_INVALID.
    """
    what = request.WhichOneof("what")
    if what == "topic_id":
        return DropKind.TOPIC, request.topic_id
    if what == "consumer_group_id":
        return DropKind.CONSUMER_GROUP, request.consumer_group_id
    raise Refused(pb.OUTCOME_INVALID, "a drop names a topic or a consumer group")


def topic_of(ref: pb.TopicRef) -> Topic:
    """Return the topic of a reference."""
    return Topic(ref.topic_id, ref.slot_base, ref.queue_count, ref.dead_letter)


def tag_hashes(message_filter: pb.Filter) -> frozenset[int] | None:
    """Return the tag hashes that match; None: everything matches.

    Raises:
        Refused: OUTCOME_INVALID.
    """
    kind = message_filter.kind
    if kind in (pb.FILTER_KIND_UNSPECIFIED, pb.FILTER_KIND_ALL):
        return None
    if kind != pb.FILTER_KIND_TAG:
        raise Refused(pb.OUTCOME_INVALID, "this storage node filters by tag only")
    try:
        return parse_tag_expression(message_filter.expression).hashes
    except RequestError as error:
        raise Refused(pb.OUTCOME_INVALID, str(error)) from error


def lease_ref(ref: pb.LeaseRef) -> LeaseRef:
    """Return the lease that a handle names."""
    return LeaseRef(
        ref.consumer_group_id,
        ref.topic_id,
        ref.queue,
        ref.offset,
        ref.lease_number,
        ref.generation,
        ref.visible_at_ms,
    )


def reset_target(request: pb.ResetConsumerRequest) -> ResetTarget:
    """Return where a reset goes.

    Raises:
        Refused: OUTCOME_INVALID.
    """
    to = request.WhichOneof("to")
    if to == "time_ms":
        return ResetTarget(time_ms=request.time_ms)
    if to == "offset":
        return ResetTarget(offset=request.offset)
    if to in ("latest", "earliest"):
        return ResetTarget(latest=to == "latest")
    raise Refused(pb.OUTCOME_INVALID, "a reset goes to earliest, latest, a time or an offset")


def consumer_state(state: ConsumerQueue) -> pb.ConsumerQueueState:
    """Return a consumer group's state on a queue."""
    return pb.ConsumerQueueState(
        queue=state.queue,
        min_offset=state.min_offset,
        next_offset=state.next_offset,
        cursor=state.cursor,
        head=state.head,
        in_flight=state.in_flight,
        waiting=state.waiting,
    )


def sealed_queues(sealed: Iterable[tuple[int, MoveRow]]) -> list[pb.SealedQueue]:
    """Return queues that are sealed, with where they go on."""
    return [
        pb.SealedQueue(
            queue=queue,
            next_epoch=move.epoch + 1,
            start_offset=move.end_offset,
            raft_group=move.destination,
        )
        for queue, move in sealed
    ]


def fill_part(result: pb.PartResult, part: PartResolution, move: MoveRow | None) -> None:
    """Write the result of a part; `move`: where its queue went, if it is sealed."""
    result.queue = part.queue
    result.base_offset = part.base_offset
    result.outcome = pb.Outcome.ValueType(part.outcome)
    if move is not None:
        result.sealed.CopyFrom(sealed_queues(((part.queue, move),))[0])
    for duplicate in part.duplicates:
        result.duplicates.add(
            ordinal=duplicate.ordinal, queue=duplicate.queue, offset=duplicate.offset
        )


def fill_leased(leased: pb.LeasedMessage, delivered: Delivered) -> None:
    """Write a leased message."""
    lease = delivered.lease
    leased.queue = delivered.queue
    leased.offset = delivered.offset
    leased.attempt_count = lease.attempts
    leased.lease_number = lease.lease_number
    leased.generation = delivered.generation
    leased.visible_at_ms = lease.visible_at_ms
    leased.store_time_ms = delivered.store_time_ms
    leased.message = delivered.message


def add_stored(messages: object, found: Sequence[Stored]) -> None:
    """Add stored messages to a repeated field."""
    for stored in found:
        messages.add(  # type: ignore[attr-defined]
            queue=stored.queue,
            offset=stored.offset,
            store_time_ms=stored.store_time_ms,
            message=stored.message,
        )
