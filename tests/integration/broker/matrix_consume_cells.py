"""Cells of ReceiveMessage and of the RPCs about leases."""

from __future__ import annotations

from typing import Any

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.storage.v1 import storage_pb2
from tests.integration.broker.code_matrix import MATRIX, Cell
from tests.integration.broker.matrix_calls import (
    GROUP,
    METADATA,
    Act,
    Calls,
    Status,
    assign,
    edited,
    valid_request,
)

STORAGE_RPC = {
    "ChangeInvisibleDuration": "ChangeInvisible",
    "ForwardMessageToDeadLetterQueue": "ForwardToDeadLetter",
    "AckMessage": "Ack",
    "ReceiveMessage": "Pop",
}
LEASE_RPCS = ("AckMessage", "ForwardMessageToDeadLetterQueue", "ChangeInvisibleDuration")


def with_lease(rpc: str) -> Act:
    """Return the act of a call about a lease that exists."""

    async def act(calls: Calls) -> Status:
        return await calls.status(rpc, await calls.held_lease_request(rpc))

    return act


def with_damaged_handle(rpc: str, damage: str) -> Act:
    """Return the act of a call with a handle that names nothing any more, or never did."""

    async def act(calls: Calls) -> Status:
        request = await calls.held_lease_request(rpc)
        target = request.entries[0] if rpc == "AckMessage" else request
        handle = target.receipt_handle
        if damage == "another group":
            await calls.call("ReceiveMessage", _receive(group="shipping"))
            request.group.name = "shipping"
        elif damage == "another topic":
            request.topic.name = "mixed"
        elif damage == "another namespace":
            request.group.resource_namespace = request.topic.resource_namespace = "other"
            # There are topic and consumer group of these names in it, too.
            await calls.call("ReceiveMessage", _receive(namespace="other"))
        else:
            target.receipt_handle = {
                "empty": "",
                "cut": handle[:-1],
                "one bit": chr(ord(handle[0]) ^ 1) + handle[1:],
                "huge": handle * 600,
                "no text of ours": "ä\x00",
            }[damage]
        return await calls.status(rpc, request)

    return act


def refused_by_storage(rpc: str, outcome: storage_pb2.Outcome.ValueType) -> Act:
    """Return the act of a call that the leader refuses."""

    async def act(calls: Calls) -> Status:
        request = valid_request(rpc)
        if rpc in LEASE_RPCS:
            request = await calls.held_lease_request(rpc)
        calls.faults.refuse(STORAGE_RPC[rpc], outcome)
        return await calls.status(rpc, request)

    return act


def unanswered(rpc: str) -> Act:
    """Return the act of a call about a lease that the leader does not answer in time."""

    async def act(calls: Calls) -> Status:
        request = await calls.held_lease_request(rpc)
        async with calls.faults.hold(STORAGE_RPC[rpc]):
            return await calls.status(rpc, request)

    return act


async def one_of_two_handles(calls: Calls) -> Status:
    """Ack a lease and something that is none."""
    request = await calls.held_lease_request("AckMessage")
    request.entries.add(message_id="m", receipt_handle="nothing")
    return await calls.status("AckMessage", request)


async def more_acks_than_wait(calls: Calls) -> Status:
    """Ack while as many acks as the broker holds wait for storage."""
    first = await calls.held_lease_request("AckMessage")
    second = await calls.held_lease_request("AckMessage")
    async with calls.faults.hold("Ack"):
        waiting = calls.port.messaging.AckMessage(first, metadata=METADATA, timeout=60)
        await calls.faults.until_held("Ack")
        status = await calls.status("AckMessage", second)
    await waiting
    return status


async def more_receives_than_wait(calls: Calls) -> Status:
    """Receive while as many receives as the broker holds wait."""
    await calls.call("ReceiveMessage", _receive(topic="empty"))
    async with calls.faults.hold("Pop"):
        waiting = calls.port.messaging.ReceiveMessage(
            _receive(topic="empty"), metadata=METADATA, timeout=60
        )
        await calls.faults.until_held("Pop")
        status = await calls.status("ReceiveMessage")
    nothing, *_ = [one async for one in waiting]
    assert nothing.status.code == definition_pb2.MESSAGE_NOT_FOUND
    return status


async def unmade_group(calls: Calls) -> Status:
    """Receive for a new consumer group while the nameserver is silent."""
    async with calls.faults.hold("CreateConsumerGroup"):
        return await calls.status("ReceiveMessage", _receive(group="never-made"))


def _receive(
    *, topic: str = "orders", group: str = GROUP, namespace: str = ""
) -> service_pb2.ReceiveMessageRequest:
    request: service_pb2.ReceiveMessageRequest = valid_request("ReceiveMessage")
    request.message_queue.topic.name = topic
    request.message_queue.topic.resource_namespace = namespace
    request.group.name = group
    request.group.resource_namespace = namespace
    return request


def filtered(kind: definition_pb2.FilterType.ValueType, expression: str) -> Act:
    """Return the act of a receive with a filter."""

    def edit(request: Any) -> None:
        request.filter_expression.type = kind
        request.filter_expression.expression = expression

    return edited("ReceiveMessage", edit)


def receive(code: str, path: str, value: Any, text: str) -> Cell:
    """Return the cell of a receive with one field changed."""
    return Cell("ReceiveMessage", code, edited("ReceiveMessage", assign(path, value)), text)


CELLS = [
    *(Cell(rpc, "OK", with_lease(rpc), "OK") for rpc in LEASE_RPCS),
    *(
        Cell(
            rpc,
            "INVALID_RECEIPT_HANDLE",
            with_damaged_handle(rpc, damage),
            "INVALID_RECEIPT_HANDLE",
        )
        for rpc in LEASE_RPCS
        for damage in (
            "empty",
            "cut",
            "one bit",
            "huge",
            "no text of ours",
            "another group",
            "another topic",
            "another namespace",
        )
    ),
    *(
        Cell(
            rpc,
            "PROXY_TIMEOUT",
            unanswered(rpc),
            "PROXY_TIMEOUT"
            if rpc == "AckMessage"
            else "storage did not answer in time: raft group 1*",
            "tight",
        )
        for rpc in LEASE_RPCS
    ),
    *(
        Cell(
            rpc,
            "INTERNAL_SERVER_ERROR",
            refused_by_storage(rpc, storage_pb2.OUTCOME_CORRUPT),
            "as the test wants it" if rpc != "AckMessage" else "INTERNAL_SERVER_ERROR",
        )
        for rpc in STORAGE_RPC
    ),
    Cell("AckMessage", "MULTIPLE_RESULTS", one_of_two_handles, "MULTIPLE_RESULTS"),
    Cell("AckMessage", "TOO_MANY_REQUESTS", more_acks_than_wait, "TOO_MANY_REQUESTS", "tight"),
    *(
        Cell(
            "ChangeInvisibleDuration",
            "ILLEGAL_INVISIBLE_TIME",
            edited("ChangeInvisibleDuration", assign("invisible_duration.seconds", seconds)),
            text,
        )
        for seconds, text in (
            (-1, "the invisibleTime is too small. min is 0"),
            (43_201, "the invisibleTime is too large. max is 43200000"),
            (-(1 << 63), "the invisibleTime is too small. min is 0"),
        )
    ),
    Cell("ReceiveMessage", "OK", with_lease("AckMessage"), "OK"),
    Cell(
        "ReceiveMessage",
        "MESSAGE_NOT_FOUND",
        edited("ReceiveMessage", assign("message_queue.topic.name", "empty")),
        "no new message",
    ),
    receive(
        "ILLEGAL_INVISIBLE_TIME",
        "invisible_duration.seconds",
        9,
        "the invisibleTime is too small. min is 10000",
    ),
    receive(
        "ILLEGAL_INVISIBLE_TIME",
        "invisible_duration.seconds",
        43_201,
        "the invisibleTime is too large. max is 43200000",
    ),
    receive("FORBIDDEN", "message_queue.broker.name", "nobody", "no readable queue"),
    receive("FORBIDDEN", "message_queue.topic.name", "homeless", "no readable queue"),
    Cell(
        "ReceiveMessage",
        "ILLEGAL_POLLING_TIME",
        edited("ReceiveMessage", assign("long_polling_timeout.seconds", 20), timeout_s=0.15),
        "The deadline time remaining is not enough for polling, please check network condition",
    ),
    Cell(
        "ReceiveMessage",
        "ILLEGAL_FILTER_EXPRESSION",
        # Without a type it is one of tags.
        filtered(definition_pb2.FILTER_TYPE_UNSPECIFIED, "||"),
    ),
    Cell("ReceiveMessage", "ILLEGAL_FILTER_EXPRESSION", filtered(definition_pb2.SQL, " ")),
    Cell("ReceiveMessage", "ILLEGAL_FILTER_EXPRESSION", filtered(definition_pb2.SQL, "a >")),
    Cell("ReceiveMessage", "ILLEGAL_FILTER_EXPRESSION", filtered(definition_pb2.TAG, "||")),
    Cell("ReceiveMessage", "ILLEGAL_FILTER_EXPRESSION", filtered(definition_pb2.TAG, "a" * 70_000)),
    Cell(
        "ReceiveMessage",
        "CONSUMER_GROUP_NOT_FOUND",
        edited("ReceiveMessage", assign("group.name", "nobody")),
        "CODE: 26  DESC: subscription group not exist: nobody",
        "tight",
    ),
    Cell("ReceiveMessage", "PROXY_TIMEOUT", unmade_group, "cannot create consumer group*"),
    Cell("ReceiveMessage", "TOO_MANY_REQUESTS", more_receives_than_wait, "flow limit", "tight"),
]

assert {"ReceiveMessage", *LEASE_RPCS} <= set(MATRIX)
