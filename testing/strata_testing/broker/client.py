"""The clients' side of a broker's calls: requests as clients write them, answers read again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata_testing.broker.fake_edge import METADATA, FakeCall, FakeEdge


def resource(name: str, namespace: str = "") -> definition_pb2.Resource:
    """A topic's or consumer group's name on the wire."""
    return definition_pb2.Resource(resource_namespace=namespace, name=name)


# With this address the messages 1 to 8 prefer 1, 1, 2, 2, 1, 2, 1, 1 of the raft groups 1 and 2.
_ADDRESS = 0x964


def id_of(number: int) -> str:
    """The official id of a message, each of another process: they prefer different raft groups."""
    return f"01{_ADDRESS:08X}{number:08X}{0:08X}{number:08X}"


def message(
    topic: str, number: int, *, body: bytes = b"body", namespace: str = "", **properties: Any
) -> definition_pb2.Message:
    """A message with an official id."""
    properties.setdefault("message_id", id_of(number))
    properties.setdefault("message_type", definition_pb2.NORMAL)
    system = definition_pb2.SystemProperties(**properties)
    system.born_timestamp.seconds = 1_700_000_000
    return definition_pb2.Message(
        topic=resource(topic, namespace), system_properties=system, body=body
    )


class Client:
    """Makes calls as the official clients do and parses the answers."""

    def __init__(self, edge: FakeEdge) -> None:
        self.edge = edge
        self.metadata: Mapping[str, str] = METADATA

    async def send(self, *messages: definition_pb2.Message) -> service_pb2.SendMessageResponse:
        """Send one request."""
        request = service_pb2.SendMessageRequest(messages=messages)
        call = self.edge.begin("SendMessage", request, self.metadata)
        return service_pb2.SendMessageResponse.FromString((await call.answer)[0])

    def begin_receive(
        self, topic: str, group: str, *, broker: str = "strata-1", **fields: Any
    ) -> FakeCall:
        """Start a receive."""
        return self.edge.begin(
            "ReceiveMessage", receive_request(topic, group, broker=broker, **fields), self.metadata
        )

    async def receive(
        self, topic: str, group: str, *, broker: str = "strata-1", **fields: Any
    ) -> tuple[definition_pb2.Status, list[definition_pb2.Message]]:
        """Receive what is there; return status and messages."""
        fields.setdefault("polling_s", 0)
        return received(await self.begin_receive(topic, group, broker=broker, **fields).answer)

    async def receive_all(
        self, topic: str, group: str, **fields: Any
    ) -> list[definition_pb2.Message]:
        """Receive from both broker names."""
        messages = []
        for broker in ("strata-1", "strata-2"):
            messages.extend((await self.receive(topic, group, broker=broker, **fields))[1])
        return messages

    async def ack(self, topic: str, group: str, *handles: str) -> service_pb2.AckMessageResponse:
        """Acknowledge."""
        request = service_pb2.AckMessageRequest(
            group=resource(group),
            topic=resource(topic),
            entries=[
                service_pb2.AckMessageEntry(message_id=f"m{number}", receipt_handle=handle)
                for number, handle in enumerate(handles)
            ],
        )
        call = self.edge.begin("AckMessage", request, self.metadata)
        return service_pb2.AckMessageResponse.FromString((await call.answer)[0])


def receive_request(
    topic: str,
    group: str,
    *,
    broker: str = "strata-1",
    queue_id: int = 0,
    tags: str = "*",
    invisible_s: int = 30,
    auto_renew: bool = False,
    batch_size: int = 32,
    polling_s: int = 2,
    attempt_id: str = "",
    namespace: str = "",
) -> service_pb2.ReceiveMessageRequest:
    """A receive as clients write it."""
    request = service_pb2.ReceiveMessageRequest(
        group=resource(group, namespace),
        message_queue=definition_pb2.MessageQueue(
            topic=resource(topic, namespace),
            id=queue_id,
            broker=definition_pb2.Broker(name=broker),
        ),
        filter_expression=definition_pb2.FilterExpression(type=definition_pb2.TAG, expression=tags),
        batch_size=batch_size,
        auto_renew=auto_renew,
    )
    request.long_polling_timeout.seconds = polling_s
    if not auto_renew:
        request.invisible_duration.seconds = invisible_s
    if attempt_id:
        request.attempt_id = attempt_id
    return request


def received(
    responses: Sequence[bytes],
) -> tuple[definition_pb2.Status, list[definition_pb2.Message]]:
    """Split a receive's answer; its form is part of the protocol."""
    parsed = [service_pb2.ReceiveMessageResponse.FromString(data) for data in responses]
    kinds = [response.WhichOneof("content") for response in parsed]
    assert kinds[0] == "status", "the status comes first"
    assert kinds[-1] == "delivery_timestamp", "the delivery timestamp comes last"
    assert set(kinds[1:-1]) <= {"message"}
    return parsed[0].status, [response.message for response in parsed[1:-1]]
