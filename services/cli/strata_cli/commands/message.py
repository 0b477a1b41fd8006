"""The commands of `strata message`; `topic` and `common` are described by their types."""

# ruff: noqa: D417

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from apache.rocketmq.v2 import definition_pb2
from strata.admin.v1 import admin_pb2
from strata_cli import messaging
from strata_cli.client import connect
from strata_cli.options import COMMON, Common, UsageError, milliseconds, pairs, time_ms
from strata_cli.output import show
from strata_cli.views import View, found_message_view, message_view, trace_view

Topic = Annotated[str, Parameter(help="Name of the topic.")]

MIN_INVISIBLE_MS = 10_000
MAX_PAGE = 1_000

app = App(name="message", help="Messages.")


@app.command
def send(
    topic: Topic,
    /,
    *,
    body: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    file: Path | None = None,
    tag: str = "",
    key: Annotated[list[str] | None, Parameter(negative="")] = None,
    group: str = "",
    delay: str = "",
    at: str = "",
    property: Annotated[list[str] | None, Parameter(negative="")] = None,
    common: Common = COMMON,
) -> None:
    """Send a message.

    For instance: strata message send orders --body "two pizzas" --tag food --key order-17

    Args:
        body: Text of the message; - reads it from standard input.
        file: File whose bytes are the message, instead of --body.
        tag: Tag to filter by.
        key: Key to find the message by; may be repeated.
        group: Message group of a FIFO message; messages of one group are delivered in order.
        delay: Deliver the message after this time (90s, 2h); the topic must be of type DELAY.
        at: Deliver the message at this time (ISO 8601 or milliseconds since 1970).
        property: Property KEY=VALUE for the consumer; may be repeated.
    """
    if [bool(group), bool(delay), bool(at)].count(True) > 1:
        raise UsageError("give at most one of --group, --delay and --at")
    deliver_at_ms = time_ms(at) if at else 0
    if delay:
        deliver_at_ms = round(time.time() * 1_000) + milliseconds(delay)
    outgoing = messaging.Outgoing(
        topic=definition_pb2.Resource(resource_namespace=common.namespace, name=topic),
        body=_body(body, file),
        tag=tag,
        keys=key or [],
        message_group=group,
        properties=pairs(property),
        deliver_at_ms=deliver_at_ms,
    )
    with connect(common) as client:
        receipt = messaging.send(client, outgoing)
    result = {
        "message_id": receipt.message_id,
        "topic": topic,
        "offset": receipt.offset,
        "transaction_id": receipt.transaction_id,
    }
    if receipt.recall_handle:
        result["recall_handle"] = receipt.recall_handle
    show(result, common)


@app.command
def recall(topic: Topic, recall_handle: str, /, *, common: Common = COMMON) -> None:
    """Recall a delayed message that is not due yet.

    For instance: strata message recall reminders djEgcmVtaW5kZXJz...

    Args:
        recall_handle: Recall handle that the send returned.
    """
    resource = definition_pb2.Resource(resource_namespace=common.namespace, name=topic)
    with connect(common) as client:
        message_id = messaging.recall(client, resource, recall_handle)
    show({"message_id": message_id, "topic": topic}, common)


@app.command
def receive(
    topic: Topic,
    /,
    *,
    group: str,
    count: int = 1,
    ack: Annotated[bool, Parameter(negative="")] = False,
    tag: str = "*",
    sql: str = "",
    wait: str = "5s",
    invisible: str = "30s",
    common: Common = COMMON,
) -> None:
    """Receive messages as a simple consumer; messages without --ack are delivered again later.

    For instance: strata message receive orders --group billing --count 10 --ack

    Args:
        group: Consumer group; created on first use where the broker allows it.
        count: Most messages to receive.
        ack: Ack the messages.
        tag: Tag filter: a tag, "a || b" or *.
        sql: SQL92 filter instead of a tag: "amount > 10 AND region = 'north'".
        wait: Longest time to wait for the first message.
        invisible: Time until a message without an ack is delivered again, 10s to 12h.
    """
    if count < 1:
        raise UsageError(f"--count {count}: ask for at least one message")
    if milliseconds(invisible) < MIN_INVISIBLE_MS:
        raise UsageError(f"--invisible {invisible}: give at least 10s")
    source = definition_pb2.Resource(resource_namespace=common.namespace, name=topic)
    consumer = definition_pb2.Resource(resource_namespace=common.namespace, name=group)
    with connect(common) as client:
        messages = messaging.receive(
            client,
            source,
            consumer,
            count=count,
            tag=tag,
            sql=sql,
            wait_s=milliseconds(wait) / 1_000,
            invisible_s=milliseconds(invisible) / 1_000,
        )
        acked = messaging.acknowledge(client, consumer, messages) if ack else set()
    views = []
    for message in messages:
        view = message_view(message)
        views.append(view | {"acked": view["receipt_handle"] in acked})
    columns = ("message_id", "tag", "body", "queue", "offset", "delivery_attempt", "acked")
    show({"messages": views}, common, rows="messages", columns=columns)


@app.command(name="show")
def show_(
    topic: Topic,
    /,
    *,
    id: str | None = None,
    key: str | None = None,
    offset: str | None = None,
    count: int = 32,
    common: Common = COMMON,
) -> None:
    """Find messages by id, key or offset; nothing is consumed.

    For instance: strata message show orders --key order-17

    Args:
        id: Message id to look for.
        key: Key to look for.
        offset: Queue and offset of the message, as Q:N.
        count: Most messages to show.
    """
    request = admin_pb2.FindMessagesRequest(
        namespace=common.namespace, topic=topic, max_messages=max(count, 1)
    )
    if [id, key, offset].count(None) != 2:
        raise UsageError("give one of --id, --key and --offset")
    if id is not None:
        request.message_id = id
    elif key is not None:
        request.key = key
    else:
        request.position.CopyFrom(_position(str(offset)))
    with connect(common) as client:
        response = client.call(client.admin.FindMessages, request)
    views = [found_message_view(found) for found in response.messages]
    columns = ("message_id", "tag", "keys", "body", "queue", "offset", "store_time_ms")
    show({"messages": views}, common, rows="messages", columns=columns)


@app.command
def query(
    topic: Topic,
    /,
    *,
    begin: Annotated[str, Parameter(name="--from")] = "",
    end: Annotated[str, Parameter(name="--to")] = "",
    key: str | None = None,
    tag: str = "",
    queue: int | None = None,
    count: int = 32,
    page: str = "",
    common: Common = COMMON,
) -> None:
    """Find messages by the time they were stored, by key and by tag; nothing is consumed.

    Messages are sorted by queue and offset. Without any filter, all retained messages are shown,
    page by page.

    For instance: strata message query orders --from 2026-11-21T12:30:00Z --tag food

    Args:
        begin: Only messages stored at this time or later (ISO 8601 or milliseconds since 1970).
        end: Only messages stored before this time.
        key: Only messages with this key.
        tag: Only messages with one of these tags: a tag, or "a || b".
        queue: Only messages of this queue.
        count: Most messages to show.
        page: Continue at this place: `next_page` of the previous answer.
    """
    if count < 1:
        raise UsageError(f"--count {count}: ask for at least one message")
    request = admin_pb2.FindMessagesRequest(
        namespace=common.namespace, topic=topic, tag=tag, page_token=page
    )
    request.begin_ms = time_ms(begin) if begin else 0
    if end:
        request.end_ms = time_ms(end)
    if key is not None:
        request.key = key
    if queue is not None:
        request.queue = queue
    views: list[View] = []
    with connect(common) as client:
        while True:
            request.max_messages = min(count - len(views), MAX_PAGE)
            response = client.call(client.admin.FindMessages, request)
            views.extend(map(found_message_view, response.messages))
            request.page_token = response.next_page_token
            if not response.next_page_token or len(views) >= count:
                break
    columns = ("message_id", "tag", "keys", "body", "queue", "offset", "store_time_ms")
    result = {"messages": views, "next_page": request.page_token}
    show(result, common, rows="messages", columns=columns)


@app.command
def trace(
    id: str = "", /, *, topic: str, offset: str | None = None, common: Common = COMMON
) -> None:
    """Trace a message: its producer, its place, its deliveries and its acks.

    The steps of consumer groups are kept as long as messages of the same day. A message that a
    filter skipped has no steps.

    For instance: strata message trace 0102FC00000001476B0B12F80A00000000 --topic orders

    Args:
        id: Message id.
        topic: Topic of the message.
        offset: Queue and offset of the message instead of an id, as Q:N.
    """
    request = admin_pb2.TraceMessageRequest(namespace=common.namespace, topic=topic)
    if bool(id) == (offset is not None):
        raise UsageError("give a message id or --offset")
    if offset is None:
        request.message_id = id
    else:
        request.position.CopyFrom(_position(offset))
    with connect(common) as client:
        traced = client.call(client.admin.TraceMessage, request).messages
    *others, newest = map(trace_view, traced)
    result = newest | {"also_at": [f"{other['queue']}:{other['offset']}" for other in others]}
    columns = ("time_ms", "consumer_group", "what", "attempt", "client_id", "visible_at_ms")
    show(result, common, rows="steps", columns=columns)


def _body(body: str | None, file: Path | None) -> bytes:
    if (body is None) == (file is None):
        raise UsageError("give --body or --file")
    if file is not None:
        return file.read_bytes()
    # The bytes as they were typed, even if they are not valid text.
    return sys.stdin.buffer.read() if body == "-" else os.fsencode(str(body))


def _position(text: str) -> admin_pb2.MessagePosition:
    queue, colon, number = text.partition(":")
    if not (colon and queue.isdigit() and number.isdigit()):
        raise UsageError(f"--offset {text}: write QUEUE:OFFSET, like 3:1200")
    return admin_pb2.MessagePosition(queue=int(queue), offset=int(number))
