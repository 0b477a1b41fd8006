"""`strata.storage.v1.StorageService`: protobuf to engine calls and back. No decision is made here.

A refused part of a request is an answer, not an error: `Refusal` says why.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field

from strata.storage.v1 import storage_pb2 as pb
from strata_angelia.ports import CallContext
from strata_mq.filters import FilterCache
from strata_mq.leases import TakeRequest, broker_mark
from strata_runtime.clock import Clock
from strata_runtime.tracing import Span, SpanKind, Tracer, inside
from strata_storage.base.config import EngineOptions
from strata_storage.base.disk_guard import DiskGuard, DiskMark
from strata_storage.base.errors import Refused
from strata_storage.group.engines import Engines
from strata_storage.group.refusals import Refusals
from strata_storage.group.translation import (
    add_leased,
    consumer_state,
    dropped,
    fill_part,
    filter_of,
    handles_by_queue,
    lease_ref,
    reset_target,
    sealed_queues,
    topic_of,
    watch_response,
)
from strata_storage.leading.appends.append import AppendResult
from strata_storage.leading.known_brokers import KnownBrokers
from strata_storage.leading.leader import GroupLeader
from strata_storage.leading.pops.lease_calls import LeaseCalls, StateDetails
from strata_storage.leading.pops.levels import LevelRange
from strata_storage.leading.pops.pop_calls import PopCall
from strata_storage.leading.pops.running import RunningPops
from strata_storage.rows.stragglers import wait_for_most
from strata_storage.servicers.parts import PART_ERRORS, refusal_of
from strata_storage.servicers.reads import ReadServicer
from strata_storage.servicers.window_meter import WindowMeter
from strata_storage.upkeep.instruments import Instruments


@dataclass(frozen=True, slots=True)
class CallWatch:
    """Counts, traces and windows of what is called.

    Attributes:
        instruments: counters of the node.
        refusals: fills in answers of what is refused, and counts them.
        tracer: traces messages.
        windows: the newest metric windows; None: they are not taken.
    """

    instruments: Instruments
    refusals: Refusals
    tracer: Tracer = field(default_factory=Tracer.disabled)
    windows: WindowMeter | None = None


class StorageServicer(ReadServicer):
    """Handler for Angelia.

    Args:
        engines: of the node.
        brokers: what is known of those who call.
        disk: how full the disk is.
        filters: parsed filters.
        clock: time.
        options: limits of calls.
        watch: counts and traces.
    """

    def __init__(
        self,
        engines: Engines,
        brokers: KnownBrokers,
        disk: DiskGuard,
        *,
        filters: FilterCache,
        clock: Clock,
        options: EngineOptions,
        watch: CallWatch,
    ) -> None:
        super().__init__(
            engines, filters, clock, options=options, instruments=watch.instruments, disk=disk
        )
        self._refusals = watch.refusals
        self._holders = brokers.holders
        self._watchers = brokers.watchers
        self._check_routes = brokers.check_routes
        self._tracer = watch.tracer
        self._windows = watch.windows
        self._running_pops = RunningPops()

    # Messages -----------------------------------------------------------------------------------

    async def append(self, request: pb.AppendRequest, context: CallContext) -> pb.AppendResponse:
        """Append batches of many raft groups; all are proposed before any is waited for.

        A raft group that commits slowly is answered OUTCOME_TIMEOUT while others are done, one
        whose rows cannot be read OUTCOME_OVERLOADED: the broker asks again.
        """
        boot_id = request.broker_boot_id
        began_s = self._clock.monotonic_s()
        span = self._tracer.begin("storage append", SpanKind.SERVER, context.trace_parent)
        submitted: list[AppendResult | Refused] = []
        leaders: dict[int, GroupLeader] = {}
        for group_batch in request.batches:
            try:
                engine = self._engines.engine(group_batch.raft_group)
                leader = engine.leading()
                engine.check_disk(self._disk, DiskMark.REFUSE_APPENDS)
                leader.check_ready()
                leaders[group_batch.raft_group] = leader
                submitted.append(
                    leader.appends.submit(
                        group_batch.batch,
                        boot_id,
                        group_batch.sequence,
                        may_repeat=group_batch.may_repeat,
                    )
                )
            except PART_ERRORS as error:
                submitted.append(refusal_of(error))
        await self._commit_most(submitted, context.timeout_s)
        response = pb.AppendResponse()
        for group_batch, outcome in zip(request.batches, submitted, strict=True):
            raft_group = group_batch.raft_group
            result = response.results.add(raft_group=raft_group)
            try:
                if isinstance(outcome, Refused):
                    raise outcome
                if group_batch.may_repeat and outcome.future is None:
                    # It tells what it has of a queue that it lost.
                    await self._engines.engine(raft_group).confirm(leaders[raft_group])
                with inside(self._commit_span(span, raft_group)):
                    raft_index = await outcome.wait()
            except PART_ERRORS as error:
                self._refusals.refuse(result, refusal_of(error))
                continue
            result.store_time_ms = outcome.store_time_ms
            for number, part in enumerate(outcome.parts):
                fill_part(result.parts.add(), part, raft_index, outcome.moves.get(number))
        self._instruments.led_bytes_total += sum(len(batch.batch) for batch in request.batches)
        self._instruments.appended((self._clock.monotonic_s() - began_s) * 1_000)
        if span is not None:
            span.end()
        return response

    async def _commit_most(
        self, submitted: list[AppendResult | Refused], timeout_s: float | None
    ) -> None:
        """Wait for commits; a batch that is not committed then is refused as such."""
        commits = [one.future for one in submitted if isinstance(one, AppendResult) and one.future]
        await wait_for_most(commits, timeout_s, self._options.append_straggle_ms / 1_000)
        for number, one in enumerate(submitted):
            if isinstance(one, AppendResult) and one.future and not one.future.done():
                submitted[number] = Refused(pb.OUTCOME_TIMEOUT, "not committed yet")

    def _commit_span(self, append: Span | None, raft_group: int) -> Span | None:
        """Begin the span of waiting for the log and the quorum, if the append is traced."""
        if append is None:
            return None
        attributes = {"strata.raft_group": raft_group}
        return self._tracer.begin(
            "raft commit",
            SpanKind.INTERNAL,
            append.trace_parent,
            attributes,
            started_ns=append.started_ns,
        )

    # Consumers ----------------------------------------------------------------------------------

    async def pop(self, request: pb.PopRequest, context: CallContext) -> pb.PopResponse:
        """Take leases."""
        response = pb.PopResponse()
        with self._running_pops.of(request.broker_boot_id, request.number):
            await self._pop(request, response)
        return response

    async def _pop(self, request: pb.PopRequest, response: pb.PopResponse) -> None:
        """Put what a pop gives into the response.

        Raises:
            Refused: nothing was leased.
        """
        call = self._pop_call(request)
        engine = self._engines.engine(request.raft_group)
        # It lives now: what is said of it from here on counts.
        if call.take.auto_renew:
            self._holders.touch(call.take.holder, self._clock.monotonic_s())
        await engine.barrier()
        engine.check_disk(self._disk, DiskMark.REFUSE_ALL_BUT_ACKS)
        leader = engine.leading()
        leader.client_names.note(request.holder, request.client_id)
        answer = await leader.pops.pop(call)
        delivered = answer.messages
        # From here on nothing waits: what was leased is in the answer.
        if not delivered and len(sealed := leader.pops.order.sealed(call)) != call.known_sealed:
            response.moved = True
            response.sealed.extend(sealed_queues(sealed))
        else:
            response.told_later, response.unfinished = answer.told_later, answer.unfinished
            response.ready_levels = answer.ready_levels
        if delivered and call.take.auto_renew:
            leader.takeover.took(leader.proposer.now_ms())
        self._instruments.popped.add(len(delivered))
        add_leased(response, delivered, places_only=call.places_only)
        if call.places_only:
            response.applied_index = engine.machine.applied_index()
        else:
            self._served([message.message for message in delivered])
        engine.machine.traffic.delivered(
            call.consumer_group_id,
            call.topic.topic_id,
            [(message.queue, message.lease.length) for message in delivered],
        )

    async def end_pops(
        self, request: pb.EndPopsRequest, context: CallContext
    ) -> pb.EndPopsResponse:
        """End pops that still wait, because their clients have gone."""
        self._running_pops.end(request.broker_boot_id, request.numbers)
        return pb.EndPopsResponse()

    async def ack(self, request: pb.AckRequest, context: CallContext) -> pb.AckResponse:
        """Consume messages of many raft groups; all are proposed before any is waited for."""
        decided: list[tuple[LeaseCalls, list[bool], asyncio.Future[int] | None] | Refused] = []
        for group in request.groups:
            try:
                # The leader that decides is the one to wait for: another term has other leases.
                leases = self._engines.engine(group.raft_group).leading().leases
                valid, future = leases.ack(handles_by_queue(group.leases), repeated=group.repeated)
                decided.append((leases, valid, future))
            except PART_ERRORS as error:
                decided.append(refusal_of(error))
        response = pb.AckResponse()
        for group, decision in zip(request.groups, decided, strict=True):
            result = response.groups.add(raft_group=group.raft_group)
            try:
                if isinstance(decision, Refused):
                    raise decision
                leases, valid, future = decision
                await leases.settle(future)
            except PART_ERRORS as error:
                self._refusals.refuse(result, refusal_of(error))
                continue
            result.outcomes.extend(
                pb.OUTCOME_OK if one else pb.OUTCOME_INVALID_HANDLE for one in valid
            )
            self._instruments.acked.add(sum(valid))
        return response

    async def release(self, request: pb.ReleaseRequest, context: CallContext) -> pb.ReleaseResponse:
        """Give back leases on messages that nobody was given."""
        response = pb.ReleaseResponse()
        leader = self._engines.engine(request.raft_group).leading()
        response.released = await leader.leases.release(
            [lease_ref(lease) for lease in request.undelivered],
            [lease_ref(lease) for lease in request.unreadable],
        )
        return response

    async def change_invisible(
        self, request: pb.ChangeInvisibleRequest, context: CallContext
    ) -> pb.ChangeInvisibleResponse:
        """Set when a leased message is visible again."""
        response = pb.ChangeInvisibleResponse()
        leader = self._engines.engine(request.raft_group).leading()
        lease = await leader.leases.change_invisible(
            lease_ref(request.lease), request.invisible_ms, repeated=request.repeated
        )
        response.lease.CopyFrom(pb.LeaseRef(**lease._asdict()))
        return response

    async def forward_to_dead_letter(
        self, request: pb.ForwardToDeadLetterRequest, context: CallContext
    ) -> pb.ForwardToDeadLetterResponse:
        """Move a leased message to the dead-letter topic."""
        response = pb.ForwardToDeadLetterResponse()
        engine = self._engines.engine(request.raft_group)
        leader = engine.leading()
        engine.check_disk(self._disk, DiskMark.REFUSE_APPENDS)
        await leader.dead_letters.forward(
            lease_ref(request.lease),
            request.dead_letter_topic_id,
            repeated=request.repeated,
        )
        return response

    async def report_clients(
        self, request: pb.ReportClientsRequest, context: CallContext
    ) -> pb.ReportClientsResponse:
        """Take in which clients a broker holds (rule 25)."""
        boot_id, now_s = request.broker_boot_id, self._clock.monotonic_s()
        self._holders.brokers.heard(boot_id)
        want_full = self._holders.report(
            boot_id, request.live, request.gone, request.silent, now_s, full=request.full
        )
        topic_ids = request.producer_topic_ids if request.producer_topics_set else None
        guesses = request.producers_of_unknown_topics
        self._check_routes.reported(boot_id, topic_ids, now_s, guesses=guesses)
        if request.leaving:
            self._holders.brokers.leaves(boot_id, now_s)
            self._check_routes.forget(boot_id)
        return pb.ReportClientsResponse(want_full=want_full)

    # Offsets and consumer state -----------------------------------------------------------------

    async def get_offsets(
        self, request: pb.GetOffsetsRequest, context: CallContext
    ) -> pb.GetOffsetsResponse:
        """Return offsets of queues."""
        response = pb.GetOffsetsResponse()
        engine = self._engines.engine(request.raft_group)
        await engine.barrier()
        time_ms = request.time_ms if request.HasField("time_ms") else None
        topic = topic_of(request.topic)
        found = engine.offsets.of_queues(topic, request.queues, time_ms)
        asked = [queue.queue for queue in found]
        response.sealed.extend(sealed_queues(engine.machine.sealed_of(topic.topic_id, asked)))
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
        engine = self._engines.engine(request.raft_group)
        await engine.barrier()
        topic = topic_of(request.topic)
        details = StateDetails(request.max_open_offsets, request.times)
        leases = engine.leading().leases
        states = leases.states(request.consumer_group_id, topic, request.queues, details)
        stream = self._watchers.stream(request.broker_boot_id, request.tell_stream)
        if stream is not None:
            place = (request.consumer_group_id, topic.topic_id, request.tell_queue)
            response.told_later = leases.arm(stream, place, states)
        await leases.settle_states(request.consumer_group_id, topic, states)
        response.queues.extend(consumer_state(state) for state in states)
        asked = [state.queue for state in states]
        response.sealed.extend(sealed_queues(engine.machine.sealed_of(topic.topic_id, asked)))
        return response

    async def get_consumer_topics(
        self, request: pb.GetConsumerTopicsRequest, context: CallContext
    ) -> pb.GetConsumerTopicsResponse:
        """Return the topics of which a consumer group has pop state."""
        response = pb.GetConsumerTopicsResponse()
        engine = self._engines.engine(request.raft_group)
        await engine.barrier()
        response.topic_ids.extend(engine.consumer_topics(request.consumer_group_id))
        return response

    async def reset_consumer(
        self, request: pb.ResetConsumerRequest, context: CallContext
    ) -> pb.ResetConsumerResponse:
        """Move a consumer group's cursor."""
        response = pb.ResetConsumerResponse()
        engine = self._engines.engine(request.raft_group)
        await engine.barrier()
        engine.check_disk(self._disk, DiskMark.REFUSE_ALL_BUT_ACKS)
        topic = topic_of(request.topic)
        states = await engine.leading().leases.reset(
            request.consumer_group_id, topic, request.queues, reset_target(request)
        )
        response.queues.extend(consumer_state(state) for state in states)
        asked = [state.queue for state in states]
        response.sealed.extend(sealed_queues(engine.machine.sealed_of(topic.topic_id, asked)))
        return response

    async def purge(self, request: pb.PurgeRequest, context: CallContext) -> pb.PurgeResponse:
        """Delete the messages of a topic below given offsets."""
        response = pb.PurgeResponse()
        engine = self._engines.engine(request.raft_group)
        await engine.barrier()
        topic = topic_of(request.topic)
        starts = {start.queue: start.offset for start in request.starts}
        queues = engine.offsets.choose(topic, list(starts)) if starts else ()
        response.deleted_messages = await engine.leading().trims.purge(topic.topic_id, starts)
        response.sealed.extend(sealed_queues(engine.machine.sealed_of(topic.topic_id, queues)))
        return response

    # Administration -----------------------------------------------------------------------------

    async def flush(self, request: pb.FlushRequest, context: CallContext) -> pb.FlushResponse:
        """Wait until everything accepted before the call is durable."""
        for engine in self._engines.engines():
            if engine.leader is not None:
                # A decision that is another leader's now is not accepted here any more.
                with suppress(Refused):
                    await engine.leader.proposer.settled()
        return pb.FlushResponse(synced_position=self._engines.synced_position())

    async def seal(self, request: pb.SealRequest, context: CallContext) -> pb.SealResponse:
        """End an epoch of a queue."""
        response = pb.SealResponse()
        engine = self._engines.engine(request.raft_group)
        response.end_offset = await engine.seal(
            request.topic_id, request.queue, request.destination_raft_group
        )
        return response

    async def open(self, request: pb.OpenRequest, context: CallContext) -> pb.OpenResponse:
        """Open an epoch of a queue."""
        response = pb.OpenResponse()
        await self._engines.engine(request.raft_group).open(
            request.topic_id,
            request.queue,
            request.epoch,
            request.start_offset,
            request.queue_count,
        )
        return response

    async def rehash(self, request: pb.RehashRequest, context: CallContext) -> pb.RehashResponse:
        """Let message groups leave a queue that the topic's queue count does not give them."""
        response = pb.RehashResponse()
        rehashes = self._engines.engine(request.raft_group).leading().rehashes
        topic = topic_of(request.topic)
        rehash = rehashes.is_consumed if request.ended else rehashes.rehash
        response.done = await rehash(topic, request.queue, request.consumer_group_ids)
        return response

    async def drop(self, request: pb.DropRequest, context: CallContext) -> pb.DropResponse:
        """Drop a topic or consumer group."""
        await self._engines.engine(request.raft_group).drop(*dropped(request))
        return pb.DropResponse()

    async def get_status(
        self, request: pb.GetStatusRequest, context: CallContext
    ) -> pb.GetStatusResponse:
        """Return how far load and recovery are."""
        return self._engines.status()

    async def get_window(
        self, request: pb.GetWindowRequest, context: CallContext
    ) -> pb.GetWindowResponse:
        """Return the next metric window."""
        window = self._windows.after(request.after_ms) if self._windows is not None else None
        return window or pb.GetWindowResponse()

    async def transfer_leadership(
        self, request: pb.TransferLeadershipRequest, context: CallContext
    ) -> pb.TransferLeadershipResponse:
        """Hand a raft group's leadership to another voter."""
        await self._engines.transfer(request.raft_group, request.target_replica_id)
        return pb.TransferLeadershipResponse()

    async def watch(
        self, request: pb.WatchRequest, context: CallContext
    ) -> AsyncIterator[pb.WatchResponse]:
        """Tell which raft groups are led here, now and after every change, and what to check."""
        boot_id, number, reports = request.broker_boot_id, request.stream, request.reports_checks
        self._holders.brokers.watches(boot_id)
        try:
            async with aclosing(self._watchers.updates(boot_id, number, reports=reports)) as told:
                async for update in told:
                    yield watch_response(update)
        finally:
            self._holders.brokers.unwatched(boot_id, self._clock.monotonic_s())

    # Translation --------------------------------------------------------------------------------

    def _pop_call(self, request: pb.PopRequest) -> PopCall:
        options = self._options
        return PopCall(
            consumer_group_id=request.consumer_group_id,
            topic=topic_of(request.topic),
            queue=request.queue,
            take=TakeRequest(
                max_messages=min(max(request.max_messages, 1), options.pop_max_messages),
                max_bytes=min(request.max_bytes or options.pop_max_bytes, options.pop_max_bytes),
                invisible_ms=request.invisible_ms,
                auto_renew=request.auto_renew,
                holder=request.holder,
                attempt=request.attempt,
                fifo=request.fifo,
                max_attempts=request.max_attempts,
                dead_letter_topic_id=request.dead_letter_topic_id,
                one_per_message_group=request.one_per_message_group,
                broker=broker_mark(request.broker_boot_id),
            ),
            latest=request.start == pb.START_POSITION_LATEST,
            wait_s=request.wait_ms / 1000,
            repeated=request.repeated,
            taken_only=request.taken_only,
            known_sealed=request.known_sealed,
            message_filter=filter_of(self._filters, request.filter),
            places_only=request.places_only,
            size_bytes=request.ByteSize(),
            is_gone=lambda: self._holders.is_nobody_there(
                request.broker_boot_id,
                request.holder if request.auto_renew else None,
                self._clock.monotonic_s(),
            ),
            stream=self._watchers.stream(request.broker_boot_id, request.tell_stream),
            levels=(
                LevelRange(request.levels.lowest, request.levels.highest)
                if request.HasField("levels")
                else None
            ),
        )
