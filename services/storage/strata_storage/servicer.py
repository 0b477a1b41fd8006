"""`strata.storage.v1.StorageService`: protobuf to engine calls and back. No decision is made here.

A refused part of a request is an answer, not an error: `Refusal` says why.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from strata.storage.v1 import storage_pb2 as pb
from strata_angelia.ports import CallContext
from strata_mq.commands import PartResolution
from strata_mq.errors import RequestError
from strata_mq.filters import parse_tag_expression
from strata_mq.leases import TakeRequest
from strata_mq.rare_commands import DropKind
from strata_runtime.clock import Clock
from strata_storage.append import AppendResult
from strata_storage.config import EngineOptions
from strata_storage.disk_guard import DiskGuard, DiskMark
from strata_storage.engine import GroupEngine
from strata_storage.errors import Refused
from strata_storage.holders import Holders
from strata_storage.instruments import Instruments
from strata_storage.lease_calls import ConsumerQueue, LeaseRef, ResetTarget
from strata_storage.lookup import Lookup, Stored
from strata_storage.pop import Delivered, PopCall, Topic
from strata_storage.role_watch import RoleWatch


class Engines(Protocol):
    """The raft groups of a node, as the servicer sees them."""

    def engine(self, raft_group: int) -> GroupEngine:
        """Return a hosted raft group's engine.

        Raises:
            Refused: OUTCOME_UNKNOWN_GROUP.
        """

    def engines(self) -> Sequence[GroupEngine]:
        """Return all engines."""

    def node_of(self, replica_id: int) -> str:
        """Return the node id that hosts a replica, "" if unknown."""

    def status(self) -> pb.GetStatusResponse:
        """Return how far load and recovery are."""

    def synced_position(self) -> int:
        """Return the log position up to which everything is durable."""


@dataclass(frozen=True, slots=True)
class ServicerParts:
    """What the servicer calls."""

    engines: Engines
    holders: Holders
    disk: DiskGuard
    roles: RoleWatch
    clock: Clock
    options: EngineOptions
    instruments: Instruments


class StorageServicer:
    """Handler for Angelia."""

    def __init__(self, parts: ServicerParts) -> None:
        self._engines = parts.engines
        self._holders = parts.holders
        self._disk = parts.disk
        self._roles = parts.roles
        self._clock = parts.clock
        self._options = parts.options
        self._instruments = parts.instruments

    # Messages -----------------------------------------------------------------------------------

    async def append(self, request: pb.AppendRequest, context: CallContext) -> pb.AppendResponse:
        """Append batches of many raft groups; all are proposed before any is waited for."""
        boot_id = request.broker_boot_id
        submitted: list[AppendResult | Refused] = []
        for group_batch in request.batches:
            try:
                self._disk.check(DiskMark.REFUSE_APPENDS)
                leader = self._engines.engine(group_batch.raft_group).leading()
                leader.check_ready()
                submitted.append(
                    leader.appends.submit(group_batch.batch, boot_id, group_batch.sequence)
                )
            except Refused as refused:
                submitted.append(refused)
        response = pb.AppendResponse()
        for group_batch, outcome in zip(request.batches, submitted, strict=True):
            result = response.results.add(raft_group=group_batch.raft_group)
            try:
                if isinstance(outcome, Refused):
                    raise outcome
                await outcome.wait()
            except Refused as refused:
                self._refuse(result.refusal, refused)
                continue
            result.store_time_ms = outcome.store_time_ms
            for part in outcome.parts:
                _fill_part(result.parts.add(), part)
        return response

    async def fetch(self, request: pb.FetchRequest, context: CallContext) -> pb.FetchResponse:
        """Read messages of a queue."""
        response = pb.FetchResponse()
        try:
            engine = self._engines.engine(request.raft_group)
            await engine.barrier()
            fetched = await engine.lookup.fetch(
                request.topic_id,
                request.queue,
                request.offset,
                min(request.max_messages, self._options.pop_max_messages),
                min(request.max_bytes or self._options.pop_max_bytes, self._options.pop_max_bytes),
            )
        except Refused as refused:
            self._refuse(response.refusal, refused)
            return response
        response.min_offset, response.next_offset = fetched.min_offset, fetched.next_offset
        _add_stored(response.messages, fetched.messages)
        return response

    async def query(self, request: pb.QueryRequest, context: CallContext) -> pb.QueryResponse:
        """Find messages by id, key or position."""
        response = pb.QueryResponse()
        limit = min(request.max_messages or 1, self._options.pop_max_messages)
        try:
            engine = self._engines.engine(request.raft_group)
            await engine.barrier()
            found = await _find(engine.lookup, request, limit)
        except Refused as refused:
            self._refuse(response.refusal, refused)
            return response
        _add_stored(response.messages, found[:limit])
        return response

    # Consumers ----------------------------------------------------------------------------------

    async def pop(self, request: pb.PopRequest, context: CallContext) -> pb.PopResponse:
        """Take leases."""
        response = pb.PopResponse()
        try:
            self._disk.check(DiskMark.REFUSE_ALL_BUT_ACKS)
            call = self._pop_call(request)
            engine = self._engines.engine(request.raft_group)
            await engine.barrier()
            if call.take.auto_renew:
                self._holders.touch(call.take.holder, self._clock.monotonic_s())
            delivered = await engine.leading().pops.pop(call)
        except Refused as refused:
            self._refuse(response.refusal, refused)
            return response
        self._instruments.popped.add(len(delivered))
        for message in delivered:
            _fill_leased(response.messages.add(), message)
        return response

    async def ack(self, request: pb.AckRequest, context: CallContext) -> pb.AckResponse:
        """Consume messages of many raft groups; all are proposed before any is waited for."""
        decided: list[tuple[GroupEngine, list[bool], asyncio.Future[int] | None] | Refused] = []
        for group in request.groups:
            try:
                engine = self._engines.engine(group.raft_group)
                valid, future = engine.leading().leases.ack([_lease_ref(r) for r in group.leases])
                decided.append((engine, valid, future))
            except Refused as refused:
                decided.append(refused)
        response = pb.AckResponse()
        for group, decision in zip(request.groups, decided, strict=True):
            result = response.groups.add(raft_group=group.raft_group)
            try:
                if isinstance(decision, Refused):
                    raise decision
                engine, valid, future = decision
                await engine.leading().leases.settle(future)
            except Refused as refused:
                self._refuse(result.refusal, refused)
                continue
            result.outcomes.extend(
                pb.OUTCOME_OK if one else pb.OUTCOME_INVALID_HANDLE for one in valid
            )
            self._instruments.acked.add(sum(valid))
        return response

    async def change_invisible(
        self, request: pb.ChangeInvisibleRequest, context: CallContext
    ) -> pb.ChangeInvisibleResponse:
        """Set when a leased message is visible again."""
        response = pb.ChangeInvisibleResponse()
        try:
            leader = self._engines.engine(request.raft_group).leading()
            lease = await leader.leases.change_invisible(
                _lease_ref(request.lease), request.invisible_ms
            )
        except Refused as refused:
            self._refuse(response.refusal, refused)
            return response
        response.lease.CopyFrom(pb.LeaseRef(**lease._asdict()))
        return response

    async def forward_to_dead_letter(
        self, request: pb.ForwardToDeadLetterRequest, context: CallContext
    ) -> pb.ForwardToDeadLetterResponse:
        """Move a leased message to the dead-letter topic."""
        response = pb.ForwardToDeadLetterResponse()
        try:
            self._disk.check(DiskMark.REFUSE_APPENDS)
            leader = self._engines.engine(request.raft_group).leading()
            await leader.dead_letters.forward(
                _lease_ref(request.lease), request.dead_letter_topic_id
            )
        except Refused as refused:
            self._refuse(response.refusal, refused)
        return response

    async def report_clients(
        self, request: pb.ReportClientsRequest, context: CallContext
    ) -> pb.ReportClientsResponse:
        """Take in which clients a broker holds (rule 25)."""
        want_full = self._holders.report(
            request.broker_boot_id,
            request.live,
            request.gone,
            self._clock.monotonic_s(),
            full=request.full,
        )
        return pb.ReportClientsResponse(want_full=want_full)

    # Offsets and consumer state -----------------------------------------------------------------

    async def get_offsets(
        self, request: pb.GetOffsetsRequest, context: CallContext
    ) -> pb.GetOffsetsResponse:
        """Return offsets of queues."""
        response = pb.GetOffsetsResponse()
        try:
            engine = self._engines.engine(request.raft_group)
            await engine.barrier()
            time_ms = request.time_ms if request.HasField("time_ms") else None
            found = engine.offsets.of_queues(_topic(request.topic), request.queues, time_ms)
        except Refused as refused:
            self._refuse(response.refusal, refused)
            return response
        for queue in found:
            response.queues.add(
                queue=queue.queue,
                min_offset=queue.min_offset,
                next_offset=queue.next_offset,
                by_time=queue.by_time,
                last_store_time_ms=queue.last_store_time_ms,
            )
        return response

    async def get_consumer_state(
        self, request: pb.GetConsumerStateRequest, context: CallContext
    ) -> pb.GetConsumerStateResponse:
        """Return where a consumer group is."""
        response = pb.GetConsumerStateResponse()
        try:
            engine = self._engines.engine(request.raft_group)
            await engine.barrier()
            states = engine.leading().leases.states(
                request.consumer_group_id, _topic(request.topic)
            )
        except Refused as refused:
            self._refuse(response.refusal, refused)
            return response
        response.queues.extend(_state(state) for state in states)
        return response

    async def get_consumer_topics(
        self, request: pb.GetConsumerTopicsRequest, context: CallContext
    ) -> pb.GetConsumerTopicsResponse:
        """Return the topics of which a consumer group has pop state."""
        response = pb.GetConsumerTopicsResponse()
        try:
            engine = self._engines.engine(request.raft_group)
            await engine.barrier()
            response.topic_ids.extend(engine.consumer_topics(request.consumer_group_id))
        except Refused as refused:
            self._refuse(response.refusal, refused)
        return response

    async def reset_consumer(
        self, request: pb.ResetConsumerRequest, context: CallContext
    ) -> pb.ResetConsumerResponse:
        """Move a consumer group's cursor."""
        response = pb.ResetConsumerResponse()
        try:
            self._disk.check(DiskMark.REFUSE_ALL_BUT_ACKS)
            engine = self._engines.engine(request.raft_group)
            await engine.barrier()
            states = await engine.leading().leases.reset(
                request.consumer_group_id,
                _topic(request.topic),
                request.queues,
                _reset_target(request),
            )
        except Refused as refused:
            self._refuse(response.refusal, refused)
            return response
        response.queues.extend(_state(state) for state in states)
        return response

    # Administration -----------------------------------------------------------------------------

    async def flush(self, request: pb.FlushRequest, context: CallContext) -> pb.FlushResponse:
        """Wait until everything accepted before the call is durable."""
        for engine in self._engines.engines():
            if engine.leader is not None:
                await engine.leader.proposer.settled()
        return pb.FlushResponse(synced_position=self._engines.synced_position())

    async def seal(self, request: pb.SealRequest, context: CallContext) -> pb.SealResponse:
        """End an epoch of a queue."""
        response = pb.SealResponse()
        try:
            engine = self._engines.engine(request.raft_group)
            response.end_offset = await engine.seal(
                request.topic_id, request.queue, request.destination_raft_group
            )
        except Refused as refused:
            self._refuse(response.refusal, refused)
        return response

    async def open(self, request: pb.OpenRequest, context: CallContext) -> pb.OpenResponse:
        """Open an epoch of a queue."""
        response = pb.OpenResponse()
        try:
            await self._engines.engine(request.raft_group).open(
                request.topic_id, request.queue, request.epoch, request.start_offset
            )
        except Refused as refused:
            self._refuse(response.refusal, refused)
        return response

    async def drop(self, request: pb.DropRequest, context: CallContext) -> pb.DropResponse:
        """Drop a topic or consumer group."""
        response = pb.DropResponse()
        try:
            engine = self._engines.engine(request.raft_group)
            await engine.drop(*_dropped(request))
        except Refused as refused:
            self._refuse(response.refusal, refused)
        return response

    async def get_status(
        self, request: pb.GetStatusRequest, context: CallContext
    ) -> pb.GetStatusResponse:
        """Return how far load and recovery are."""
        return self._engines.status()

    async def watch(
        self, request: pb.WatchRequest, context: CallContext
    ) -> AsyncIterator[pb.WatchResponse]:
        """Tell which raft groups are led here, now and after every change."""
        async for led_groups in self._roles.changes():
            yield pb.WatchResponse(led_groups=led_groups)

    # Translation --------------------------------------------------------------------------------

    def _pop_call(self, request: pb.PopRequest) -> PopCall:
        options = self._options
        return PopCall(
            request.consumer_group_id,
            _topic(request.topic),
            request.queue,
            TakeRequest(
                min(max(request.max_messages, 1), options.pop_max_messages),
                min(request.max_bytes or options.pop_max_bytes, options.pop_max_bytes),
                request.invisible_ms,
                request.auto_renew,
                request.holder,
                request.attempt,
                request.fifo,
                request.max_attempts,
                request.dead_letter_topic_id,
                _tag_hashes(request.filter),
                request.one_per_message_group,
            ),
            request.start == pb.START_POSITION_LATEST,
            request.wait_ms / 1000,
        )

    def _refuse(self, refusal: pb.Refusal, refused: Refused) -> None:
        self._instruments.refused.add(1, {"outcome": pb.Outcome.Name(refused.outcome)})
        refusal.outcome = refused.outcome
        refusal.reason = refused.reason
        if refused.leader_replica_id:
            refusal.leader_node_id = self._engines.node_of(refused.leader_replica_id)


async def _find(lookup: Lookup, request: pb.QueryRequest, limit: int) -> list[Stored]:
    by = request.WhichOneof("by")
    if by == "message_id":
        return await lookup.by_id(request.topic_id, request.message_id)
    if by == "key":
        return await lookup.by_key(request.topic_id, request.key, limit)
    if by == "position":
        position = (request.position.queue, request.position.offset)
        return await lookup.at(request.topic_id, (position,))
    raise Refused(pb.OUTCOME_INVALID, "a query is by message id, key or position")


def _dropped(request: pb.DropRequest) -> tuple[DropKind, int]:
    what = request.WhichOneof("what")
    if what == "topic_id":
        return DropKind.TOPIC, request.topic_id
    if what == "consumer_group_id":
        return DropKind.CONSUMER_GROUP, request.consumer_group_id
    raise Refused(pb.OUTCOME_INVALID, "a drop names a topic or a consumer group")


def _topic(ref: pb.TopicRef) -> Topic:
    return Topic(ref.topic_id, ref.slot_base, ref.queue_count)


def _tag_hashes(message_filter: pb.Filter) -> frozenset[int] | None:
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


def _lease_ref(ref: pb.LeaseRef) -> LeaseRef:
    return LeaseRef(
        ref.consumer_group_id,
        ref.topic_id,
        ref.queue,
        ref.offset,
        ref.lease_number,
        ref.generation,
        ref.visible_at_ms,
    )


def _reset_target(request: pb.ResetConsumerRequest) -> ResetTarget:
    to = request.WhichOneof("to")
    if to == "time_ms":
        return ResetTarget(time_ms=request.time_ms)
    if to == "offset":
        return ResetTarget(offset=request.offset)
    if to in ("latest", "earliest"):
        return ResetTarget(latest=to == "latest")
    raise Refused(pb.OUTCOME_INVALID, "a reset goes to earliest, latest, a time or an offset")


def _state(state: ConsumerQueue) -> pb.ConsumerQueueState:
    return pb.ConsumerQueueState(
        queue=state.queue,
        min_offset=state.min_offset,
        next_offset=state.next_offset,
        cursor=state.cursor,
        head=state.head,
        in_flight=state.in_flight,
        waiting=state.waiting,
    )


def _fill_part(result: pb.PartResult, part: PartResolution) -> None:
    result.queue = part.queue
    result.base_offset = part.base_offset
    result.outcome = pb.Outcome.ValueType(part.outcome)
    for duplicate in part.duplicates:
        result.duplicates.add(
            ordinal=duplicate.ordinal, queue=duplicate.queue, offset=duplicate.offset
        )


def _fill_leased(leased: pb.LeasedMessage, delivered: Delivered) -> None:
    lease = delivered.lease
    leased.queue = delivered.queue
    leased.offset = delivered.offset
    leased.attempt_count = lease.attempts
    leased.lease_number = lease.lease_number
    leased.generation = delivered.generation
    leased.visible_at_ms = lease.visible_at_ms
    leased.store_time_ms = delivered.store_time_ms
    leased.message = delivered.message


def _add_stored(messages: object, found: Sequence[Stored]) -> None:
    for stored in found:
        messages.add(  # type: ignore[attr-defined]
            queue=stored.queue,
            offset=stored.offset,
            store_time_ms=stored.store_time_ms,
            message=stored.message,
        )
