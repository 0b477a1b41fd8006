"""Requests are counted on the wire before anything is made of them."""

from __future__ import annotations

import random

import pytest
from google.protobuf.message import DecodeError, Message

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata_broker.base import wire
from strata_broker.base.parsing import MAX_ELEMENTS, MAX_FIELDS, TooManyElements, parse
from strata_broker.metadata.requests import Caller
from strata_broker.sends.outgoing import parse_send
from strata_mq.requests.errors import Code, RequestError
from strata_testing.broker.client import Client, message
from strata_testing.broker.fake_edge import FakeEdge

GROUP_AROUND_NOTHING = b"\xfb\x07\xfc\x07"  # begin and end of group 127


def inside(path: tuple[int, ...], data: bytes) -> bytes:
    """Put data into messages inside one another, outermost first."""
    for field in reversed(path):
        data = wire.length_delimited(field, data)
    return data


SETTINGS = service_pb2.TelemetryCommand.SETTINGS_FIELD_NUMBER
SUBSCRIPTION = definition_pb2.Settings.SUBSCRIPTION_FIELD_NUMBER
PUBLISHING = definition_pb2.Settings.PUBLISHING_FIELD_NUMBER

CASES: list[tuple[type[Message], tuple[int, ...], bytes]] = [
    (service_pb2.AckMessageRequest, (), b"\x1a\x00"),
    (service_pb2.SendMessageRequest, (), b"\x0a\x00"),
    # keys and user properties of one message
    (service_pb2.SendMessageRequest, (1, 3), b"\x12\x00"),
    (service_pb2.SendMessageRequest, (1,), b"\x12\x00"),
    (service_pb2.QueryRouteRequest, (2,), b"\x12\x00"),
    # subscriptions, and topics of a publisher
    (service_pb2.TelemetryCommand, (SETTINGS, SUBSCRIPTION), b"\x12\x00"),
    (service_pb2.TelemetryCommand, (SETTINGS, PUBLISHING), b"\x0a\x00"),
]


@pytest.mark.parametrize(("request_type", "path", "element"), CASES)
def test_millions_of_empty_elements_are_refused_before_they_are_made(
    request_type: type[Message], path: tuple[int, ...], element: bytes
) -> None:
    """In whatever field; just below the limit they are parsed."""
    few = inside(path, element * MAX_ELEMENTS)
    assert parse(request_type, few, counted_from_bytes=0) == request_type.FromString(few)
    many = inside(path, GROUP_AROUND_NOTHING + element * (MAX_ELEMENTS * 3))
    with pytest.raises(TooManyElements, match=f"at most {MAX_ELEMENTS} elements"):
        parse(request_type, many)


def test_a_message_in_many_pieces_is_refused() -> None:
    """A parser would put thousands of small ones together to one large one."""
    piece = wire.length_delimited(3, b"\x12\x00" * 2_000)
    data = wire.length_delimited(1, piece * 17)
    with pytest.raises(TooManyElements, match=r"Message\.system_properties"):
        parse(service_pb2.SendMessageRequest, data)


def test_numbers_without_keys_count_too() -> None:
    """A packed field holds an element in each byte."""
    queue = definition_pb2.MessageQueue(
        accept_message_types=[definition_pb2.NORMAL] * (MAX_ELEMENTS * 5)
    )
    request = service_pb2.ReceiveMessageRequest(message_queue=queue)
    with pytest.raises(TooManyElements, match=r"MessageQueue\.accept_message_types"):
        parse(service_pb2.ReceiveMessageRequest, request.SerializeToString())


def test_fields_that_nobody_knows_count_together() -> None:
    """They are kept with the message."""
    with pytest.raises(TooManyElements, match=f"at most {MAX_FIELDS} fields"):
        parse(service_pb2.HeartbeatRequest, b"\xf8\x07\x01" * (MAX_FIELDS + 1))


def test_large_bodies_are_no_elements() -> None:
    """Messages of honest clients pass, whatever their size."""
    messages = [message("orders", number, body=b"\x0a\x00" * 5_000) for number in range(1_024)]
    data = service_pb2.SendMessageRequest(messages=messages).SerializeToString()
    assert len(parse_send(data, Caller("c", ""), 1_024).messages) == 1_024


def test_garbage_is_parsed_or_refused_as_ever() -> None:
    """Counting neither fails in a way of its own, nor refuses what is a request."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    whole = service_pb2.SendMessageRequest(
        messages=[message("orders", number, keys=["a", "b"], tag="t") for number in range(5)]
    ).SerializeToString()
    for _ in range(5_000):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        request = bytes(data[: chance.randint(0, len(data))])
        try:
            expected = service_pb2.SendMessageRequest.FromString(request)
        except DecodeError:
            with pytest.raises(DecodeError, match="not a SendMessageRequest"):
                parse(service_pb2.SendMessageRequest, request, counted_from_bytes=0)
        else:
            assert parse(service_pb2.SendMessageRequest, request, counted_from_bytes=0) == expected


def test_entries_behind_a_group_are_counted() -> None:
    """A group is no field that ends the count."""
    data = GROUP_AROUND_NOTHING + b"\x1a\x00" * 4_097
    with pytest.raises(DecodeError, match=r"entries has at most 4096 elements"):
        parse(service_pb2.AckMessageRequest, data, counted_from_bytes=0)


async def test_a_send_with_too_many_elements_is_refused(client: Client, edge: FakeEdge) -> None:
    """The client is told by a status, and the next send is served."""
    call = edge.begin("SendMessage", b"\x0a\x00" * 200_000)
    response = service_pb2.SendMessageResponse.FromString((await call.answer)[0])
    assert response.status.code == definition_pb2.BAD_REQUEST
    assert "SendMessageRequest.messages" in response.status.message
    assert (await client.send(message("orders", 1))).status.code == definition_pb2.OK
    with pytest.raises(RequestError) as refused:
        parse_send(b"\x0a\x00" * 200_000, Caller("c", ""), 10)
    assert refused.value.code is Code.BAD_REQUEST
