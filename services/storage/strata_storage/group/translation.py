"""Protobuf to the values of engine calls, and results back. No decision is made here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.commands import DropKind, PartResolution
from strata_mq.filters import FilterCache, FilterKind, MessageFilter
from strata_mq.layout import NO_QUEUE, MoveRow
from strata_mq.requests import RequestError
from strata_state.rows import ConsumerKey
from strata_storage.base.errors import Refused
from strata_storage.base.watchers import WatchUpdate
from strata_storage.leading.pops.lease_calls import (
    ConsumerQueue,
    LeaseRef,
    QueueHandles,
    ResetTarget,
)
from strata_storage.leading.pops.pop_calls import Delivered
from strata_storage.reads.lookup import FoundMessage, Lookup
from strata_storage.rows.ownership import Topic


async def find(lookup: Lookup, request: pb.QueryRequest, limit: int) -> list[FoundMessage]:
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


def filter_of(filters: FilterCache, wanted: pb.Filter) -> MessageFilter:
    """Return the filter of a request.

    Raises:
        Refused: OUTCOME_INVALID.
    """
    try:
        return filters.of(FilterKind(wanted.kind or FilterKind.ALL), wanted.expression)
    except (RequestError, ValueError) as error:
        raise Refused(pb.OUTCOME_INVALID, str(error)) from error


def handles_by_queue(leases: Iterable[pb.LeaseRef | LeaseRef]) -> dict[ConsumerKey, QueueHandles]:
    """Return the leases that handles name by queue: their places in the call, and the handles."""
    found: dict[ConsumerKey, QueueHandles] = {}
    for place, ref in enumerate(leases):
        key = ref.consumer_group_id, ref.topic_id, ref.queue
        mine = found.get(key)
        if mine is None:
            mine = found[key] = QueueHandles([], [])
        mine.places.append(place)
        mine.handles.append((ref.offset, ref.lease_number, ref.generation, ref.visible_at_ms))
    return found


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
    if to == "forget":
        return ResetTarget(forget=True)
    raise Refused(pb.OUTCOME_INVALID, "a reset goes to earliest, latest, a time or an offset")


def consumer_state(state: ConsumerQueue) -> pb.ConsumerQueueState:
    """Return a consumer group's state on a queue."""
    answer = pb.ConsumerQueueState(
        queue=state.queue,
        min_offset=state.min_offset,
        next_offset=state.next_offset,
        cursor=state.cursor,
        head=state.head,
        in_flight=state.in_flight,
        waiting=state.waiting,
        started=state.started,
        open_offsets=state.open_offsets,
    )
    if state.times is not None:
        answer.min_time_ms = state.times.oldest_ms
        answer.consumed_time_ms = state.times.consumed_ms
        answer.cursor_time_ms = state.times.cursor_ms
        answer.last_store_time_ms = state.times.newest_ms
    return answer


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


def fill_part(
    result: pb.PartResult, part: PartResolution, raft_index: int, move: MoveRow | None
) -> None:
    """Write the result of a part that the entry `raft_index` stores.

    `move`: where its queue went, if it is sealed.
    """
    result.outcome = pb.Outcome.ValueType(part.outcome)
    if move is not None:
        result.sealed.CopyFrom(sealed_queues(((part.queue, move),))[0])
    if part.queue != NO_QUEUE:
        result.queue = part.queue
        result.base_offset = part.base_offset
    else:
        result.first_pending.index = raft_index
        result.first_pending.ordinal = part.base_offset
    for duplicate in part.duplicates:
        if duplicate.pending is None:
            result.duplicates.add(
                ordinal=duplicate.ordinal, queue=duplicate.queue, offset=duplicate.offset
            )
        else:
            # Without an index the first one is in the same batch.
            first = pb.PendingRef(
                index=duplicate.pending.raft_index or raft_index,
                ordinal=duplicate.pending.ordinal,
            )
            result.duplicates.add(ordinal=duplicate.ordinal, pending=first)


def add_leased(
    response: pb.PopResponse, delivered: Sequence[Delivered], *, places_only: bool
) -> None:
    """Add leased messages to an answer, or only where they are."""
    # A function and named fields for each message would take a third of the time of its object.
    add = response.messages.add
    for queue, offset, generation, store_time_ms, lease, message in delivered:
        leased = add()
        leased.queue = queue
        leased.offset = offset
        leased.attempt_count = lease.attempts
        leased.lease_number = lease.lease_number
        leased.generation = generation
        leased.visible_at_ms = lease.visible_at_ms
        leased.store_time_ms = store_time_ms
        if places_only:
            leased.message_length = lease.length
        else:
            leased.message = message


def add_stored(messages: object, found: Sequence[FoundMessage]) -> None:
    """Add stored messages to a repeated field."""
    for stored in found:
        messages.add(  # type: ignore[attr-defined]
            queue=stored.queue,
            offset=stored.offset,
            store_time_ms=stored.store_time_ms,
            message=stored.message,
            message_length=0 if stored.message else stored.length,
        )


def watch_response(update: WatchUpdate) -> pb.WatchResponse:
    """Return news for a broker that watches."""
    response = pb.WatchResponse(led_groups=update.led_groups or (), health=update.health)
    for check in update.checks:
        response.checks.add(
            raft_group=check.raft_group,
            pending=pb.PendingRef(index=check.raft_index, ordinal=check.ordinal),
            topic_id=check.topic_id,
            check_count=check.number,
            exhausted=check.exhausted,
            store_time_ms=check.store_time_ms,
            message=check.message,
            wants_report=update.wants_reports and not check.exhausted,
        )
    for place in update.deliverable:
        response.deliverable.add(**place._asdict())
    return response
