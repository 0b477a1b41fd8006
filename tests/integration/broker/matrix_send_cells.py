"""Cells of SendMessage."""

from __future__ import annotations

from typing import Any

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.storage.v1 import storage_pb2
from tests.integration.broker.code_matrix import Cell
from tests.integration.broker.matrix_calls import (
    METADATA,
    TOPIC,
    Act,
    Calls,
    Status,
    new_message,
)

MAX_BODY = 4 * 1024 * 1024
MAX_PROPERTIES = 16_384
FORTY_DAYS_MS = 40 * 86_400_000


def sent(*messages: definition_pb2.Message) -> Act:
    """Return the act of one request."""
    return lambda calls: calls.status(
        "SendMessage", service_pb2.SendMessageRequest(messages=messages)
    )


def refused(code: str, text: str, topic: str = TOPIC, **properties: Any) -> Cell:
    """Return the cell of a message with these system properties."""
    return Cell("SendMessage", code, sent(new_message(topic, **properties)), text)


def with_properties(code: str, text: str, **properties: str) -> Cell:
    """Return the cell of a message with these user properties."""
    message = new_message()
    message.user_properties.update(properties)
    return Cell("SendMessage", code, sent(message), text)


def delivered_in(delay_ms: int) -> definition_pb2.Message:
    """A message of topic `delayed` that is due after a while."""
    message = new_message("delayed", message_type=definition_pb2.DELAY)
    due = message.system_properties.delivery_timestamp
    due.GetCurrentTime()
    due.FromMilliseconds(due.ToMilliseconds() + delay_ms)
    return message


async def far_ahead(calls: Calls) -> Status:
    """Send a message for later than is allowed."""
    return await sent(delivered_in(FORTY_DAYS_MS + 60_000))(calls)


async def two_fates(calls: Calls) -> Status:
    """Send messages of two raft groups, of which one refuses."""

    def refuse_one(response: storage_pb2.AppendResponse) -> None:
        assert len(response.results) == 2
        response.results[1].refusal.outcome = storage_pb2.OUTCOME_DISK_FULL

    groups = (new_message("fifo", message_group=f"g{number}") for number in range(16))
    calls.faults.alter("Append", refuse_one)
    return await calls.status("SendMessage", service_pb2.SendMessageRequest(messages=groups))


async def beyond_the_quota(calls: Calls) -> Status:
    """Send what a namespace may send and then one message more."""
    request = service_pb2.SendMessageRequest(messages=[new_message("limited")])
    assert (await calls.status("SendMessage", request)).code == definition_pb2.OK
    return await calls.status("SendMessage", request)


async def beyond_the_flow(calls: Calls) -> Status:
    """Send while as many bytes as the broker holds wait for storage."""
    request = service_pb2.SendMessageRequest(messages=[new_message(TOPIC, body=bytes(40_000))])
    async with calls.faults.hold("Append"):
        waiting = calls.port.messaging.SendMessage(request, metadata=METADATA, timeout=60)
        await calls.faults.until_held("Append")
        status = await calls.status("SendMessage", request)
    await waiting
    return status


async def storage_refuses(calls: Calls) -> Status:
    """Send while the storage node's disk is full."""
    calls.faults.refuse("Append", storage_pb2.OUTCOME_DISK_FULL)
    return await calls.status("SendMessage")


async def storage_is_overloaded(calls: Calls) -> Status:
    """Send while a limit of the storage node is reached."""
    calls.faults.refuse("Append", storage_pb2.OUTCOME_OVERLOADED)
    return await calls.status("SendMessage")


async def storage_is_silent(calls: Calls) -> Status:
    """Send and get no answer from the only replica."""
    async with calls.faults.hold("Append"):
        return await calls.status("SendMessage")


async def storage_is_gone(calls: Calls) -> Status:
    """Send while nobody can be reached."""
    calls.faults.refuse("Append", storage_pb2.OUTCOME_NOT_READY, times=10_000)
    try:
        return await calls.status("SendMessage")
    finally:
        calls.faults.clear()


CELLS = [
    Cell("SendMessage", "OK", sent(new_message()), "OK"),
    Cell("SendMessage", "OK", sent(new_message(), new_message()), "OK"),
    Cell("SendMessage", "OK", sent(new_message("fifo", message_group="g")), "OK"),
    Cell("SendMessage", "OK", sent(new_message(tag="Ä", keys=["ключ", "🔑"])), "OK"),
    Cell("SendMessage", "OK", sent(new_message("mixed", body=bytes(MAX_BODY))), "OK"),
    Cell("SendMessage", "MULTIPLE_RESULTS", two_fates, "MULTIPLE_RESULTS"),
    refused("ILLEGAL_MESSAGE_TAG", "tag cannot be the char sequence of whitespace", tag=" \u3000"),
    refused("ILLEGAL_MESSAGE_TAG", "tag cannot contain '|'", tag="a|b"),
    refused("ILLEGAL_MESSAGE_TAG", "tag cannot contain control character", tag="a\x00"),
    refused(
        "ILLEGAL_MESSAGE_KEY", "key cannot be the char sequence of whitespace", keys=["k", " "]
    ),
    refused("ILLEGAL_MESSAGE_KEY", "key cannot contain control character", keys=["k\x85"]),
    refused(
        "ILLEGAL_MESSAGE_GROUP",
        "message group cannot be the char sequence of whitespace",
        "fifo",
        message_group="",
    ),
    refused(
        "ILLEGAL_MESSAGE_GROUP",
        "message group exceed the max size 64",
        "fifo",
        message_group="ä" * 32,
    ),
    refused(
        "ILLEGAL_MESSAGE_GROUP",
        "message group cannot contain control character",
        "fifo",
        message_group="a\tb",
    ),
    with_properties(
        "ILLEGAL_MESSAGE_PROPERTY_KEY", "property is used by system: UNIQ_KEY", UNIQ_KEY="1"
    ),
    with_properties(
        "ILLEGAL_MESSAGE_PROPERTY_KEY",
        "the value of property name cannot contain control character",
        name="a\x1f",
    ),
    refused("ILLEGAL_MESSAGE_ID", "message id cannot be blank", message_id=" "),
    Cell(
        "SendMessage",
        "ILLEGAL_DELIVERY_TIME",
        far_ahead,
        f"the max delay time of message is too large, max is {FORTY_DAYS_MS}",
    ),
    *(
        Cell(
            "SendMessage",
            "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE",
            sent(new_message(topic, **properties)),
            f"TopicMessageType validate failed, the expected type is {expected}, "
            f"but actual type is {actual}",
        )
        for topic, properties, expected, actual in (
            (TOPIC, {"message_group": "g"}, "NORMAL", "FIFO"),
            ("fifo", {}, "FIFO", "NORMAL"),
            (TOPIC, {"message_type": definition_pb2.TRANSACTION}, "NORMAL", "TRANSACTION"),
            ("delayed", {}, "DELAY", "NORMAL"),
            ("halves", {}, "TRANSACTION", "NORMAL"),
            (TOPIC, {"priority": 3}, "NORMAL", "PRIORITY"),
            (TOPIC, {"lite_topic": "l"}, "NORMAL", "LITE"),
        )
    ),
    Cell("SendMessage", "MESSAGE_CORRUPTED", sent(), "no message to send"),
    Cell(
        "SendMessage",
        "MESSAGE_CORRUPTED",
        sent(new_message(), new_message("fifo")),
        "different message has different topic",
    ),
    Cell(
        "SendMessage",
        "MESSAGE_CORRUPTED",
        sent(new_message(), new_message(namespace="elsewhere")),
        "different message has different topic",
    ),
    Cell("SendMessage", "FORBIDDEN", sent(new_message("%DLQ%billing")), "no writable queue"),
    Cell("SendMessage", "FORBIDDEN", sent(new_message("homeless")), "no writable queue"),
    refused(
        "MESSAGE_BODY_TOO_LARGE",
        f"message body cannot exceed the max {MAX_BODY}",
        body=bytes(MAX_BODY + 1),
    ),
    refused("MESSAGE_BODY_EMPTY", "message body cannot be empty", body=b""),
    with_properties(
        "MESSAGE_PROPERTIES_TOO_LARGE",
        f"the total size of user property is too large, max is {MAX_PROPERTIES}",
        name="ä" * (MAX_PROPERTIES // 2),
    ),
    with_properties(
        "MESSAGE_PROPERTIES_TOO_LARGE",
        "the number of user property exceed the max 128",
        **{f"p{number}": "v" for number in range(129)},
    ),
    Cell(
        "SendMessage",
        "TOO_MANY_REQUESTS",
        beyond_the_quota,
        "the quota of topic [limited] of the default namespace is 1 messages/s",
    ),
    Cell("SendMessage", "TOO_MANY_REQUESTS", beyond_the_flow, "flow limit", "tight"),
    Cell("SendMessage", "TOO_MANY_REQUESTS", storage_is_overloaded, "flow limit"),
    Cell("SendMessage", "INTERNAL_SERVER_ERROR", storage_refuses, "as the test wants it"),
    Cell(
        "SendMessage",
        "MASTER_PERSISTENCE_TIMEOUT",
        storage_is_silent,
        "the storage node did not make it durable in time: raft group *",
        "tight",
    ),
    Cell(
        "SendMessage",
        "PROXY_TIMEOUT",
        storage_is_gone,
        "storage did not answer in time: raft group *",
        "tight",
    ),
]
