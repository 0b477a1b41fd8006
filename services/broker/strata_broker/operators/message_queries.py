"""Single messages for operators: searches by id, key, place or time, and traces.

Nothing is consumed. A topic's messages are spread over raft groups; a search asks all raft groups
that hold a part of it. Answers are pages of bounded size; a page token is the place where the next
page begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from apache.rocketmq.v2 import definition_pb2
from strata.admin.v1 import admin_pb2
from strata.broker.v1 import stored_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.clients.provision import topic_not_found
from strata_broker.metadata.metadata import MetadataView, TopicRow
from strata_broker.metadata.requests import milliseconds
from strata_broker.receives.receive import topic_ref
from strata_broker.storage_client import epochs
from strata_broker.storage_client.holder_calls import HolderCalls
from strata_broker.storage_client.storage_client import StorageClient
from strata_mq.filters import parse_tag_expression
from strata_mq.requests import Code, RequestError

MAX_PAGE_MESSAGES = 1_000
"""Most messages of one answer."""

EVERY_MESSAGE = storage_pb2.Filter(kind=storage_pb2.FILTER_KIND_ALL)

_MAX_PAGE_BYTES = 16 * 1024 * 1024
# Two numbers of 64 bits and a colon.
_MAX_TOKEN_LENGTH = 41
# A selective filter ends a page before it is full.
_MAX_FETCHES_PER_PAGE = 256

_STEPS: dict[int, str] = {
    storage_pb2.TRACE_EVENT_KIND_DELIVERED: "delivered",
    storage_pb2.TRACE_EVENT_KIND_POSTPONED: "postponed",
    storage_pb2.TRACE_EVENT_KIND_RELEASED: "released",
    storage_pb2.TRACE_EVENT_KIND_BLOCKED: "blocked",
    storage_pb2.TRACE_EVENT_KIND_ACKED: "acked",
    storage_pb2.TRACE_EVENT_KIND_DEAD_LETTERED: "dead-lettered",
}


class Found(NamedTuple):
    """A page of messages by queue and offset, and the token of the next page ("": none)."""

    messages: Sequence[storage_pb2.StoredMessage]
    next_page_token: str


class QueuePosition(NamedTuple):
    """A queue and an offset; a page token is its text."""

    queue: int
    offset: int

    @classmethod
    def parse(cls, token: str) -> QueuePosition:
        """Read a page token; "" is the start.

        Raises:
            RequestError: BAD_REQUEST.
        """
        if not token:
            return cls(0, 0)
        queue, colon, offset = token[:_MAX_TOKEN_LENGTH].partition(":")
        is_short = len(token) <= _MAX_TOKEN_LENGTH
        if not (is_short and colon and queue.isdecimal() and offset.isdecimal()):
            raise RequestError(
                Code.BAD_REQUEST, f"{token[:_MAX_TOKEN_LENGTH]!r} is not a page token"
            )
        return cls(int(queue), int(offset))

    def __str__(self) -> str:
        return f"{self.queue}:{self.offset}"


class _Span(NamedTuple):
    """Offsets of a queue that one raft group holds."""

    raft_group: int
    first: int
    end: int


class PageInProgress:
    """A page being filled."""

    def __init__(self, max_messages: int) -> None:
        self.messages: list[storage_pb2.StoredMessage] = []
        self.left = min(max_messages or MAX_PAGE_MESSAGES, MAX_PAGE_MESSAGES)
        self.left_bytes = _MAX_PAGE_BYTES
        self.left_fetches = _MAX_FETCHES_PER_PAGE

    @property
    def full(self) -> bool:
        """Whether nothing may be added."""
        return self.left <= 0 or self.left_bytes <= 0 or self.left_fetches <= 0

    def add(self, message: storage_pb2.StoredMessage) -> None:
        """Add a message; a message may be larger than the room that is left."""
        self.messages.append(message)
        self.left -= 1
        self.left_bytes -= len(message.message)


class MessageQueries:
    """See the module docstring."""

    def __init__(self, view: MetadataView, storage: StorageClient, holders: HolderCalls) -> None:
        self._view = view
        self._storage = storage
        self._holders = holders

    # Finding ------------------------------------------------------------------------------------

    async def find(self, request: admin_pb2.FindMessagesRequest) -> Found:
        """Find messages by id, key, position or time.

        Raises:
            RequestError: unknown topic, a bad filter or token, or nothing to find by.
        """
        topic = self._topic(request.namespace, request.topic)
        wanted = parse_tag_expression(request.tag)
        tags = storage_pb2.Filter(kind=storage_pb2.FILTER_KIND_TAG, expression=request.tag)
        begin_ms = request.begin_ms if request.HasField("begin_ms") else None
        end_ms = request.end_ms if request.HasField("end_ms") else None
        first = QueuePosition.parse(request.page_token)
        page = PageInProgress(request.max_messages)
        by = request.WhichOneof("by")
        queue = request.queue if request.HasField("queue") else None
        if by is not None:
            found = await self._look_up(topic, request)
            kept = (
                message
                for message in found
                if (begin_ms is None or message.store_time_ms >= begin_ms)
                and (end_ms is None or message.store_time_ms < end_ms)
                and (queue is None or message.queue == queue)
                and wanted.matches(message.message)
            )
            return _paged(kept, first, page)
        if begin_ms is None and end_ms is None:
            raise RequestError(Code.BAD_REQUEST, "name a message id, a key, a position or a time")
        spans = await self._spans(topic, queue, begin_ms, end_ms)
        return await self._scan(topic, spans, tags, first, page)

    async def by_id(self, topic: TopicRow, message_id: str) -> list[storage_pb2.StoredMessage]:
        """Return the messages of a topic with an id, by queue and offset."""
        request = admin_pb2.FindMessagesRequest(message_id=message_id)
        return sorted(await self._look_up(topic, request), key=_place_of)

    async def fetch(
        self,
        raft_group: int,
        topic: TopicRow,
        queue: int,
        offset: int,
        max_messages: int,
        wanted: storage_pb2.Filter = EVERY_MESSAGE,
    ) -> storage_pb2.FetchResponse:
        """Read messages of one queue in one raft group.

        Raises:
            RequestError: storage refused.
        """
        request = storage_pb2.FetchRequest(
            raft_group=raft_group,
            topic_id=topic.topic_id,
            queue=queue,
            offset=offset,
            max_messages=max_messages,
            max_bytes=_MAX_PAGE_BYTES,
            filter=wanted,
        )
        return await self._storage.call(raft_group, "Fetch", request, storage_pb2.FetchResponse)

    async def _look_up(
        self, topic: TopicRow, request: admin_pb2.FindMessagesRequest
    ) -> list[storage_pb2.StoredMessage]:
        """Ask the index; another text with the same hash does not count."""
        query = storage_pb2.QueryRequest(topic_id=topic.topic_id, max_messages=MAX_PAGE_MESSAGES)
        match request.WhichOneof("by"):
            case "message_id":
                query.message_id = request.message_id
            case "key":
                query.key = request.key
            case _:
                query.position.queue = request.position.queue
                query.position.offset = request.position.offset

        def query_of(raft_group: int) -> storage_pb2.QueryRequest:
            one = storage_pb2.QueryRequest(raft_group=raft_group)
            one.MergeFrom(query)
            return one

        answers = await self._holders.of_chosen(
            topic,
            lambda: self._holders_of(topic, query),
            "Query",
            storage_pb2.QueryResponse,
            query_of,
        )
        found = (message for _, answer in answers for message in answer.messages)
        return [message for message in found if _is_meant(message, request)]

    async def _spans(
        self, topic: TopicRow, queue: int | None, begin_ms: int | None, end_ms: int | None
    ) -> Mapping[int, Sequence[_Span]]:
        """Return for every queue what was stored between two times, oldest first."""
        begins = await self._offsets(topic, queue, begin_ms or 0)
        ends = begins if end_ms is None else await self._offsets(topic, queue, end_ms)
        spans: dict[int, list[_Span]] = {}
        for (raft_group, number), offsets in sorted(begins.items()):
            until = ends.get((raft_group, number), offsets)
            end = until.next_offset if end_ms is None else until.by_time
            if offsets.by_time < end:
                spans.setdefault(number, []).append(_Span(raft_group, offsets.by_time, end))
        return {
            number: sorted(of_queue, key=lambda span: span.first)
            for number, of_queue in sorted(spans.items())
        }

    async def _offsets(
        self, topic: TopicRow, queue: int | None, time_ms: int
    ) -> dict[tuple[int, int], storage_pb2.QueueOffsets]:
        """Return (raft group, queue) -> its offsets."""

        def request_for(raft_group: int, queues: Sequence[int]) -> storage_pb2.GetOffsetsRequest:
            return storage_pb2.GetOffsetsRequest(
                raft_group=raft_group, topic=topic_ref(topic), queues=queues, time_ms=time_ms
            )

        rpc, kind = "GetOffsets", storage_pb2.GetOffsetsResponse
        if queue is None:
            answers = await self._holders.of_topic(topic, rpc, kind, request_for)
        else:
            answers = await self._holders.of_queue(
                topic, queue, rpc, kind, lambda raft_group: request_for(raft_group, (queue,))
            )
        return {
            (raft_group, offsets.queue): offsets
            for raft_group, answer in answers
            for offsets in answer.queues
        }

    async def _scan(
        self,
        topic: TopicRow,
        spans: Mapping[int, Sequence[_Span]],
        tags: storage_pb2.Filter,
        first: QueuePosition,
        page: PageInProgress,
    ) -> Found:
        """Read spans in order from a place on until the page is full."""
        for queue, of_queue in spans.items():
            if queue < first.queue:
                continue
            for span in of_queue:
                offset = max(span.first, first.offset if queue == first.queue else 0)
                while offset < span.end:
                    if page.full:
                        return Found(page.messages, str(QueuePosition(queue, offset)))
                    offset = await self._read(topic, queue, span, offset, tags, page)
        return Found(page.messages, "")

    async def _read(
        self,
        topic: TopicRow,
        queue: int,
        span: _Span,
        offset: int,
        tags: storage_pb2.Filter,
        page: PageInProgress,
    ) -> int:
        """Add messages of a span to the page; return where to continue."""
        page.left_fetches -= 1
        count = min(page.left, span.end - offset)
        fetched = await self.fetch(span.raft_group, topic, queue, offset, count, tags)
        for message in fetched.messages:
            if page.full or message.offset >= span.end:
                return message.offset
            page.add(message)
        # The span ends earlier than expected: it was trimmed meanwhile.
        return fetched.resume_offset if fetched.resume_offset > offset else span.end

    # Traces -------------------------------------------------------------------------------------

    async def trace(self, request: admin_pb2.TraceMessageRequest) -> list[admin_pb2.TracedMessage]:
        """Return a message's trace: its producer, its place, its deliveries and its acks.

        Raises:
            RequestError: unknown topic, MESSAGE_NOT_FOUND, or nothing to find by.
        """
        topic = self._topic(request.namespace, request.topic)
        wanted = storage_pb2.TraceRequest(topic_id=topic.topic_id)
        match request.WhichOneof("by"):
            case "message_id":
                wanted.message_id = request.message_id
            case "position":
                wanted.position.queue = request.position.queue
                wanted.position.offset = request.position.offset
            case _:
                raise RequestError(Code.BAD_REQUEST, "name a message id or a position")

        def trace_of(raft_group: int) -> storage_pb2.TraceRequest:
            one = storage_pb2.TraceRequest(raft_group=raft_group)
            one.MergeFrom(wanted)
            return one

        answers = await self._holders.of_chosen(
            topic,
            lambda: self._holders_of(topic, wanted),
            "Trace",
            storage_pb2.TraceResponse,
            trace_of,
        )
        traced = [
            _traced(raft_group, trace, self._group_name)
            for raft_group, answer in answers
            for trace in answer.messages
        ]
        if not traced:
            raise RequestError(Code.MESSAGE_NOT_FOUND, f"no such message in topic {topic.name}")
        return sorted(traced, key=lambda one: one.stored.store_time_ms)

    def _holders_of(
        self, topic: TopicRow, wanted: storage_pb2.QueryRequest | storage_pb2.TraceRequest
    ) -> Iterable[int]:
        """Return the raft groups that may have the message."""
        if wanted.HasField("position"):
            position = wanted.position
            return epochs.holder_of(self._view, topic, position.queue, position.offset)
        return self._view.holders(topic)

    def _group_name(self, consumer_group_id: int) -> str:
        """Return the name of a consumer group; empty: it was deleted."""
        group = self._view.consumer_group_by_id(consumer_group_id)
        return "" if group is None else group.name

    def _topic(self, namespace: str, name: str) -> TopicRow:
        topic = self._view.topic(namespace, name)
        if topic is None:
            raise topic_not_found(name)
        return topic


def _paged(
    messages: Iterable[storage_pb2.StoredMessage], first: QueuePosition, page: PageInProgress
) -> Found:
    for message in sorted(messages, key=_place_of):
        place = _place_of(message)
        if place < first:
            continue
        if page.full:
            return Found(page.messages, str(place))
        page.add(message)
    return Found(page.messages, "")


def _place_of(message: storage_pb2.StoredMessage) -> QueuePosition:
    return QueuePosition(message.queue, message.offset)


def _is_meant(message: storage_pb2.StoredMessage, request: admin_pb2.FindMessagesRequest) -> bool:
    properties = definition_pb2.Message.FromString(message.message).system_properties
    match request.WhichOneof("by"):
        case "message_id":
            return properties.message_id == request.message_id
        case "key":
            return request.key in properties.keys
        case _:
            return True


def _traced(
    raft_group: int, trace: storage_pb2.MessageTrace, group_name: Callable[[int], str]
) -> admin_pb2.TracedMessage:
    stored = trace.stored
    properties = definition_pb2.Message.FromString(stored.message).system_properties
    sender = stored_pb2.StoredMessage.FromString(stored.message).system_properties
    return admin_pb2.TracedMessage(
        stored=found_message(stored),
        raft_group=raft_group,
        raft_index=trace.raft_index,
        sender_client_id=sender.sender_client_id,
        born_host=properties.born_host,
        born_time_ms=max(milliseconds(properties.born_timestamp), 0),
        steps=(
            admin_pb2.TraceStep(
                consumer_group=group_name(event.consumer_group_id),
                what=_STEPS.get(event.kind, "unknown"),
                time_ms=event.time_ms,
                attempt=event.attempt_count,
                client_id=event.client_id,
                visible_at_ms=event.visible_at_ms,
            )
            for event in trace.events
        ),
        truncated=trace.truncated,
    )


def found_message(stored: storage_pb2.StoredMessage) -> admin_pb2.FoundMessage:
    """Return a stored message in the form for operators."""
    return admin_pb2.FoundMessage(
        queue=stored.queue,
        offset=stored.offset,
        store_time_ms=stored.store_time_ms,
        message=stored.message,
    )
