"""Single messages: by key, by id, by place, and the oldest one of a queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from apache.rocketmq.v2 import definition_pb2
from strata.admin.v1 import admin_pb2
from strata_broker.access.principals import topic_target
from strata_broker.metadata.metadata import TopicRow
from strata_broker.metadata.stored_messages import parsed_message
from strata_broker.remoting.admin.operator_face import OperatorFace
from strata_broker.remoting.admin.places import AdminPlaces
from strata_broker.remoting.answers import VERSION, RemotingRefusal, succeeded
from strata_broker.remoting.exchange import Exchange, Handler
from strata_broker.remoting.queue_ids import known_topic, queue_number, queue_numbers
from strata_broker.remoting.shown import ShownQueue, pulled_message
from strata_mq.access import Action
from strata_remoting import (
    AdminCode,
    OffsetPlace,
    RemotingCommand,
    ResponseCode,
    Store,
    encode_message,
    place_at,
)

_MOST_MESSAGES = 1_000
_MOST_MS = 1 << 53
# Hex digits of an id that names an address, for IPv4 and IPv6, of which the last 16 are the place.
_OFFSET_ID_DIGITS = (32, 56)
_PLACE_DIGITS = 16


class StoredMessages:
    """Finds messages for operators.

    Args:
        face: the broker's handlers for operators.
        places: know topics and queues.
        store: returns the address that messages name as their store: of this broker.
        host: that messages name as their store, as text.
    """

    def __init__(
        self,
        face: OperatorFace,
        places: AdminPlaces,
        *,
        store: Callable[[], Store],
        host: str,
    ) -> None:
        self._face = face
        self._places = places
        self._store = store
        self._host = host

    async def find(
        self, exchange: Exchange, wanted: admin_pb2.FindMessagesRequest
    ) -> Sequence[admin_pb2.FoundMessage]:
        """Return the messages of a topic that a request asks for.

        Raises:
            RemotingRefusal: the call was refused.
        """
        answer = await self._face.call(
            "FindMessages",
            wanted,
            admin_pb2.FindMessagesResponse,
            exchange.caller(),
            missing=ResponseCode.TOPIC_NOT_EXIST,
        )
        return answer.messages

    async def at(
        self, exchange: Exchange, place: OffsetPlace | None
    ) -> tuple[TopicRow, admin_pb2.FoundMessage] | None:
        """Return the message at a place, with its topic; None: there is none that may be read.

        A place has the number of its topic, which anybody can guess, and a refusal would tell the
        name of that topic.

        Raises:
            RemotingRefusal: the call was refused.
        """
        view, principal = self._places.view, exchange.principal
        topic = view.topic_by_id(place.topic_id) if place is not None else None
        if place is None or topic is None or topic.namespace or topic.is_table:
            return None
        target = topic_target((topic.namespace, topic.name))
        if principal is None or not principal.may(*target, Action.SUB):
            return None
        wanted = admin_pb2.FindMessagesRequest(topic=topic.name)
        wanted.position.queue, wanted.position.offset = place.queue, place.offset
        found = await self.find(exchange, wanted)
        return (topic, found[0]) if found else None

    async def by_any_id(
        self, exchange: Exchange, topic: str, message_id: str
    ) -> definition_pb2.Message:
        """Return the message with an id: its producer's, or one that names a place.

        Raises:
            AccessRefused: FORBIDDEN.
            RemotingRefusal: there is none, or the call was refused.
        """
        exchange.require_topic(topic, Action.SUB)
        if len(message_id) in _OFFSET_ID_DIGITS:
            found = await self.at(exchange, _place_in(message_id))
            if found is not None and found[0].name == topic:
                return self.parsed(*found)
        row = known_topic(self._places.view, topic)
        several = await self.find(
            exchange, admin_pb2.FindMessagesRequest(topic=topic, message_id=message_id)
        )
        if not several:
            raise RemotingRefusal(
                ResponseCode.QUERY_NOT_FOUND, f"can not find the message {message_id} in {topic}"
            )
        return self.parsed(row, several[-1])

    def parsed(self, topic: TopicRow, found: admin_pb2.FoundMessage) -> definition_pb2.Message:
        """Return a message as gRPC clients know it."""
        return parsed_message(
            topic, found.message, found.store_time_ms, self._host, found.queue, found.offset
        )

    def encoded(self, topic: TopicRow, found: Iterable[admin_pb2.FoundMessage]) -> bytes:
        """Return messages in RocketMQ's CommitLog format."""
        numbers = queue_numbers(self._places.view, topic)
        store = self._store()
        return b"".join(
            encode_message(
                pulled_message(
                    self.parsed(topic, one),
                    ShownQueue(topic, one.queue, numbers.index(one.queue)),
                    store,
                )
            )
            for one in found
            if one.queue in numbers
        )


class AdminMessages:
    """See the module docstring.

    Args:
        messages: of topics.
        face: the broker's handlers for operators.
        places: know topics and queues.
    """

    def __init__(self, messages: StoredMessages, face: OperatorFace, places: AdminPlaces) -> None:
        self._messages = messages
        self._face = face
        self._places = places

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handlers by request code."""
        return {
            AdminCode.QUERY_MESSAGE: self.query,
            AdminCode.VIEW_MESSAGE_BY_ID: self.view,
            AdminCode.GET_EARLIEST_MSG_STORETIME: self.earliest,
        }

    async def query(self, exchange: Exchange) -> RemotingCommand:
        """Answer with the messages of a topic that have a key, or the id of their producer.

        Raises:
            AccessRefused: FORBIDDEN.
            RemotingRefusal: QUERY_NOT_FOUND, or the call was refused.
            RequestError: TOPIC_NOT_FOUND.
        """
        request = exchange.request
        exchange.require_topic(request.text("topic"), Action.SUB)
        topic = known_topic(self._places.view, request.text("topic"))
        most = max(1, min(request.number("maxNum", 32), _MOST_MESSAGES))
        begin_ms = max(0, min(request.number("beginTimestamp", 0), _MOST_MS))
        end_ms = max(0, min(request.number("endTimestamp", _MOST_MS), _MOST_MS))
        wanted = admin_pb2.FindMessagesRequest(
            topic=topic.name, max_messages=most, begin_ms=begin_ms, end_ms=end_ms + 1
        )
        if _is_by_id(request):
            wanted.message_id = request.text("key")
        else:
            wanted.key = request.text("key")
        found = await self._messages.find(exchange, wanted)
        if not found:
            raise RemotingRefusal(
                ResponseCode.QUERY_NOT_FOUND, "can not find message, maybe time range not correct"
            )
        newest = max(found, key=lambda one: one.store_time_ms)
        fields = {
            "indexLastUpdateTimestamp": str(newest.store_time_ms),
            "indexLastUpdatePhyoffset": str(newest.offset),
        }
        body = self._messages.encoded(topic, found)
        return request.answered(ResponseCode.SUCCESS, fields=fields, body=body, version=VERSION)

    async def view(self, exchange: Exchange) -> RemotingCommand:
        """Answer with the message that an `offsetMsgId` names.

        Raises:
            RemotingRefusal: there is none, or the call was refused.
        """
        request = exchange.request
        physical = request.number("offset")
        found = await self._messages.at(exchange, place_at(physical))
        if found is None:
            raise RemotingRefusal(
                ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {physical}"
            )
        topic, message = found
        body = self._messages.encoded(topic, (message,))
        return request.answered(ResponseCode.SUCCESS, body=body, version=VERSION)

    async def earliest(self, exchange: Exchange) -> RemotingCommand:
        """Answer with the store time of a queue's first message; -1: it has none.

        Raises:
            AccessRefused: FORBIDDEN.
            RemotingRefusal: the queue does not exist, or the call was refused.
            RequestError: TOPIC_NOT_FOUND.
        """
        request = exchange.request
        exchange.require_topic(request.text("topic"), Action.GET)
        exchange.require_topic(request.text("topic"), Action.SUB)
        topic = known_topic(self._places.view, request.text("topic"))
        queue = queue_number(self._places.view, topic, request.number("queueId"))
        shown = await self._face.topic(topic.name, exchange.caller())
        first = next((one.min_offset for one in shown.queues if one.queue == queue), 0)
        found = await self._messages.at(exchange, OffsetPlace(topic.topic_id, queue, first))
        return succeeded(request, timestamp=found[1].store_time_ms if found else -1)


def _is_by_id(request: RemotingCommand) -> bool:
    return request.truth("_UNIQUE_KEY_QUERY", default=False) or request.text("indexType", "") == "U"


def _place_in(message_id: str) -> OffsetPlace | None:
    try:
        return place_at(int(message_id[-_PLACE_DIGITS:], 16))
    except ValueError:
        return None
