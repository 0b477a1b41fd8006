"""A small v2 client for fault tests: it sends, receives and acknowledges, and retries nothing.

The caller gets what the server answered; a call without an answer raises `grpc.aio.AioRpcError`,
and its outcome is unknown.
"""

import itertools
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

import grpc

from apache.rocketmq.v2 import definition_pb2 as definition
from apache.rocketmq.v2 import service_pb2 as service
from apache.rocketmq.v2 import service_pb2_grpc
from strata.admin.v1 import admin_pb2, admin_pb2_grpc
from strata_mq.access import date_of, sign
from strata_mq.layout import BLOCK_MESSAGES

REQUEST_TIMEOUT_S = 10.0
INVISIBLE_S = 10  # the least the protocol allows
SHORT_INVISIBLE_S = 2
SHORT_POLL_S = 1
SHORT_TIMES = {
    "STRATA_RECEIVE_MIN_INVISIBLE_MS": "1000",
    "STRATA_RECEIVE_MIN_POLLING_MS": "200",
}
"""Environment of a process that allows both: what waits for a lease to run out waits shortly."""
SECONDS_TO_2021 = 1_609_459_200
MAX_MESSAGE_BYTES = 64 * 1024 * 1024


class RefusedError(Exception):
    """The server answered with an error; `code` is the protocol's."""

    def __init__(self, code: "definition.Code.ValueType", text: str) -> None:
        super().__init__(f"{definition.Code.Name(code)}: {text}")
        self.code = code


@dataclass(frozen=True)
class Delivered:
    """A message as it was delivered; `handle` acknowledges it."""

    message_id: str
    body: bytes
    queue: int
    offset: int
    message_group: str
    attempt: int
    handle: str


class Client:
    """One connection to one endpoint; a context manager.

    Args:
        endpoint: host:port.
        timeout_s: of one call.
        invisible_s: lease of what it receives.
        keys: access key and secret key that sign each call; None: nobody signs.

    Attributes:
        stub: for calls that have no method here.
        timeout_s: for them, too.
    """

    def __init__(
        self,
        endpoint: str,
        timeout_s: float = REQUEST_TIMEOUT_S,
        invisible_s: int = INVISIBLE_S,
        keys: tuple[str, str] | None = None,
    ) -> None:
        self._keys = keys
        self._invisible_s = invisible_s
        self.timeout_s = timeout_s
        self._channel = grpc.aio.insecure_channel(
            endpoint,
            options=[
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                ("grpc.use_local_subchannel_pool", 1),
                # A server that comes back is seen soon.
                ("grpc.initial_reconnect_backoff_ms", 50),
                ("grpc.min_reconnect_backoff_ms", 5_000),
                ("grpc.max_reconnect_backoff_ms", 500),
            ],
        )
        self.stub = service_pb2_grpc.MessagingServiceStub(self._channel)
        self.admin = admin_pb2_grpc.AdminServiceStub(self._channel)
        self._ids = itertools.count()
        self._prefix = os.urandom(8).hex().upper()

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Metadata of a call that is made now."""
        named = (("x-mq-client-id", f"e2e@{os.getpid()}@{id(self)}"),)
        if self._keys is None:
            return named
        date = date_of(datetime.now(UTC))
        signature = sign(*self._keys, date)
        return (*named, ("x-mq-date-time", date), ("authorization", signature))

    def new_message_id(self) -> str:
        """Return an id of the protocol's form, 34 hexadecimal digits, used once."""
        made_s = int(time.time()) - SECONDS_TO_2021
        # A block for each one: tests send few messages, and these go to all raft groups.
        number = next(self._ids) * BLOCK_MESSAGES & 0xFFFFFFFF
        return f"01{self._prefix}{made_s:08X}{number:08X}"

    async def send(
        self, topic: str, messages: Sequence[tuple[str, bytes]], message_group: str = ""
    ) -> list[int]:
        """Send (message id, body) pairs in one request; return their offsets in order.

        Raises:
            RefusedError: the server refused them all.
        """
        request = service.SendMessageRequest()
        for message_id, body in messages:
            message = request.messages.add(body=body)
            message.topic.name = topic
            properties = message.system_properties
            properties.message_id = message_id
            properties.message_type = definition.FIFO if message_group else definition.NORMAL
            properties.body_encoding = definition.IDENTITY
            properties.born_timestamp.GetCurrentTime()
            properties.born_host = "e2e"
            if message_group:
                properties.message_group = message_group
        response = await self.stub.SendMessage(
            request, metadata=self.metadata, timeout=self.timeout_s
        )
        check_status(response.status)
        return [entry.offset for entry in response.entries]

    async def queues(self, topic: str) -> list[definition.MessageQueue]:
        """Return one queue for each broker name; its id 0 means any queue of the topic there."""
        request = service.QueryRouteRequest(topic=definition.Resource(name=topic))
        response = await self.stub.QueryRoute(
            request, metadata=self.metadata, timeout=self.timeout_s
        )
        check_status(response.status)
        return [queue for queue in response.message_queues if queue.id == 0]

    async def is_consumed(self, topic: str, group: str, stored: int) -> bool:
        """Whether a consumer group has acknowledged all that is in a topic.

        Args:
            topic: the topic.
            group: the consumer group.
            stored: messages that are known to be in the topic: the group's state must show them.
        """
        shown = await self.admin.GetConsumerGroup(
            admin_pb2.GetConsumerGroupRequest(name=group),
            metadata=self.metadata,
            timeout=self.timeout_s,
        )
        queues = [queue for queue in shown.queues if queue.topic == topic]
        there = sum(queue.next_offset for queue in queues)
        return there >= stored > 0 and not any(queue.lag for queue in queues)

    async def receive(
        self, queue: definition.MessageQueue, group: str, poll_s: int = 5
    ) -> list[Delivered]:
        """Receive up to 32 messages; an empty list when the long poll brought none."""
        request = service.ReceiveMessageRequest(
            group=definition.Resource(name=group), message_queue=queue, batch_size=32
        )
        request.filter_expression.type = definition.TAG
        request.filter_expression.expression = "*"
        request.invisible_duration.seconds = self._invisible_s
        request.long_polling_timeout.seconds = poll_s
        delivered = []
        call = self.stub.ReceiveMessage(
            request, metadata=self.metadata, timeout=poll_s + self.timeout_s
        )
        async for response in call:
            match response.WhichOneof("content"):
                case "status" if response.status.code != definition.MESSAGE_NOT_FOUND:
                    check_status(response.status)
                case "message":
                    delivered.append(_delivered(response.message))
        return delivered

    async def ack(self, topic: str, group: str, messages: Sequence[Delivered]) -> None:
        """Acknowledge messages; returns when the server said that all of them are.

        Raises:
            RefusedError: it refused at least one.
        """
        request = service.AckMessageRequest(
            topic=definition.Resource(name=topic), group=definition.Resource(name=group)
        )
        for message in messages:
            request.entries.add(message_id=message.message_id, receipt_handle=message.handle)
        response = await self.stub.AckMessage(
            request, metadata=self.metadata, timeout=self.timeout_s
        )
        check_status(response.status)

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def _delivered(message: definition.Message) -> Delivered:
    properties = message.system_properties
    return Delivered(
        message_id=properties.message_id,
        body=message.body,
        queue=properties.queue_id,
        offset=properties.queue_offset,
        message_group=properties.message_group,
        attempt=properties.delivery_attempt,
        handle=properties.receipt_handle,
    )


def check_status(status: definition.Status) -> None:
    """Raise RefusedError unless the status is OK."""
    if status.code != definition.OK:
        raise RefusedError(status.code, status.message)
