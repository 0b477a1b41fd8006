"""The commands of `strata message`; `topic` and `common` are described by their types."""

# ruff: noqa: D417

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import IO, Annotated

from cyclopts import App, Parameter

from apache.rocketmq.v2 import definition_pb2
from strata.admin.v1 import admin_pb2
from strata_cli import messaging, sending
from strata_cli.client import connect
from strata_cli.errors import UsageError
from strata_cli.options import COMMON, Common, milliseconds, pairs, time_ms
from strata_cli.output import MessagePrinter, show
from strata_cli.tailing import TailRequest, check_begin, read
from strata_cli.views import View, found_message_view, message_view, trace_view

Topic = Annotated[str, Parameter(help="Name of the topic.")]
Follow = Annotated[
    bool,
    Parameter(
        name=["--follow", "-f"], negative="", help="Go on with messages that come, until Ctrl-C."
    ),
]
Template = Annotated[
    str | None,
    Parameter(
        help="Print messages by this template of fields in braces, like '{offset} {body}\\n': the "
        "keys of -o json, and store_time, born_time, property.NAME. A line ends where \\n is."
    ),
]

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
    lines: Annotated[bool, Parameter(negative="")] = False,
    records: Annotated[bool, Parameter(negative="")] = False,
    count: int | None = None,
    tag: str = "",
    key: Annotated[list[str] | None, Parameter(negative="")] = None,
    group: str = "",
    delay: str = "",
    at: str = "",
    priority: int | None = None,
    property: Annotated[list[str] | None, Parameter(negative="")] = None,
    common: Common = COMMON,
) -> None:
    """Send a message, or many: lines of a file or of standard input, or copies of one body.

    With --lines, --records or --count the texts of --tag, --key, --group and --property, and of
    --body with --count, may hold {n} (number of the message, from 1), {line} (its line of input),
    {uuid} and {now_ms}.

    For instance: strata message send orders --body "two pizzas" --tag food --key order-17

    Args:
        body: Text of the message; - reads it from standard input.
        file: File whose bytes are the message, instead of --body; - is standard input.
        lines: Each line of the file, or of standard input, is a message; empty lines are skipped.
        records: Each line is a JSON object, as strata message tail -o json prints it.
        count: Send the message this many times.
        tag: Tag to filter by.
        key: Key to find the message by; may be repeated.
        group: Message group of a FIFO message; messages of one group are delivered in order.
        delay: Deliver the message after this time (90s, 2h); the topic must be of type DELAY.
        at: Deliver the message at this time (ISO 8601 or milliseconds since 1970).
        priority: Priority, 0 or more; higher ones are delivered first. The topic must be of type
            PRIORITY.
        property: Property KEY=VALUE for the consumer; may be repeated.
    """
    if [bool(group), bool(delay), bool(at), priority is not None].count(True) > 1:
        raise UsageError("give at most one of --group, --delay, --at and --priority")
    outgoing = messaging.Outgoing(
        topic=definition_pb2.Resource(resource_namespace=common.namespace, name=topic),
        body=b"",
        tag=tag,
        keys=key or [],
        message_group=group,
        properties=pairs(property),
        deliver_at_ms=_deliver_at_ms(delay, at),
        priority=priority,
    )
    many = [lines, records, count is not None].count(True)
    if many > 1:
        raise UsageError("give at most one of --lines, --records and --count")
    if count is not None and count < 1:
        raise UsageError(f"--count {count}: send at least one message")
    if lines or records:
        if body not in (None, "-"):
            raise UsageError("lines come from --file or standard input, not from --body")
        _send_lines(outgoing, file, common, as_records=records)
        return
    outgoing = replace(outgoing, body=_body(body, file))
    if count is not None:
        _send_many(sending.copies(outgoing, count), topic, common)
    else:
        _send_one(outgoing, common)


def _send_one(outgoing: messaging.Outgoing, common: Common) -> None:
    with connect(common) as client:
        receipt = messaging.send(client, outgoing)
    result = {
        "message_id": receipt.message_id,
        "topic": outgoing.topic.name,
        "offset": receipt.offset,
        "transaction_id": receipt.transaction_id,
    }
    if receipt.recall_handle:
        result["recall_handle"] = receipt.recall_handle
    show(result, common)


def _send_lines(
    outgoing: messaging.Outgoing, file: Path | None, common: Common, *, as_records: bool
) -> None:
    read_lines = sending.records if as_records else sending.lines
    with ExitStack() as stack:
        source: IO[bytes] = sys.stdin.buffer
        if file is not None and str(file) != "-":
            source = stack.enter_context(file.open("rb"))
        _send_many(read_lines(outgoing, source), outgoing.topic.name, common)


def _send_many(messages: Iterable[messaging.Outgoing], topic: str, common: Common) -> None:
    with connect(common) as client:
        show({"topic": topic, **sending.send_all(client, messages)}, common)


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
    count: int | None = None,
    ack: Annotated[bool, Parameter(negative="")] = False,
    follow: Follow = False,
    format: Template = None,
    tag: str = "*",
    sql: str = "",
    wait: str = "5s",
    invisible: str = "30s",
    common: Common = COMMON,
) -> None:
    """Receive messages as a simple consumer; messages without --ack are delivered again later.

    With --follow each message is printed when it arrives, and acked once it is printed.

    For instance: strata message receive orders --group billing --count 10 --ack

    Args:
        group: Consumer group; created on first use where the broker allows it.
        count: Most messages to receive; default: 1, with --follow no limit.
        ack: Ack the messages.
        tag: Tag filter: a tag, "a || b" or *.
        sql: SQL92 filter instead of a tag: "amount > 10 AND region = 'north'".
        wait: Longest time to wait for the first message.
        invisible: Time until a message without an ack is delivered again, 10s to 12h.
    """
    if count is not None and count < 1:
        raise UsageError(f"--count {count}: ask for at least one message")
    if milliseconds(invisible) < MIN_INVISIBLE_MS:
        raise UsageError(f"--invisible {invisible}: give at least 10s")
    printer = MessagePrinter(common, format)
    wanted = messaging.ConsumerWish(
        topic=definition_pb2.Resource(resource_namespace=common.namespace, name=topic),
        group=definition_pb2.Resource(resource_namespace=common.namespace, name=group),
        tag=tag,
        sql=sql,
        invisible_s=milliseconds(invisible) / 1_000,
    )
    with connect(common) as client:
        if follow or format is not None:
            limit = count if follow or count is not None else 1
            wait_s = None if follow else milliseconds(wait) / 1_000
            for message in messaging.receive_each(client, wanted, limit, wait_s=wait_s):
                view = message_view(message)
                printer.print(view)
                if ack:
                    messaging.acknowledge(client, wanted.group, [message])
            return
        messages = messaging.receive_some(
            client, wanted, count=count or 1, wait_s=milliseconds(wait) / 1_000
        )
        acked = messaging.acknowledge(client, wanted.group, messages) if ack else set()
    views = []
    for message in messages:
        view = message_view(message)
        views.append(view | {"acked": view["receipt_handle"] in acked})
    columns = ("message_id", "tag", "body", "queue", "offset", "delivery_attempt", "acked")
    show({"messages": views}, common, rows="messages", columns=columns)


@app.command
def tail(
    topic: Topic,
    /,
    *,
    follow: Follow = False,
    begin: Annotated[str, Parameter(name="--from")] = "",
    queue: int | None = None,
    tag: str = "",
    count: int | None = None,
    format: Template = None,
    common: Common = COMMON,
) -> None:
    r"""Print the messages of a topic, one per line; nothing is consumed, no consumer group is used.

    Without --from it begins with the newest 10 messages. Messages of several queues are merged by
    the time they were stored.

    For instance: strata message tail orders -f --format '{store_time} {body}\n'

    Args:
        begin: Begin here: earliest, latest, an offset (of each queue), or a time (ISO 8601 or
            milliseconds since 1970).
        queue: Only messages of this queue.
        tag: Only messages with one of these tags: a tag, or "a || b".
        count: End after this many messages.
    """
    if count is not None and count < 1:
        raise UsageError(f"--count {count}: ask for at least one message")
    check_begin(begin)
    printer = MessagePrinter(common, format)
    wanted = TailRequest(
        topic=topic,
        namespace=common.namespace,
        begin=begin,
        queue=queue,
        tag=tag,
        count=count,
        follows=follow,
    )
    with connect(common) as client:
        for view in read(client, wanted):
            printer.print(view)


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


def _deliver_at_ms(delay: str, at: str) -> int:
    """Return when a message is to be delivered, since 1970; 0: at once."""
    if delay:
        return round(time.time() * 1_000) + milliseconds(delay)
    return time_ms(at) if at else 0


def _body(body: str | None, file: Path | None) -> bytes:
    if (body is None) == (file is None):
        raise UsageError("give --body or --file")
    if body == "-" or str(file) == "-":
        return sys.stdin.buffer.read()
    # The bytes as they were typed, even if they are not valid text.
    return file.read_bytes() if file is not None else os.fsencode(str(body))


def _position(text: str) -> admin_pb2.MessagePosition:
    queue, colon, number = text.partition(":")
    if not (colon and queue.isdigit() and number.isdigit()):
        raise UsageError(f"--offset {text}: write QUEUE:OFFSET, like 3:1200")
    return admin_pb2.MessagePosition(queue=int(queue), offset=int(number))
