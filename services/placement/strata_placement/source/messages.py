"""Messages as columns: the schema of the data source, and Arrow batches of it.

A reader that names fewer columns (`spark.read.schema(...)`) gets only these made, and a message is
only parsed for a column that lies in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa

from apache.rocketmq.v2 import definition_pb2
from strata_placement.source.runs import StoredRun

SCHEMA = (
    "namespace string, topic string, queue int, offset bigint, message_id string, "
    "message_type string, tag string, keys array<string>, message_group string, body binary, "
    "properties map<string,string>, headers map<string,string>, "
    "born_time timestamp, store_time timestamp"
)
"""As Spark's DDL. `properties` are the producer's own; `headers` are those of the protocol that
have no column: born_host, body_encoding, trace_context, delivery_time_ms, priority, lite_topic."""

_TIME = pa.timestamp("us", tz="UTC")
_MAP = pa.map_(pa.string(), pa.string())

SystemProperties = definition_pb2.SystemProperties


class _Parsed:
    """A run whose messages are parsed when a column asks for them."""

    def __init__(self, run: StoredRun) -> None:
        self.run = run

    @cached_property
    def messages(self) -> list[definition_pb2.Message]:
        parse = definition_pb2.Message.FromString
        return [parse(message) for message in self.run.messages]

    @cached_property
    def properties(self) -> list[SystemProperties]:
        return [message.system_properties for message in self.messages]


def record_batch(run: StoredRun, columns: Sequence[str]) -> pa.RecordBatch:
    """Return a run as an Arrow batch with these columns, in this order.

    Raises:
        KeyError: there is no such column.
    """
    parsed = _Parsed(run)
    arrays = [_COLUMNS[name](parsed) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


Column = Callable[[_Parsed], pa.Array]


def _of_messages(kind: pa.DataType, value: Callable[[definition_pb2.Message], Any]) -> Column:
    return lambda parsed: pa.array([value(each) for each in parsed.messages], type=kind)


def _of_properties(kind: pa.DataType, value: Callable[[SystemProperties], Any]) -> Column:
    return lambda parsed: pa.array([value(each) for each in parsed.properties], type=kind)


def _store_times(parsed: _Parsed) -> pa.Array:
    times_us = [time_ms * 1_000 for time_ms in parsed.run.store_times_ms]
    return pa.array(times_us, type=_TIME)


def _headers(properties: SystemProperties) -> list[tuple[str, str]]:
    headers = [
        ("born_host", properties.born_host),
        ("body_encoding", definition_pb2.Encoding.Name(properties.body_encoding)),
        ("trace_context", properties.trace_context),
        ("lite_topic", properties.lite_topic),
    ]
    if properties.HasField("delivery_timestamp"):
        headers.append(("delivery_time_ms", str(properties.delivery_timestamp.ToMilliseconds())))
    if properties.HasField("priority"):
        headers.append(("priority", str(properties.priority)))
    return [(name, text) for name, text in headers if text]


def _tag(properties: SystemProperties) -> str | None:
    return properties.tag if properties.HasField("tag") else None


def _message_group(properties: SystemProperties) -> str | None:
    return properties.message_group if properties.HasField("message_group") else None


_COLUMNS: dict[str, Column] = {
    "namespace": _of_messages(pa.string(), lambda each: each.topic.resource_namespace),
    "topic": _of_messages(pa.string(), lambda each: each.topic.name),
    "queue": lambda parsed: pa.repeat(
        pa.scalar(parsed.run.queue, pa.int32()), len(parsed.run.offsets)
    ),
    "offset": lambda parsed: pa.array(parsed.run.offsets, type=pa.int64()),
    "message_id": _of_properties(pa.string(), lambda each: each.message_id),
    "message_type": _of_properties(
        pa.string(), lambda each: definition_pb2.MessageType.Name(each.message_type)
    ),
    "tag": _of_properties(pa.string(), _tag),
    "keys": _of_properties(pa.list_(pa.string()), lambda each: list(each.keys)),
    "message_group": _of_properties(pa.string(), _message_group),
    "body": _of_messages(pa.binary(), lambda each: each.body),
    "properties": _of_messages(_MAP, lambda each: list(each.user_properties.items())),
    "headers": _of_properties(_MAP, _headers),
    "born_time": _of_properties(_TIME, lambda each: each.born_timestamp.ToMicroseconds()),
    "store_time": _store_times,
}

COLUMN_NAMES = tuple(_COLUMNS)
