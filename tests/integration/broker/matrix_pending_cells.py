"""Cells of EndTransaction and RecallMessage."""

from __future__ import annotations

from typing import Any

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.storage.v1 import storage_pb2
from tests.integration.broker.code_matrix import Cell
from tests.integration.broker.matrix_calls import (
    Act,
    Calls,
    Status,
    assign,
    edited,
    new_message,
    valid_request,
)
from tests.integration.broker.matrix_send_cells import delivered_in

HOUR_MS = 3_600_000


async def send_one(calls: Calls, message: definition_pb2.Message) -> service_pb2.SendResultEntry:
    """Send a message and return what its producer is told."""
    request = service_pb2.SendMessageRequest(messages=[message])
    (response,) = await calls.call("SendMessage", request)
    assert response.status.code == definition_pb2.OK, response.status.message
    entry: service_pb2.SendResultEntry = response.entries[0]
    return entry


async def half_request(calls: Calls) -> Any:
    """Return the request that commits a half message that was just sent."""
    half = new_message("halves", message_type=definition_pb2.TRANSACTION)
    entry = await send_one(calls, half)
    return service_pb2.EndTransactionRequest(
        topic=half.topic,
        message_id=entry.message_id,
        transaction_id=entry.transaction_id,
        resolution=definition_pb2.COMMIT,
    )


async def recall_request(calls: Calls) -> Any:
    """Return the request that recalls a delay message that was just sent."""
    entry = await send_one(calls, delivered_in(HOUR_MS))
    request = valid_request("RecallMessage")
    request.topic.name = "delayed"
    request.recall_handle = entry.recall_handle
    return request


REQUESTS = {"EndTransaction": half_request, "RecallMessage": recall_request}
STORAGE_RPC = {"EndTransaction": "EndTransaction", "RecallMessage": "Recall"}


def served(rpc: str) -> Act:
    """Return the act of a call that does what it says."""

    async def act(calls: Calls) -> Status:
        return await calls.status(rpc, await REQUESTS[rpc](calls))

    return act


def unanswered(rpc: str) -> Act:
    """Return the act of a call that the leader does not answer in time."""

    async def act(calls: Calls) -> Status:
        request = await REQUESTS[rpc](calls)
        async with calls.faults.hold(STORAGE_RPC[rpc]):
            return await calls.status(rpc, request)

    return act


def refused_by_storage(rpc: str) -> Act:
    """Return the act of a call that the leader refuses."""

    async def act(calls: Calls) -> Status:
        request = await REQUESTS[rpc](calls)
        calls.faults.refuse(STORAGE_RPC[rpc], storage_pb2.OUTCOME_CORRUPT)
        return await calls.status(rpc, request)

    return act


async def ended_the_other_way(calls: Calls) -> Status:
    """Roll back what was committed."""
    request = await half_request(calls)
    assert (await calls.status("EndTransaction", request)).code == definition_pb2.OK
    assert (await calls.status("EndTransaction", request)).code == definition_pb2.OK, "a repeat"
    request.resolution = definition_pb2.ROLLBACK
    return await calls.status("EndTransaction", request)


async def of_another_topic(calls: Calls) -> Status:
    """Commit a half message under the name of another topic."""
    request = await half_request(calls)
    request.topic.name = "mixed"
    return await calls.status("EndTransaction", request)


async def recalled_late(calls: Calls) -> Status:
    """Recall a message that was delivered."""
    entry = await send_one(calls, delivered_in(1))
    await calls.delivered("delayed")
    return await bad_handle(entry.recall_handle, "delayed")(calls)


async def recalled_twice(calls: Calls) -> Status:
    """Recall what was recalled: the repeat of a call whose answer was lost."""
    request = await recall_request(calls)
    assert (await calls.status("RecallMessage", request)).code == definition_pb2.OK
    return await calls.status("RecallMessage", request)


async def recalled_by_another_namespace(calls: Calls) -> Status:
    """Recall with a handle that another namespace got."""
    request = await recall_request(calls)
    request.topic.resource_namespace = "other"
    return await calls.status("RecallMessage", request)


def bad_handle(handle: str, topic: str) -> Act:
    """Return the act of a recall with some text for a handle."""

    def edit(request: service_pb2.RecallMessageRequest) -> None:
        request.topic.name = topic
        request.recall_handle = handle

    return edited("RecallMessage", edit)


CELLS = [
    *(Cell(rpc, "OK", served(rpc), "OK") for rpc in REQUESTS),
    Cell("RecallMessage", "OK", recalled_twice, "OK"),
    *(
        Cell(
            rpc,
            "PROXY_TIMEOUT",
            unanswered(rpc),
            "storage did not answer in time: raft group *",
            "tight",
        )
        for rpc in REQUESTS
    ),
    *(
        Cell(rpc, "INTERNAL_SERVER_ERROR", refused_by_storage(rpc), "as the test wants it")
        for rpc in REQUESTS
    ),
    *(
        Cell(
            "EndTransaction",
            "INVALID_TRANSACTION_ID",
            edited("EndTransaction", assign("transaction_id", text)),
            told,
        )
        for text, told in (
            ("", "transaction id cannot be blank"),
            (" ", "transaction id cannot be blank"),
            ("nonsense", "INVALID_TRANSACTION_ID*"),
            ("A" * 50_000, "INVALID_TRANSACTION_ID*"),
        )
    ),
    *(
        Cell("EndTransaction", "INVALID_TRANSACTION_ID", act, "INVALID_TRANSACTION_ID*")
        for act in (ended_the_other_way, of_another_topic)
    ),
    *(
        Cell("RecallMessage", "INVALID_RECEIPT_HANDLE", act, "INVALID_RECEIPT_HANDLE*")
        for act in (
            recalled_late,
            recalled_by_another_namespace,
            bad_handle("nonsense", "delayed"),
            bad_handle("", "delayed"),
            bad_handle("A" * 50_000, "mixed"),
            bad_handle("01" + "0" * 32, "orders"),
        )
    ),
    Cell(
        "RecallMessage",
        "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE",
        bad_handle("nonsense", "orders"),
        "TopicMessageType validate failed, the expected type is NORMAL, but actual type is DELAY",
    ),
]
