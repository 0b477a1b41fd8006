"""The part of `strata.storage.v1.StorageService` that reads messages without a lease.

Protobuf to engine calls and back. No decision is made here.
"""

from __future__ import annotations

from collections.abc import Iterable

from strata.storage.v1 import storage_pb2 as pb
from strata_angelia.ports import CallContext
from strata_mq.filters import FilterCache
from strata_runtime.clock import Clock
from strata_storage.base.config import EngineOptions
from strata_storage.base.disk_guard import DiskGuard
from strata_storage.base.errors import Refused
from strata_storage.group.engine import GroupEngine
from strata_storage.group.engines import Engines
from strata_storage.group.translation import add_stored, filter_of, find, sealed_queues
from strata_storage.reads.fetches import FetchCall, Fetched
from strata_storage.reads.traces import MessageTrace, NamedEvent
from strata_storage.servicers.pending import PendingServicer
from strata_storage.upkeep.instruments import Instruments

_NO_GROUP = 0


class ReadServicer(PendingServicer):
    """Fetch, ReadMessages, Query and Trace; base of the whole service's handler."""

    def __init__(
        self,
        engines: Engines,
        filters: FilterCache,
        clock: Clock,
        *,
        options: EngineOptions,
        instruments: Instruments,
        disk: DiskGuard,
    ) -> None:
        super().__init__(engines, instruments, disk)
        self._filters = filters
        self._clock = clock
        self._options = options

    async def fetch(self, request: pb.FetchRequest, context: CallContext) -> pb.FetchResponse:
        """Read messages of a queue; wait for one if the call says so."""
        response = pb.FetchResponse()
        engine = self._engines.engine(request.raft_group)
        fetched = await self._fetch(
            engine, self._fetch_call(request), request.wait_ms / 1_000, request.ByteSize()
        )
        self._instruments.filter_limited.add(fetched.limited)
        response.min_offset, response.next_offset = fetched.min_offset, fetched.next_offset
        response.resume_offset = fetched.resume_offset
        add_stored(response.messages, fetched.messages)
        if request.places_only:
            response.applied_index = engine.machine.applied_index()
        self._served(stored.message for stored in fetched.messages)
        # Placement weighs reads by these, whoever reads: a fetch names no consumer group.
        engine.machine.traffic.delivered(
            _NO_GROUP,
            request.topic_id,
            [(stored.queue, stored.length) for stored in fetched.messages],
        )
        return response

    async def read_messages(
        self, request: pb.ReadMessagesRequest, context: CallContext
    ) -> pb.ReadMessagesResponse:
        """Read messages that the leader named; any replica may be asked."""
        response = pb.ReadMessagesResponse()
        _check_places(request, self._options.pop_max_messages)
        engine = self._engines.engine(request.raft_group)
        await engine.catch_up(request.applied_index)
        found = await engine.lookup.read(request.topic_id, request.queues, request.offsets)
        response.messages.extend(found)
        self._served(found)
        return response

    async def _fetch(
        self, engine: GroupEngine, call: FetchCall, wait_s: float, size_bytes: int
    ) -> Fetched:
        deadline_s = self._clock.monotonic_s() + wait_s
        await engine.barrier()
        while True:
            fetched = await engine.fetches.fetch(call)
            # Something was found or passed over; or the caller is wrong about where the queue ends.
            if fetched.next_offset != call.offset:
                return fetched
            leader, left_s = engine.leader, deadline_s - self._clock.monotonic_s()
            if leader is None or left_s <= 0:
                return fetched
            if engine.fetches.end_of(call.topic_id, call.queue) != call.offset:
                # It came meanwhile.
                continue
            if not await leader.arrivals.wait(call.topic_id, call.queue, left_s, size_bytes):
                return fetched

    def _fetch_call(self, request: pb.FetchRequest) -> FetchCall:
        options = self._options
        return FetchCall(
            request.topic_id,
            request.queue,
            request.offset,
            min(request.max_messages, options.pop_max_messages),
            min(request.max_bytes or options.pop_max_bytes, options.pop_max_bytes),
            filter_of(self._filters, request.filter),
            request.places_only,
        )

    async def query(self, request: pb.QueryRequest, context: CallContext) -> pb.QueryResponse:
        """Find messages by id, key or position."""
        response = pb.QueryResponse()
        limit = min(request.max_messages or 1, self._options.pop_max_messages)
        engine = self._engines.engine(request.raft_group)
        await engine.barrier(proposed_too=bool(request.message_id))
        found = await find(engine.lookup, request, limit)
        add_stored(response.messages, found[:limit])
        sealed = engine.machine.sealed_of_topic(request.topic_id)
        response.sealed.extend(sealed_queues(sealed))
        return response

    async def get_consumers(
        self, request: pb.GetConsumersRequest, context: CallContext
    ) -> pb.GetConsumersResponse:
        """Return the consumer groups that read a topic here."""
        response = pb.GetConsumersResponse()
        engine = self._engines.engine(request.raft_group)
        await engine.barrier()
        consumers = await engine.leading().rehashes.consumers(request.topic_id)
        response.consumer_group_ids.extend(sorted(consumers))
        return response

    async def trace(self, request: pb.TraceRequest, context: CallContext) -> pb.TraceResponse:
        """Tell what became of a message."""
        response = pb.TraceResponse()
        max_events = min(
            request.max_events or self._options.trace_max_events, self._options.trace_max_events
        )
        engine = self._engines.engine(request.raft_group)
        await engine.barrier()
        found = await _find_traces(engine, request, max_events)
        response.messages.extend(map(_trace, found))
        return response

    def _served(self, messages: Iterable[bytes]) -> None:
        self._instruments.served(sum(map(len, messages)))


def _check_places(request: pb.ReadMessagesRequest, limit: int) -> None:
    if len(request.queues) != len(request.offsets) or len(request.offsets) > limit:
        raise Refused(pb.OUTCOME_INVALID, f"at most {limit} pairs of queue and offset")


async def _find_traces(
    engine: GroupEngine, request: pb.TraceRequest, max_events: int
) -> list[MessageTrace]:
    by = request.WhichOneof("by")
    if by == "message_id":
        return await engine.traces.by_id(request.topic_id, request.message_id, max_events)
    if by == "position":
        position = request.position
        return await engine.traces.at(request.topic_id, position.queue, position.offset, max_events)
    raise Refused(pb.OUTCOME_INVALID, "a trace is by message id or position")


def _trace(trace: MessageTrace) -> pb.MessageTrace:
    stored = trace.stored
    return pb.MessageTrace(
        stored=pb.StoredMessage(
            queue=stored.queue,
            offset=stored.offset,
            store_time_ms=stored.store_time_ms,
            message=stored.message,
        ),
        raft_index=trace.raft_index,
        events=map(_event, trace.events),
        truncated=trace.truncated,
    )


def _event(named: NamedEvent) -> pb.TraceEvent:
    event = named.event
    return pb.TraceEvent(
        consumer_group_id=event.consumer_group_id,
        kind=pb.TraceEventKind.ValueType(event.kind),
        time_ms=event.time_ms,
        attempt_count=event.attempts,
        holder=event.holder,
        client_id=named.client_id,
        visible_at_ms=event.visible_at_ms,
    )
