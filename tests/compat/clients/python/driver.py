"""Driver of the official Python client; the line protocol is in ../README.md.

It runs in an environment of its own: the client's generated code and ours register the same
message names and cannot be loaded by one process.
"""

import asyncio
import base64
import hashlib
import itertools
import json
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    Transaction,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import FilterType
from rocketmq.v5.client.connection import RpcClient

MAX_COMMANDS_AT_ONCE = 64
RESOLUTIONS = {
    "commit": TransactionResolution.COMMIT,
    "rollback": TransactionResolution.ROLLBACK,
    "unknown": TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED,
}


def report(message: Message, ref: int) -> dict[str, Any]:
    """Return what the client shows of a received message."""
    return {
        "ref": ref,
        "message_id": message.message_id,
        "topic": message.topic,
        "tag": message.tag,
        "keys": sorted(message.keys),
        "group": message.message_group,
        "body_sha256": hashlib.sha256(message.body).hexdigest(),
        "body_size": len(message.body),
        "properties": dict(message.properties),
        "attempt": message.delivery_attempt,
        "offset": None,
    }


class ScriptedListener(MessageListener):
    """Fails the first deliveries of each message id, then succeeds; remembers every delivery."""

    def __init__(self, failures: int, next_ref: Callable[[], int]) -> None:
        self._failures = failures
        self._next_ref = next_ref
        self._seen: dict[str, int] = {}
        self._deliveries: list[dict[str, Any]] = []
        self._changed = threading.Condition()

    def consume(self, message: Message) -> ConsumeResult:
        with self._changed:
            seen = self._seen[message.message_id] = self._seen.get(message.message_id, 0) + 1
            self._deliveries.append(report(message, self._next_ref()))
            self._changed.notify_all()
        fails = self._failures < 0 or seen <= self._failures
        return ConsumeResult.FAILURE if fails else ConsumeResult.SUCCESS

    def wait(self, count: int, timeout_s: float) -> list[dict[str, Any]]:
        with self._changed:
            self._changed.wait_for(lambda: len(self._deliveries) >= count, timeout_s)
            return list(self._deliveries)


class ScriptedChecker(TransactionChecker):
    """Answers every check alike; remembers the message ids."""

    def __init__(self, answer: str) -> None:
        self._answer = RESOLUTIONS[answer]
        self._message_ids: list[str] = []
        self._changed = threading.Condition()

    def check(self, message: Message) -> Any:
        with self._changed:
            self._message_ids.append(message.message_id)
            self._changed.notify_all()
        return self._answer

    def wait(self, count: int, timeout_s: float) -> list[str]:
        with self._changed:
            self._changed.wait_for(lambda: len(self._message_ids) >= count, timeout_s)
            return list(self._message_ids)


class Driver:
    """The clients by name, and the messages received by reference number."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._tls = options["tls"]
        self._configuration = ClientConfiguration(
            options["endpoint"],
            Credentials(options["access_key"], options["secret_key"]),
            options["namespace"],
            request_timeout=options["timeout_ms"] // 1000,  # a fraction breaks the client
        )
        self._clients: dict[str, Any] = {}
        self._listeners: dict[str, ScriptedListener] = {}
        self._checkers: dict[str, ScriptedChecker] = {}
        self._transactions: dict[int, Transaction] = {}
        self._messages: dict[int, Message] = {}
        self._refs = itertools.count(1)

    def run(self, command: dict[str, Any]) -> dict[str, Any]:
        """Run one command and return its answer without the id."""
        try:
            return {"result": getattr(self, "do_" + command["op"])(command)}
        # The driver's whole purpose is to report whatever the client raises.
        except Exception as error:  # noqa: BLE001
            code = getattr(error, "code", None)
            return {
                "error": {
                    "code": int(code) if isinstance(code, int) else None,
                    "text": str(error),
                    "class": type(error).__name__,
                }
            }

    def do_producer(self, command: dict[str, Any]) -> dict[str, Any]:
        checker = None
        if command.get("checker") is not None:
            checker = self._checkers[command["name"]] = ScriptedChecker(command["checker"])
        self._start(
            command,
            Producer(
                self._configuration,
                topics=command["topics"],
                checker=checker,
                tls_enable=self._tls,
            ),
        )
        return {}

    def do_send(self, command: dict[str, Any]) -> dict[str, Any]:
        receipt = self._clients[command["name"]].send(self._message(command))
        return {
            "message_id": receipt.message_id,
            "transaction_id": receipt.transaction_id,
            "offset": receipt.offset,
            "recall_handle": receipt.recall_handle,
        }

    def do_recall(self, command: dict[str, Any]) -> dict[str, Any]:
        producer = self._clients[command["name"]]
        return {"message_id": producer.recall_message(command["topic"], command["handle"])}

    def do_send_half(self, command: dict[str, Any]) -> dict[str, Any]:
        producer = self._clients[command["name"]]
        transaction = producer.begin_transaction()
        receipt = producer.send(self._message(command), transaction)
        ref = next(self._refs)
        self._transactions[ref] = transaction
        return {
            "ref": ref,
            "message_id": receipt.message_id,
            "transaction_id": receipt.transaction_id,
        }

    def do_end(self, command: dict[str, Any]) -> dict[str, Any]:
        transaction = self._transactions[command["ref"]]
        getattr(transaction, command["resolution"])()
        return {}

    def do_checked(self, command: dict[str, Any]) -> dict[str, Any]:
        checker = self._checkers[command["name"]]
        return {"message_ids": checker.wait(command["count"], command["timeout_ms"] / 1000)}

    def _message(self, command: dict[str, Any]) -> Message:
        message = Message()
        message.topic = command["topic"]
        message.body = self._body(command)
        if command.get("tag") is not None:
            message.tag = command["tag"]
        for key in command.get("keys") or []:
            message.keys = key  # each assignment adds one
        if command.get("group") is not None:
            message.message_group = command["group"]
        if command.get("priority") is not None:
            message.priority = command["priority"]
        for name, value in (command.get("properties") or {}).items():
            message.add_property(name, value)
        if command.get("deliver_at_ms") is not None:
            message.delivery_timestamp = command["deliver_at_ms"] // 1000  # takes whole seconds
        return message

    def do_simple(self, command: dict[str, Any]) -> dict[str, Any]:
        self._start(
            command,
            SimpleConsumer(
                self._configuration,
                command["group"],
                self._subscriptions(command),
                await_duration=command["await_ms"] // 1000,
                tls_enable=self._tls,
            ),
        )
        return {}

    def do_receive(self, command: dict[str, Any]) -> dict[str, Any]:
        consumer = self._clients[command["name"]]
        received = consumer.receive(command["max_messages"], command["invisible_ms"] // 1000)
        messages = []
        for message in received or []:
            ref = next(self._refs)
            self._messages[ref] = message
            messages.append(report(message, ref))
        return {"messages": messages}

    def do_ack(self, command: dict[str, Any]) -> dict[str, Any]:
        self._clients[command["name"]].ack(self._messages[command["ref"]])
        return {}

    def do_change_invisible(self, command: dict[str, Any]) -> dict[str, Any]:
        self._clients[command["name"]].change_invisible_duration(
            self._messages[command["ref"]], command["invisible_ms"] // 1000
        )
        return {}

    def do_push(self, command: dict[str, Any]) -> dict[str, Any]:
        listener = ScriptedListener(command["failures"], self._refs.__next__)
        self._listeners[command["name"]] = listener
        self._start(
            command,
            PushConsumer(
                self._configuration,
                command["group"],
                listener,
                self._subscriptions(command),
                tls_enable=self._tls,
            ),
        )
        return {}

    def do_delivered(self, command: dict[str, Any]) -> dict[str, Any]:
        listener = self._listeners[command["name"]]
        return {"messages": listener.wait(command["count"], command["timeout_ms"] / 1000)}

    def do_close(self, command: dict[str, Any]) -> dict[str, Any]:
        self._clients.pop(command["name"]).shutdown()
        return {}

    def _start(self, command: dict[str, Any], client: Any) -> None:
        # Where an answer is there before the client waits for it, the client goes on in this thread
        # and counts on the loop that it gives to threads in which it opens a channel.
        asyncio.set_event_loop(RpcClient.get_channel_io_loop())
        client.startup()
        self._clients[command["name"]] = client

    @staticmethod
    def _subscriptions(command: dict[str, Any]) -> dict[str, FilterExpression]:
        kind = FilterType.SQL if command.get("sql") else FilterType.TAG
        return {
            topic: FilterExpression(expression, kind)
            for topic, expression in command["subscriptions"].items()
        }

    @staticmethod
    def _body(command: dict[str, Any]) -> bytes:
        pattern = base64.b64decode(command["body"])
        size = command.get("size") or len(pattern)
        return (pattern * (size // max(len(pattern), 1) + 1))[:size]


def main() -> None:
    """Answer the commands on standard input until it ends."""
    driver = Driver(json.loads(sys.argv[1]))
    output = threading.Lock()

    def answer(command: dict[str, Any]) -> None:
        line = json.dumps({"id": command["id"], **driver.run(command)})
        with output:
            print(line, flush=True)

    executor = ThreadPoolExecutor(MAX_COMMANDS_AT_ONCE)
    for line in sys.stdin:
        executor.submit(answer, json.loads(line))
    executor.shutdown(wait=False, cancel_futures=True)


if __name__ == "__main__":
    main()
    # The client leaves threads behind that are no daemons.
    sys.stdout.flush()
    os._exit(0)
