"""One SendMessage between staging and answer.

Invariants: each message is settled once; the call is answered once all of them are, with one entry
per message, and gives its bytes back to the budget then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.base import errors, wire
from strata_broker.base.append_places import PendingPlace
from strata_broker.base.failures import unexpected
from strata_broker.base.shares import Owner
from strata_broker.clients.provision import topic_not_found
from strata_broker.metadata.metadata import TopicRow
from strata_broker.sends.named_queue import named_queue
from strata_broker.sends.outgoing import part_kind, with_transaction_id
from strata_broker.sends.searches import MOVED_PAUSE_S, Destination, Search, ended_by_failure
from strata_broker.sends.send_owner import SendOwner
from strata_broker.storage_client.earlier_sends import EarlierSends
from strata_edge.ports import HotCall
from strata_mq.layout import OutgoingMessage, PartKey, PartKind
from strata_mq.requests import Code, PendingHandle, RequestError
from strata_runtime.tracing import Span

SEND = "SendMessage"


class PendingSend:
    """One request between staging and answer; the `Waiter` of its messages.

    Attributes:
        on_answered: called when the request is answered; None: nobody waits for that.
    """

    __slots__ = (
        "_deadline_s",
        "_failures",
        "_left",
        "_message_ids",
        "_offsets",
        "_pending",
        "_sender",
        "_span",
        "call",
        "charged_raft_group",
        "held_bytes",
        "on_answered",
        "outgoing",
        "sharers",
        "size_bytes",
        "started_s",
        "topic",
    )

    def __init__(
        self,
        sender: SendOwner,
        call: HotCall,
        message_ids: Sequence[str],
        *,
        outgoing: Sequence[OutgoingMessage],
        topic: TopicRow,
        started_s: float,
        deadline_s: float,
        span: Span | None = None,
    ) -> None:
        self._sender = sender
        self._span = span
        self.call = call
        self._message_ids = message_ids
        self.outgoing = outgoing
        self.topic = topic
        self._deadline_s = deadline_s
        self._offsets = [0] * len(outgoing)
        # For messages without an offset: transaction id, recall handle or ""
        self._pending: dict[int, tuple[str, str]] = {}
        self._failures: dict[int, RequestError] = {}
        self._left = len(outgoing)
        self.started_s = started_s
        self.size_bytes = len(call.request)
        self.held_bytes = held_bytes(self.size_bytes, outgoing)
        self.charged_raft_group = 0
        self.on_answered: Callable[[], None] | None = None
        # Their shares of the budget are charged, too.
        self.sharers: Sequence[Owner] = ()

    def stage(self, destination: Destination, indexes: Sequence[int]) -> None:
        """Put messages of one queue into the raft group's batch."""
        topic = self.topic
        raft_group, queue, queue_count = destination
        outgoing = self.outgoing
        if len(indexes) != len(outgoing):
            outgoing = [outgoing[index] for index in indexes]
        kind = part_kind(outgoing[0])
        if kind is PartKind.HALF:
            transaction_id = self._sender.handles.pending(
                PendingHandle(raft_group, topic.topic_id, self._message_ids[0])
            )
            self._pending[0] = (transaction_id, "")
            outgoing = [with_transaction_id(outgoing[0], transaction_id, self._sender.checksum)]
        key = PartKey(topic.topic_id, queue, topic.slot_base, queue_count, kind)
        self._sender.appender.stage(
            raft_group, key, outgoing, indexes, self, self._deadline_s, span=self._span
        )

    def staged_as(self, transaction_id: str) -> None:
        """Take note that the half message of this send was staged with a transaction id."""
        self._pending[0] = (transaction_id, "")

    def time_left_s(self) -> float:
        """Return the time until the request's deadline; it is over at 0."""
        return self._deadline_s - self._sender.clock.monotonic_s()

    def is_settled(self) -> bool:
        """Whether the fate of all its messages is known."""
        return self._left <= 0

    def is_late(self) -> bool:
        """Whether the time of the request is over."""
        return self.time_left_s() <= 0

    async def find_earlier(
        self, earlier: EarlierSends, index: int, raft_groups: Sequence[int]
    ) -> bool:
        """Settle a message if one of the raft groups has it stored, or does not answer.

        Returns:
            Whether it is settled.
        """
        topic, kind = self.topic, part_kind(self.outgoing[index])
        message_id = self._message_ids[index]
        try:
            found = await earlier.find(topic, message_id, kind, raft_groups, self.time_left_s())
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
            self._pending[index] = (self._sender.handles.pending(handle), "")
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
            if part_kind(self.outgoing[index]) is PartKind.DELAYED:
                message_id = self._message_ids[index]
                handle = PendingHandle(raft_group, self.topic.topic_id, message_id, *place)
                self._pending[index] = (message_id, self._sender.handles.pending(handle))
        self._settled(len(indexes))

    def refused(self, indexes: Sequence[int], failure: RequestError) -> None:
        """See `append.Waiter`."""
        failure = failure.without_stack()
        for index in indexes:
            self._failures[index] = failure
        self._settled(len(indexes))

    def failed(self) -> None:
        """See `append_batches.Waiter`."""
        # Messages that are settled later find nothing left to answer.
        left, self._left = self._left, 0
        if left > 0 and self.charged_raft_group:
            self._sender.budget.give_back(
                self.topic.namespace, self.charged_raft_group, self.held_bytes, self.sharers
            )
        self.refuse(unexpected())

    def refuse(self, failure: RequestError) -> None:
        """Answer a request of which nothing is staged, or nothing any more."""
        if self._span is not None:
            self._span.end(error=failure.text)
        self._tell_answered()
        self._sender.refuse(self.call, len(self._message_ids), failure, self.started_s)

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
        topic = sender.topic_by_id(self.topic.topic_id)
        if topic is None:
            self.refused(indexes, topic_not_found(self.topic.name))
            return
        self.topic = topic
        try:
            parts = sender.destinations(topic, self.outgoing, indexes, named_queue(self.call))
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
                again = partial(self._choose_after_pause, chosen, refused)
                asyncio.get_running_loop().call_later(MOVED_PAUSE_S, again)

    def _choose_after_pause(self, indexes: Sequence[int], refused: Destination) -> None:
        with ended_by_failure(self._sender.requests, SEND, self):
            self.choose_again(indexes, refused, may_stay=True)

    def _settled(self, count: int) -> None:
        self._left -= count
        if self._left:
            return
        sender = self._sender
        sender.budget.give_back(
            self.topic.namespace, self.charged_raft_group, self.held_bytes, self.sharers
        )
        if self._span is not None:
            self._span.end(error=next((bad.text for bad in self._failures.values()), ""))
        self._tell_answered()
        if self._failures:
            self._answer_failures()
            return
        if self._pending:
            message_ids = map(str.encode, self._message_ids)
            entries = [self._entry(*numbered) for numbered in enumerate(message_ids)]
            response = wire.send_response(entries)
        else:
            response = sender.sent(self._message_ids, self._offsets)
        self.call.complete([response])
        sender.recorder.sent(
            self.topic, self.outgoing[0].message_type, len(self.outgoing), self.size_bytes
        )
        sender.recorder.answered(SEND, Code.OK, self.started_s)

    def _tell_answered(self) -> None:
        if self.on_answered is not None:
            self.on_answered()

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
        self.call.complete([response.SerializeToString()])
        self._sender.recorder.answered(SEND, code, self.started_s)
        self._sender.recorder.pace.refused(self.call.peer, codes)


def held_bytes(request_bytes: int, outgoing: Sequence[OutgoingMessage]) -> int:
    """Return the bytes of sends in memory until they are answered.

    The edge keeps their requests, beside what is stored of them.
    """
    return request_bytes + sum([len(one.stored) for one in outgoing])
