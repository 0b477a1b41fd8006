"""Calls of an abuser: channels without limits, requests, and how calls ended."""

from __future__ import annotations

import base64
import struct
from collections.abc import Awaitable
from typing import Any

import grpc

from apache.rocketmq.v2 import definition_pb2 as definition
from apache.rocketmq.v2 import service_pb2 as service
from strata_mq.requests.handle import ReceiptHandle, encode_handle
from tests.abuse.witness import GROUP, TOPIC
from tests.e2e.client import Client, Delivered
from tests.e2e.standalone import Standalone

SERVICE = "/apache.rocketmq.v2.MessagingService/"
# The content of a handle: its version, and the fields of a `ReceiptHandle`.
FIELDS = struct.Struct(">BIIIIQIIQ")
CODES = frozenset(definition.Code.values())


def abuser(node: Standalone, number: int = 0) -> grpc.aio.Channel:
    """Return a channel with a connection of its own and no limits."""
    options = [
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", -1),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.primary_user_agent", f"abuser-{number}"),
    ]
    return grpc.aio.insecure_channel(node.endpoint, options=options)


def who(name: str = "abuser@1@1") -> tuple[tuple[str, str], ...]:
    """Return the headers of a client."""
    return (("x-mq-client-id", name),)


async def outcome(call: Awaitable[Any]) -> str:
    """Return the name of the protocol's code, or of gRPC's status, that a call ended with."""
    try:
        response = await call
    except grpc.aio.AioRpcError as error:
        return error.code().name
    code = response.status.code
    assert code in CODES
    return definition.Code.Name(code)


async def raw(
    channel: grpc.aio.Channel, method: str, data: bytes, timeout_s: float | None = 30.0
) -> str:
    """Call a unary method with these bytes; return how it ended."""
    response_type = getattr(service, f"{method}Response")
    call: Any = channel.unary_unary(
        SERVICE + method, response_deserializer=response_type.FromString
    )
    return await outcome(call(data, metadata=who(), timeout=timeout_s))


def assert_refused(ended: str) -> None:
    """A refusal is said in words that clients know."""
    assert ended not in ("OK", "UNKNOWN", "INTERNAL", "INTERNAL_SERVER_ERROR"), ended


def receive_request(
    group: str, topic: str = TOPIC, poll_s: int = 5
) -> service.ReceiveMessageRequest:
    """Return a receive of up to 32 messages of any queue of a standalone node."""
    request = service.ReceiveMessageRequest(batch_size=32)
    request.group.name = group
    request.message_queue.topic.name = topic
    request.message_queue.broker.name = ""
    request.filter_expression.type = definition.TAG
    request.filter_expression.expression = "*"
    request.invisible_duration.seconds = 10
    request.long_polling_timeout.seconds = poll_s
    return request


async def received(stub: Any, request: service.ReceiveMessageRequest, timeout_s: float = 30) -> str:
    """Receive; return the code or status that it ended with, and drop the messages."""
    queue = await _queue(stub, request.message_queue.topic.name)
    request.message_queue.CopyFrom(queue)
    code = "no status"
    try:
        async for part in stub.ReceiveMessage(request, metadata=who(), timeout=timeout_s):
            if part.HasField("status"):
                code = definition.Code.Name(part.status.code)
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return code


_queues: dict[tuple[int, str], definition.MessageQueue] = {}


async def _queue(stub: Any, topic: str) -> definition.MessageQueue:
    known = _queues.get((id(stub), topic))
    if known is None:
        request = service.QueryRouteRequest(topic=definition.Resource(name=topic))
        route = await stub.QueryRoute(request, metadata=who(), timeout=10)
        [known] = [queue for queue in route.message_queues if queue.id == 0]
        _queues[id(stub), topic] = known
    return known


def add_message(
    request: service.SendMessageRequest, message_id: str, topic: str = TOPIC
) -> definition.Message:
    """Add a good message to a request."""
    message = request.messages.add(body=b"abuse")
    message.topic.name = topic
    message.system_properties.message_id = message_id
    message.system_properties.message_type = definition.NORMAL
    message.system_properties.body_encoding = definition.IDENTITY
    return message


def ack_request(handles: list[str], group: str = GROUP) -> service.AckMessageRequest:
    """Return an acknowledgement of handles."""
    request = service.AckMessageRequest()
    request.topic.name, request.group.name = TOPIC, group
    for handle in handles:
        request.entries.add(message_id="0", receipt_handle=handle)
    return request


def forged(handle: str, **fields: int) -> list[str]:
    """Return a handle with other fields: with the tag of the true one, and without a key.

    Args:
        handle: that the node signed.
        fields: of a `ReceiptHandle`.
    """
    signed = base64.urlsafe_b64decode(handle)
    head, *values = FIELDS.unpack_from(signed)
    content = ReceiptHandle(*values)._replace(**fields)  # type: ignore[arg-type]
    with_tag = FIELDS.pack(head, *content[:-1]) + signed[FIELDS.size :]
    return [base64.urlsafe_b64encode(with_tag).decode(), encode_handle(content)]


async def take_one(node: Standalone, group: str) -> list[Delivered]:
    """Send a message and receive one."""
    async with Client(node.endpoint) as client:
        [queue] = await client.queues(TOPIC)
        while True:
            await client.send(TOPIC, [(client.new_message_id(), b"one")])
            delivered = await client.receive(queue, group, poll_s=5)
            if delivered:
                return delivered[:1]


def varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])
