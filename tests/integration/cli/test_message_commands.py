"""`strata message query|trace` and `strata dlq` against a real standalone node."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata_cli import messaging
from strata_cli.client import connect
from strata_cli.options import Common
from strata_testing import NotYet, until_blocking

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Node


def give_up(node: Node, topic: str, group: str, count: int) -> list[str]:
    """Receive messages and forward them to the dead-letter topic; return their ids."""
    source, consumer = definition_pb2.Resource(name=topic), definition_pb2.Resource(name=group)
    with connect(Common(endpoint=node.endpoint)) as client:
        got = messaging.receive(
            client, source, consumer, count=count, tag="*", wait_s=10, invisible_s=30
        )
        for message in got:
            request = service_pb2.ForwardMessageToDeadLetterQueueRequest(
                group=consumer,
                topic=source,
                receipt_handle=message.system_properties.receipt_handle,
                message_id=message.system_properties.message_id,
            )
            response = client.call(client.messaging.ForwardMessageToDeadLetterQueue, request)
            assert response.status.code == definition_pb2.OK, response.status
    return [message.system_properties.message_id for message in got]


def test_messages_are_queried_by_time_key_and_tag(node: Node) -> None:
    """Exactly those asked for, in pages; what is wrong is one line."""
    node.json("topic", "create", "asked")
    for number in range(4):
        node.json(
            *("message", "send", "asked", "--body", str(number), "--key", f"k{number}"),
            *("--tag", "even" if number % 2 == 0 else "odd"),
        )
    everything = node.json("message", "query", "asked")["messages"]
    assert sorted(one["body"] for one in everything) == ["0", "1", "2", "3"]
    last_ms = max(one["store_time_ms"] for one in everything)
    assert node.json("message", "query", "asked", "--from", str(last_ms + 1))["messages"] == []
    before = node.json("message", "query", "asked", "--to", str(last_ms))["messages"]
    assert {one["body"] for one in before} == {
        one["body"] for one in everything if one["store_time_ms"] < last_ms
    }
    even = node.json("message", "query", "asked", "--tag", "even")["messages"]
    assert sorted(one["body"] for one in even) == ["0", "2"]
    (by_key,) = node.json("message", "query", "asked", "--key", "k3")["messages"]
    assert by_key["body"] == "3"
    first = node.json("message", "query", "asked", "--count", "3")
    rest = node.json("message", "query", "asked", "--page", first["next_page"])
    assert len(first["messages"]) == 3
    assert [*first["messages"], *rest["messages"]] == everything
    for arguments, reason, code in (
        (("message", "query", "asked", "--page", "x"), "is not a page token", 4),
        (("message", "query", "asked", "--from", "soon"), "is not a time", 2),
        (("message", "query", "nowhere"), "topic nowhere does not exist", 3),
    ):
        done = node.strata(*arguments)
        assert (done.returncode, done.stderr.count("\n")) == (code, 1), done.stderr
        assert reason in done.stderr


def test_the_way_of_a_message(node: Node) -> None:
    """The trace tells who sent it, where it is, who was given it and acked it."""
    node.json("topic", "create", "traced")
    sent = node.json("message", "send", "traced", "--body", "x")
    id = sent["message_id"]
    assert node.json("message", "trace", id, "--topic", "traced")["steps"] == []
    node.json("message", "receive", "traced", "--group", "tracer", "--ack")
    # The receiver's name is written a moment after its first receive.
    way: dict[str, Any] = {}

    def is_named() -> bool:
        way.update(node.json("message", "trace", id, "--topic", "traced"))
        return bool(way["steps"] and way["steps"][0]["client_id"])

    until_blocking(is_named)
    assert (way["message_id"], way["topic"], way["also_at"]) == (id, "traced", [])
    assert way["sent_by"].startswith("strata-cli@")
    assert [step["what"] for step in way["steps"]] == ["delivered", "acked"]
    delivered, acked = way["steps"]
    assert delivered["client_id"].startswith("strata-cli@")
    assert (delivered["consumer_group"], delivered["attempt"]) == ("tracer", 1)
    assert way["store_time_ms"] <= delivered["time_ms"] <= acked["time_ms"]
    place = f"{way['queue']}:{way['offset']}"
    assert node.json("message", "trace", "--topic", "traced", "--offset", place) == way
    shown = node.strata("message", "trace", id, "--topic", "traced").stdout
    assert "delivered" in shown
    for arguments, reason, code in (
        (("message", "trace", "--topic", "traced"), "--offset", 2),
        (("message", "trace", "nothing", "--topic", "traced"), "no such message", 3),
    ):
        done = node.strata(*arguments)
        assert done.returncode == code
        assert reason in done.stderr


def test_dead_letters_are_listed_shown_and_redriven(node: Node) -> None:
    """A dry run changes nothing; one is sent, then the others, then none."""
    node.json("topic", "create", "failing")
    node.json("group", "create", "failing-g")
    for number in range(3):
        node.json("message", "send", "failing", "--body", str(number))
    ids = give_up(node, "failing", "failing-g", 3)

    def counts() -> tuple[int, int]:
        listed = node.json("dlq", "list")["topics"]
        (topic,) = [one for one in listed if one["consumer_group"] == "failing-g"]
        assert topic["topic"] == "%DLQ%failing-g"
        return topic["messages"], topic["waiting"]

    assert counts() == (3, 3)
    shown = node.json("dlq", "show", "failing-g")["dead_letters"]
    assert sorted(one["message_id"] for one in shown) == sorted(ids)
    assert {(one["topic"], one["redriven"]) for one in shown} == {("failing", False)}
    dry = node.json("dlq", "redrive", "failing-g", "--dry-run")
    assert (dry["redriven"], dry["waiting"], len(dry["messages"])) == (0, 3, 3)
    one = node.json("dlq", "redrive", "failing-g", "--message-id", ids[1])
    assert (one["redriven"], one["waiting"]) == (1, 2)
    assert one["messages"][0]["message_id"] == ids[1]
    again = node.strata("dlq", "redrive", "failing-g", "--message-id", ids[1])
    assert (again.returncode, "was redriven" in again.stderr) == (3, True)
    sent: list[str] = []

    def others_are_sent() -> object:
        # The leases of the call before are released within a moment.
        sent.extend(m["message_id"] for m in node.json("dlq", "redrive", "failing-g")["messages"])
        return len(sent) == 2 or NotYet(sent)

    until_blocking(others_are_sent, 60)
    assert sorted(sent) == sorted(set(ids) - {ids[1]})
    assert counts() == (3, 0)
    got = node.json(
        *("message", "receive", "failing", "--group", "failing-g", "--count", "3", "--ack")
    )["messages"]
    assert {message["properties"]["REDRIVE_MESSAGE_ID"] for message in got} == set(ids)
    assert node.strata("dlq", "show", "nobody").returncode == 3


def test_a_delayed_message_is_recalled_or_delivered(node: Node) -> None:
    """A message that is not due is taken back once; one whose time has come is received."""
    node.json("topic", "create", "later", "--type", "DELAY")
    far = node.json("message", "send", "later", "--body", "far", "--delay", "1h")
    at = str(round(time.time() * 1_000) + 500)
    node.json("message", "send", "later", "--body", "near", "--at", at)
    recalled = node.json("message", "recall", "later", far["recall_handle"])
    assert recalled["message_id"] == far["message_id"]
    unknown = node.strata("message", "recall", "later", "no-handle")
    assert (unknown.returncode, unknown.stderr.count("\n")) == (4, 1)
    (near,) = node.json("message", "receive", "later", "--group", "late", "--ack")["messages"]
    assert near["body"] == "near"
    both = node.strata("message", "send", "later", "--body", "x", "--delay", "1s", "--at", at)
    assert both.returncode == 2
    assert "at most one of" in both.stderr


def test_sql_decides_what_is_received(node: Node) -> None:
    """Properties are compared as SQL92 says."""
    node.json("topic", "create", "priced")
    for price in ("5", "50"):
        node.json("message", "send", "priced", "--body", price, "--property", f"price={price}")
    received = node.json("message", "receive", "priced", "--group", "rich", "--sql", "price > 10")
    assert [one["body"] for one in received["messages"]] == ["50"]
