"""Sends of remoting producers: SEND_MESSAGE, SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE.

A message is stored in the queue that its producer chose, and the answer names that queue. The
answer's `msgId` is RocketMQ's `offsetMsgId`; the id by which consumers know a message is the
producer's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata_broker.metadata.metadata import MetadataView, TopicRow
from strata_broker.remoting.answers import succeeded
from strata_broker.remoting.exchange import Exchange, Handler
from strata_broker.remoting.face import MessagingFace
from strata_broker.remoting.incoming import is_compressed, new_message
from strata_broker.remoting.inflating import BodyInflater
from strata_broker.remoting.queue_ids import queue_number
from strata_broker.remoting.routes import RemotingRoutes
from strata_broker.remoting.send_headers import SendHeader, send_header
from strata_mq.slots import fifo_queue
from strata_remoting import (
    BatchedMessage,
    OffsetPlace,
    RemotingCommand,
    RequestCode,
    Store,
    decode_batch,
    offset_message_id,
    physical_offset,
)
from strata_runtime.backoff import Random
from strata_runtime.clock import Clock

_NO_PLACE = OffsetPlace(-1, -1, -1)


class RemotingSends:
    """See the module docstring.

    Args:
        face: the broker's handlers.
        routes: finds topics.
        view: knows topics and queues.
        inflater: of compressed bodies.
        store: returns the address that `offsetMsgId`s name: of this broker.
        clock: wall time, for delays.
        random: chooses a queue for a producer that chose none.
        max_messages: of a batch.
    """

    def __init__(
        self,
        face: MessagingFace,
        routes: RemotingRoutes,
        view: MetadataView,
        *,
        inflater: BodyInflater,
        store: Callable[[], Store],
        clock: Clock,
        random: Random,
        max_messages: int,
    ) -> None:
        self._face = face
        self._routes = routes
        self._view = view
        self._inflater = inflater
        self._store = store
        self._clock = clock
        self._random = random
        self._max_messages = max_messages

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
            RemotingRefusal: the queue does not exist, or a property is not allowed.
            RequestError: the broker refused a message.
        """
        request = exchange.request
        header = send_header(request)
        topic = self._view.topic("", header.topic)
        if topic is None or topic.is_table:
            topic = await self._routes.topic(exchange, header.topic)
        queue_id = header.queue_id
        if queue_id < 0:
            queue_id = int(self._random() * topic.queue_count)
        queue = queue_number(self._view, topic, queue_id)
        messages = await self._messages(request, header._replace(queue_id=queue), topic)
        for message in messages:
            message.system_properties.born_host = exchange.client.peer
        response = await self._face.send(
            service_pb2.SendMessageRequest(messages=messages), exchange.caller(), queue
        )
        return self._answer(request, topic, queue, messages, response.entries)

    async def _messages(
        self, request: RemotingCommand, header: SendHeader, topic: TopicRow
    ) -> Sequence[definition_pb2.Message]:
        body = request.body
        if is_compressed(header):
            body = await self._inflater.inflate(body, header.system_flag)
        if header.is_batch:
            batch: Sequence[BatchedMessage] = decode_batch(body, self._max_messages)
        else:
            batch = [BatchedMessage(body, header.properties, header.flag)]
        now_ms = self._clock.wall_ms()
        return [
            new_message(header._replace(flag=one.flag), one.body, one.properties, topic, now_ms)
            for one in batch
        ]

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
            if not message.system_properties.HasField("delivery_timestamp"):
                queue = _queue_of(message, topic, queue)
                place = OffsetPlace(topic.topic_id, queue, entry.offset)
            ids.append(offset_message_id(store, physical_offset(place)))
        return succeeded(request, msgId=",".join(ids), queueId=queue, queueOffset=entries[0].offset)


def _queue_of(message: definition_pb2.Message, topic: TopicRow, queue: int) -> int:
    """Return where a message is: a message group has a queue of its own."""
    system = message.system_properties
    if not system.HasField("message_group"):
        return queue
    return fifo_queue(system.message_group, topic.previous_queue_count or topic.queue_count)
