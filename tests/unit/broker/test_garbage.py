"""Refused requests leave nothing that only a garbage collection would free.

A refusal that is kept holds its stack, and the stack holds who keeps it. Thousands of them in one
request were hundreds of MB until the oldest generation was collected, which is rare (rule 30).
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from apache.rocketmq.v2 import service_pb2
from strata.storage.v1 import storage_pb2
from strata_testing.broker.client import message, receive_request, resource
from strata_testing.broker.fake_edge import FakeCall, FakeEdge
from strata_testing.broker.fake_storage import FakeStorage


@pytest.fixture(autouse=True)
def _no_collection() -> Iterator[None]:
    """Turn the collection off, so that objects are freed by their last reference."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def wrong_acks() -> service_pb2.AckMessageRequest:
    entries = [service_pb2.AckMessageEntry(receipt_handle=f"no handle {n}") for n in range(50)]
    return service_pb2.AckMessageRequest(
        group=resource("g"), topic=resource("orders"), entries=entries
    )


def wrong_sends() -> service_pb2.SendMessageRequest:
    return service_pb2.SendMessageRequest(messages=[message("orders", 1, body=b"")])


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("AckMessage", wrong_acks()),
        ("AckMessage", b"\xff"),
        ("SendMessage", wrong_sends()),
        ("SendMessage", b"\xff"),
        ("SendMessage", service_pb2.SendMessageRequest(messages=[message("nowhere", 1)])),
        ("ReceiveMessage", receive_request("nowhere", "g")),
        ("ReceiveMessage", receive_request("orders", "g", tags="||")),
    ],
)
async def test_a_refused_call_is_gone_when_it_is_answered(
    edge: FakeEdge, method: str, request_: service_pb2.SendMessageRequest | bytes
) -> None:
    """Nothing refers to it any more."""

    async def refuse() -> weakref.ref[FakeCall]:
        call = edge.begin(method, request_)
        await call.answer
        return weakref.ref(call)

    gone = await refuse()
    await asyncio.sleep(0)
    assert gone() is None


async def test_a_send_that_storage_refuses_is_gone_when_it_is_answered(
    edge: FakeEdge, storage: FakeStorage
) -> None:
    """The same behind an append."""
    storage.trouble["Append"].append(
        storage_pb2.Refusal(outcome=storage_pb2.OUTCOME_DISK_FULL, reason="why")
    )
    call = edge.begin(
        "SendMessage", service_pb2.SendMessageRequest(messages=[message("orders", 1)])
    )
    await call.answer
    gone = weakref.ref(call)
    del call
    await asyncio.sleep(0.01)
    assert gone() is None
