"""Cells of PullMessage and of the RPCs about offsets."""

from __future__ import annotations

from apache.rocketmq.v2 import definition_pb2
from strata.storage.v1 import storage_pb2
from tests.integration.broker.code_matrix import Cell
from tests.integration.broker.matrix_calls import (
    METADATA,
    Act,
    Calls,
    Status,
    assign,
    edited,
    valid_request,
)

STORAGE_RPC = {
    "PullMessage": "Fetch",
    "UpdateOffset": "ResetConsumer",
    "QueryOffset": "GetOffsets",
    "GetOffset": "GetConsumerState",
}


def refused_by_storage(rpc: str) -> Act:
    """Return the act of a call that the leader refuses."""

    async def act(calls: Calls) -> Status:
        calls.faults.refuse(STORAGE_RPC[rpc], storage_pb2.OUTCOME_CORRUPT)
        return await calls.status(rpc)

    return act


async def stored_offset(calls: Calls) -> Status:
    """Ask for an offset after it was stored."""
    update = valid_request("UpdateOffset")
    assert (await calls.status("UpdateOffset", update)).code == definition_pb2.OK
    return await calls.status("GetOffset")


async def more_pulls_than_wait(calls: Calls) -> Status:
    """Pull while as many pulls as the broker holds wait."""
    request = valid_request("PullMessage")
    group = "billing"
    request.group.name = group
    async with calls.faults.hold("Fetch"):
        waiting = calls.port.messaging.PullMessage(request, metadata=METADATA, timeout=60)
        await calls.faults.until_held("Fetch")
        status = await calls.status("PullMessage", request)
    assert [one async for one in waiting]
    return status


CELLS = [
    Cell("PullMessage", "OK", edited("PullMessage", lambda _: None)),
    Cell("UpdateOffset", "OK", edited("UpdateOffset", lambda _: None), "OK"),
    Cell("QueryOffset", "OK", edited("QueryOffset", lambda _: None), "OK"),
    Cell("GetOffset", "OK", stored_offset, "OK"),
    *(
        Cell(rpc, "INTERNAL_SERVER_ERROR", refused_by_storage(rpc), "as the test wants it")
        for rpc in STORAGE_RPC
    ),
    *(
        Cell(
            "PullMessage",
            "ILLEGAL_OFFSET",
            edited("PullMessage", assign("offset", offset)),
            f"offset {offset} *",
        )
        for offset in (-1, 1 << 40)
    ),
    Cell(
        "PullMessage",
        "ILLEGAL_FILTER_EXPRESSION",
        edited("PullMessage", assign("filter_expression.type", definition_pb2.SQL)),
    ),
    Cell(
        "UpdateOffset",
        "ILLEGAL_OFFSET",
        edited("UpdateOffset", assign("offset", -1)),
        "offset -1 is negative*",
    ),
    *(
        Cell(
            rpc,
            "CONSUMER_GROUP_NOT_FOUND",
            edited(rpc, assign("group.name", group)),
            text,
            node,
        )
        for rpc in ("PullMessage", "UpdateOffset")
        for group, text, node in (
            ("bad group!", "the specified group[bad group!]*", "roomy"),
            ("nobody", "CODE: 26  DESC: subscription group not exist: nobody", "tight"),
        )
    ),
    Cell("PullMessage", "TOO_MANY_REQUESTS", more_pulls_than_wait, "flow limit", "tight"),
    *(
        Cell(
            rpc,
            "TOPIC_NOT_FOUND",
            edited(rpc, assign("message_queue.id", 99)),
            "topic orders has no queue 99 under broker name strata-1",
        )
        for rpc in STORAGE_RPC
    ),
    Cell(
        "GetOffset",
        "OFFSET_NOT_FOUND",
        edited("GetOffset", assign("message_queue.topic.name", "empty")),
        "OFFSET_NOT_FOUND",
    ),
]
