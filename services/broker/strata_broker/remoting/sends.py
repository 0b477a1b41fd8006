"""Sends of remoting producers: SEND_MESSAGE, SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE.

A message is stored in the queue that its producer chose, and the answer names that queue. The
answer's `msgId` is RocketMQ's `offsetMsgId`; the id by which consumers know a message is the
producer's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata_broker.metadata.metadata import TopicRow
from strata_broker.metadata.requests import milliseconds
from strata_broker.remoting.addresses import broker_name_of
from strata_broker.remoting.answers import RemotingRefusal, succeeded
from strata_broker.remoting.client_traces import SWITCH, are_traces_wanted
from strata_broker.remoting.exchange import Exchange, Handler
from strata_broker.remoting.face import MessagingFace
from strata_broker.remoting.incoming_messages import IncomingMessages
from strata_broker.remoting.last_tries import LastTries
from strata_broker.remoting.producer_groups import ProducerGroups
from strata_broker.remoting.queue_ids import queue_number, queue_numbers
from strata_broker.remoting.routes import RemotingRoutes
from strata_broker.remoting.send_headers import send_header
from strata_mq.requests import RETRY_PREFIX
from strata_mq.slots import fifo_queue
from strata_remoting import (
    OffsetPlace,
    RecallHandle,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    Store,
    encode_recall_handle,
    offset_message_id,
    physical_offset,
)
from strata_runtime.backoff import Random

_NO_PLACE = OffsetPlace(-1, -1, -1)


class RemotingSends:
    """See the module docstring.

    Args:
        face: the broker's handlers.
        routes: finds topics.
        messages: reads them from requests.
        store: returns the address that `offsetMsgId`s name: of this broker.
        last_tries: take messages that an orderly consumer gives up.
        producer_groups: learn who sends transactional messages.
        random: chooses a queue for a producer that chose none.
    """

    def __init__(
        self,
        face: MessagingFace,
        routes: RemotingRoutes,
        messages: IncomingMessages,
        *,
        store: Callable[[], Store],
        last_tries: LastTries,
        producer_groups: ProducerGroups,
        random: Random,
    ) -> None:
        self._face = face
        self._routes = routes
        self._view = routes.view
        self._messages = messages
        self._store = store
        self._random = random
        self._last_tries = last_tries
        self._producer_groups = producer_groups

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.SEND_MESSAGE: self.send,
            RequestCode.SEND_MESSAGE_V2: self.send,
            RequestCode.SEND_BATCH_MESSAGE: self.send,
        }

    async def send(self, exchange: Exchange) -> RemotingCommand:
        """Store the messages of a request.

        Raises:
            RemotingError: a field or the batch cannot be read.
            RemotingRefusal: the queue does not exist, or a property or a producer group is not
                allowed.
            RequestError: the client may not send to the topic, or the broker refused a message.
        """
        request = exchange.request
        header = send_header(request)
        exchange.require_send(header.topic)
        topic = self._view.topic("", header.topic)
        if topic is None or topic.is_table:
            topic = await self._routes.topic(exchange, header.topic)
        queue = self._queue(exchange, topic, header.queue_id)
        messages = await self._messages.of(exchange, header._replace(queue_id=queue), topic)
        if self._last_tries.is_last(header):
            place = await self._last_tries.give_up(exchange, header, messages[0])
            return self._answer_place(request, place)
        is_half = _is_half(messages)
        if is_half:
            self._producer_groups.check_half(exchange.client, header.producer_group)
        response = await self._face.send(
            service_pb2.SendMessageRequest(messages=messages), exchange.caller(), queue
        )
        if is_half:
            name = (topic.namespace, topic.name)
            self._producer_groups.sent_half(exchange.client, header.producer_group, name)
        return self._answer(request, topic, queue, messages, response.entries)

    def _queue(self, exchange: Exchange, topic: TopicRow, queue_id: int) -> int:
        """Return the queue that a producer chose; any, for a negative id.

        Raises:
            RemotingRefusal: INVALID_PARAMETER, as RocketMQ 5 answers: the topic has no such queue.
        """
        numbers = queue_numbers(self._view, topic)
        if queue_id >= len(numbers) > 0:
            raise RemotingRefusal(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{queue_id}] is illegal, topic:[{topic.name}] "
                f"topicConfig.writeQueueNums:[{len(numbers)}] Producer: {exchange.client.peer}",
            )
        if queue_id < 0:
            queue_id = int(self._random() * len(numbers))
        return queue_number(self._view, topic, queue_id)

    def _answer(
        self,
        request: RemotingCommand,
        topic: TopicRow,
        queue: int,
        messages: Sequence[definition_pb2.Message],
        entries: Sequence[service_pb2.SendResultEntry],
    ) -> RemotingCommand:
        store, ids = self._store(), []
        for message, entry in zip(messages, entries, strict=True):
            place = _NO_PLACE
            if not _waits(message.system_properties):
                queue = _queue_of(message, topic, queue)
                place = OffsetPlace(topic.topic_id, queue, entry.offset)
            ids.append(offset_message_id(store, physical_offset(place)))
        return succeeded(
            request,
            msgId=",".join(ids),
            queueId=queue,
            queueOffset=entries[0].offset,
            transactionId=entries[0].transaction_id if _is_half(messages) else None,
            recallHandle=_recall_handle(topic, messages[0], entries[0]),
            **self._trace_fields(),
        )

    def _trace_fields(self) -> dict[str, str]:
        return {} if are_traces_wanted(self._view) else {SWITCH: "false"}

    def _answer_place(self, request: RemotingCommand, place: OffsetPlace) -> RemotingCommand:
        """Answer with the place of a dead letter."""
        topic = self._view.topic_by_id(place.topic_id)
        numbers = queue_numbers(self._view, topic) if topic is not None else ()
        return succeeded(
            request,
            msgId=offset_message_id(self._store(), physical_offset(place)),
            queueId=list(numbers).index(place.queue) if place.queue in numbers else 0,
            queueOffset=place.offset,
            **self._trace_fields(),
        )


def _recall_handle(
    topic: TopicRow, message: definition_pb2.Message, entry: service_pb2.SendResultEntry
) -> str | None:
    """Return the handle of a delayed message; None: it is not delayed, or a retry."""
    if not entry.recall_handle or topic.name.startswith(RETRY_PREFIX):
        return None
    system = message.system_properties
    delivery_ms = milliseconds(system.delivery_timestamp)
    name = broker_name_of(topic.name)
    handle = RecallHandle(topic.name, name, delivery_ms, system.message_id, entry.recall_handle)
    return encode_recall_handle(handle)


def _is_half(messages: Sequence[definition_pb2.Message]) -> bool:
    """Whether a request sends a transactional message, which is the only one of its request."""
    return messages[0].system_properties.message_type == definition_pb2.TRANSACTION


def _waits(system: definition_pb2.SystemProperties) -> bool:
    """Whether a message has no offset before it is due, or committed."""
    return (
        system.HasField("delivery_timestamp") or system.message_type == definition_pb2.TRANSACTION
    )


def _queue_of(message: definition_pb2.Message, topic: TopicRow, queue: int) -> int:
    """Return where a message is: a message group has a queue of its own."""
    system = message.system_properties
    if not system.HasField("message_group"):
        return queue
    return fifo_queue(system.message_group, topic.previous_queue_count or topic.queue_count)
