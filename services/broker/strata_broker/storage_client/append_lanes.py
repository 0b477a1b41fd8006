"""Collects messages of many requests into append batches and sends them, one call per node.

Role: the open batch of each raft group, the order of its batches, their repeats. Invariants:
- at most one batch of a raft group is under way, so its sequence numbers arrive in order;
- a batch that was sent once keeps its bytes and its (boot id, sequence) in every repeat (rule 22);
- a part that was refused goes back to its waiter, which stages it again in a new batch;
- every staged message is answered once: stored, pending, refused, or timed out.
It knows neither the content of messages nor how a raft group is chosen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import islice

import google_crc32c

from strata.storage.v1 import storage_pb2
from strata_angelia.ports import (
    DEADLINE_EXCEEDED,
    OVERLOADED,
    TOO_LARGE,
    UNAVAILABLE,
    AngeliaError,
)
from strata_broker.base import errors
from strata_broker.base.config import BrokerConfig
from strata_broker.base.failures import passed_over, unexpected
from strata_broker.base.group_clock import GroupClock
from strata_broker.base.watermarks import show_watermark
from strata_broker.storage_client.append_batches import (
    NO_RESULT,
    AppendBatch,
    AppendLane,
    StagedMessages,
    Waiter,
    tell,
)
from strata_broker.storage_client.channels import NodeChannels
from strata_broker.storage_client.lanes import LEAST_TRY_S, NodeLanes
from strata_broker.storage_client.leaders import LeaderMap
from strata_broker.storage_client.storage_client import LED_ELSEWHERE, SERVICE, refused_repeat
from strata_mq.layout import (
    MAX_BATCH_BYTES,
    Checksum,
    OutgoingMessage,
    PartKey,
)
from strata_mq.requests import RequestError
from strata_runtime.backoff import Backoff
from strata_runtime.runtime import Runtime
from strata_runtime.tasks import RequestTasks, Tasks
from strata_runtime.tracing import Span, SpanKind, inside

_APPEND = SERVICE + "Append"
# Reasons of a repeat after which nobody knows whether the batch was taken.
_UNKNOWN = frozenset(
    (
        DEADLINE_EXCEEDED,
        UNAVAILABLE,
        LED_ELSEWHERE,
        # Leadership may be lost while a proposal is on its way to a majority.
        storage_pb2.Outcome.Name(storage_pb2.OUTCOME_NOT_LEADER),
    )
)
# So late may a sender learn that its time is over while its batch waits.
_SWEEP_INTERVAL_S = 0.1
# Bytes of columns beside the stored bytes; a batch may be a few bytes too large (rule 22).
_COLUMNS_BYTES = 64


class Appender:
    """See the module docstring. Used on the event loop only."""

    def __init__(
        self,
        boot_id: int,
        leaders: LeaderMap,
        channels: NodeChannels,
        *,
        config: BrokerConfig,
        runtime: Runtime,
        tasks: Tasks,
        requests: RequestTasks,
    ) -> None:
        clock, metrics = runtime.clock, runtime.metrics
        self._tracer = runtime.tracer
        self._boot_id = boot_id
        self._leaders = leaders
        self._channels = channels
        self._config = config
        self._try_timeout_s = config.storage_client.try_timeout_ms / 1000
        self._checksum: Checksum = google_crc32c.value
        self._clock = clock
        self._random = runtime.random
        self._requests = requests
        self.group_clock = GroupClock(clock)
        self._groups: dict[int, AppendLane] = {}
        # node -> raft groups with a batch that can be sent now, in order of arrival
        self._ready: dict[str, dict[int, AppendLane]] = {}
        self._lanes = NodeLanes("append", tasks, self._exchange)
        # Set while a batch waits.
        self._sweep: asyncio.TimerHandle | None = None
        leaders.on_leader(self._led_elsewhere)
        self._batches = metrics.counter("strata_broker_append_batches_total")
        self._batch_messages = metrics.histogram("strata_broker_append_messages")
        self._latency = metrics.histogram("strata_broker_append_latency")
        self._retries = metrics.counter("strata_broker_storage_retries_total")
        show_watermark(metrics, "send", self._waiting)

    def _waiting(self) -> int:
        lanes = self._groups.values()
        return sum([len(batch.entries) for lane in lanes for batch in lane.waiting])

    def stage(
        self,
        raft_group: int,
        key: PartKey,
        messages: Sequence[OutgoingMessage],
        indexes: Sequence[int],
        waiter: Waiter,
        deadline_s: float,
        *,
        span: Span | None = None,
    ) -> None:
        """Add messages to the raft group's open batch, in order; more batches when too many.

        Args:
            raft_group: believed owner of the queue.
            key: the part they go to.
            messages: at least one.
            indexes: what `waiter` calls them, one per message.
            waiter: is told the outcome, per run of messages.
            deadline_s: by the monotonic clock, when the waiter no longer waits.
            span: of the messages, if they are traced.
        """
        lane = self._groups.get(raft_group)
        if lane is None:
            backoff = Backoff(
                self._config.storage_client.first_retry_ms,
                self._config.storage_client.max_retry_ms,
                self._random,
            )
            lane = self._groups[raft_group] = AppendLane(raft_group, backoff)
        first = 0
        while first < len(messages):
            batch = self._open_batch(lane, len(messages[first].stored))
            end = first + 1
            if end < len(messages):
                end = _fitting(messages, first, MAX_BATCH_BYTES - batch.builder.byte_count)
            part, ordinal = batch.builder.add(key, messages[first:end])
            batch.entries.append(
                StagedMessages(waiter, indexes[first:end], key, part, ordinal, deadline_s)
            )
            if span is not None:
                batch.spans.append(span)
            if deadline_s > batch.deadline_s:
                batch.deadline_s = deadline_s
            first = end
        if lane.idle:
            self._make_ready(lane)
        if self._sweep is None:
            self._sweep_later()

    def forget(self, node_id: str) -> None:
        """The node is no member any more; what waits for it is handled as before."""
        self._lanes.forget(node_id)

    def _open_batch(self, lane: AppendLane, next_bytes: int) -> AppendBatch:
        """Return the batch that takes a message of this size."""
        if lane.waiting:
            batch = lane.waiting[-1]
            fits = batch.builder.byte_count + next_bytes + _COLUMNS_BYTES <= MAX_BATCH_BYTES
            if not batch.data and fits:
                return batch
        batch = AppendBatch(self._checksum)
        lane.waiting.append(batch)
        return batch

    def _make_ready(self, lane: AppendLane) -> None:
        node = self._leaders.node_of(lane.raft_group)
        if node is None:
            self._repeat_later(lane, "unknown raft group")
            return
        lane.ready = node
        self._ready.setdefault(node, {})[lane.raft_group] = lane
        self._lanes.wake(node)

    async def _exchange(self, node: str) -> bool:
        """Send one Append with a batch of every ready raft group; False: none is ready."""
        lanes = self._take_ready(node)
        if not lanes:
            if self._ready.get(node):
                return True
            self._ready.pop(node, None)
            return False
        request = storage_pb2.AppendRequest(broker_boot_id=self._boot_id)
        deadline_s = 0.0
        for lane in lanes:
            batch = lane.waiting[0]
            request.batches.add(
                raft_group=lane.raft_group, sequence=batch.sequence, batch=batch.data
            )
            deadline_s = max(deadline_s, batch.deadline_s)
        started_s = self._clock.monotonic_s()
        # The deadline may pass between the choice of batches and here.
        try_s = max(deadline_s - started_s, LEAST_TRY_S)
        if any(self._leaders.has_other_replicas(lane.raft_group) for lane in lanes):
            try_s = min(try_s, self._try_timeout_s)
        try:
            async with self._lanes.attempt(node):
                with inside(self._span_of(lanes, node)):
                    response = await self._channels.to(node).call(
                        _APPEND, request, storage_pb2.AppendResponse, timeout_s=try_s
                    )
        except (AngeliaError, TimeoutError) as failure:
            is_shared = len(lanes) > 1
            for lane in lanes:
                self._lost(lane, node, failure, is_shared=is_shared)
            return True
        self._latency.record((self._clock.monotonic_s() - started_s) * 1000)
        self._leaders.answered(node)
        for lane, result in zip(lanes, response.results, strict=False):
            self._settle(lane, node, result)
        for lane in islice(lanes, len(response.results), None):
            self._fail(lane, errors.refused(storage_pb2.OUTCOME_INVALID, "no result for a batch"))
        return True

    def _span_of(self, lanes: Sequence[AppendLane], node: str) -> Span | None:
        """Begin the span of a call, as a child of its first traced message, linked to the others.

        One call serves many messages; each of them finds it by the link.
        """
        spans = [span for lane in lanes for span in lane.waiting[0].spans]
        if not spans:
            return None
        return self._tracer.begin(
            "append",
            SpanKind.CLIENT,
            spans[0].trace_parent,
            {"strata.node_id": node, "strata.raft_groups": len(lanes)},
            links=[span.trace_parent for span in spans[1:]],
        )

    def _take_ready(self, node: str) -> list[AppendLane]:
        """Choose the raft groups of the next call and fix their batches' bytes."""
        ready = self._ready.get(node, {})
        lanes: list[AppendLane] = []
        now_s = self._clock.monotonic_s()
        left_bytes = self._config.send.max_bytes_per_call
        for raft_group in list(islice(ready, self._config.send.max_batches_per_call)):
            if lanes and (left_bytes <= 0 or lanes[0].alone or ready[raft_group].alone):
                break
            lane = ready.pop(raft_group)
            lane.ready = ""
            self._drop_late(lane, now_s)
            if not lane.waiting:
                continue
            if self._leaders.node_of(raft_group) != node:
                # It waited behind a call, and another node leads it since.
                self._make_ready(lane)
                continue
            batch = lane.waiting[0]
            if not batch.data:
                lane.last_sequence += 1
                batch.sequence = lane.last_sequence
                batch.data = batch.builder.build()
                self._batches.add()
                self._batch_messages.record(batch.builder.message_count)
            if lanes and len(batch.data) > left_bytes:
                lane.ready = node
                ready[raft_group] = lane
                break
            left_bytes -= len(batch.data)
            lane.asked = node
            lanes.append(lane)
        return lanes

    def _drop_late(self, lane: AppendLane, now_s: float) -> None:
        """Give up the first batches if nobody waits for them."""
        while lane.waiting and lane.waiting[0].deadline_s <= now_s:
            batch = lane.waiting.popleft()
            self._refuse_all(batch, self._timed_out(lane, batch, is_uncertain=batch.is_uncertain))

    def _drop_all_late(self) -> None:
        """Tell every sender whose time is over, wherever its messages wait.

        A batch lasts as long as the most patient of its senders, and the batches behind it wait
        for it; nobody else must.
        """
        self._sweep = None
        now_s = self._clock.monotonic_s()
        for lane in self._groups.values():
            for batch in lane.waiting:
                late = batch.take_late(now_s)
                is_under_way = bool(lane.asked) and batch is lane.waiting[0]
                # A message that continues with the others may still be stored.
                is_uncertain = bool(batch.entries) or is_under_way or batch.is_uncertain
                for entry in late:
                    self._refuse(entry, self._timed_out(lane, batch, is_uncertain=is_uncertain))
            # The first one may be under way; the lane gives it up at its deadline, which is over.
            while len(lane.waiting) > 1 and not lane.waiting[-1].entries:
                lane.waiting.pop()
        if any(lane.waiting for lane in self._groups.values()):
            self._sweep_later()

    def _sweep_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweep = loop.call_later(_SWEEP_INTERVAL_S, self._drop_all_late)

    def _timed_out(
        self, lane: AppendLane, batch: AppendBatch, *, is_uncertain: bool
    ) -> RequestError:
        # A later try tells nothing about an earlier one, which may still be committed.
        hindrance = DEADLINE_EXCEEDED if is_uncertain else lane.hindrance
        if hindrance == OVERLOADED and batch.may_be_stored:
            hindrance = UNAVAILABLE
        return errors.send_timed_out(
            hindrance,
            self._leaders.explain(lane.raft_group),
            replicated=self._leaders.has_other_replicas(lane.raft_group),
        )

    def _refuse_all(self, batch: AppendBatch, failure: RequestError) -> None:
        for entry in batch.entries:
            self._refuse(entry, failure)

    def _refuse(self, entry: StagedMessages, failure: RequestError) -> None:
        """Tell one waiter; its failure does not affect the others."""
        try:
            entry.waiter.refused(entry.indexes, failure)
        except Exception as unexpected_failure:  # noqa: BLE001 - it ends this send only
            self._requests.failed("tell a sender", unexpected_failure)
            with passed_over(self._requests, "refuse a send"):
                entry.waiter.failed()

    def _settle(self, lane: AppendLane, node: str, result: storage_pb2.GroupResult) -> None:
        outcome = result.refusal.outcome
        if outcome in errors.REPEATED_OUTCOMES:
            self._leaders.refused(lane.raft_group, node, result.refusal.leader_node_id)
            self._repeat_later(lane, storage_pb2.Outcome.Name(outcome))
        elif outcome == storage_pb2.OUTCOME_TIMEOUT:
            # It commits slowly, and the others of the call did not wait for it.
            self._repeat_later(lane, DEADLINE_EXCEEDED)
        elif outcome == storage_pb2.OUTCOME_WRONG_GROUP:
            elsewhere = storage_pb2.PartResult(outcome=outcome)
            for entry in self._done(lane).entries:
                self._tell(entry, lane.raft_group, elsewhere)
        elif outcome not in (storage_pb2.OUTCOME_UNSPECIFIED, storage_pb2.OUTCOME_OK):
            failure = errors.refused(outcome, result.refusal.reason)
            # A batch that is malformed was so in each try; what else a leader says, it says before
            # it looks whether it has the batch (rule 37).
            if lane.waiting[0].may_be_stored and outcome != storage_pb2.OUTCOME_INVALID:
                failure = refused_repeat(failure)
            self._fail(lane, failure)
        else:
            self.group_clock.learn(result.store_time_ms)
            for entry in self._done(lane).entries:
                known = entry.part < len(result.parts)
                part = result.parts[entry.part] if known else NO_RESULT
                self._tell(entry, lane.raft_group, part)

    def _tell(self, entry: StagedMessages, raft_group: int, part: storage_pb2.PartResult) -> None:
        """Notify one waiter; its failure does not affect the other waiters of the batch."""
        try:
            tell(entry, raft_group, part)
        except Exception as failure:  # noqa: BLE001 - it ends this send, not those beside it
            self._requests.failed("tell a sender", failure)
            self._refuse(entry, unexpected())

    def _lost(
        self,
        lane: AppendLane,
        node: str,
        failure: AngeliaError | TimeoutError,
        *,
        is_shared: bool,
    ) -> None:
        if isinstance(failure, TimeoutError):
            # Given up: another node leads now, perhaps for another raft group of the call only.
            self._repeat_later(lane, LED_ELSEWHERE)
        elif failure.code in errors.REPEATED_ANGELIA_CODES:
            self._leaders.failed(lane.raft_group, node, failure.code)
            self._repeat_later(lane, failure.code)
        elif failure.code == TOO_LARGE and is_shared:
            # A batch must not fail because of another batch in its call.
            lane.alone = True
            self._repeat_later(lane, failure.code)
        else:
            self._fail(lane, errors.lost(failure))

    def _done(self, lane: AppendLane) -> AppendBatch:
        """Take the batch that was under way off its lane and let the next one go."""
        batch = lane.waiting.popleft()
        lane.asked = lane.hindrance = ""
        lane.alone = False
        lane.backoff.reset()
        if lane.waiting:
            self._make_ready(lane)
        return batch

    def _fail(self, lane: AppendLane, failure: RequestError) -> None:
        self._refuse_all(self._done(lane), failure)

    def _repeat_later(self, lane: AppendLane, reason: str) -> None:
        """Send the same batch again after a pause, wherever the leader is by then."""
        self._retries.add(1, {"reason": reason})
        lane.asked = ""
        lane.hindrance = reason
        if lane.waiting:
            first = lane.waiting[0]
            first.is_uncertain = first.is_uncertain or reason == DEADLINE_EXCEEDED
            first.may_be_stored = first.may_be_stored or reason in _UNKNOWN
        pause_s = lane.backoff.next_s()
        lane.pause = asyncio.get_running_loop().call_later(pause_s, self._repeat, lane)

    def _repeat(self, lane: AppendLane) -> None:
        lane.pause = None
        self._drop_late(lane, self._clock.monotonic_s())
        if lane.waiting:
            self._make_ready(lane)

    def _led_elsewhere(self, raft_group: int, leader: str) -> None:
        """A node says that it leads: the raft group's batch is sent there, wherever it is now."""
        lane = self._groups.get(raft_group)
        if lane is None:
            return
        lane.backoff.reset()
        if lane.pause is not None:
            lane.pause.cancel()
            self._repeat(lane)
        elif lane.ready and lane.ready != leader:
            del self._ready[lane.ready][raft_group]
            lane.ready = ""
            self._make_ready(lane)
        elif lane.asked and lane.asked != leader:
            # The batch may be stored already; its sequence number makes the repeat safe.
            self._lanes.give_up(lane.asked)


def _fitting(messages: Sequence[OutgoingMessage], first: int, room_bytes: int) -> int:
    """Return the end of the run from `first` that fits; at least one message does."""
    end = first
    for message in islice(messages, first, None):
        room_bytes -= len(message.stored) + 8 * len(message.key_hashes) + _COLUMNS_BYTES
        if room_bytes < 0 and end > first:
            break
        end += 1
    return end
