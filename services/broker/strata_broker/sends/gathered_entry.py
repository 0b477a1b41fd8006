"""Sends that are staged together: one waiter for all of their messages.

A gathered send is a `PendingSend` to which nothing special happens. As long as its entry is settled
as a whole, the entry answers it; when something does happen (a limit has no room for all, a queue
moved, storage refused, a part is settled before the others), it becomes a `PendingSend` and goes on
by itself.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

from strata.storage.v1 import storage_pb2
from strata_broker.base import wire
from strata_broker.base.append_places import PendingPlace
from strata_broker.base.failures import passed_over, unexpected
from strata_broker.metadata.topic_rows import TopicRow
from strata_broker.sends.outgoing import with_transaction_id
from strata_broker.sends.pending_send import PendingSend, held_bytes
from strata_broker.sends.searches import Destination
from strata_broker.sends.send_owner import SendOwner
from strata_edge.ports import HotCall
from strata_mq.layout import OutgoingMessage, PartKey, PartKind
from strata_mq.requests import PendingHandle, RequestError

_TELL = "tell a sender"

Answer = Callable[[int, int], bytes]
"""Returns the response to a send: its number, and which message of the entry is its first one."""


class GatheredEntry:
    """Sends to one topic whose messages share a destination; the `Waiter` of these messages.

    Args:
        sender: owns what a send needs.
        topic: of all messages.
        destination: of all messages.
        kind: of all messages; HALF: each send has one.
        started_s: when the turn began.
        deadline_s: of the first send, by the monotonic clock.
        deadline_mark: the same for all sends whose deadlines are so close that they share one.

    Attributes:
        deadline_mark: see above.
        request_bytes: of all requests.
    """

    __slots__ = (
        "_alone",
        "_calls",
        "_deadline_s",
        "_destination",
        "_firsts",
        "_held_bytes",
        "_kind",
        "_message_ids",
        "_messages",
        "_sender",
        "_started_s",
        "_topic",
        "_transaction_ids",
        "deadline_mark",
        "request_bytes",
    )

    def __init__(
        self,
        sender: SendOwner,
        topic: TopicRow,
        destination: Destination,
        *,
        kind: PartKind,
        started_s: float,
        deadline_s: float,
        deadline_mark: int,
    ) -> None:
        self._sender = sender
        self._topic = topic
        self._destination = destination
        self._kind = kind
        self.deadline_mark = deadline_mark
        self._started_s = started_s
        self._deadline_s = deadline_s
        # Per send: its call, the ids of its messages, and which message is its first one.
        self._calls: list[HotCall] = []
        self._message_ids: list[Sequence[str]] = []
        self._firsts: list[int] = []
        self._messages: list[OutgoingMessage] = []
        # One for each send of a half message.
        self._transaction_ids: list[str] = []
        # Sends that go on by themselves, by number.
        self._alone: dict[int, PendingSend] = {}
        self.request_bytes = 0
        # The budget is charged these.
        self._held_bytes = 0

    def __len__(self) -> int:
        return len(self._messages)

    def add(
        self,
        call: HotCall,
        message_ids: Sequence[str],
        messages: Sequence[OutgoingMessage],
        deadline_s: float,
    ) -> None:
        """Add a send."""
        self._calls.append(call)
        self._message_ids.append(message_ids)
        self._firsts.append(len(self._messages))
        self._messages += messages
        self.request_bytes += len(call.request)
        if deadline_s < self._deadline_s:
            self._deadline_s = deadline_s

    def add_all(
        self,
        calls: Sequence[HotCall],
        message_ids: Sequence[Sequence[str]],
        messages: Sequence[Sequence[OutgoingMessage]],
        *,
        request_bytes: int,
        deadline_s: float,
    ) -> None:
        """Add several sends: of each one its call, the ids of its messages, and its messages."""
        self._calls += calls
        self._message_ids += message_ids
        for own in messages:
            self._firsts.append(len(self._messages))
            self._messages += own
        self.request_bytes += request_bytes
        self._deadline_s = min(self._deadline_s, deadline_s)

    def charge(self) -> bool:
        """Charge the budget; False: there is no room for all, or each has a share to keep to."""
        if self._sender.budget.counts_shares:
            return False
        size_bytes = held_bytes(self.request_bytes, self._messages)
        namespace, raft_group = self._topic.namespace, self._destination.raft_group
        if not self._sender.budget.try_take(namespace, raft_group, size_bytes):
            return False
        self._held_bytes = size_bytes
        return True

    def alone(self) -> list[PendingSend]:
        """Return every send by itself; they are not charged yet."""
        return [self._pending(number) for number in range(len(self._calls))]

    def refuse(self, failure: RequestError) -> None:
        """Refuse all sends, charged or not: none of their messages is staged for good."""
        if self._held_bytes:
            self.refused(range(len(self)), failure)
            return
        for send in self.alone():
            with passed_over(self._sender.requests, _TELL):
                send.refuse(failure)

    def stage(self) -> None:
        """Put all messages into the raft group's batch."""
        topic, (raft_group, queue, queue_count) = self._topic, self._destination
        messages = self._with_transaction_ids() if self._kind is PartKind.HALF else self._messages
        key = PartKey(topic.topic_id, queue, topic.slot_base, queue_count, self._kind)
        self._sender.appender.stage(
            raft_group, key, messages, range(len(self)), self, self._deadline_s
        )

    def stored(self, indexes: Sequence[int], offsets: Sequence[int]) -> None:
        """See `append_batches.Waiter`."""
        if len(indexes) != len(self):
            self._tell(indexes, lambda send, own, part: send.stored(own, offsets[part]))
        elif self._kind is PartKind.HALF:
            self._answer(self._half_answer)
        else:
            sender = self._sender
            self._answered(sender.answer_each(self._calls, self._message_ids, offsets))

    def pending(
        self, indexes: Sequence[int], raft_group: int, places: Sequence[PendingPlace]
    ) -> None:
        """See `append_batches.Waiter`."""
        if len(indexes) != len(self):
            self._tell(indexes, lambda send, own, part: send.pending(own, raft_group, places[part]))
        elif self._kind is PartKind.HALF:
            self._answer(self._half_answer)
        else:
            self._answer(lambda send, first: self._delayed_answer(send, first, raft_group, places))

    def refused(self, indexes: Sequence[int], failure: RequestError) -> None:
        """See `append_batches.Waiter`."""
        self._tell(indexes, lambda send, own, _: send.refused(own, failure))

    def failed(self) -> None:
        """See `append_batches.Waiter`."""
        for number in range(len(self._calls)):
            send = self._charged(number)
            if not send.is_settled():
                with passed_over(self._sender.requests, _TELL):
                    send.failed()

    def moved(
        self,
        indexes: Sequence[int],
        raft_group: int,
        key: PartKey,
        result: storage_pb2.PartResult,
    ) -> None:
        """See `append_batches.Waiter`."""
        self._tell(indexes, lambda send, own, _: send.moved(own, raft_group, key, result))

    def _with_transaction_ids(self) -> list[OutgoingMessage]:
        handles, checksum = self._sender.handles, self._sender.checksum
        raft_group, topic_id = self._destination.raft_group, self._topic.topic_id
        self._transaction_ids = [
            handles.pending(PendingHandle(raft_group, topic_id, message_id))
            for (message_id,) in self._message_ids
        ]
        return [
            with_transaction_id(half, transaction_id, checksum)
            for half, transaction_id in zip(self._messages, self._transaction_ids, strict=True)
        ]

    def _half_answer(self, send: int, _: int) -> bytes:
        (message_id,), transaction_id = self._message_ids[send], self._transaction_ids[send]
        return wire.send_response(
            [wire.pending_result_entry(message_id.encode(), transaction_id.encode(), b"")]
        )

    def _delayed_answer(
        self, send: int, first: int, raft_group: int, places: Sequence[PendingPlace]
    ) -> bytes:
        entries = []
        for number, message_id in enumerate(self._message_ids[send], first):
            handle = PendingHandle(raft_group, self._topic.topic_id, message_id, *places[number])
            recall_handle, own_id = self._sender.handles.pending(handle), message_id.encode()
            entries.append(wire.pending_result_entry(own_id, own_id, recall_handle.encode()))
        return wire.send_response(entries)

    def _answer(self, answer: Answer) -> None:
        """Answer all sends."""
        failed = []
        for number, (call, first) in enumerate(zip(self._calls, self._firsts, strict=True)):
            try:
                call.complete((answer(number, first),))
            except Exception as failure:  # noqa: BLE001 - it ends this send, not those beside it
                failed.append((number, failure))
        self._answered(failed)

    def _answered(self, failed: Sequence[tuple[int, Exception]]) -> None:
        """Count the sends: all messages are stored, and all calls but these were answered."""
        sender, left_bytes = self._sender, self._held_bytes
        for number, failure in failed:
            sender.requests.failed(_TELL, failure)
            alone = self._charged(number)
            left_bytes -= alone.held_bytes
            with passed_over(sender.requests, _TELL):
                alone.refused(range(len(self._message_ids[number])), unexpected())
        without = {number for number, _ in failed}
        answered = [
            (len(message_ids), len(call.request))
            for number, (call, message_ids) in enumerate(
                zip(self._calls, self._message_ids, strict=True)
            )
            if number not in without
        ]
        sender.budget.give_back(self._topic.namespace, self._destination.raft_group, left_bytes)
        message_type = self._messages[0].message_type
        with passed_over(sender.requests, "count sends"):
            sender.recorder.sent_together(self._topic, message_type, answered, self._started_s)

    def _tell(
        self, indexes: Sequence[int], tell: Callable[[PendingSend, Sequence[int], slice], None]
    ) -> None:
        """Tell every send its part of a result: by its own numbers, and where they are in it."""
        at = 0
        while at < len(indexes):
            number = bisect_right(self._firsts, indexes[at]) - 1
            first = self._firsts[number]
            end = bisect_left(indexes, first + len(self._message_ids[number]), at)
            send, own = self._charged(number), [index - first for index in indexes[at:end]]
            try:
                tell(send, own, slice(at, end))
            except Exception as failure:  # noqa: BLE001 - it ends this send, not those beside it
                self._sender.requests.failed(_TELL, failure)
                with passed_over(self._sender.requests, _TELL):
                    send.failed()
            at = end

    def _charged(self, number: int) -> PendingSend:
        """Return a send that goes on by itself, with its part of what the budget was charged."""
        send = self._pending(number)
        send.charged_raft_group = self._destination.raft_group
        return send

    def _pending(self, number: int) -> PendingSend:
        send = self._alone.get(number)
        if send is None:
            first, message_ids = self._firsts[number], self._message_ids[number]
            send = self._alone[number] = PendingSend(
                self._sender,
                self._calls[number],
                message_ids,
                outgoing=self._messages[first : first + len(message_ids)],
                topic=self._topic,
                started_s=self._started_s,
                deadline_s=self._deadline_s,
            )
            if self._transaction_ids:
                send.staged_as(self._transaction_ids[number])
        return send
