"""CONSUMER_SEND_MSG_BACK: a consumer could not process a message and wants it again later.

The message is copied to the topic of retries of its consumer group, delayed by a level that grows
with the number of attempts; after the last attempt it becomes a dead letter. The consumer passes
over the original after the answer, so the copy is durable first. A repeat of the same request
stores nothing again: the copy's id is made of the message's place and of the number of the attempt,
and of how many copies with both are consumed (`RetryCopies`).
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

from apache.rocketmq.v2 import definition_pb2
from strata_broker.clients.settings import group_policy
from strata_broker.metadata.metadata import MetadataView, TopicRow
from strata_broker.remoting import property_names as names
from strata_broker.remoting.answers import RemotingRefusal, succeeded
from strata_broker.remoting.exchange import Exchange, Handler
from strata_broker.remoting.given_up import GivenUpMessages, letter_of, reconsume_times
from strata_broker.remoting.incoming import DELAY_LEVELS_S, delay_ms
from strata_broker.remoting.place_reads import PlaceReads
from strata_broker.remoting.retry_copies import RetryCopies
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
_OF_THE_ORIGINAL = (names.RETRY_TOPIC, names.UNIQUE_KEY, names.ORIGIN_MESSAGE_ID)


class SendBacks:
    """See the module docstring.

    Args:
        routes: makes topics of retries.
        view: knows topics and queues.
        reads: find messages by their place.
        given_up: takes messages after their last attempt.
        copies: stores the others.
        clock: wall time, for delays.
    """

    def __init__(
        self,
        routes: RemotingRoutes,
        view: MetadataView,
        *,
        reads: PlaceReads,
        given_up: GivenUpMessages,
        copies: RetryCopies,
        clock: Clock,
    ) -> None:
        self._routes = routes
        self._view = view
        self._reads = reads
        self._given_up = given_up
        self._copies = copies
        self._clock = clock

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handlers by request code."""
        return {RequestCode.CONSUMER_SEND_MSG_BACK: self.send_back}

    async def send_back(self, exchange: Exchange) -> RemotingCommand:
        """Store a copy that is delivered later, or a dead letter.

        Raises:
            RemotingRefusal: the message is not there, with RocketMQ's text.
            RequestError: the broker refused to read the message or to store the copy.
        """
        request = exchange.request
        group, physical = request.text("group"), request.number("offset")
        place = place_at(physical)
        topic = self._view.topic_by_id(place.topic_id) if place is not None else None
        # A place has the number of its topic, which anybody can guess.
        is_readable = topic is not None and exchange.may_consume(topic.namespace, topic.name)
        if place is None or topic is None or not is_readable:
            raise _not_found(physical)
        original = await self._reads.at(exchange, group, topic, place)
        if original is None:
            raise _not_found(physical)
        retries = await self._routes.topic(exchange, RETRY_PREFIX + group)
        times = reconsume_times(original)
        level = request.number("delayLevel")
        if level < 0 or times >= request.number("maxReconsumeTimes", most_times(self._view, group)):
            mark = _id_of(group, place, "letter")
            await self._given_up.store(exchange, group, letter_of(original, group), mark)
            return succeeded(request)
        copy = _copy_of(original, topic, is_again=topic.name == retries.name)
        copy.user_properties[names.STORED_RECONSUME_TIMES] = str(times + 1)
        # A consumer may leave the level to the broker.
        delay = delay_ms(level or min(_FIRST_LEVEL + times, len(DELAY_LEVELS_S)))
        copy.system_properties.delivery_timestamp.FromMilliseconds(self._clock.wall_ms() + delay)

        def id_of(consumed: int) -> str:
            attempt = f"{times + 1}/{consumed}" if consumed else str(times + 1)
            return _id_of(group, place, attempt)

        await self._copies.store(exchange, group, retries, copy, id_of)
        return succeeded(request)


def most_times(view: MetadataView, group: str) -> int:
    """Return how often a message of a consumer group may come back before it is a dead letter."""
    return group_policy(view.consumer_group("", group)).max_attempts - 1


def _copy_of(
    original: definition_pb2.Message, topic: TopicRow, *, is_again: bool
) -> definition_pb2.Message:
    """Return the copy of a message: with the tag and keys that its consumer knows it by.

    Only a copy that is sent back again names the topic that it is from and its first id: a producer
    may write these properties, too.
    """
    known = original.system_properties
    copy = definition_pb2.Message(body=original.body)
    system, properties = copy.system_properties, copy.user_properties
    properties.update(original.user_properties)
    if not is_again:
        for name in _OF_THE_ORIGINAL:
            properties.pop(names.stored_name(name), None)
    _keep(properties, names.RETRY_TOPIC, topic.name)
    _keep(properties, names.UNIQUE_KEY, known.message_id)
    _keep(properties, names.ORIGIN_MESSAGE_ID, known.message_id)
    if known.HasField("message_group"):
        _keep(properties, names.SHARDING_KEY, known.message_group)
    if known.HasField("tag"):
        system.tag = known.tag
    system.keys.extend(known.keys)
    system.born_timestamp.CopyFrom(known.born_timestamp)
    system.born_host = known.born_host
    system.body_encoding = known.body_encoding
    return copy


def _id_of(group: str, place: OffsetPlace, attempt: str) -> str:
    """Return the id of one attempt of a consumer group with a message."""
    name = f"{group} {place.topic_id} {place.queue} {place.offset} {attempt}"
    return blake2b(name.encode(), digest_size=16).hexdigest().upper()


def _keep(properties: object, name: str, value: str) -> None:
    kept = names.stored_name(name)
    if kept not in properties:  # type: ignore[operator]
        properties[kept] = value  # type: ignore[index]


def _not_found(physical: int) -> RemotingRefusal:
    return RemotingRefusal(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {physical}")
