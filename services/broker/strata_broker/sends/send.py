"""SendMessage: from the bytes of many calls to staged messages, and back to their answers.

Role: parse, check, choose raft group and queue (rule 23), stage, answer. Invariants: a request is
staged whole or refused whole; every call is answered once, with one entry per message; the bytes
in flight are bounded before anything is staged. Messages of a message group keep their order if the
client sends each one after the answer to the last, as the protocol requires.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import google_crc32c

from apache.rocketmq.v2 import service_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.access.call_runtime import CallRuntime
from strata_broker.access.principals import ITSELF, Principal, send_right
from strata_broker.base import errors, wire
from strata_broker.base.audit import Audited, FirstUse
from strata_broker.base.failures import unexpected
from strata_broker.base.message_traces import MessageTraces
from strata_broker.clients.producers import Producers
from strata_broker.clients.provision import Provisioner
from strata_broker.metadata.budget import SendBudget
from strata_broker.metadata.metadata import LEADER_CHOOSES, TopicRow
from strata_broker.metadata.quotas import Quotas
from strata_broker.metadata.requests import Caller, caller_of, time_for
from strata_broker.sends.alike_sends import AlikeSends
from strata_broker.sends.answers import AnswerEach, answer_each
from strata_broker.sends.gathered_sends import GatheredSends
from strata_broker.sends.large_sends import LargeSends
from strata_broker.sends.lite_sends import LiteSends
from strata_broker.sends.message_groups import MessageGroups
from strata_broker.sends.named_queue import check_named_queue, named_queue
from strata_broker.sends.outgoing import (
    MessagePreparer,
    ParsedSend,
    parse_send,
    part_kind,
    read_send,
    runs_by_kind,
)
from strata_broker.sends.pending_send import SEND, PendingSend
from strata_broker.sends.searches import Destination, Search, Searches
from strata_broker.sends.send_owner import SentWriter
from strata_broker.sends.send_pass import new_send_pass
from strata_broker.storage_client.storage_tier import StorageTier
from strata_edge.ports import HotCall
from strata_mq.layout import Checksum, OutgoingMessage, PartKind
from strata_mq.requests import Code, RequestError, check_not_own_topic
from strata_mq.slots import preferred_group
from strata_runtime.tracing import Span


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
        self._lite = LiteSends(storage.lite)
        config, appender, checksum = runtime.config, storage.appender, google_crc32c.value
        self._view = provisioner.view
        self._provisioner = provisioner
        self.appender = appender
        self._message_groups = message_groups
        self.budget = budget
        self.quotas = quotas
        self._producers = producers
        self.checksum: Checksum = checksum
        self.clock = runtime.clock
        self.recorder = runtime.recorder
        self.handles = runtime.handles
        self._access = runtime.access
        self.requests = runtime.requests
        self.earlier = storage.earlier
        self.searches = Searches(storage.earlier, runtime.requests)
        self._auto_create_topic = config.metadata.auto_create_topic
        self._max_messages = config.send.max_messages_per_request
        self._timeout_s = config.send.timeout_ms / 1000
        self._max_timeout_s = config.calls.max_timeout_ms / 1000
        self._traces = traces if traces is not None and traces.tracer.enabled else None
        self._send_pass = None
        self.sent: SentWriter = wire.sent
        self.answer_each: AnswerEach = answer_each
        if runtime.passes is not None and self._traces is None:
            # A trace tells of messages what the pass does not give.
            self._send_pass = new_send_pass(
                runtime.passes, config.limits(), self._max_messages, marks=runtime.marks
            )
            self.sent = self._send_pass.sent
            self.answer_each = self._send_pass.answer_each
        self._preparer = MessagePreparer(
            config.limits(),
            config.transaction,
            checksum,
            clock=appender.group_clock,
            send_pass=self._send_pass,
        )
        self._large = LargeSends(self, self._preparer, config.send, metrics=runtime.metrics)
        self._gathered: GatheredSends | None = None
        if self._traces is None:
            self._gathered = GatheredSends(
                self,
                self._view,
                self._preparer,
                producers=producers,
                quotas=quotas,
                earlier=storage.earlier,
                requests=runtime.requests,
            )
        self._alike = self._new_alike(config.send.large_request_bytes)

    def take(self, call: HotCall, principal: Principal) -> None:
        """Take one call; it is answered now or when its messages are durable.

        Args:
            call: the SendMessage.
            principal: who sends.
        """
        self.gather(call, principal, self.clock.monotonic_s())
        self.stage_gathered()

    def gather(self, call: HotCall, principal: Principal, started_s: float) -> None:
        """Take one of several calls; `stage_gathered` must follow in the same turn.

        Args:
            call: the SendMessage.
            principal: who sends.
            started_s: when the turn began, by the monotonic clock.
        """
        message_count = 0
        try:
            caller = caller_of(call.metadata)
            parsed = self._parse(call.request, caller)
            if principal.user:
                parsed = parsed._replace(user=principal.user)
            message_count = len(parsed.message_ids)
            principal.require(*send_right(parsed.topic))
            if principal is not ITSELF:
                check_not_own_topic(parsed.topic[1])
            large = self._large.is_large(call)
            any_queue = not large and named_queue(call) == LEADER_CHOOSES
            gathered = self._gathered if any_queue else None
            # Asked once: the call has less time left when its topic is made, or its turn comes.
            time_s = time_for(call.time_left_s(), self._timeout_s, self._max_timeout_s)
            deadline_s = started_s + time_s
            if gathered is not None and gathered.take(call, parsed, started_s, deadline_s):
                return
            if self._auto_create_topic and self._view.topic(*parsed.topic) is None:
                self.requests.spawn(
                    "create topic",
                    self._stage_later(call, parsed, principal, started_s, deadline_s),
                    lambda _: self.refuse(call, message_count, unexpected(), started_s),
                )
            elif large:
                self._large.take(call, parsed, caller.client_id, started_s, deadline_s)
            else:
                self._stage(call, parsed, started_s, deadline_s)
        except RequestError as bad:
            self.refuse(call, message_count, bad, started_s)

    def gather_alike(
        self, calls: list[HotCall], started_s: float, lets_pass: Callable[[str], bool]
    ) -> list[HotCall]:
        """Take those of several calls that are alike; return the others, for `gather`.

        Args:
            calls: SendMessages of a turn.
            started_s: see `gather`.
            lets_pass: whether calls of a client's address need not wait.
        """
        if self._alike is None:
            return calls
        return self._alike.take(calls, started_s, lets_pass)

    def stage_gathered(self) -> None:
        """Stage what `gather` took since."""
        if self._gathered is not None:
            self._gathered.stage()

    def _new_alike(self, large_request_bytes: int) -> AlikeSends | None:
        if self._send_pass is None or self._gathered is None:
            return None
        return AlikeSends(
            self._send_pass,
            self._gathered.take_alike,
            self._access,
            max_request_bytes=large_request_bytes - 1,
            timeout_s=self._timeout_s,
            max_timeout_s=self._max_timeout_s,
            requests=self.requests,
        )

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
        self._access.tell_if_refused(failure, call, SEND)
        self.recorder.pace.refused(call.peer, (failure.code,) * max(1, message_count))

    def destinations(
        self,
        topic: TopicRow,
        outgoing: Sequence[OutgoingMessage],
        indexes: Sequence[int],
        named: int = LEADER_CHOOSES,
    ) -> list[tuple[Destination, Sequence[int]]]:
        """Return the destinations of messages, each with the messages' indexes.

        Args:
            topic: of all messages.
            outgoing: the messages of a request.
            indexes: of the messages that are meant.
            named: queue that the send names for messages without a message group.

        Raises:
            RequestError: FORBIDDEN: a queue has no owner; MESSAGE_CORRUPTED.
        """
        parts: list[tuple[Destination, Sequence[int]]] = []
        if topic.is_lite:
            choices = self._lite.choose(topic, outgoing, indexes)
        else:
            choices = self._message_groups.choose(topic, outgoing, indexes, named)
        for choice, chosen in choices:
            for run in runs_by_kind(topic, outgoing, chosen):
                place = self._place(topic, outgoing[run[0]].message_id, choice.queue)
                parts.append((Destination(*place, choice.queue_count), run))
        return parts

    def _place(self, topic: TopicRow, message_id: bytes, queue: int) -> tuple[int, int]:
        """Return (raft group, queue) for a queue, or for "any queue" by the message id."""
        if queue != LEADER_CHOOSES:
            owner = self._view.owner(topic, queue)
            if owner:
                return owner, queue
        elif owners := self._view.owners(topic):
            owner = preferred_group(message_id, owners)
            return owner, self._view.queue_at(topic, owner, message_id)
        raise RequestError(Code.FORBIDDEN, "no writable queue")

    def learn(self, topic_id: int, raft_group: int, result: storage_pb2.PartResult) -> None:
        """Learn a queue's place from a refusal."""
        topic = self._view.topic_by_id(topic_id)
        if topic is None:
            return
        if topic.is_lite:
            self._lite.gone(topic_id, result.queue)
        elif result.outcome == storage_pb2.OUTCOME_REHASHED:
            self._message_groups.left(topic, result.queue)
        elif result.HasField("sealed"):
            self._view.learn(topic, raft_group, (result.sealed,))

    def topic_by_id(self, topic_id: int) -> TopicRow | None:
        """Find a topic again for messages that have to be staged anew."""
        return self._view.topic_by_id(topic_id)

    async def _stage_later(
        self,
        call: HotCall,
        parsed: ParsedSend,
        principal: Principal,
        started_s: float,
        deadline_s: float,
    ) -> None:
        who = Audited(principal.user, call.peer, parsed.client_id)
        try:
            await self._provisioner.topic_for_use(*parsed.topic, FirstUse(who, SEND))
            self._stage(call, parsed, started_s, deadline_s)
        except RequestError as bad:
            self.refuse(call, len(parsed.message_ids), bad, started_s)

    def _stage(
        self, call: HotCall, parsed: ParsedSend, started_s: float, deadline_s: float
    ) -> None:
        """Check all messages, then stage all.

        Raises:
            RequestError: nothing was staged.
        """
        topic = self.sendable(parsed)
        span = self.span_of(call, parsed)
        try:
            self.stage(
                topic,
                call,
                parsed,
                outgoing=self._preparer.prepare_all(parsed, topic),
                started_s=started_s,
                deadline_s=deadline_s,
                span=span,
            )
        except RequestError as bad:
            if span is not None:
                span.end(error=bad.text)
            raise

    def sendable(self, parsed: ParsedSend) -> TopicRow:
        """See `large_sends.StagesPrepared`."""
        topic = self._provisioner.topic(*parsed.topic)
        if topic.is_dead_letter:
            raise RequestError(Code.FORBIDDEN, "no writable queue")
        if self.quotas.limit_sends:
            # A failure from here on does not count against the sender's quota.
            self.quotas.check_send(topic)
        return topic

    def span_of(self, call: HotCall, parsed: ParsedSend) -> Span | None:
        """See `large_sends.StagesPrepared`."""
        if self._traces is None:
            return None
        return self._traces.sent(call.metadata, parsed.messages)

    def stage(
        self,
        topic: TopicRow,
        call: HotCall,
        parsed: ParsedSend,
        *,
        outgoing: Sequence[OutgoingMessage],
        started_s: float,
        deadline_s: float,
        span: Span | None,
        on_answered: Callable[[], None] | None = None,
    ) -> None:
        """See `large_sends.StagesPrepared`."""
        if part_kind(outgoing[0]) is PartKind.HALF:
            name = topic.namespace, topic.name
            self._producers.sent_half(parsed.client_id, name, peer=call.peer, user=parsed.user)
        pending = PendingSend(
            self,
            call,
            parsed.message_ids,
            outgoing=outgoing,
            topic=topic,
            started_s=started_s,
            deadline_s=deadline_s,
            span=span,
        )
        pending.on_answered = on_answered
        unknown = self._lite.unknown(topic, outgoing) if topic.is_lite else ()
        if not unknown:
            self._stage_pending(pending)
            return
        self.requests.spawn(
            "look up lite topics",
            self._stage_named(pending, unknown),
            lambda _: pending.refuse(unexpected()),
        )

    async def _stage_named(self, pending: PendingSend, unknown: Sequence[str]) -> None:
        """Stage or refuse a send once the numbers of its lite topics are known."""
        try:
            await self._lite.look_up(pending.topic, unknown, pending.time_left_s())
            if self.quotas.limit_sends:
                # Sends that were looked up beside this one have been charged since.
                self.quotas.check_send(pending.topic)
        except RequestError as bad:
            pending.refuse(bad)
            return
        self.stage_alone(pending)

    def stage_alone(self, pending: PendingSend) -> None:
        """Stage or refuse a send that was gathered."""
        try:
            self._stage_pending(pending)
        except RequestError as bad:
            pending.refuse(bad)

    def _stage_pending(self, pending: PendingSend) -> None:
        topic, outgoing = pending.topic, pending.outgoing
        named = named_queue(pending.call)
        check_named_queue(named, topic)
        parts = self.destinations(topic, outgoing, range(len(outgoing)), named)
        raft_group = parts[0][0].raft_group
        sharers = self.budget.sharers(pending.call)
        if not self.budget.try_take(topic.namespace, raft_group, pending.held_bytes, sharers):
            raise errors.too_many_requests()
        pending.charged_raft_group, pending.sharers = raft_group, sharers
        if self.quotas.limit_sends:
            self.quotas.charge_send(topic, len(outgoing), pending.size_bytes)
        suspects = frozenset(self.earlier.suspects(topic, outgoing))
        if suspects:
            for destination, indexes in parts:
                raft_groups = self.earlier.raft_groups(topic, but=destination.raft_group)
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
