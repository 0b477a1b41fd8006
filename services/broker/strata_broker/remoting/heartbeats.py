"""The bodies in which remoting clients tell of themselves, in JSON: heartbeats, locks, balance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from strata_broker.remoting.json_bodies import objects_in, read_object
from strata_remoting import RemotingError

MOST_SUBSCRIPTIONS = 256
"""Most topics that a client may subscribe to with one group."""


MOST_NAME_CHARACTERS = 255
"""Longest name of a producer group, as in RocketMQ (`Validators.CHARACTER_MAX_LENGTH`).

Other legal names are shorter. Members, locks and answers to operators keep names, and are limited
by their number.
"""


class RemotingSubscription(NamedTuple):
    """The subscription of a group to one topic.

    Attributes:
        expression: tags, or a condition.
        is_sql: whether the expression is SQL92.
        is_class: whether a Java class filters, which is not supported.
    """

    expression: str
    is_sql: bool = False
    is_class: bool = False


class HeartbeatData(NamedTuple):
    """The content of a heartbeat.

    Attributes:
        client_id: of the client.
        producer_groups: with which it sends.
        consumers: by consumer group: its subscriptions by topic.
    """

    client_id: str
    producer_groups: frozenset[str]
    consumers: Mapping[str, Mapping[str, RemotingSubscription]]


class LockedQueue(NamedTuple):
    """A queue in a request for locks."""

    topic: str
    broker_name: str
    queue_id: int


class LockRequest(NamedTuple):
    """A request to lock or to unlock queues."""

    group: str
    client_id: str
    queues: list[LockedQueue]


class BalanceRequest(NamedTuple):
    """A request for the queues of a client, which leaves the balance to the broker."""

    topic: str
    group: str
    client_id: str
    strategy: str
    is_broadcast: bool


def read_heartbeat(body: bytes, max_bytes: int) -> HeartbeatData:
    """Return the content of a heartbeat.

    Raises:
        RemotingError: it cannot be read, or has more than `max_bytes`.
    """
    data = read_object(body, max_bytes)
    consumers = {}
    for one in objects_in(data, "consumerDataSet"):
        found = objects_in(one, "subscriptionDataSet")
        if len(found) > MOST_SUBSCRIPTIONS:
            raise RemotingError(
                f"a group has {len(found)} subscriptions; {MOST_SUBSCRIPTIONS} are allowed"
            )
        consumers[_text(one, "groupName")] = dict(map(_subscription, found))
    return HeartbeatData(
        _text(data, "clientID"),
        frozenset(_text(one, "groupName") for one in objects_in(data, "producerDataSet")),
        consumers,
    )


def read_locks(body: bytes, max_bytes: int) -> LockRequest:
    """Return what a client wants to lock or unlock.

    Raises:
        RemotingError: it cannot be read, or has more than `max_bytes`.
    """
    data = read_object(body, max_bytes)
    queues = []
    for one in objects_in(data, "mqSet"):
        number = one.get("queueId")
        if isinstance(number, bool) or not isinstance(number, int):
            raise RemotingError("a queue has no number")
        queues.append(LockedQueue(_text(one, "topic"), _text(one, "brokerName"), number))
    return LockRequest(_text(data, "consumerGroup"), _text(data, "clientId"), queues)


def read_balance(body: bytes, max_bytes: int) -> BalanceRequest:
    """Return what a client wants to know of its queues.

    Raises:
        RemotingError: it cannot be read, or has more than `max_bytes`.
    """
    data = read_object(body, max_bytes)
    return BalanceRequest(
        _text(data, "topic"),
        _text(data, "consumerGroup"),
        _text(data, "clientId"),
        str(data.get("strategyName") or "AVG"),
        data.get("messageModel") == "BROADCASTING",
    )


def _subscription(data: Mapping[str, Any]) -> tuple[str, RemotingSubscription]:
    kind = data.get("expressionType")
    expression = data.get("subString") or "*"
    if not isinstance(expression, str):
        raise RemotingError("an expression is no text")
    return _text(data, "topic"), RemotingSubscription(
        expression, kind == "SQL92", data.get("classFilterMode") is True
    )


def _text(data: Mapping[str, Any], name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str) or not value:
        raise RemotingError(f"{name} is missing")
    if len(value) > MOST_NAME_CHARACTERS:
        raise RemotingError(
            f"{name} has {len(value)} characters; {MOST_NAME_CHARACTERS} are allowed"
        )
    return value
