"""Messages that remoting consumers have tried often enough: dead letters of their consumer groups.

A letter is as one of a gRPC consumer: it names the topic and has the id that its producer gave it.
Storage knows a repeat by that id. Two messages with one id are two letters all the same: each
letter has a mark, made of the message's place, and a message that finds the letter of another one
under its id is stored under its mark.
"""

from __future__ import annotations

from hashlib import md5

from apache.rocketmq.v2 import definition_pb2
from strata_broker.clients.provision import consumer_group_not_found
from strata_broker.metadata.metadata import MetadataView, TopicRow
from strata_broker.remoting import property_names as names
from strata_broker.remoting.answers import RemotingRefusal
from strata_broker.remoting.exchange import Exchange
from strata_broker.remoting.place_reads import PlaceReads
from strata_broker.sends.letter_sends import LetterSends
from strata_mq.access import Action
from strata_mq.requests import MAX_MESSAGE_ID_LENGTH, RETRY_PREFIX, dead_letter_topic
from strata_remoting import OffsetPlace, ResponseCode
from strata_runtime.metrics import Metrics

_MOST_TIMES = 1 << 20
_MOST_DIGITS = 10
_OF_A_DELIVERY = (
    *("store_timestamp", "store_host", "delivery_timestamp", "receipt_handle", "queue_id"),
    *("queue_offset", "invisible_duration", "delivery_attempt", "dead_letter_queue"),
)


class GivenUpMessages:
    """See the module docstring.

    Args:
        letters: stores them.
        reads: finds them.
        view: knows consumer groups.
        metrics: counts them.
    """

    def __init__(
        self, letters: LetterSends, reads: PlaceReads, view: MetadataView, *, metrics: Metrics
    ) -> None:
        self._letters = letters
        self._reads = reads
        self._view = view
        self._counted = metrics.counter("strata_broker_remoting_dead_letters_total")

    async def store(
        self, exchange: Exchange, group: str, letter: definition_pb2.Message, mark: str
    ) -> OffsetPlace:
        """Store a dead letter; return where it is.

        Args:
            exchange: of the consumer.
            group: its consumer group.
            letter: see `letter_of`.
            mark: the same for every repeat, and for no other message.

        Raises:
            RequestError: the consumer group does not exist, or the client may not use it or consume
                the topic that the letter names; storage refused.
            RemotingRefusal: the consumer group has no dead-letter topic.
        """
        exchange.require_group(group, Action.SUB)
        # An operator may send the letter back there.
        exchange.require_topic(letter.topic.name, Action.SUB)
        topic = self._topic_of(group)
        letter.user_properties[names.STORED_LETTER] = mark
        place = await self._stored(exchange, letter, topic)
        found = await self._reads.at(exchange, group, topic, place)
        if found is None or found.user_properties.get(names.STORED_LETTER) != mark:
            known_as = names.stored_name(names.UNIQUE_KEY)
            if known_as not in letter.user_properties:
                letter.user_properties[known_as] = letter.system_properties.message_id
            letter.system_properties.message_id = mark
            place = await self._stored(exchange, letter, topic)
        self._counted.add()
        return place

    async def _stored(
        self, exchange: Exchange, letter: definition_pb2.Message, topic: TopicRow
    ) -> OffsetPlace:
        client = exchange.client
        raft_group, offset = await self._letters.store(
            letter, topic, client.client_id, peer=client.peer
        )
        return OffsetPlace(topic.topic_id, raft_group, offset)

    def _topic_of(self, group: str) -> TopicRow:
        row = self._view.consumer_group("", group)
        if row is None:
            raise consumer_group_not_found(group)
        topic = self._view.topic_by_id(row.dead_letter_topic_id)
        if topic is None:
            raise RemotingRefusal(
                ResponseCode.SYSTEM_ERROR, f"topic[{dead_letter_topic(group)}] not exist"
            )
        return topic


def reconsume_times(message: definition_pb2.Message) -> int:
    """Return how often a message was sent back before."""
    times = message.user_properties.get(names.STORED_RECONSUME_TIMES, "0")
    # A producer may write any text there, and a text of thousands of digits is no number for int().
    is_number = times.isascii() and times.isdigit() and len(times) <= _MOST_DIGITS
    return min(int(times), _MOST_TIMES) if is_number else 0


def letter_of(message: definition_pb2.Message, group: str) -> definition_pb2.Message:
    """Return the dead letter of a message, or of its copy in the topic of a group's retries.

    Only such a copy may name the topic that it is from, and the id that its producer gave it: a
    producer writes any property.
    """
    letter = definition_pb2.Message()
    letter.CopyFrom(message)
    system, user = letter.system_properties, letter.user_properties
    for name in _OF_A_DELIVERY:
        system.ClearField(name)  # type: ignore[arg-type]
    # A letter that is sent again begins anew; the count is kept as a property.
    times = user.pop(names.STORED_RECONSUME_TIMES, "")
    if times:
        user[names.stored_name(names.RECONSUME_TIME)] = times
    if letter.topic.name == RETRY_PREFIX + group:
        origin = user.get(names.stored_name(names.RETRY_TOPIC), "")
        letter.topic.name = origin or letter.topic.name
        known_as = user.get(names.stored_name(names.UNIQUE_KEY), "")
        if 0 < len(known_as) <= MAX_MESSAGE_ID_LENGTH:
            system.message_id = known_as
    group = user.pop(names.SHARDING_KEY, "")
    if group and not system.message_group:
        system.message_group = group
    in_order = system.HasField("message_group")
    system.message_type = definition_pb2.FIFO if in_order else definition_pb2.NORMAL
    if not system.HasField("body_digest"):
        system.body_digest.type = definition_pb2.MD5
        digest = md5(letter.body, usedforsecurity=False).hexdigest()
        system.body_digest.checksum = digest.upper()
    return letter
