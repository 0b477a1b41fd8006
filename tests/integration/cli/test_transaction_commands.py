"""`strata transaction` against a real standalone node: the promised JSON, either id, ends."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import grpc

from apache.rocketmq.v2 import definition_pb2, service_pb2, service_pb2_grpc
from strata_cli.reference import JSON_KEYS

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Node


def send_halves(node: Node, topic: str, count: int) -> list[service_pb2.SendResultEntry]:
    """Send transactional messages that are not checked soon."""
    entries: list[service_pb2.SendResultEntry] = []
    with grpc.insecure_channel(node.endpoint) as channel:
        stub = service_pb2_grpc.MessagingServiceStub(channel)
        for number in range(1, count + 1):
            message = definition_pb2.Message(
                topic=definition_pb2.Resource(name=topic), body=b"deal %d" % number
            )
            properties = message.system_properties
            properties.message_id = f"01{number:032X}"
            properties.message_type = definition_pb2.TRANSACTION
            properties.orphaned_transaction_recovery_duration.seconds = 600
            properties.tag = "pizza"
            response = stub.SendMessage(
                service_pb2.SendMessageRequest(messages=[message]),
                metadata=(("x-mq-client-id", "cli-test"),),
                timeout=10,
            )
            assert response.status.code == definition_pb2.OK, response.status.message
            entries.extend(response.entries)
    return entries


def promised(command: str) -> set[str]:
    """The JSON keys that docs/cli.md names for a command."""
    return set(re.findall(r"`([a-z0-9_]+)`", JSON_KEYS[command]))


def test_transactions(node: Node) -> None:
    """List, show, commit and roll back; what ended is found no more."""
    node.json("topic", "create", "deals", "--type", "TRANSACTION")
    entries = send_halves(node, "deals", 4)
    listed = node.json("transaction", "list", "--topic", "deals")["transactions"]
    assert {one["transaction_id"] for one in listed} == {one.transaction_id for one in entries}
    assert set(listed[0]) == promised("transaction list") - {"transactions"}
    assert len(node.json("transaction", "list", "--count", "3")["transactions"]) == 3

    shown = node.json("transaction", "show", entries[0].transaction_id)
    assert (shown["body"], shown["tag"], shown["topic"]) == ("deal 1", "pizza", "deals")
    assert shown["properties"]["__transactionId__"] == entries[0].transaction_id
    assert set(shown) == set(listed[0]) | promised("transaction show")
    assert node.json("transaction", "show", f"01{1:032X}", "--topic", "deals") == shown

    committed = node.json("transaction", "commit", entries[0].transaction_id)
    assert committed == {"id": entries[0].transaction_id, "result": "committed"}
    node.json("transaction", "commit", f"01{2:032X}", "--topic", "deals")
    rolled_back = node.json("transaction", "rollback", entries[2].transaction_id)
    assert rolled_back["result"] == "rolled back"
    got = node.json("message", "receive", "deals", "--group", "deals-g", "--count", "4", "--ack")
    assert sorted(one["body"] for one in got["messages"]) == ["deal 1", "deal 2"]
    left = node.json("transaction", "list", "--all-namespaces")["transactions"]
    assert [one["message_id"] for one in left] == [entries[3].message_id]


def test_failures_are_one_line(node: Node) -> None:
    """Unknown ids and options that do not go together."""
    node.json("topic", "create", "trades", "--type", "TRANSACTION")
    for code, *arguments in (
        (3, "show", "nonsense"),
        (3, "show", f"01{9:032X}", "--topic", "trades"),
        (3, "commit", f"01{9:032X}", "--topic", "nowhere"),
        (2, "list", "--count", "0"),
        (2, "list", "--topic", "trades", "--all-namespaces"),
    ):
        done = node.strata("transaction", *map(str, arguments))
        assert (done.returncode, done.stdout) == (code, ""), (arguments, done.stderr)
        assert re.fullmatch(r"strata: .+\n", done.stderr), done.stderr
