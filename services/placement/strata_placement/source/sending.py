"""Rows to messages: ids that a repeated task gives again, requests of bounded size.

The id of a message is made of who writes it (the query and its micro-batch, or the job), the
partition and the number of the row. A task that is run again sends the same ids, and what was
stored already is stored once, while the storage nodes remember them (10 minutes or 1,000,000 ids
per raft group, by their configuration). It holds if the rows of a partition come in the same order
again, which is so for rows read from a replayable source.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from hashlib import md5
from typing import Any

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata_placement.source.options import SourceOptions
from strata_placement.source.runs import SourceError

WRITTEN_COLUMNS = ("body", "tag", "keys", "message_group", "properties")


def requests_of(
    rows: Iterable[Mapping[str, Any]], options: SourceOptions, origin: str
) -> Iterator[service_pb2.SendMessageRequest]:
    """Give the requests that send rows, in order.

    Args:
        rows: with `body` (bytes or text), and as they like `tag`, `keys`, `message_group`,
            `properties`.
        options: topic and sizes.
        origin: who writes them; the same for a task that is run again.

    Raises:
        SourceError: a row has no body.
    """
    request = service_pb2.SendMessageRequest()
    size_bytes = 0
    for number, row in enumerate(rows):
        message = _message(row, options, origin, number)
        is_full = len(request.messages) >= options.batch_messages
        if request.messages and (is_full or size_bytes + len(message.body) > options.batch_bytes):
            yield request
            request, size_bytes = service_pb2.SendMessageRequest(), 0
        request.messages.append(message)
        size_bytes += len(message.body)
    if request.messages:
        yield request


def _message(
    row: Mapping[str, Any], options: SourceOptions, origin: str, number: int
) -> definition_pb2.Message:
    body = row.get("body")
    if body is None:
        raise SourceError(f"row {number} has no body")
    message = definition_pb2.Message(
        topic=definition_pb2.Resource(resource_namespace=options.namespace, name=options.topic),
        body=body.encode() if isinstance(body, str) else bytes(body),
        user_properties=dict(row.get("properties") or {}),
    )
    properties = message.system_properties
    named = f"{origin}/{number}".encode()
    properties.message_id = f"01{md5(named, usedforsecurity=False).hexdigest().upper()}"
    properties.body_encoding = definition_pb2.IDENTITY
    properties.born_timestamp.FromMilliseconds(int(time.time() * 1_000))
    properties.born_host = "spark"
    properties.message_type = definition_pb2.NORMAL
    if row.get("message_group"):
        properties.message_group = row["message_group"]
        properties.message_type = definition_pb2.FIFO
    if row.get("tag"):
        properties.tag = row["tag"]
    properties.keys.extend(row.get("keys") or ())
    return message
