"""Configurations of topics: as tools want them, and as tools are shown them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from strata.meta.v1 import meta_pb2
from strata_broker.remoting.answers import RemotingRefusal
from strata_remoting import ResponseCode

_READ, _READ_WRITE = 4, 6
_TYPE_ATTRIBUTE = "message.type"
_PREFIX = "TOPIC_TYPE_"
_TYPES = {
    name.removeprefix(_PREFIX): number
    for name, number in meta_pb2.TopicType.items()
    if number not in (meta_pb2.TOPIC_TYPE_UNSPECIFIED, meta_pb2.TOPIC_TYPE_DEAD_LETTER)
}
# As with RocketMQ, a topic without a type takes every kind of message.
_DEFAULT_TYPE = meta_pb2.TOPIC_TYPE_MIXED
_MOST_QUEUES = 1 << 20


class WantedTopic(NamedTuple):
    """A topic as an operator wants it.

    Attributes:
        name: of the topic.
        queue_count: to read from and to write to.
        topic_type: None: not given.
    """

    name: str
    queue_count: int
    topic_type: meta_pb2.TopicType.ValueType | None

    def new(self) -> meta_pb2.Topic:
        """Return the topic to make."""
        return meta_pb2.Topic(
            name=self.name,
            queue_count=self.queue_count,
            type=_DEFAULT_TYPE if self.topic_type is None else self.topic_type,
        )

    def change(self, topic: meta_pb2.Topic) -> list[str]:
        """Change a row to what is wanted; return the names of the changed fields.

        Raises:
            RemotingRefusal: the topic has more queues.
        """
        if self.queue_count < topic.queue_count:
            raise _refused(
                f"topic {topic.name} has {topic.queue_count} queues, and queues are only ever "
                f"added: name at least as many (-r {topic.queue_count} -w {topic.queue_count})"
            )
        mask = []
        if self.queue_count != topic.queue_count:
            topic.queue_count = self.queue_count
            mask.append("queue_count")
        if self.topic_type not in (None, topic.type):
            topic.type = self.topic_type
            mask.append("type")
        return mask


def wanted_topic(fields: Mapping[str, Any]) -> WantedTopic:
    """Read a topic from the fields of a request, or from the JSON of a TopicConfig.

    Raises:
        RemotingRefusal: a value has no meaning here; the text says why.
    """
    name = fields.get("topic")
    if not isinstance(name, str) or not name:
        raise _refused("The specified topic is blank.")
    reads, writes = _number(fields, "readQueueNums"), _number(fields, "writeQueueNums")
    if reads != writes:
        raise _refused(
            f"topic {name}: {reads} queues to read and {writes} to write; all queues of a topic "
            "are read and written here: give -r and -w the same number"
        )
    if not 1 <= writes <= _MOST_QUEUES:
        raise _refused(f"topic {name}: {writes} queues")
    permission = _number(fields, "perm", _READ_WRITE)
    if permission != _READ_WRITE:
        raise _refused(
            f"topic {name}: permission {permission}; every topic can be read and written (6) "
            "here: take rights away from users instead (strata policy)"
        )
    return WantedTopic(name, writes, _type_in(name, fields.get("attributes")))


def shown_topic(topic: meta_pb2.Topic, queue_count: int) -> dict[str, object]:
    """Return a topic as a TopicConfig; its dead-letter topics have a queue per raft group."""
    is_dead_letter = topic.type == meta_pb2.TOPIC_TYPE_DEAD_LETTER
    kind = meta_pb2.TopicType.Name(topic.type).removeprefix(_PREFIX)
    return {
        "attributes": {} if is_dead_letter else {_TYPE_ATTRIBUTE: kind},
        "order": topic.type == meta_pb2.TOPIC_TYPE_FIFO,
        "perm": _READ if is_dead_letter else _READ_WRITE,
        "readQueueNums": queue_count,
        "topicFilterType": "SINGLE_TAG",
        "topicName": topic.name,
        "topicSysFlag": 0,
        "writeQueueNums": queue_count,
    }


def _type_in(name: str, attributes: object) -> meta_pb2.TopicType.ValueType | None:
    """Return the type among attributes: `+message.type=FIFO,...`, or a map of such names."""
    given = _pairs(attributes)
    unknown = [key for key in given if key.removeprefix("+") != _TYPE_ATTRIBUTE]
    if unknown:
        raise _refused(
            f"topic {name}: attribute {unknown[0][:80]} is not supported; {_TYPE_ATTRIBUTE} is"
        )
    kinds = [value.upper() for value in given.values()]
    if not kinds:
        return None
    if kinds[0] not in _TYPES:
        raise _refused(
            f"topic {name}: unknown {_TYPE_ATTRIBUTE} {kinds[0][:40]}; known: {', '.join(_TYPES)}"
        )
    return meta_pb2.TopicType.ValueType(_TYPES[kinds[0]])


def _pairs(attributes: object) -> dict[str, str]:
    if isinstance(attributes, dict):
        return {str(key): str(value) for key, value in attributes.items()}
    if not isinstance(attributes, str):
        return {}
    pieces = [piece.strip().partition("=") for piece in attributes.split(",") if piece.strip()]
    return {key: value for key, _, value in pieces}


def _number(fields: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = str(fields.get(name, "" if default is None else default))
    if not (value.isascii() and value.isdigit() and len(value) < 10):
        raise _refused(f"{name} is no number: {value[:40]!r}")
    return int(value)


def _refused(text: str) -> RemotingRefusal:
    return RemotingRefusal(ResponseCode.SYSTEM_ERROR, text)
