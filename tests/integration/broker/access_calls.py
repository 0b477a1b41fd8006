"""Calls of every RPC that a broker serves, and whether access control let them in."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

import grpc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.admin.v1 import admin_pb2
from strata_broker.access.table import Ruled, ruled_at
from strata_mq.access import parse_authorization

TOPIC, GROUP, TABLE, NAMESPACE, USER = "orders", "readers", "prices", "shop", "ann"
MESSAGING = "/apache.rocketmq.v2.MessagingService/"
ADMIN = "/apache.rocketmq.v2.Admin/"
STRATA = "/strata.admin.v1.AdminService/"
CONTAINER = "/strata.admin.v1.ContainerService/"
KV = "/strata.kv.v1.KvService/"
PEER = "/strata.broker.v1.PeerService/"

_PUBLISHES = MESSAGING + "Telemetry"
SUBSCRIBES = MESSAGING + "Telemetry (subscription)"
"""Name of Telemetry with a consumer's settings; the path is that of Telemetry."""

_UNKNOWN = grpc.StatusCode.UNAUTHENTICATED
_FORBIDDEN = grpc.StatusCode.PERMISSION_DENIED


class Answer(NamedTuple):
    """How a call ended, as far as access control matters."""

    outcome: str
    text: str


LET_IN = Answer("let in", "")
# A watch that was let in waits for a leader, whom the cluster of these tests does not have.
_WATCH_LIMIT_S = 3


def ruled(name: str) -> Ruled:
    """Return an RPC by its name in these tests."""
    return ruled_at(_PUBLISHES if name == SUBSCRIBES else name)


def request_of(name: str) -> Message:
    """Return a request that names the resources of these tests in the namespace `shop`."""
    request = ruled(name).request_type()
    if name in (_PUBLISHES, SUBSCRIBES):
        return _settings(consumes=name == SUBSCRIBES)
    if isinstance(request, service_pb2.SendMessageRequest):
        request.messages.add(body=b"x").topic.CopyFrom(_resource(TOPIC))
        return request
    if isinstance(request, admin_pb2.CreateTopicsRequest):
        request.topics.add(namespace=NAMESPACE, name=TOPIC)
        return request
    _name(request, name.rpartition("/")[2])
    return request


async def call(
    channel: grpc.aio.Channel, name: str, headers: Mapping[str, str], request: Message | None = None
) -> Answer:
    """Make a call and tell how access control answered it."""
    rpc, data = ruled(name), (request or request_of(name)).SerializeToString()
    # A client id belongs to one user.
    signature = parse_authorization(headers.get("authorization", ""))
    client_id = f"client of {signature.access_key if signature else 'nobody'}"
    metadata = tuple({"x-mq-client-id": client_id, "x-mq-language": "PYTHON", **headers}.items())
    under_way: Any
    # Stubs of grpc without serialisers take bytes.
    open_channel: Any = channel
    if rpc.path.endswith(("/Telemetry", "/ReceiveMessage", "/PullMessage", "/Watch", "/Export")):
        if rpc.path.endswith("/Telemetry"):
            under_way = open_channel.stream_stream(rpc.path)(metadata=metadata, timeout=20)
            await under_way.write(data)
        else:
            limit_s = _WATCH_LIMIT_S if rpc.path.endswith("/Watch") else 20
            under_way = open_channel.unary_stream(rpc.path)(
                data, metadata=metadata, timeout=limit_s
            )
        answer = under_way.read()
    else:
        answer = open_channel.unary_unary(rpc.path)(data, metadata=metadata, timeout=20)
        under_way = answer
    try:
        response = await answer
    except grpc.aio.AioRpcError as failure:
        return _of_status(failure.code(), failure.details() or "")
    finally:
        under_way.cancel()
        # The broker has one client of this name at a time.
        await asyncio.sleep(0)
    if response is grpc.aio.EOF:
        return _of_status(await under_way.code(), await under_way.details())
    return _of_response(rpc.response_type.FromString(response))


def _of_status(code: grpc.StatusCode, text: str) -> Answer:
    if code is _UNKNOWN:
        return Answer("UNAUTHORIZED", text)
    return Answer("FORBIDDEN", text) if code is _FORBIDDEN else LET_IN


def _of_response(response: Any) -> Answer:
    status = getattr(response, "status", None)
    if not isinstance(status, definition_pb2.Status):
        return LET_IN
    if status.code == definition_pb2.UNAUTHORIZED:
        return Answer("UNAUTHORIZED", status.message)
    refused = status.code == definition_pb2.FORBIDDEN and "no writable queue" not in status.message
    return Answer("FORBIDDEN", status.message) if refused else LET_IN


def _resource(name: str) -> definition_pb2.Resource:
    return definition_pb2.Resource(resource_namespace=NAMESPACE, name=name)


def _settings(*, consumes: bool) -> service_pb2.TelemetryCommand:
    command = service_pb2.TelemetryCommand()
    if consumes:
        command.settings.client_type = definition_pb2.SIMPLE_CONSUMER
        command.settings.subscription.group.CopyFrom(_resource(GROUP))
        entry = command.settings.subscription.subscriptions.add(topic=_resource(TOPIC))
        entry.expression.expression = "*"
    else:
        command.settings.client_type = definition_pb2.PRODUCER
        command.settings.publishing.topics.add().CopyFrom(_resource(TOPIC))
    return command


def _name(message: Any, rpc: str) -> None:
    """Fill the fields that name resources."""
    names = {"topic": TOPIC, "group": GROUP, "consumer_group": GROUP, "user": USER}
    for field in message.DESCRIPTOR.fields:
        if field.label == FieldDescriptor.LABEL_REPEATED:
            continue
        if field.name == "namespace":
            message.namespace = NAMESPACE
        elif field.name == "name":
            message.name = _own_name(message, rpc)
        elif field.name == "message_queue":
            message.message_queue.topic.CopyFrom(_resource(TOPIC))
        elif field.name == "table":
            message.table.namespace, message.table.name = NAMESPACE, TABLE
        elif field.name in names and field.message_type is None:
            setattr(message, field.name, names[field.name])
        elif field.name in names and field.message_type.name == "Resource":
            getattr(message, field.name).CopyFrom(_resource(names[field.name]))
        elif field.name in names:
            _name(getattr(message, field.name), rpc)


def _own_name(message: Any, rpc: str) -> str:
    kind = f"{message.DESCRIPTOR.name} {rpc}"
    if "User" in kind:
        return USER
    return GROUP if "ConsumerGroup" in kind else TOPIC
