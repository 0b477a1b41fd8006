"""A v2 client on the simulated network: it acts like official clients without background work.

A send is tried up to three times with the same bytes, on another broker after a broken connection.
Every other call is tried once; the workload decides what to do about a failure.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import Message

from apache.rocketmq.v2 import definition_pb2 as definition
from apache.rocketmq.v2 import service_pb2 as service
from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_mq.layout import BLOCK_MESSAGES, ID_EPOCH_S
from strata_sim.edge import CallRefused, Disconnected, SimConnection
from strata_sim.machine import EPOCH_MS
from strata_sim.network import SimNetwork

_MESSAGING = "/apache.rocketmq.v2.MessagingService/"
_ADMIN = "/strata.admin.v1.AdminService/"
_TABLES = "/strata.kv.v1.KvService/"
_SEND_ATTEMPTS = 3
_CLOCK_OFFSET_S = (-0.5, 0.5)
_TIMEOUT_S = 3.0
# Answers that a client cannot tell apart from a slow network.
LOST = (Disconnected, CallRefused, TimeoutError)

Response = TypeVar("Response", bound=Message)


class Refused(Exception):
    """The server answered with an error; `code` is the protocol's."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{definition.Code.Name(definition.Code.ValueType(code))}: {text}")
        self.code = code


@dataclass(frozen=True, slots=True)
class Delivered:
    """A message as it was delivered; `handle` acknowledges it."""

    message_id: str
    body: bytes
    queue: int
    offset: int
    message_group: str
    attempt: int
    handle: str


class SimClient:
    """One client process.

    Args:
        network: what carries its calls.
        name: unique in the simulation; its machine's name too.
        brokers: endpoints of all brokers.
        chance: which broker is first.
    """

    def __init__(
        self, network: SimNetwork, name: str, brokers: Sequence[str], *, chance: random.Random
    ) -> None:
        self.name = name
        self._loop = network.loop
        self._connections = [SimConnection(network, name, broker) for broker in brokers]
        chance.shuffle(self._connections)
        self._metadata = {"x-mq-client-id": name, "x-mq-language": "JAVA"}
        self._prefix = f"01{chance.getrandbits(64):016X}"
        # Its clock differs from the others', and never runs ahead by what they allow for.
        self._clock_offset_s = chance.uniform(*_CLOCK_OFFSET_S)
        self._ids = 0

    @property
    def now_s(self) -> float:
        """Virtual time."""
        return self._loop.time()

    def new_message_id(self) -> str:
        """Return an id of the protocol's form, used once."""
        self._ids += 1
        seconds = self._wall_ms() // 1_000 - ID_EPOCH_S
        # Four are a block: the few messages of a seed have to go to all raft groups.
        return f"{self._prefix}{seconds:08X}{self._ids * BLOCK_MESSAGES // 4:08X}"

    def _wall_ms(self) -> int:
        return EPOCH_MS + int((self.now_s + self._clock_offset_s) * 1_000)

    async def send(
        self,
        topic: str,
        message_id: str,
        body: bytes,
        message_group: str = "",
        *,
        lite_topic: str = "",
    ) -> int:
        """Send a message; return its offset.

        Raises:
            Refused: the server said why not; the message may still have been stored before.
            Disconnected, TimeoutError: nobody knows.
        """
        request = service.SendMessageRequest()
        message = request.messages.add(body=body)
        message.topic.name = topic
        properties = message.system_properties
        properties.message_id = message_id
        properties.message_type = definition.FIFO if message_group else definition.NORMAL
        properties.body_encoding = definition.IDENTITY
        if message_group:
            properties.message_group = message_group
        if lite_topic:
            properties.message_type = definition.LITE
            properties.lite_topic = lite_topic
        for attempt in range(1, _SEND_ATTEMPTS + 1):
            # As official clients do: each attempt is born anew.
            properties.born_timestamp.FromMilliseconds(self._wall_ms())
            try:
                response = await self._call(
                    _MESSAGING + "SendMessage", request, service.SendMessageResponse
                )
                _check(response.status)
                return response.entries[0].offset
            except (*LOST, Refused):
                if attempt == _SEND_ATTEMPTS:
                    raise
        raise AssertionError("unreachable")

    async def send_pending(
        self,
        topic: str,
        message_id: str,
        body: bytes,
        message_type: definition.MessageType.ValueType,
        deliver_at_ms: int = 0,
    ) -> service.SendResultEntry:
        """Send a message that is delivered later or only if it is committed.

        Raises:
            Refused, Disconnected, CallRefused, TimeoutError: nobody knows whether it is stored.
        """
        request = service.SendMessageRequest()
        message = request.messages.add(body=body)
        message.topic.name = topic
        properties = message.system_properties
        properties.message_id = message_id
        properties.message_type = message_type
        properties.body_encoding = definition.IDENTITY
        if deliver_at_ms:
            properties.delivery_timestamp.FromMilliseconds(deliver_at_ms)
        for attempt in range(1, _SEND_ATTEMPTS + 1):
            # As official clients do: each attempt is born anew.
            properties.born_timestamp.FromMilliseconds(self._wall_ms())
            try:
                response = await self._call(
                    _MESSAGING + "SendMessage", request, service.SendMessageResponse
                )
                _check(response.status)
                return response.entries[0]
            except (*LOST, Refused):
                if attempt == _SEND_ATTEMPTS:
                    raise
        raise AssertionError("unreachable")

    async def recall(self, topic: str, handle: str) -> None:
        """Take a delayed message back.

        Raises:
            Refused, Disconnected, CallRefused, TimeoutError: it may be delivered, or not.
        """
        request = service.RecallMessageRequest(
            topic=definition.Resource(name=topic), recall_handle=handle
        )
        response = await self._call(
            _MESSAGING + "RecallMessage", request, service.RecallMessageResponse
        )
        _check(response.status)

    async def end_transaction(
        self, topic: str, message_id: str, transaction_id: str, commit: bool
    ) -> None:
        """Commit a half message, or roll it back.

        Raises:
            Refused, Disconnected, CallRefused, TimeoutError: nobody knows.
        """
        request = service.EndTransactionRequest(
            topic=definition.Resource(name=topic),
            message_id=message_id,
            transaction_id=transaction_id,
            resolution=definition.COMMIT if commit else definition.ROLLBACK,
        )
        response = await self._call(
            _MESSAGING + "EndTransaction", request, service.EndTransactionResponse
        )
        _check(response.status)

    async def receive(
        self, topic: str, broker_name: str, group: str, *, invisible_s: int = 10, poll_s: int = 5
    ) -> list[Delivered]:
        """Receive up to 16 messages from any queue under a broker name.

        Raises:
            Refused, Disconnected, TimeoutError: there is no answer, or an error.
        """
        request = service.ReceiveMessageRequest(
            group=definition.Resource(name=group),
            message_queue=definition.MessageQueue(
                topic=definition.Resource(name=topic), broker=definition.Broker(name=broker_name)
            ),
            batch_size=16,
        )
        request.filter_expression.type = definition.TAG
        request.filter_expression.expression = "*"
        request.invisible_duration.seconds = invisible_s
        request.long_polling_timeout.seconds = poll_s
        delivered = []
        for data in await self._bytes(
            _MESSAGING + "ReceiveMessage", request.SerializeToString(), poll_s + _TIMEOUT_S
        ):
            response = service.ReceiveMessageResponse.FromString(data)
            match response.WhichOneof("content"):
                case "status" if response.status.code != definition.MESSAGE_NOT_FOUND:
                    _check(response.status)
                case "message":
                    delivered.append(_delivered(response.message))
        return delivered

    async def sync_lite(self, topic: str, group: str, lite_topics: Sequence[str]) -> None:
        """Subscribe to lite topics, and to no other.

        Raises:
            Refused, Disconnected, TimeoutError: nobody knows.
        """
        request = service.SyncLiteSubscriptionRequest(
            action=definition.COMPLETE_ADD,
            topic=definition.Resource(name=topic),
            group=definition.Resource(name=group),
            lite_topic_set=lite_topics,
        )
        response = await self._call(
            _MESSAGING + "SyncLiteSubscription", request, service.SyncLiteSubscriptionResponse
        )
        _check(response.status)

    async def ack(self, topic: str, group: str, message: Delivered) -> None:
        """Acknowledge a message.

        Raises:
            Refused, Disconnected, TimeoutError: it may come again.
        """
        request = service.AckMessageRequest(
            topic=definition.Resource(name=topic), group=definition.Resource(name=group)
        )
        request.entries.add(message_id=message.message_id, receipt_handle=message.handle)
        response = await self._call(_MESSAGING + "AckMessage", request, service.AckMessageResponse)
        _check(response.status)

    async def broker_names(self, topic: str) -> list[str]:
        """Return the broker names of a topic's route."""
        request = service.QueryRouteRequest(topic=definition.Resource(name=topic))
        response = await self._call(_MESSAGING + "QueryRoute", request, service.QueryRouteResponse)
        _check(response.status)
        return sorted({queue.broker.name for queue in response.message_queues})

    async def create_topic(self, name: str, *, fifo: bool, queue_count: int) -> None:
        """Create a topic."""
        kind = meta_pb2.TOPIC_TYPE_FIFO if fifo else meta_pb2.TOPIC_TYPE_NORMAL
        topic = meta_pb2.Topic(name=name, type=kind, queue_count=queue_count)
        await self.admin("CreateTopic", admin_pb2.CreateTopicRequest(topic=topic))

    async def create_group(self, name: str, *, fifo: bool) -> None:
        """Create a consumer group."""
        group = meta_pb2.ConsumerGroup(name=name, fifo=fifo, max_attempts=1_000)
        await self.admin(
            "CreateConsumerGroup", admin_pb2.CreateConsumerGroupRequest(consumer_group=group)
        )

    async def admin(self, rpc: str, request: Message) -> bytes:
        """Call a unary RPC of the admin service; return the serialised response."""
        return (await self._bytes(_ADMIN + rpc, request.SerializeToString(), _TIMEOUT_S))[0]

    async def table(self, rpc: str, request: Message) -> bytes:
        """Call a unary RPC of key-value tables; return the serialised response."""
        return (await self._bytes(_TABLES + rpc, request.SerializeToString(), _TIMEOUT_S))[0]

    async def _call(self, path: str, request: Message, response_type: type[Response]) -> Response:
        answer = await self._bytes(path, request.SerializeToString(), _TIMEOUT_S)
        return response_type.FromString(answer[0])

    async def _bytes(self, path: str, request: bytes, timeout_s: float) -> Sequence[bytes]:
        try:
            return await self._connections[0].call(path, request, self._metadata, timeout_s)
        except LOST:
            # The next call goes to the next broker.
            self._connections.append(self._connections.pop(0))
            raise


def _delivered(message: definition.Message) -> Delivered:
    properties = message.system_properties
    return Delivered(
        properties.message_id,
        message.body,
        properties.queue_id,
        properties.queue_offset,
        properties.message_group,
        properties.delivery_attempt,
        properties.receipt_handle,
    )


def _check(status: definition.Status) -> None:
    if status.code != definition.OK:
        raise Refused(status.code, status.message)
