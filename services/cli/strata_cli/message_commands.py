"""The commands of `strata message`; `topic` and `common` are described by their types."""

# ruff: noqa: D417

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from apache.rocketmq.v2 import definition_pb2
from strata.admin.v1 import admin_pb2
from strata_cli import messaging
from strata_cli.client import connect
from strata_cli.options import COMMON, CliError, Common, milliseconds, pairs
from strata_cli.output import show
from strata_cli.views import found_message_view, message_view

Topic = Annotated[str, Parameter(help="Name of the topic.")]

MIN_INVISIBLE_MS = 10_000

app = App(name="message", help="Messages.")


@app.command
def send(
    topic: Topic,
    /,
    *,
    body: str,
    tag: str = "",
    key: Annotated[list[str] | None, Parameter(negative="")] = None,
    group: str = "",
    property: Annotated[list[str] | None, Parameter(negative="")] = None,
    common: Common = COMMON,
) -> None:
    """Send a message.

    For instance: strata message send orders --body "two pizzas" --tag food --key order-17

    Args:
        body: Text of the message.
        tag: Tag to filter by.
        key: Key to find the message by; may be repeated.
        group: Message group: makes it a FIFO message, delivered in order within the group.
        property: KEY=VALUE given to the consumer; may be repeated.
    """
    outgoing = messaging.Outgoing(
        topic=definition_pb2.Resource(resource_namespace=common.namespace, name=topic),
        body=body.encode(),
        tag=tag,
        keys=key or [],
        message_group=group,
        properties=pairs(property),
    )
    with connect(common) as client:
        receipt = messaging.send(client, outgoing)
    result = {
        "message_id": receipt.message_id,
        "topic": topic,
        "offset": receipt.offset,
        "transaction_id": receipt.transaction_id,
    }
    show(result, common)


@app.command
def receive(
    topic: Topic,
    /,
    *,
    group: str,
    count: int = 1,
    ack: Annotated[bool, Parameter(negative="")] = False,
    tag: str = "*",
    wait: str = "5s",
    invisible: str = "30s",
    common: Common = COMMON,
) -> None:
    """Receive messages as a simple consumer; without --ack they come again later.

    For instance: strata message receive orders --group billing --count 10 --ack

    Args:
        group: Consumer group; made by its first use where the broker allows it.
        count: Most messages to receive.
        ack: Tell the broker that they are consumed.
        tag: Tag filter: a tag, "a || b" or *.
        wait: How long to wait for a first message.
        invisible: How long others do not get a message that is not acked, 10s to 12h.
    """
    if count < 1:
        raise CliError(f"--count {count}: ask for at least one message")
    if milliseconds(invisible) < MIN_INVISIBLE_MS:
        raise CliError(f"--invisible {invisible}: at least 10s")
    source = definition_pb2.Resource(resource_namespace=common.namespace, name=topic)
    consumer = definition_pb2.Resource(resource_namespace=common.namespace, name=group)
    with connect(common) as client:
        messages = messaging.receive(
            client,
            source,
            consumer,
            count=count,
            tag=tag,
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
    """Find messages; nothing is consumed.

    For instance: strata message show orders --key order-17

    Args:
        id: By message id.
        key: By key.
        offset: By queue and offset, as Q:N.
        count: Most messages to show.
    """
    request = admin_pb2.FindMessagesRequest(
        namespace=common.namespace, topic=topic, max_messages=max(count, 1)
    )
    if [id, key, offset].count(None) != 2:
        raise CliError("give one of --id, --key and --offset")
    if id is not None:
        request.message_id = id
    elif key is not None:
        request.key = key
    else:
        queue, colon, number = str(offset).partition(":")
        if not (colon and queue.isdigit() and number.isdigit()):
            raise CliError(f"--offset {offset}: write QUEUE:OFFSET, like 3:1200")
        request.position.queue = int(queue)
        request.position.offset = int(number)
    with connect(common) as client:
        response = client.call(client.admin.FindMessages, request)
    views = [found_message_view(found) for found in response.messages]
    columns = ("message_id", "tag", "keys", "body", "queue", "offset", "store_time_ms")
    show({"messages": views}, common, rows="messages", columns=columns)
