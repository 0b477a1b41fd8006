"""Every call to storage can be repeated, or says that it is a repeat (rule 37)."""

from __future__ import annotations

import pytest
from google.protobuf.descriptor import Descriptor

from apache.rocketmq.v2 import definition_pb2
from strata.storage.v1 import storage_pb2
from strata_angelia.ports import DEADLINE_EXCEEDED, OVERLOADED, UNAVAILABLE, AngeliaError
from strata_broker.storage_client.storage_client import SAFE_TO_REPEAT
from strata_testing.broker.client import Client, message
from strata_testing.broker.fake_storage import FakeStorage

READS = {
    "Fetch",
    "ReadMessages",
    "GetOffsets",
    "GetConsumerState",
    "GetConsumerTopics",
    "GetConsumers",
    "Query",
    "Trace",
    "Watch",
    "GetStatus",
    "ListPending",
    "GetWindow",
}


def says_repeated(request: Descriptor) -> bool:
    """Whether a request, or a part of it, can say that it is a repeat."""
    return "repeated" in request.fields_by_name or any(
        field.message_type is not None and "repeated" in field.message_type.fields_by_name
        for field in request.fields
    )


def test_no_call_is_missing() -> None:
    """Each RPC only reads, or has the field, or a reason why it needs none."""
    service = storage_pb2.DESCRIPTOR.services_by_name["StorageService"]
    rpcs = {method.name: method.input_type for method in service.methods}
    repeats = {name for name, request in rpcs.items() if says_repeated(request)}
    assert repeats == {"Pop", "Ack", "ChangeInvisible", "ForwardToDeadLetter"}
    assert rpcs.keys() == repeats | READS | SAFE_TO_REPEAT.keys()
    assert not repeats & SAFE_TO_REPEAT.keys()


@pytest.mark.parametrize(
    ("trouble", "repeated"),
    [
        (AngeliaError(UNAVAILABLE, "gone"), True),
        (AngeliaError(DEADLINE_EXCEEDED, "silent"), True),
        (storage_pb2.Refusal(outcome=storage_pb2.OUTCOME_NOT_LEADER), True),
        (AngeliaError(OVERLOADED, "busy"), False),
        (storage_pb2.Refusal(outcome=storage_pb2.OUTCOME_NOT_READY), False),
    ],
)
async def test_a_repeated_ack_says_that_it_is_one(
    client: Client,
    storage: FakeStorage,
    trouble: AngeliaError | storage_pb2.Refusal,
    repeated: bool,
) -> None:
    """Where nobody knows whether the first try was carried out; else it was not."""
    await client.send(message("orders", 1))
    (got,) = await client.receive_all("orders", "g")
    storage.trouble["Ack"].append(trouble)
    response = await client.ack("orders", "g", got.system_properties.receipt_handle)
    assert response.status.code == definition_pb2.OK
    tries = [
        group.repeated
        for _, request in storage.calls
        if isinstance(request, storage_pb2.AckRequest)
        for group in request.groups
    ]
    assert tries == [False, repeated]
