"""Every RPC with what no client should send: the answer is a Status, and the broker lives on."""

from __future__ import annotations

import os
import random

import pytest
from google.protobuf.message import Message

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata_edge.ports import HOT_METHODS, CallError
from strata_testing.broker.client import Client, message, receive_request, resource
from strata_testing.broker.fake_edge import MESSAGING, FakeCall, FakeEdge
from strata_testing.broker.fake_storage import FakeStorage

SERVICE = service_pb2.DESCRIPTOR.services_by_name["MessagingService"]
RPCS = [method.name for method in SERVICE.methods if method.name != "Telemetry"]


async def answer(edge: FakeEdge, rpc: str, data: bytes, metadata: dict[str, str]) -> Message:
    """Make a call of any kind; return its first response."""
    response_type = getattr(service_pb2, f"{rpc}Response")
    if rpc in HOT_METHODS:
        call = edge.begin(rpc, data, metadata)
        first = (await call.answer)[0]
    elif MESSAGING + rpc in edge.server_streams:
        stream = edge.server_streams[MESSAGING + rpc](data, FakeCall("", b"", metadata))
        first = await anext(stream)
    else:
        first = await edge.unary[MESSAGING + rpc](data, FakeCall("", b"", metadata))
    parsed: Message = response_type.FromString(first)
    return parsed


def test_every_rpc_is_served(edge: FakeEdge) -> None:
    """17 RPCs, as the service declares them."""
    served = set(edge.unary) | set(edge.server_streams) | set(edge.streams)
    served |= {MESSAGING + rpc for rpc in HOT_METHODS}
    assert {MESSAGING + method.name for method in SERVICE.methods} <= served
    assert len(SERVICE.methods) == 17


@pytest.mark.parametrize("rpc", RPCS)
async def test_a_call_without_client_id(edge: FakeEdge, rpc: str) -> None:
    """CLIENT_ID_REQUIRED with the real text."""
    response = await answer(edge, rpc, b"", {})
    status = response.status  # type: ignore[attr-defined]
    assert (status.code, status.message) == (
        definition_pb2.CLIENT_ID_REQUIRED,
        "client id cannot be empty",
    )


EMPTY = {
    "PullMessage": definition_pb2.TOPIC_NOT_FOUND,
    "UpdateOffset": definition_pb2.TOPIC_NOT_FOUND,
    "GetOffset": definition_pb2.TOPIC_NOT_FOUND,
    "QueryOffset": definition_pb2.TOPIC_NOT_FOUND,
    "QueryRoute": definition_pb2.ILLEGAL_TOPIC,
    "SendMessage": definition_pb2.MESSAGE_CORRUPTED,
    "QueryAssignment": definition_pb2.ILLEGAL_TOPIC,
    "ReceiveMessage": definition_pb2.ILLEGAL_CONSUMER_GROUP,
    "AckMessage": definition_pb2.ILLEGAL_CONSUMER_GROUP,
    "ForwardMessageToDeadLetterQueue": definition_pb2.ILLEGAL_CONSUMER_GROUP,
    "ChangeInvisibleDuration": definition_pb2.ILLEGAL_CONSUMER_GROUP,
    "EndTransaction": definition_pb2.ILLEGAL_TOPIC,
    "RecallMessage": definition_pb2.ILLEGAL_TOPIC,
    "Heartbeat": definition_pb2.OK,
    "NotifyClientTermination": definition_pb2.OK,
}


@pytest.mark.parametrize("rpc", EMPTY)
async def test_an_empty_request(edge: FakeEdge, rpc: str) -> None:
    """The first missing thing is named by its code."""
    response = await answer(edge, rpc, b"", {"x-mq-client-id": "c"})
    assert response.status.code == EMPTY[rpc]  # type: ignore[attr-defined]


@pytest.mark.parametrize("rpc", RPCS)
async def test_bytes_that_are_no_request(edge: FakeEdge, rpc: str) -> None:
    """A send, receive or ack is answered BAD_REQUEST, any other call ends with INVALID_ARGUMENT."""
    metadata = {"x-mq-client-id": "c"}
    if rpc in HOT_METHODS and rpc != "EndTransaction":
        response = await answer(edge, rpc, b"\xff\xff\xff\xff", metadata)
        assert response.status.code == definition_pb2.BAD_REQUEST  # type: ignore[attr-defined]
        return
    with pytest.raises(CallError) as failure:
        await answer(edge, rpc, b"\xff\xff\xff\xff", metadata)
    assert failure.value.status == "INVALID_ARGUMENT"


async def test_heartbeats_of_unknown_types_and_groups(edge: FakeEdge) -> None:
    """UNRECOGNIZED_CLIENT_TYPE and ILLEGAL_CONSUMER_GROUP."""
    metadata = {"x-mq-client-id": "c"}
    response = await answer(edge, "Heartbeat", b"\x10\x63", metadata)
    assert response.status.code == definition_pb2.UNRECOGNIZED_CLIENT_TYPE  # type: ignore[attr-defined]
    bad = service_pb2.HeartbeatRequest(group=resource("no group!"), client_type=2)  # type: ignore[arg-type]
    response = await answer(edge, "Heartbeat", bad.SerializeToString(), metadata)
    assert response.status.code == definition_pb2.ILLEGAL_CONSUMER_GROUP  # type: ignore[attr-defined]


async def test_random_damage_never_kills(
    edge: FakeEdge, client: Client, storage: FakeStorage
) -> None:
    """Cut, flipped and lengthened requests are all answered; afterwards all works."""
    seed = int(os.environ.get("STRATA_TEST_SEED", "20261121"))
    print("seed", seed)
    dice = random.Random(seed)
    whole = {
        "SendMessage": service_pb2.SendMessageRequest(
            messages=[message("orders", 1, tag="t", keys=["k"]), message("orders", 2)]
        ).SerializeToString(),
        "ReceiveMessage": receive_request("orders", "g", attempt_id="a").SerializeToString(),
        "AckMessage": service_pb2.AckMessageRequest(
            group=resource("g"),
            topic=resource("orders"),
            entries=[service_pb2.AckMessageEntry(message_id="m", receipt_handle="h")],
        ).SerializeToString(),
        "QueryRoute": service_pb2.QueryRouteRequest(topic=resource("orders")).SerializeToString(),
    }
    for _ in range(400):
        rpc = dice.choice(list(whole))
        data = bytearray(whole[rpc])
        for _ in range(dice.randint(1, 4)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        del data[dice.randint(len(data) // 2, len(data)) :]
        data += dice.randbytes(dice.randint(0, 8))
        try:
            await answer(edge, rpc, bytes(data), {"x-mq-client-id": "c"})
        except CallError as failure:
            assert failure.status == "INVALID_ARGUMENT"
    assert (await client.send(message("orders", 3))).status.code == definition_pb2.OK
