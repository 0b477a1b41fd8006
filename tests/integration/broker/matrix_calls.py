"""One valid request of every RPC, how it is changed and called, and what the client is told."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import Message

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.meta.v1 import meta_pb2
from strata_testing.broker.client import message, receive_request, resource
from tests.integration.broker.faulty_node import Faults, Port

METADATA = (("x-mq-client-id", "matrix"), ("x-mq-language", "JAVA"))
TOPIC = "orders"
GROUP = "billing"

Status = definition_pb2.Status
Act = Callable[["Calls"], Awaitable[Status]]
Edit = Callable[[Any], object]

TOPICS = {
    TOPIC: meta_pb2.TOPIC_TYPE_NORMAL,
    "fifo": meta_pb2.TOPIC_TYPE_FIFO,
    "delayed": meta_pb2.TOPIC_TYPE_DELAY,
    "halves": meta_pb2.TOPIC_TYPE_TRANSACTION,
    "mixed": meta_pb2.TOPIC_TYPE_MIXED,
    "empty": meta_pb2.TOPIC_TYPE_NORMAL,
}

_numbers = itertools.count(1)


def new_message(topic: str = TOPIC, **properties: Any) -> definition_pb2.Message:
    """A message with an id that no other one has."""
    return message(topic, next(_numbers), **properties)


def valid_request(rpc: str) -> Any:
    """A request that would be served; handles and ids in it name nothing."""
    match rpc:
        case "SendMessage":
            return service_pb2.SendMessageRequest(messages=[new_message()])
        case "ReceiveMessage":
            return receive_request(TOPIC, GROUP, polling_s=0)
        case "AckMessage":
            entry = service_pb2.AckMessageEntry(message_id="m", receipt_handle="h")
            return service_pb2.AckMessageRequest(
                group=resource(GROUP), topic=resource(TOPIC), entries=[entry]
            )
    request: Any = getattr(service_pb2, f"{rpc}Request")()
    fields = request.DESCRIPTOR.fields_by_name
    if "topic" in fields:
        request.topic.name = TOPIC
    if "group" in fields:
        request.group.name = GROUP
    if "message_queue" in fields:
        request.message_queue.topic.name = TOPIC
        request.message_queue.broker.name = "strata-1"
    return request


class Calls:
    """Calls one node as clients do."""

    def __init__(self, port: Port) -> None:
        self.port = port

    @property
    def faults(self) -> Faults:
        """Faults that the node's broker meets."""
        return self.port.node.faults

    async def call(
        self,
        rpc: str,
        request: Message | None = None,
        *,
        metadata: tuple[tuple[str, str], ...] = METADATA,
        timeout_s: float | None = None,
    ) -> list[Any]:
        """Make a call and return its responses."""
        if request is None:
            request = valid_request(rpc)
        call = getattr(self.port.messaging, rpc)(request, metadata=metadata, timeout=timeout_s)
        if rpc in ("ReceiveMessage", "PullMessage"):
            return [response async for response in call]
        return [await call]

    async def status(self, rpc: str, request: Message | None = None, **how: Any) -> Status:
        """Make a call and return what it was told; entries must say the same as their response.

        A call with little time is made again if the client's own clock ends it.
        """
        async with asyncio.timeout(60):
            while True:
                try:
                    first, *_ = await self.call(rpc, request, **how)
                except grpc.aio.AioRpcError as failure:
                    assert failure.code() is grpc.StatusCode.DEADLINE_EXCEEDED, failure
                else:
                    break
        status: Status = first.status
        if rpc in ("SendMessage", "AckMessage"):
            told = {entry.status.code for entry in first.entries}
            alike = status.code != definition_pb2.MULTIPLE_RESULTS
            assert told <= {status.code} if alike else len(told) > 1
        return status

    async def leased(self, topic: str = TOPIC, group: str = GROUP) -> definition_pb2.Message:
        """Send a message and receive it."""
        sent = new_message(topic)
        request = service_pb2.SendMessageRequest(messages=[sent])
        assert (await self.status("SendMessage", request)).code == definition_pb2.OK
        return await self.delivered(topic, group)

    async def delivered(self, topic: str, group: str = GROUP) -> definition_pb2.Message:
        """Receive until there is a message."""
        for _ in range(20):
            for name in ("strata-1", "strata-2"):
                receive = receive_request(topic, group, broker=name, polling_s=0)
                for response in await self.call("ReceiveMessage", receive):
                    if response.message.body:
                        return response.message  # type: ignore[no-any-return]
        raise AssertionError("the message does not come")

    async def held_lease_request(self, rpc: str) -> Any:
        """Return a request of an RPC about a lease that exists."""
        lease = await self.leased()
        request = valid_request(rpc)
        target = request.entries[0] if rpc == "AckMessage" else request
        target.receipt_handle = lease.system_properties.receipt_handle
        return request


def edited(rpc: str, edit: Edit, **how: Any) -> Act:
    """Return the act of calling an RPC with a valid request that `edit` has changed."""

    async def act(calls: Calls) -> Status:
        request = valid_request(rpc)
        edit(request)
        return await calls.status(rpc, request, **how)

    return act


def assign(path: str, value: Any) -> Edit:
    """Return the edit that sets a field, `topic.name`."""
    *parents, field = path.split(".")

    def edit(request: Any) -> None:
        for parent in parents:
            request = request[int(parent)] if parent.isdecimal() else getattr(request, parent)
        setattr(request, field, value)

    return edit
