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
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple, Protocol

import google_crc32c

from strata.storage.v1 import storage_pb2
from strata_angelia.ports import DEADLINE_EXCEEDED, TOO_LARGE, AngeliaError
from strata_broker.base import errors
from strata_broker.base.append_places import (
    PendingPlace,
    offsets_beside_duplicates,
    pending_places,
)
from strata_broker.base.config import BrokerConfig
from strata_broker.base.failures import unexpected
from strata_broker.base.group_clock import GroupClock
from strata_broker.base.watermarks import show_watermark
from strata_broker.storage_client.channels import NodeChannels
from strata_broker.storage_client.lanes import NodeLanes
from strata_broker.storage_client.leaders import LeaderMap
from strata_broker.storage_client.storage_client import LED_ELSEWHERE, SERVICE
from strata_mq.layout import (
    MAX_BATCH_BYTES,
    BatchBuilder,
    Checksum,
    OutgoingMessage,
    PartKey,
    PartKind,
)
from strata_mq.requests import RequestError
from strata_runtime.backoff import Backoff
from strata_runtime.runtime import Runtime
from strata_runtime.tasks import RequestTasks, Tasks
from strata_runtime.tracing import Span, SpanKind, inside

_APPEND = SERVICE + "Append"
_MOVED = frozenset(
    (
        storage_pb2.OUTCOME_WRONG_GROUP,
        storage_pb2.OUTCOME_SEALED,
        storage_pb2.OUTCOME_REHASHED,
    )
)
_NO_RESULT = storage_pb2.PartResult()
# Bytes of columns beside the stored bytes; a batch may be a few bytes too large (rule 22).
_COLUMNS_BYTES = 64


class Waiter(Protocol):
    """A waiter for staged messages; `indexes` are its own numbers for them."""

    def stored(self, indexes: Sequence[int], offsets: Sequence[int]) -> None:
        """The messages are durable at these offsets."""

    def pending(
        self, indexes: Sequence[int], raft_group: int, places: Sequence[PendingPlace]
    ) -> None:
        """The messages are durable and wait, or a first one with the same id did and is placed."""

    def refused(self, indexes: Sequence[int], failure: RequestError) -> None:
        """The messages were not stored, or that is unknown (a timeout)."""

    def moved(
        self,
        indexes: Sequence[int],
        raft_group: int,
        key: PartKey,
        result: storage_pb2.PartResult,
    ) -> None:
        """The raft group does not take them into the queue: choose anew and stage again.

        Args:
            indexes: which messages.
            raft_group: which one it was.
            key: the part they were in.
            result: why not, and where the queue is if that is known.
        """


class _Entry(NamedTuple):
    """Messages of one waiter in one part of a batch."""

    waiter: Waiter
    indexes: Sequence[int]
    key: PartKey
    part: int
    first: int


class _Batch:
    """A batch being filled, waiting, or under way."""

    __slots__ = (
        "builder",
        "data",
        "deadline_s",
        "entries",
        "is_uncertain",
        "sequence",
        "spans",
    )

    def __init__(self, checksum: Checksum) -> None:
        self.builder = BatchBuilder(checksum)
        self.entries: list[_Entry] = []
        self.deadline_s = 0.0
        # Of its traced messages.
        self.spans: list[Span] = []
        # A leader took it and did not commit it in time.
        self.is_uncertain = False
        # Set when the batch is first sent; repeats keep both.
        self.data = b""
        self.sequence = 0

    def fail(self, failure: RequestError) -> None:
        """Tell every waiter."""
        for entry in self.entries:
            entry.waiter.refused(entry.indexes, failure)


class _GroupLane:
    """The batches of one raft group, oldest first."""

    __slots__ = (
        "alone",
        "asked",
        "backoff",
        "hindrance",
        "last_sequence",
        "pause",
        "raft_group",
        "ready",
        "waiting",
    )

    def __init__(self, raft_group: int, backoff: Backoff) -> None:
        self.raft_group = raft_group
        self.backoff = backoff
        self.waiting: deque[_Batch] = deque()
        # At most one of the three is set. The node in the list of whose next call it is,
        self.ready = ""
        # the node that was asked in a call under way,
        self.asked = ""
        # the pause before a repeat.
        self.pause: asyncio.TimerHandle | None = None
        self.last_sequence = 0
        # The first batch was too large for its call: it needs its own call.
        self.alone = False
        # Why the last try of the first batch failed, "" before the first.
        self.hindrance = ""

    @property
    def idle(self) -> bool:
        """Whether it has no batch."""
        return not self.ready and not self.asked and self.pause is None


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
        self._groups: dict[int, _GroupLane] = {}
        # node -> raft groups with a batch that can be sent now, in order of arrival
        self._ready: dict[str, dict[int, _GroupLane]] = {}
        self._lanes = NodeLanes("append", tasks, self._exchange)
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
            lane = self._groups[raft_group] = _GroupLane(raft_group, backoff)
        first = 0
        while first < len(messages):
            batch = self._open_batch(lane, len(messages[first].stored))
            end = first + 1
            if end < len(messages):
                end = _fitting(messages, first, MAX_BATCH_BYTES - batch.builder.byte_count)
            part, ordinal = batch.builder.add(key, messages[first:end])
            batch.entries.append(_Entry(waiter, indexes[first:end], key, part, ordinal))
            if span is not None:
                batch.spans.append(span)
            if deadline_s > batch.deadline_s:
                batch.deadline_s = deadline_s
            first = end
        if lane.idle:
            self._make_ready(lane)

    def _open_batch(self, lane: _GroupLane, next_bytes: int) -> _Batch:
        """Return the batch that takes a message of this size."""
        if lane.waiting:
            batch = lane.waiting[-1]
            fits = batch.builder.byte_count + next_bytes + _COLUMNS_BYTES <= MAX_BATCH_BYTES
            if not batch.data and fits:
                return batch
        batch = _Batch(self._checksum)
        lane.waiting.append(batch)
        return batch

    def _make_ready(self, lane: _GroupLane) -> None:
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
            return bool(self._ready.get(node))
        request = storage_pb2.AppendRequest(broker_boot_id=self._boot_id)
        deadline_s = 0.0
        for lane in lanes:
            batch = lane.waiting[0]
            request.batches.add(
                raft_group=lane.raft_group, sequence=batch.sequence, batch=batch.data
            )
            deadline_s = max(deadline_s, batch.deadline_s)
        started_s = self._clock.monotonic_s()
        try_s = deadline_s - started_s
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

    def _span_of(self, lanes: Sequence[_GroupLane], node: str) -> Span | None:
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

    def _take_ready(self, node: str) -> list[_GroupLane]:
        """Choose the raft groups of the next call and fix their batches' bytes."""
        ready = self._ready.get(node, {})
        lanes: list[_GroupLane] = []
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

    def _drop_late(self, lane: _GroupLane, now_s: float) -> None:
        while lane.waiting and lane.waiting[0].deadline_s <= now_s:
            replicated = self._leaders.has_other_replicas(lane.raft_group)
            where = self._leaders.explain(lane.raft_group)
            batch = lane.waiting.popleft()
            # A later try tells nothing about an earlier one, which may still be committed.
            hindrance = DEADLINE_EXCEEDED if batch.is_uncertain else lane.hindrance
            batch.fail(errors.send_timed_out(hindrance, where, replicated=replicated))

    def _settle(self, lane: _GroupLane, node: str, result: storage_pb2.GroupResult) -> None:
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
            self._fail(lane, errors.refused(outcome, result.refusal.reason))
        else:
            self.group_clock.learn(result.store_time_ms)
            for entry in self._done(lane).entries:
                known = entry.part < len(result.parts)
                part = result.parts[entry.part] if known else _NO_RESULT
                self._tell(entry, lane.raft_group, part)

    def _tell(self, entry: _Entry, raft_group: int, part: storage_pb2.PartResult) -> None:
        """Notify one waiter; its failure does not affect the other waiters of the batch."""
        try:
            _tell(entry, raft_group, part)
        except Exception as failure:  # noqa: BLE001 - it ends this send, not those beside it
            self._requests.failed("tell a sender", failure)
            entry.waiter.refused(entry.indexes, unexpected())

    def _lost(
        self,
        lane: _GroupLane,
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

    def _done(self, lane: _GroupLane) -> _Batch:
        """Take the batch that was under way off its lane and let the next one go."""
        batch = lane.waiting.popleft()
        lane.asked = lane.hindrance = ""
        lane.alone = False
        lane.backoff.reset()
        if lane.waiting:
            self._make_ready(lane)
        return batch

    def _fail(self, lane: _GroupLane, failure: RequestError) -> None:
        self._done(lane).fail(failure)

    def _repeat_later(self, lane: _GroupLane, reason: str) -> None:
        """Send the same batch again after a pause, wherever the leader is by then."""
        self._retries.add(1, {"reason": reason})
        lane.asked = ""
        lane.hindrance = reason
        if reason == DEADLINE_EXCEEDED and lane.waiting:
            lane.waiting[0].is_uncertain = True
        pause_s = lane.backoff.next_s()
        lane.pause = asyncio.get_running_loop().call_later(pause_s, self._repeat, lane)

    def _repeat(self, lane: _GroupLane) -> None:
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


def _tell(entry: _Entry, raft_group: int, part: storage_pb2.PartResult) -> None:
    """Tell a waiter what became of its messages in an accepted batch."""
    if part is _NO_RESULT:
        failure = errors.refused(storage_pb2.OUTCOME_INVALID, "no result for a part of a batch")
        entry.waiter.refused(entry.indexes, failure)
    elif part.outcome in _MOVED:
        entry.waiter.moved(entry.indexes, raft_group, entry.key, part)
    elif part.outcome not in (storage_pb2.OUTCOME_UNSPECIFIED, storage_pb2.OUTCOME_OK):
        entry.waiter.refused(entry.indexes, errors.refused(part.outcome))
    elif entry.key.kind is not PartKind.PLAIN:
        entry.waiter.pending(
            entry.indexes, raft_group, pending_places(entry.first, len(entry.indexes), part)
        )
    elif part.duplicates:
        entry.waiter.stored(
            entry.indexes, offsets_beside_duplicates(entry.first, len(entry.indexes), part)
        )
    else:
        base = part.base_offset + entry.first
        entry.waiter.stored(entry.indexes, range(base, base + len(entry.indexes)))
