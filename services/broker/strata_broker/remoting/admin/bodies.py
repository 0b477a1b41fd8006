"""Bodies as RocketMQ's tools read them.

Java writes a map whose keys are objects as JSON with objects in front of the colons; its tools read
nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from strata_broker.metadata.metadata import MetadataView, TopicRow
from strata_broker.remoting.addresses import broker_name_of
from strata_broker.remoting.answers import VERSION
from strata_broker.remoting.queue_ids import queue_numbers
from strata_remoting import RemotingCommand, ResponseCode

OBJECT_KEYS = "$object keys"
"""Key of a dictionary that stands for a map with objects as keys; its value: a list of pairs."""


def object_keyed(pairs: Iterable[tuple[dict[str, Any], Any]]) -> dict[str, Any]:
    """Return what `with_object_keys` writes as a map with objects as keys."""
    return {OBJECT_KEYS: list(pairs)}


def with_object_keys(request: RemotingCommand, value: object) -> RemotingCommand:
    """Return the answer of success with a body in Java's form of JSON."""
    body = "".join(_written(value)).encode()
    return request.answered(ResponseCode.SUCCESS, body=body, version=VERSION)


def _written(value: object) -> Iterable[str]:
    if isinstance(value, dict) and OBJECT_KEYS in value:
        yield "{"
        for number, (key, item) in enumerate(value[OBJECT_KEYS]):
            yield f"{',' if number else ''}{_plain(key)}:"
            yield from _written(item)
        yield "}"
    elif isinstance(value, dict):
        yield "{"
        for number, (name, item) in enumerate(value.items()):
            yield f"{',' if number else ''}{_plain(name)}:"
            yield from _written(item)
        yield "}"
    elif isinstance(value, list):
        yield "["
        for number, item in enumerate(value):
            if number:
                yield ","
            yield from _written(item)
        yield "]"
    else:
        yield _plain(value)


def _plain(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def shown_queue(view: MetadataView, topic: TopicRow, queue: int) -> dict[str, Any]:
    """Return a queue as a MessageQueue."""
    numbers = queue_numbers(view, topic)
    queue_id = numbers.index(queue) if queue in numbers else queue
    return {"brokerName": broker_name_of(topic.name), "queueId": queue_id, "topic": topic.name}


DATA_VERSION = {"counter": 0, "stateVersion": 0, "timestamp": 0}
"""Version of tables that RocketMQ's brokers copy from each other; nobody copies ours."""
