"""Calls to the cluster that takes the copy: topics, groups, sends, scans and cursors.

The calls are those of any client and operator; they are made in threads. A send names the queue of
its messages in a header (docs/adr/0057).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

import grpc
from google.protobuf.message import Message

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_broker.sends.named_queue import QUEUE_HEADER
from strata_cli.client import AdminClient, CallFailed
from strata_cli.errors import CliError
from strata_cli.migrate.plan import PlannedGroup

_TRANSIENT_CODES = frozenset(
    (
        definition_pb2.TOO_MANY_REQUESTS,
        definition_pb2.REQUEST_TIMEOUT,
        definition_pb2.INTERNAL_SERVER_ERROR,
        definition_pb2.PROXY_TIMEOUT,
        definition_pb2.HA_NOT_AVAILABLE,
        definition_pb2.MASTER_PERSISTENCE_TIMEOUT,
        definition_pb2.SLAVE_PERSISTENCE_TIMEOUT,
    )
)
# Verdicts on one message; any other refusal is of the whole request, and ends the run.
_BAD_MESSAGE_CODES = frozenset(
    (
        definition_pb2.BAD_REQUEST,
        definition_pb2.ILLEGAL_MESSAGE_TAG,
        definition_pb2.ILLEGAL_MESSAGE_KEY,
        definition_pb2.ILLEGAL_MESSAGE_GROUP,
        definition_pb2.ILLEGAL_MESSAGE_PROPERTY_KEY,
        definition_pb2.ILLEGAL_MESSAGE_ID,
        definition_pb2.ILLEGAL_DELIVERY_TIME,
        definition_pb2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        definition_pb2.MESSAGE_CORRUPTED,
        definition_pb2.PAYLOAD_TOO_LARGE,
        definition_pb2.MESSAGE_BODY_TOO_LARGE,
        definition_pb2.MESSAGE_BODY_EMPTY,
        definition_pb2.MESSAGE_PROPERTIES_TOO_LARGE,
    )
)
_TRANSIENT_STATUSES = frozenset(
    (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    )
)


Answer = TypeVar("Answer")

_SCANS_AT_ONCE = 2
"""A broker refuses more scans at the same time by default (`pull.max_bytes_in_flight`)."""


class TargetBusyError(CliError):
    """The target did not answer, or cannot answer now; a repeat may succeed."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "unreachable")


@dataclass(frozen=True, slots=True)
class TargetTopic:
    """A topic of the target.

    Attributes:
        topic_type: NORMAL, FIFO and so on.
        queue_count: its queues.
        ends: queue -> (first retained offset, offset of the next message).
    """

    topic_type: str
    queue_count: int
    ends: Mapping[int, tuple[int, int]]


class Scanned(NamedTuple):
    """Messages of a queue of the target.

    Attributes:
        messages: (offset, message), in order.
        resume_offset: where the next scan begins.
        next_offset: where the queue ends.
        min_offset: where it begins.
    """

    messages: Sequence[tuple[int, definition_pb2.Message]]
    resume_offset: int
    next_offset: int
    min_offset: int


class MigrationTarget(Protocol):
    """A cluster that takes a copy; every call may raise `CliError`."""

    @property
    def namespace(self) -> str:
        """Namespace of topics and consumer groups."""

    async def topic(self, name: str) -> TargetTopic | None:
        """Return a topic; None: it does not exist."""

    async def make_topic(self, name: str, topic_type: str, queue_count: int) -> None:
        """Make a topic."""

    async def grow_topic(self, name: str, queue_count: int) -> None:
        """Give a topic more queues."""

    async def cursors(self, group: str) -> Mapping[tuple[str, int], int] | None:
        """Return (topic, queue) -> cursor of a consumer group; None: it does not exist."""

    async def make_group(self, group: PlannedGroup) -> None:
        """Make a consumer group."""

    async def set_cursor(self, group: str, topic: str, queue: int, offset: int) -> int:
        """Move a consumer group in one queue; return its cursor."""

    async def send(self, queue: int, messages: Sequence[definition_pb2.Message]) -> Sequence[str]:
        """Send messages of one topic, in order.

        Args:
            queue: for messages without a message group.
            messages: of the request.

        Returns:
            Why each message was refused; "": it is stored.

        Raises:
            TargetBusyError: some may be stored.
        """

    async def scan(self, topic: str, queue: int, offset: int) -> Scanned:
        """Return messages of a queue from an offset on; consumes nothing."""

    async def has_message(self, topic: str, message_id: str) -> bool:
        """Whether a topic has a message with an id."""


class StrataTarget:
    """See the module docstring.

    Args:
        client: connected to a broker.
        namespace: of the copied topics and groups.
    """

    def __init__(self, client: AdminClient, namespace: str) -> None:
        self._client = client
        self.namespace = namespace
        self._scans = asyncio.Semaphore(_SCANS_AT_ONCE)

    async def topic(self, name: str) -> TargetTopic | None:
        """See `MigrationTarget.topic`."""
        request = admin_pb2.GetTopicRequest(namespace=self.namespace, name=name)
        try:
            found = await self._call(self._client.admin.GetTopic, request)
        except CliError as failure:
            if failure.code == "not_found":
                return None
            raise
        kind = meta_pb2.TopicType.Name(found.topic.type).removeprefix("TOPIC_TYPE_")
        ends = {each.queue: (each.min_offset, each.next_offset) for each in found.queues}
        return TargetTopic(kind, found.topic.queue_count, ends)

    async def make_topic(self, name: str, topic_type: str, queue_count: int) -> None:
        """See `MigrationTarget.make_topic`."""
        topic = meta_pb2.Topic(
            namespace=self.namespace,
            name=name,
            type=meta_pb2.TopicType.Value(f"TOPIC_TYPE_{topic_type}"),
            queue_count=queue_count,
        )
        request = admin_pb2.CreateTopicRequest(topic=topic)
        await self._call(self._client.admin.CreateTopic, request)

    async def grow_topic(self, name: str, queue_count: int) -> None:
        """See `MigrationTarget.grow_topic`."""
        topic = meta_pb2.Topic(namespace=self.namespace, name=name, queue_count=queue_count)
        request = admin_pb2.UpdateTopicRequest(topic=topic, update_mask=["queue_count"])
        await self._call(self._client.admin.UpdateTopic, request)

    async def cursors(self, group: str) -> Mapping[tuple[str, int], int] | None:
        """See `MigrationTarget.cursors`."""
        request = admin_pb2.GetConsumerGroupRequest(namespace=self.namespace, name=group)
        try:
            found = await self._call(self._client.admin.GetConsumerGroup, request)
        except CliError as failure:
            if failure.code == "not_found":
                return None
            raise
        return {(each.topic, each.queue): each.cursor for each in found.queues}

    async def make_group(self, group: PlannedGroup) -> None:
        """See `MigrationTarget.make_group`."""
        row = meta_pb2.ConsumerGroup(
            namespace=self.namespace,
            name=group.name,
            fifo=group.is_fifo,
            max_attempts=group.max_attempts,
        )
        if group.exponential_ms is not None:
            row.exponential.initial_ms, row.exponential.max_ms, row.exponential.multiplier = (
                group.exponential_ms
            )
        elif group.delays_ms:
            row.customized.next_ms.extend(group.delays_ms)
        request = admin_pb2.CreateConsumerGroupRequest(consumer_group=row)
        await self._call(self._client.admin.CreateConsumerGroup, request)

    async def set_cursor(self, group: str, topic: str, queue: int, offset: int) -> int:
        """See `MigrationTarget.set_cursor`."""
        request = admin_pb2.ResetConsumerGroupRequest(
            namespace=self.namespace, name=group, topic=topic, queues=[queue], offset=offset
        )
        (state,) = (await self._call(self._client.admin.ResetConsumerGroup, request)).queues
        return int(state.cursor)

    async def send(self, queue: int, messages: Sequence[definition_pb2.Message]) -> Sequence[str]:
        """See `MigrationTarget.send`."""
        request = service_pb2.SendMessageRequest(messages=messages)
        response = await asyncio.to_thread(self._send, queue, request)
        if response.status.code == definition_pb2.OK:
            return [""] * len(messages)
        statuses = [entry.status for entry in response.entries]
        for status in statuses or [response.status]:
            if status.code in _TRANSIENT_CODES:
                raise TargetBusyError(f"a send failed: {status.message}")
            if status.code != definition_pb2.OK and status.code not in _BAD_MESSAGE_CODES:
                raise CliError(f"the target refuses sends: {status.message}", "refused")
        if not statuses:
            return [response.status.message] * len(messages)
        return [
            "" if status.code == definition_pb2.OK else status.message or str(status.code)
            for status in statuses
        ]

    def _send(
        self, queue: int, request: service_pb2.SendMessageRequest
    ) -> service_pb2.SendMessageResponse:
        client = self._client
        metadata = (*client.metadata(), (QUEUE_HEADER, str(queue)))
        try:
            response: service_pb2.SendMessageResponse = client.messaging.SendMessage(
                request, timeout=client.timeout_s, metadata=metadata
            )
        except grpc.RpcError as error:
            failure = client.failure(error)
            if failure.status in _TRANSIENT_STATUSES:
                raise TargetBusyError(str(failure)) from None
            raise failure from None
        return response

    async def scan(self, topic: str, queue: int, offset: int) -> Scanned:
        """See `MigrationTarget.scan`."""
        request = admin_pb2.ScanQueueRequest(
            namespace=self.namespace, topic=topic, queue=queue, offset=offset
        )
        async with self._scans:
            found = await self._call(self._client.admin.ScanQueue, request)
        parse = definition_pb2.Message.FromString
        return Scanned(
            [(one.offset, parse(one.message)) for one in found.messages],
            max(found.resume_offset, offset),
            found.next_offset,
            found.min_offset,
        )

    async def has_message(self, topic: str, message_id: str) -> bool:
        """See `MigrationTarget.has_message`."""
        request = admin_pb2.FindMessagesRequest(
            namespace=self.namespace, topic=topic, message_id=message_id, max_messages=1
        )
        try:
            found = await self._call(self._client.admin.FindMessages, request)
        except CliError as failure:
            if failure.code == "not_found":
                return False
            raise
        return bool(found.messages)

    async def _call(self, method: Callable[..., Answer], request: Message) -> Answer:
        """Call a method in a thread.

        Raises:
            TargetBusyError: a repeat may succeed.
            CliError: the target refuses.
        """
        try:
            return await asyncio.to_thread(self._client.call, method, request)
        except CallFailed as failure:
            if failure.status in _TRANSIENT_STATUSES:
                raise TargetBusyError(str(failure)) from None
            raise
