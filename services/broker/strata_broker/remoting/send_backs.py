"""CONSUMER_SEND_MSG_BACK: a consumer could not process a message and wants it again later.

The message is copied to the topic of retries of its consumer group, delayed by a level that grows
with the number of attempts. The consumer passes over the original after the answer, so the copy is
durable first. A repeat of the same request stores nothing again: the copy's id is made of the
message's place and of the number of the attempt.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata_broker.metadata.metadata import MetadataView, TopicRow
from strata_broker.remoting import property_names as names
from strata_broker.remoting.answers import RemotingRefusal, succeeded
from strata_broker.remoting.exchange import Exchange, Handler
from strata_broker.remoting.face import MessagingFace, PulledAnswer
from strata_broker.remoting.incoming import DELAY_LEVELS_S, delay_ms
from strata_broker.remoting.queue_ids import public_queue
from strata_broker.remoting.routes import RemotingRoutes
from strata_mq.requests import RETRY_PREFIX
from strata_remoting import (
    OffsetPlace,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    place_at,
)
from strata_runtime.clock import Clock

_FIRST_LEVEL = 3
_RETRY_QUEUE = 0
_MOST_ATTEMPTS = 1 << 20


class SendBacks:
    """See the module docstring.

    Args:
        face: the broker's handlers.
        routes: makes topics of retries.
        view: knows topics and queues.
        clock: wall time, for delays.
    """

    def __init__(
        self, face: MessagingFace, routes: RemotingRoutes, view: MetadataView, *, clock: Clock
    ) -> None:
        self._face = face
        self._routes = routes
        self._view = view
        self._clock = clock

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handlers by request code."""
        return {RequestCode.CONSUMER_SEND_MSG_BACK: self.send_back}

    async def send_back(self, exchange: Exchange) -> RemotingCommand:
        """Store a copy that is delivered later.

        Raises:
            RemotingRefusal: the message is not there, with RocketMQ's text.
            RequestError: the broker refused to read the message or to store the copy.
        """
        request = exchange.request
        group, physical = request.text("group"), request.number("offset")
        place = place_at(physical)
        topic = self._view.topic_by_id(place.topic_id) if place is not None else None
        if place is None or topic is None:
            raise _not_found(physical)
        original = await self._read(exchange, group, topic, place)
        if original is None:
            raise _not_found(physical)
        retries = await self._routes.topic(exchange, RETRY_PREFIX + group)
        level = request.number("delayLevel")
        copy = _copy_of(original, topic, place, group)
        times = int(copy.user_properties[names.STORED_RECONSUME_TIMES])
        if level <= 0:
            # A consumer that leaves the choice to the broker, or has tried often enough.
            is_last = level < 0 or times > request.number("maxReconsumeTimes", 16)
            level = len(DELAY_LEVELS_S) if is_last else _FIRST_LEVEL + times - 1
        system = copy.system_properties
        copy.topic.name = retries.name
        system.delivery_timestamp.FromMilliseconds(self._clock.wall_ms() + delay_ms(level))
        await self._face.send(
            service_pb2.SendMessageRequest(messages=[copy]), exchange.caller(group), _RETRY_QUEUE
        )
        return succeeded(request)

    async def _read(
        self, exchange: Exchange, group: str, topic: TopicRow, place: OffsetPlace
    ) -> definition_pb2.Message | None:
        """Read the message at a place; None: there is none any more."""
        found: list[definition_pb2.Message] = []

        async def keep(answer: PulledAnswer) -> None:
            if answer.failure is not None:
                raise answer.failure
            found.extend(answer.messages)

        await self._face.pull(
            service_pb2.PullMessageRequest(
                group=definition_pb2.Resource(name=group),
                message_queue=public_queue(self._view, topic, place.queue),
                offset=place.offset,
                batch_size=1,
            ),
            exchange.caller(group),
            keep,
        )
        at_place = [one for one in found if one.system_properties.queue_offset == place.offset]
        return at_place[0] if at_place else None


def _copy_of(
    original: definition_pb2.Message, topic: TopicRow, place: OffsetPlace, group: str
) -> definition_pb2.Message:
    """Return the copy of a message: with the id, tag and keys that its consumer knows it by."""
    known, user = original.system_properties, original.user_properties
    copy = definition_pb2.Message(body=original.body)
    system, properties = copy.system_properties, copy.user_properties
    properties.update(user)
    times = user.get(names.STORED_RECONSUME_TIMES, "0")
    attempt = min(int(times), _MOST_ATTEMPTS) + 1 if times.isascii() and times.isdigit() else 1
    properties[names.STORED_RECONSUME_TIMES] = str(attempt)
    _keep(properties, names.RETRY_TOPIC, topic.name)
    _keep(properties, names.UNIQUE_KEY, known.message_id)
    _keep(properties, names.ORIGIN_MESSAGE_ID, known.message_id)
    if known.HasField("tag"):
        system.tag = known.tag
    system.keys.extend(known.keys)
    system.born_timestamp.CopyFrom(known.born_timestamp)
    system.born_host = known.born_host
    system.body_encoding = known.body_encoding
    name = f"{group} {place.topic_id} {place.queue} {place.offset} {attempt}"
    system.message_id = blake2b(name.encode(), digest_size=16).hexdigest().upper()
    return copy


def _keep(properties: object, name: str, value: str) -> None:
    kept = names.stored_name(name)
    if kept not in properties:  # type: ignore[operator]
        properties[kept] = value  # type: ignore[index]


def _not_found(physical: int) -> RemotingRefusal:
    return RemotingRefusal(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {physical}")
