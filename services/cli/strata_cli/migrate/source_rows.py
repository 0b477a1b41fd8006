"""A RocketMQ cluster's description of itself: brokers, topics, consumer groups, offsets.

RocketMQ writes these as JSON by a library that leaves the quotes of numeric keys out
(`{0:17}`); `parse_json` puts them back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from strata_cli.errors import CliError

# A string, to be left alone, or a numeric key without quotes.
_BARE_KEY = re.compile(r'"(?:[^"\\]|\\.)*"|(?<=[{,])\s*(-?\d+)\s*:')
_MASTER = "0"
READABLE, WRITABLE = 4, 2
"""Bits of a topic's permission."""


class SourceQueue(NamedTuple):
    """A queue of the source.

    Attributes:
        topic: its name at the source.
        broker: name of its broker.
        queue: its number under that broker.
    """

    topic: str
    broker: str
    queue: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.broker}/{self.queue}"


@dataclass(frozen=True, slots=True)
class SourceBroker:
    """A master of the source.

    Attributes:
        name: broker name.
        cluster: name of its cluster.
        address: HOST:PORT.
    """

    name: str
    cluster: str
    address: str


@dataclass(frozen=True, slots=True)
class SourceTopic:
    """A topic at one broker.

    Attributes:
        name: its name.
        read_queues: queues that consumers read.
        write_queues: queues that producers write.
        permission: bits `READABLE` and `WRITABLE`.
        message_type: the attribute `message.type`; "": it has none, as every topic before 5.0.
        is_ordered: the topic's flag `order`.
    """

    name: str
    read_queues: int
    write_queues: int
    permission: int
    message_type: str = ""
    is_ordered: bool = False


@dataclass(frozen=True, slots=True)
class SourceGroup:
    """A consumer group at one broker.

    Attributes:
        name: its name.
        is_orderly: whether it consumes in order (`consumeMessageOrderly`).
        max_retries: redeliveries before a message becomes a dead letter.
        delays_ms: delays before redeliveries, if its policy lists them.
        exponential_ms: (initial, longest, multiplier) of growing delays.
    """

    name: str
    is_orderly: bool
    max_retries: int
    delays_ms: tuple[int, ...] = ()
    exponential_ms: tuple[int, int, float] | None = None


@dataclass(frozen=True, slots=True)
class BrokerDescription:
    """All that one broker says.

    Attributes:
        broker: which one.
        topics: by name.
        groups: by name.
        positions: (consumer group, topic) -> queue -> offset.
    """

    broker: SourceBroker
    topics: Mapping[str, SourceTopic] = field(default_factory=dict)
    groups: Mapping[str, SourceGroup] = field(default_factory=dict)
    positions: Mapping[tuple[str, str], Mapping[int, int]] = field(default_factory=dict)


def parse_json(data: bytes, what: str) -> dict[str, Any]:
    """Return an object that RocketMQ wrote; "" is an empty one.

    Raises:
        CliError: it is no JSON object.
    """
    text = data.decode(errors="replace")

    def quoted(found: re.Match[str]) -> str:
        return found[0] if found[1] is None else f'"{found[1]}":'

    try:
        value = json.loads(_BARE_KEY.sub(quoted, text) or "{}")
    except ValueError as error:
        raise CliError(f"{what} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise CliError(f"{what} is no JSON object")
    return value


def brokers_of(data: bytes) -> list[SourceBroker]:
    """Return the masters in a cluster's description, by name."""
    table = parse_json(data, "the description of the cluster").get("brokerAddrTable") or {}
    brokers = []
    for name, row in sorted(table.items()):
        address = (row.get("brokerAddrs") or {}).get(_MASTER, "")
        if address:
            brokers.append(SourceBroker(name, str(row.get("cluster", "")), address))
    return brokers


def topics_of(data: bytes) -> dict[str, SourceTopic]:
    """Return the topics of a broker by name."""
    table = parse_json(data, "the list of topics").get("topicConfigTable") or {}
    return {name: _topic(name, row) for name, row in sorted(table.items())}


def groups_of(data: bytes) -> dict[str, SourceGroup]:
    """Return the consumer groups of a broker by name."""
    table = parse_json(data, "the list of consumer groups").get("subscriptionGroupTable") or {}
    return {name: _group(name, row) for name, row in sorted(table.items())}


def positions_of(data: bytes) -> dict[tuple[str, str], dict[int, int]]:
    """Return (consumer group, topic) -> queue -> offset."""
    table = parse_json(data, "the list of offsets").get("offsetTable") or {}
    positions = {}
    for key, offsets in table.items():
        topic, at, group = key.partition("@")
        if at:
            positions[group, topic] = {
                int(queue): int(offset) for queue, offset in (offsets or {}).items()
            }
    return positions


def _topic(name: str, row: Mapping[str, Any]) -> SourceTopic:
    attributes = row.get("attributes") or {}
    return SourceTopic(
        name,
        int(row.get("readQueueNums", 0)),
        int(row.get("writeQueueNums", 0)),
        int(row.get("perm", READABLE | WRITABLE)),
        str(attributes.get("message.type", "")).upper(),
        bool(row.get("order", False)),
    )


def _group(name: str, row: Mapping[str, Any]) -> SourceGroup:
    policy = row.get("groupRetryPolicy") or {}
    growing = policy.get("exponentialRetryPolicy") or {}
    listed = policy.get("customizedRetryPolicy") or {}
    exponential = None
    if policy.get("type") == "EXPONENTIAL" and growing:
        exponential = (
            int(growing.get("initial", 5_000)),
            int(growing.get("max", 7_200_000)),
            float(growing.get("multiplier", 2)),
        )
    delays = listed.get("next") or () if policy.get("type") == "CUSTOMIZED" else ()
    return SourceGroup(
        name,
        bool(row.get("consumeMessageOrderly", False)),
        int(row.get("retryMaxTimes", 16)),
        tuple(int(delay) for delay in delays),
        exponential,
    )
