"""SendMessage: from the bytes of many calls to staged messages, and back to their answers.

Role: parse, check, choose raft group and queue (rule 23), stage, answer. Invariants: a request is
staged whole or refused whole; every call is answered once, with one entry per message; the bytes
in flight are bounded before anything is staged. Messages of a message group keep their order if the
client sends each one after the answer to the last, as the protocol requires.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import google_crc32c

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.base import errors, wire
from strata_broker.base.append_places import PendingPlace
from strata_broker.base.failures import unexpected
from strata_broker.base.message_traces import MessageTraces
from strata_broker.clients.producers import Producers
from strata_broker.clients.provision import Provisioner, topic_not_found
from strata_broker.metadata.budget import SendBudget
from strata_broker.metadata.call_runtime import CallRuntime
from strata_broker.metadata.metadata import LEADER_CHOOSES, TopicRow
from strata_broker.metadata.quotas import Quotas
from strata_broker.metadata.requests import Caller, caller_of, time_for
from strata_broker.sends.message_groups import MessageGroups
from strata_broker.sends.outgoing import (
    MessagePreparer,
    ParsedSend,
    parse_send,
    part_kind,
    read_send,
    runs_by_kind,
    with_transaction_id,
)
from strata_broker.sends.searches import MOVED_PAUSE_S, Destination, Search, Searches
from strata_broker.sends.send_pass import new_send_pass
from strata_broker.storage_client.earlier_sends import EarlierSends
from strata_broker.storage_client.storage_tier import StorageTier
from strata_edge.ports import HotCall
from strata_mq.layout import Checksum, OutgoingMessage, PartKey, PartKind
from strata_mq.requests import Code, PendingHandle, RequestError, encode_pending_handle
from strata_mq.slots import rendezvous
from strata_runtime.tracing import Span

SEND = "SendMessage"


class Sender:
    """Serves SendMessage."""

    def __init__(
        self,
        provisioner: Provisioner,
        storage: StorageTier,
        message_groups: MessageGroups,
        *,
        budget: SendBudget,
        quotas: Quotas,
        producers: Producers,
        runtime: CallRuntime,
        traces: MessageTraces | None = None,
    ) -> None:
        config, appender, checksum = runtime.config, storage.appender, google_crc32c.value
        self._view = provisioner.view
        self._provisioner = provisioner
        self.appender = appender
        self._message_groups = message_groups
        self.budget = budget
        self._quotas = quotas
        self._producers = producers
        self.checksum: Checksum = checksum
        self.clock = runtime.clock
        self.recorder = runtime.recorder
        self._requests = runtime.requests
        self._earlier = storage.earlier
        self.searches = Searches(storage.earlier, runtime.requests)
        self._auto_create_topic = config.metadata.auto_create_topic
        self._max_messages = config.send.max_messages_per_request
        self._timeout_s = config.send.timeout_ms / 1000
        self._max_timeout_s = config.calls.max_timeout_ms / 1000
        self._traces = traces if traces is not None and traces.tracer.enabled else None
        self._send_pass = None
        if runtime.passes is not None and self._traces is None:
            # A trace tells of messages what the pass does not give.
            self._send_pass = new_send_pass(runtime.passes, config.limits(), self._max_messages)
        self._preparer = MessagePreparer(
            config.limits(),
            config.transaction,
            checksum,
            clock=appender.group_clock,
            send_pass=self._send_pass,
        )

    def take(self, call: HotCall) -> None:
        """Take one call; it is answered now or when its messages are durable."""
        started_s = self.clock.monotonic_s()
        message_count = 0
        try:
            caller = caller_of(call.metadata)
            parsed = self._parse(call.request, caller)
            message_count = len(parsed.message_ids)
            if self._auto_create_topic and self._view.topic(*parsed.topic) is None:
                self._requests.spawn(
                    "create topic",
                    self._stage_later(call, parsed, started_s),
                    lambda _: self.refuse(call, message_count, unexpected(), started_s),
                )
            else:
                self._stage(call, parsed, started_s)
        except RequestError as bad:
            self.refuse(call, message_count, bad, started_s)

    def _parse(self, request: bytes, caller: Caller) -> ParsedSend:
        if self._send_pass is not None:
            read = read_send(request, caller, self._send_pass)
            if read is not None:
                return read
        return parse_send(request, caller, self._max_messages)

    def refuse(
        self, call: HotCall, message_count: int, failure: RequestError, started_s: float
    ) -> None:
        """Answer with one error for the request and each of its messages."""
        status = errors.status_of(failure)
        response = service_pb2.SendMessageResponse(status=status)
        for _ in range(message_count):
            response.entries.add(status=status)
        call.complete([response.SerializeToString()])
        self.recorder.answered(SEND, failure.code, started_s)
        self.recorder.pace.refused(call.peer, (failure.code,) * max(1, message_count))

    def destinations(
        self, topic: TopicRow, outgoing: Sequence[OutgoingMessage], indexes: Sequence[int]
    ) -> list[tuple[Destination, Sequence[int]]]:
        """Return the destinations of messages, each with the messages' indexes.

        Raises:
            RequestError: FORBIDDEN: a queue has no owner; MESSAGE_CORRUPTED.
        """
        parts: list[tuple[Destination, Sequence[int]]] = []
        for choice, chosen in self._message_groups.choose(topic, outgoing, indexes):
            for run in runs_by_kind(topic, outgoing, chosen):
                place = self._place(topic, outgoing[run[0]].message_id, choice.queue)
                parts.append((Destination(*place, choice.queue_count), run))
        return parts

    def _place(self, topic: TopicRow, key: bytes, queue: int) -> tuple[int, int]:
        """Return (raft group, queue) for a queue, or for "any queue" by the key."""
        if queue != LEADER_CHOOSES:
            owner = self._view.owner(topic, queue)
            if owner:
                return owner, queue
        elif owners := self._view.owners(topic):
            owner = rendezvous(key, owners)
            return owner, self._view.queue_at(topic, owner, key)
        raise RequestError(Code.FORBIDDEN, "no writable queue")

    def learn(self, topic_id: int, raft_group: int, result: storage_pb2.PartResult) -> None:
        """Learn a queue's place from a refusal."""
        topic = self._view.topic_by_id(topic_id)
        if topic is None:
            return
        if result.outcome == storage_pb2.OUTCOME_REHASHED:
            self._message_groups.left(topic, result.queue)
        elif result.HasField("sealed"):
            self._view.learn(topic, raft_group, (result.sealed,))

    def topic_by_id(self, topic_id: int) -> TopicRow | None:
        """Find a topic again for messages that have to be staged anew."""
        return self._view.topic_by_id(topic_id)

    async def _stage_later(self, call: HotCall, parsed: ParsedSend, started_s: float) -> None:
        try:
            await self._provisioner.topic_for_use(*parsed.topic)
            self._stage(call, parsed, started_s)
        except RequestError as bad:
            self.refuse(call, len(parsed.message_ids), bad, started_s)

    def _stage(self, call: HotCall, parsed: ParsedSend, started_s: float) -> None:
        """Check all messages, then stage all.

        Raises:
            RequestError: nothing was staged.
        """
        topic = self._provisioner.topic(*parsed.topic)
        if topic.is_dead_letter:
            raise RequestError(Code.FORBIDDEN, "no writable queue")
        if self._quotas.limit_sends:
            # A failure from here on does not count against the sender's quota.
            self._quotas.check_send(topic)
        if self._traces is None:
            self._stage_on(topic, call, parsed, started_s, None)
            return
        span = self._traces.sent(call.metadata, parsed.messages)
        try:
            self._stage_on(topic, call, parsed, started_s, span)
        except RequestError as bad:
            if span is not None:
                span.end(error=bad.text)
            raise

    def _stage_on(
        self,
        topic: TopicRow,
        call: HotCall,
        parsed: ParsedSend,
        started_s: float,
        span: Span | None,
    ) -> None:
        outgoing = self._preparer.prepare_all(parsed, topic)
        if part_kind(outgoing[0]) is PartKind.HALF:
            self._producers.sent_half(parsed.client_id, (topic.namespace, topic.name))
        wait_s = time_for(call.time_left_s(), self._timeout_s, self._max_timeout_s)
        deadline_s = started_s + wait_s
        pending = PendingSend(
            self,
            call,
            parsed,
            outgoing=outgoing,
            topic=topic,
            started_s=started_s,
            deadline_s=deadline_s,
            span=span,
        )
        parts = self.destinations(topic, outgoing, range(len(outgoing)))
        raft_group = parts[0][0].raft_group
        if not self.budget.try_take(topic.namespace, raft_group, pending.held_bytes):
            raise errors.too_many_requests()
        pending.charged_raft_group = raft_group
        if self._quotas.limit_sends:
            self._quotas.charge_send(topic, len(outgoing), pending.size_bytes)
        suspects = frozenset(self._earlier.suspects(topic, outgoing))
        if suspects:
            for destination, indexes in parts:
                raft_groups = self._earlier.raft_groups(topic, but=destination.raft_group)
                wanted = suspects.intersection(indexes)
                self.searches.begin(pending, Search(destination, indexes, wanted, raft_groups))
            return
        staged = 0
        try:
            for destination, indexes in parts:
                pending.stage(destination, indexes)
                staged += 1
        finally:
            # A request that failed unexpectedly must not keep its share of the budget.
            for _, indexes in parts[staged:]:
                pending.refused(indexes, unexpected())


class PendingSend:
    """One request between staging and answer; the `Waiter` of its messages."""

    __slots__ = (
        "_call",
        "_deadline_s",
        "_failures",
        "_left",
        "_message_ids",
        "_offsets",
        "_outgoing",
        "_pending",
        "_sender",
        "_span",
        "_started_s",
        "_topic",
        "charged_raft_group",
        "held_bytes",
        "size_bytes",
    )

    def __init__(
        self,
        sender: Sender,
        call: HotCall,
        parsed: ParsedSend,
        *,
        outgoing: Sequence[OutgoingMessage],
        topic: TopicRow,
        started_s: float,
        deadline_s: float,
        span: Span | None = None,
    ) -> None:
        self._sender = sender
        self._span = span
        self._call = call
        self._message_ids = parsed.message_ids
        self._outgoing = outgoing
        self._topic = topic
        self._started_s = started_s
        self._deadline_s = deadline_s
        self._offsets = [0] * len(outgoing)
        # For messages without an offset: transaction id, recall handle or ""
        self._pending: dict[int, tuple[str, str]] = {}
        self._failures: dict[int, RequestError] = {}
        self._left = len(outgoing)
        self.size_bytes = len(call.request)
        # The edge keeps the request until it is answered, beside what is stored of it.
        self.held_bytes = self.size_bytes + sum([len(one.stored) for one in outgoing])
        self.charged_raft_group = 0

    def stage(self, destination: Destination, indexes: Sequence[int]) -> None:
        """Put messages of one queue into the raft group's batch."""
        topic = self._topic
        raft_group, queue, queue_count = destination
        outgoing = self._outgoing
        if len(indexes) != len(outgoing):
            outgoing = [outgoing[index] for index in indexes]
        kind = part_kind(outgoing[0])
        if kind is PartKind.HALF:
            transaction_id = encode_pending_handle(
                PendingHandle(raft_group, topic.topic_id, self._message_ids[0])
            )
            self._pending[0] = (transaction_id, "")
            outgoing = [with_transaction_id(outgoing[0], transaction_id, self._sender.checksum)]
        key = PartKey(topic.topic_id, queue, topic.slot_base, queue_count, kind)
        self._sender.appender.stage(
            raft_group, key, outgoing, indexes, self, self._deadline_s, span=self._span
        )

    def is_late(self) -> bool:
        """Whether the time of the request is over."""
        return self._sender.clock.monotonic_s() >= self._deadline_s

    async def find_earlier(
        self, earlier: EarlierSends, index: int, raft_groups: Sequence[int]
    ) -> bool:
        """Settle a message if one of the raft groups has it stored, or does not answer.

        Returns:
            Whether it is settled.
        """
        topic, kind = self._topic, part_kind(self._outgoing[index])
        message_id = self._message_ids[index]
        timeout_s = self._deadline_s - self._sender.clock.monotonic_s()
        try:
            found = await earlier.find(topic, message_id, kind, raft_groups, timeout_s)
        except RequestError as unknown:
            self.refused((index,), unknown)
            return True
        except BaseException:
            self.refused((index,), unexpected())
            raise
        if found is None:
            return False
        if found.place is None:
            self.stored((index,), (found.offset,))
            return True
        if kind is PartKind.HALF:
            handle = PendingHandle(found.raft_group, topic.topic_id, message_id)
            self._pending[index] = (encode_pending_handle(handle), "")
        self.pending((index,), found.raft_group, (found.place,))
        return True

    def stored(self, indexes: Sequence[int], offsets: Sequence[int]) -> None:
        """See `append.Waiter`."""
        for index, offset in zip(indexes, offsets, strict=True):
            self._offsets[index] = offset
        self._settled(len(indexes))

    def pending(
        self, indexes: Sequence[int], raft_group: int, places: Sequence[PendingPlace]
    ) -> None:
        """See `append.Waiter`."""
        for index, place in zip(indexes, places, strict=True):
            if part_kind(self._outgoing[index]) is PartKind.DELAYED:
                message_id = self._message_ids[index]
                handle = PendingHandle(raft_group, self._topic.topic_id, message_id, *place)
                self._pending[index] = (message_id, encode_pending_handle(handle))
        self._settled(len(indexes))

    def refused(self, indexes: Sequence[int], failure: RequestError) -> None:
        """See `append.Waiter`."""
        failure = failure.without_stack()
        for index in indexes:
            self._failures[index] = failure
        self._settled(len(indexes))

    def moved(
        self,
        indexes: Sequence[int],
        raft_group: int,
        key: PartKey,
        result: storage_pb2.PartResult,
    ) -> None:
        """See `append.Waiter`."""
        self._sender.learn(key.topic_id, raft_group, result)
        self.choose_again(indexes, Destination(raft_group, key.queue, key.queue_count))

    def choose_again(
        self, indexes: Sequence[int], refused: Destination, *, may_stay: bool = False
    ) -> None:
        """Stage messages where they go now.

        The raft group that refused them refuses before it looks for their ids: an earlier attempt
        may be stored there, so it is asked before they go to another one (rule 37).

        Args:
            indexes: of the messages.
            refused: where they went so far.
            may_stay: they may go there again at once. If not, a pause lets the metadata catch up.
        """
        sender = self._sender
        if self.is_late():
            self.refused(indexes, errors.timed_out())
            return
        topic = sender.topic_by_id(self._topic.topic_id)
        if topic is None:
            self.refused(indexes, topic_not_found(self._topic.name))
            return
        self._topic = topic
        try:
            parts = sender.destinations(topic, self._outgoing, indexes)
        except RequestError as nobody:
            self.refused(indexes, nobody)
            return
        for destination, chosen in parts:
            if destination.raft_group != refused.raft_group:
                search = Search(destination, chosen, frozenset(chosen), (refused.raft_group,))
                sender.searches.begin(self, search)
            elif destination != refused or may_stay:
                self.stage(destination, chosen)
            else:
                again = partial(self.choose_again, chosen, refused, may_stay=True)
                asyncio.get_running_loop().call_later(MOVED_PAUSE_S, again)

    def _settled(self, count: int) -> None:
        self._left -= count
        if self._left:
            return
        sender = self._sender
        sender.budget.give_back(self._topic.namespace, self.charged_raft_group, self.held_bytes)
        if self._span is not None:
            self._span.end(error=next((bad.text for bad in self._failures.values()), ""))
        if self._failures:
            self._answer_failures()
            return
        message_ids = map(str.encode, self._message_ids)
        if self._pending:
            entries = [self._entry(*numbered) for numbered in enumerate(message_ids)]
        else:
            entries = list(map(wire.send_result_entry, message_ids, self._offsets))
        self._call.complete([wire.send_response(entries)])
        sender.recorder.sent(
            self._topic, self._outgoing[0].message_type, len(entries), self.size_bytes
        )
        sender.recorder.answered(SEND, Code.OK, self._started_s)

    def _entry(self, index: int, message_id: bytes) -> bytes:
        if index not in self._pending:
            return wire.send_result_entry(message_id, self._offsets[index])
        transaction_id, recall_handle = self._pending[index]
        return wire.pending_result_entry(
            message_id, transaction_id.encode(), recall_handle.encode()
        )

    def _answer_failures(self) -> None:
        response = service_pb2.SendMessageResponse()
        codes = []
        for index, message_id in enumerate(self._message_ids):
            failure = self._failures.get(index)
            entry = response.entries.add()
            if failure is None:
                codes.append(Code.OK)
                entry.status.CopyFrom(errors.ok_status())
                entry.message_id = message_id
                named = self._pending.get(index, (message_id, ""))
                entry.transaction_id, entry.recall_handle = named
                entry.offset = self._offsets[index]
            else:
                codes.append(failure.code)
                entry.status.CopyFrom(errors.status_of(failure))
        code = errors.fold(codes)
        text = code.name
        if len(self._failures) == len(codes) and code is not Code.MULTIPLE_RESULTS:
            # All failed alike: the reason says more than the name.
            text = next(iter(self._failures.values())).text
        response.status.CopyFrom(
            definition_pb2.Status(code=definition_pb2.Code.ValueType(int(code)), message=text)
        )
        self._call.complete([response.SerializeToString()])
        self._sender.recorder.answered(SEND, code, self._started_s)
        self._sender.recorder.pace.refused(self._call.peer, codes)
