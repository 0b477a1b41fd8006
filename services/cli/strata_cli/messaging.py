"""A small producer and consumer over apache.rocketmq.v2, for one command each.

A consumer polls the broker names of a topic in turn, each for a moment only: a long poll on one
broker name would delay messages of the other ones, and polls on all of them at once would lease
more messages than were asked for.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata_cli.client import AdminClient, plain
from strata_cli.errors import CliError

Sending = Any
"""A send in flight: grpcio's call, which is a future of a `SendMessageResponse`."""

MAX_BATCH = 32
"""Most messages of one receive call; the server takes no more."""

_PATIENCE_S = 0.5
_RETRY_S = 1.0
_LONG_POLLING_S = 5
_ANY_QUEUE = -1
_ID_EPOCH_S = 1_609_459_200  # 2021-01-01T00:00:00Z, the origin of the time in a message id


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """Fields of a message; empty texts are left out.

    Attributes:
        deliver_at_ms: when it is to be delivered, since 1970; 0: at once.
        priority: 0 or more, of a message of type PRIORITY; None: it has none.
    """

    topic: definition_pb2.Resource
    body: bytes
    tag: str
    keys: list[str]
    message_group: str
    properties: dict[str, str]
    deliver_at_ms: int = 0
    priority: int | None = None


def send(client: AdminClient, outgoing: Outgoing) -> service_pb2.SendResultEntry:
    """Send one message and return its receipt.

    Raises:
        CliError: the broker refused it.
    """
    request = service_pb2.SendMessageRequest(messages=[_message(outgoing)])
    response = client.call(client.messaging.SendMessage, request)
    _require_ok(response.status)
    return response.entries[0]


def send_soon(client: AdminClient, outgoing: Outgoing) -> Sending:
    """Begin to send a message; `receipt_of` waits for its receipt."""
    request = service_pb2.SendMessageRequest(messages=[_message(outgoing)])
    call: Sending = client.messaging.SendMessage.future(
        request, timeout=client.timeout_s, metadata=client.metadata()
    )
    return call


def receipt_of(client: AdminClient, call: Sending) -> service_pb2.SendResultEntry:
    """Return the receipt of a message that was sent with `send_soon`.

    Raises:
        CliError: the broker refused it.
    """
    try:
        response: service_pb2.SendMessageResponse = call.result()
    except grpc.RpcError as error:
        raise client.failure(error) from None
    _require_ok(response.status)
    return response.entries[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerWish:
    """A simple consumer's wish.

    Attributes:
        tag: tag filter; used unless there is an SQL92 filter.
        invisible_s: time until a message without an ack is delivered again.
    """

    topic: definition_pb2.Resource
    group: definition_pb2.Resource
    tag: str = "*"
    sql: str = ""
    invisible_s: float = 30.0


def receive(
    client: AdminClient,
    topic: definition_pb2.Resource,
    group: definition_pb2.Resource,
    *,
    count: int,
    tag: str,
    wait_s: float,
    invisible_s: float,
    sql: str = "",
) -> list[definition_pb2.Message]:
    """Receive messages as `receive_some` does."""
    wanted = ConsumerWish(topic=topic, group=group, tag=tag, sql=sql, invisible_s=invisible_s)
    return receive_some(client, wanted, count=count, wait_s=wait_s)


def receive_some(
    client: AdminClient, wanted: ConsumerWish, *, count: int, wait_s: float
) -> list[definition_pb2.Message]:
    """Receive up to `count` messages that pass the filter.

    It returns when there are `count` messages, when there are some and no queue has more at the
    moment, or when none arrived within `wait_s`.

    Raises:
        CliError: the broker refused the call.
    """
    poll = _Poll(client, wanted)
    messages: list[definition_pb2.Message] = []
    deadline_s = time.monotonic() + wait_s
    while len(messages) < count:
        before = len(messages)
        messages.extend(poll.round(count - before))
        if len(messages) == before and (messages or time.monotonic() >= deadline_s):
            break
    return messages


def receive_each(
    client: AdminClient, wanted: ConsumerWish, count: int | None, *, wait_s: float | None
) -> Iterator[definition_pb2.Message]:
    """Yield messages as they arrive: at most `count`, and until none arrived for `wait_s`.

    Args:
        client: connection.
        wanted: which messages.
        count: None: no limit.
        wait_s: None: wait forever; a broker that cannot be reached is asked again.

    Raises:
        CliError: the broker refused the call.
    """
    poll = _Poll(client, wanted)
    left, deadline_s = count, time.monotonic() + (wait_s or 0.0)
    while left is None or left > 0:
        some = 0
        try:
            for message in poll.round(MAX_BATCH if left is None else left):
                some += 1
                yield message
        except CliError as error:
            if wait_s is not None or error.code != "unreachable":
                raise
            time.sleep(_RETRY_S)
        left = None if left is None else left - some
        if some:
            deadline_s = time.monotonic() + (wait_s or 0.0)
        elif wait_s is not None and time.monotonic() >= deadline_s:
            return


class _Poll:
    """Asks the broker names of a topic in turn."""

    def __init__(self, client: AdminClient, wanted: ConsumerWish) -> None:
        self._client = client
        self._queues = _queues(client, wanted.topic)
        self._request = service_pb2.ReceiveMessageRequest(
            group=wanted.group,
            filter_expression=definition_pb2.FilterExpression(
                type=definition_pb2.SQL if wanted.sql else definition_pb2.TAG,
                expression=wanted.sql or wanted.tag,
            ),
            long_polling_timeout=Duration(seconds=_LONG_POLLING_S),
        )
        self._request.invisible_duration.FromNanoseconds(round(wanted.invisible_s * 1e9))

    def round(self, count: int) -> Iterator[definition_pb2.Message]:
        """Ask each broker name once; yield at most `count` messages."""
        request = self._request
        for queue in self._queues:
            request.message_queue.CopyFrom(queue)
            request.batch_size = min(count, MAX_BATCH)
            if request.batch_size <= 0:
                return
            for message in _receive_once(self._client, request):
                count -= 1
                yield message


def acknowledge(
    client: AdminClient, group: definition_pb2.Resource, messages: list[definition_pb2.Message]
) -> set[str]:
    """Ack messages of one topic and return the receipt handles that were accepted."""
    if not messages:
        return set()
    request = service_pb2.AckMessageRequest(group=group, topic=messages[0].topic)
    for message in messages:
        properties = message.system_properties
        request.entries.add(
            message_id=properties.message_id, receipt_handle=properties.receipt_handle
        )
    response = client.call(client.messaging.AckMessage, request)
    return {
        entry.receipt_handle for entry in response.entries if entry.status.code == definition_pb2.OK
    }


def recall(client: AdminClient, topic: definition_pb2.Resource, recall_handle: str) -> str:
    """Take back a delayed message that is not due yet; return its id.

    Raises:
        CliError: the broker refused it, for instance because it was delivered.
    """
    request = service_pb2.RecallMessageRequest(topic=topic, recall_handle=recall_handle)
    response = client.call(client.messaging.RecallMessage, request)
    _require_ok(response.status)
    return response.message_id


def new_message_id() -> str:
    """Return a message id in the official clients' form: 17 bytes as 34 hex digits."""
    return (
        f"01{uuid.getnode() & (1 << 48) - 1:012X}{os.getpid() & 0xFFFF:04X}"
        f"{int(time.time()) - _ID_EPOCH_S:08X}{uuid.uuid4().int & 0xFFFFFFFF:08X}"
    )


def _message(outgoing: Outgoing) -> definition_pb2.Message:
    message = definition_pb2.Message(
        topic=outgoing.topic, user_properties=outgoing.properties, body=outgoing.body
    )
    properties = message.system_properties
    properties.message_id = new_message_id()
    properties.message_type = definition_pb2.NORMAL
    properties.body_encoding = definition_pb2.IDENTITY
    properties.born_timestamp.GetCurrentTime()
    properties.born_host = os.uname().nodename
    properties.keys.extend(outgoing.keys)
    if outgoing.tag:
        properties.tag = outgoing.tag
    if outgoing.message_group:
        properties.message_type = definition_pb2.FIFO
        properties.message_group = outgoing.message_group
    if outgoing.deliver_at_ms:
        properties.message_type = definition_pb2.DELAY
        properties.delivery_timestamp.FromMilliseconds(outgoing.deliver_at_ms)
    if outgoing.priority is not None:
        properties.message_type = definition_pb2.PRIORITY
        properties.priority = outgoing.priority
    return message


def _queues(
    client: AdminClient, topic: definition_pb2.Resource
) -> list[definition_pb2.MessageQueue]:
    """Return "any queue" of every broker name of the topic's route."""
    request = service_pb2.QueryRouteRequest(topic=topic, endpoints=_endpoints(client.endpoint))
    response = client.call(client.messaging.QueryRoute, request)
    _require_ok(response.status)
    queues = {queue.broker.name: queue for queue in response.message_queues}
    for queue in queues.values():
        queue.id = _ANY_QUEUE
    return list(queues.values())


def _receive_once(
    client: AdminClient, request: service_pb2.ReceiveMessageRequest
) -> Iterator[definition_pb2.Message]:
    call = client.messaging.ReceiveMessage(
        request, timeout=_LONG_POLLING_S + client.timeout_s, metadata=client.metadata()
    )
    # Cancelling tells the broker that the client has gone; it releases leases taken meanwhile.
    patience = _Patience(call)
    try:
        for response in call:
            patience.end()
            content = response.WhichOneof("content")
            if content == "message":
                yield response.message
            elif content == "status" and response.status.code != definition_pb2.MESSAGE_NOT_FOUND:
                _require_ok(response.status)
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.CANCELLED:
            raise client.failure(error) from None
    finally:
        patience.end()


class _Patience:
    """Cancels a call unless `end` is called in time."""

    def __init__(self, call: grpc.Call) -> None:
        self._timer = threading.Timer(_PATIENCE_S, call.cancel)
        self._timer.daemon = True
        self._timer.start()

    def end(self) -> None:
        """Keep the call."""
        self._timer.cancel()


def _endpoints(endpoint: str) -> definition_pb2.Endpoints:
    host, _, port = endpoint.rpartition(":")
    if not port.isdigit():
        raise CliError(f"--endpoint {endpoint}: write HOST:PORT")
    endpoints = definition_pb2.Endpoints(scheme=definition_pb2.DOMAIN_NAME)
    endpoints.addresses.add(host=host.strip("[]"), port=int(port))
    return endpoints


def _require_ok(status: definition_pb2.Status) -> None:
    if status.code != definition_pb2.OK:
        name = definition_pb2.Code.Name(status.code)
        text = f"{name}: {status.message}" if status.message not in ("", name) else name
        kinds = {"_NOT_FOUND": "not_found", "_TIMEOUT": "unreachable"}
        found = (kind for end, kind in kinds.items() if name.endswith(end))
        raise CliError(plain(text), next(found, "refused"))
