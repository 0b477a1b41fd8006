"""Bodies as RocketMQ's tools read them, and bodies of many megabytes.

Java writes a map whose keys are objects as JSON with objects in front of the colons; its tools read
nothing else.

A list of all topics or consumer groups is written piece by piece. A thread would not help: a call
of the JSON encoder holds the interpreter until it is done.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from strata_broker.base.slices import slices
from strata_broker.metadata.metadata import MetadataView, TopicRow
from strata_broker.remoting.addresses import broker_name_of
from strata_broker.remoting.answers import VERSION, json_body
from strata_broker.remoting.queue_ids import queue_numbers
from strata_remoting import RemotingCommand, ResponseCode

Row = TypeVar("Row")

LONG_SLICE = 1_000
"""Rows of a long body that are handled without a pause."""

OBJECT_KEYS = "$object keys"
"""Key of a dictionary that stands for a map with objects as keys; its value: a list of pairs."""


async def long_list(head: Mapping[str, object], name: str, values: Sequence[object]) -> bytes:
    """Return a body in JSON with the fields of `head`, at least one, and a list behind them."""
    return await _long(head, name, "[]", values, list)


async def long_table(
    head: Mapping[str, object], name: str, pairs: Sequence[tuple[str, object]]
) -> bytes:
    """Do the same with a table, of which each key occurs once."""
    return await _long(head, name, "{}", pairs, dict)


async def _long(
    head: Mapping[str, object],
    name: str,
    brackets: str,
    rows: Sequence[Row],
    shown: Callable[[Sequence[Row]], object],
) -> bytes:
    pieces = [json_body(shown(some))[1:-1] async for some in slices(rows, LONG_SLICE)]
    opening, closing = brackets.encode()[:1], brackets.encode()[1:]
    begin = json_body(head)[:-1] + b"," + json_body(name) + b":" + opening
    return begin + b",".join(pieces) + closing + b"}"


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
