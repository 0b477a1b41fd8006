"""Entries of a queue, as RocketMQ shows those of a consume queue: place, size and tag."""

from __future__ import annotations

from collections.abc import Mapping

from strata.admin.v1 import admin_pb2
from strata_broker.metadata.metadata import TopicRow
from strata_broker.remoting.admin.messages import StoredMessages
from strata_broker.remoting.admin.operator_face import OperatorFace
from strata_broker.remoting.admin.places import AdminPlaces
from strata_broker.remoting.answers import with_json
from strata_broker.remoting.exchange import Exchange, Handler
from strata_broker.remoting.queue_ids import known_topic, queue_number
from strata_mq.access import Action
from strata_remoting import (
    AdminCode,
    OffsetPlace,
    RemotingCommand,
    ResponseCode,
    physical_offset,
)

_MOST_ENTRIES = 256
_WORD = 1 << 32


class AdminQueueEntries:
    """See the module docstring.

    Args:
        face: the broker's handlers for operators.
        places: know topics and queues.
        messages: of topics.
    """

    def __init__(self, face: OperatorFace, places: AdminPlaces, messages: StoredMessages) -> None:
        self._face = face
        self._places = places
        self._messages = messages

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handlers by request code."""
        return {AdminCode.QUERY_CONSUME_QUEUE: self.entries}

    async def entries(self, exchange: Exchange) -> RemotingCommand:
        """Answer with some entries of a queue, from an offset on.

        Raises:
            AccessRefused: FORBIDDEN.
            RemotingRefusal: the queue does not exist, or the call was refused.
            RequestError: TOPIC_NOT_FOUND.
        """
        request = exchange.request
        exchange.require_topic(request.text("topic"), Action.SUB)
        topic = known_topic(self._places.view, request.text("topic"))
        queue = queue_number(self._places.view, topic, request.number("queueId"))
        wanted = admin_pb2.ScanQueueRequest(
            topic=topic.name,
            queue=queue,
            offset=max(request.number("index"), 0),
            max_messages=max(1, min(request.number("count"), _MOST_ENTRIES)),
        )
        answer = await self._face.call(
            "ScanQueue",
            wanted,
            admin_pb2.ScanQueueResponse,
            exchange.caller(),
            missing=ResponseCode.TOPIC_NOT_EXIST,
        )
        shown = {
            "filterData": None,
            "maxQueueIndex": answer.next_offset,
            "minQueueIndex": answer.min_offset,
            "queueData": [self._entry(topic, queue, one) for one in answer.messages],
            "subscriptionData": None,
        }
        return with_json(request, shown)

    def _entry(
        self, topic: TopicRow, queue: int, found: admin_pb2.FoundMessage
    ) -> dict[str, object]:
        place = OffsetPlace(topic.topic_id, queue, found.offset)
        tag = self._messages.parsed(topic, found).system_properties.tag
        return {
            "bitMap": None,
            "eval": False,
            "extendDataJson": None,
            "msg": None,
            "physicOffset": physical_offset(place),
            "physicSize": len(self._messages.encoded(topic, (found,))),
            "tagsCode": java_hash(tag),
        }


def java_hash(text: str) -> int:
    """Return Java's hash of a text, by which consume queues know a tag."""
    units = text.encode("utf-16-be")
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) % _WORD
    return value - _WORD if value >= _WORD // 2 else value
