"""Driver of the client in C++ of the remoting protocol, through its Python face.

Commands and answers are lines of JSON as in ../README.md, but in turn: the next command is read
when the one before is answered. A body ends at its first zero byte, as the Python face reads it.
"""

import base64
import json
import sys
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from rocketmq.client import (  # type: ignore[import-not-found]
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    RecvMessage,
)
from rocketmq.ffi import MessageModel  # type: ignore[import-not-found]

SEND_TIMEOUT_S = 30.0


def message_of(topic: str, body: str, fields: dict[str, Any]) -> Any:
    """Return a message of the client."""
    message = Message(topic)
    message.set_body(base64.b64decode(body))
    if "tag" in fields:
        message.set_tags(fields["tag"])
    if "keys" in fields:
        message.set_keys(fields["keys"])
    for key, value in fields.get("properties", {}).items():
        message.set_property(key, value)
    if "delay_level" in fields:
        message.set_delay_time_level(fields["delay_level"])
    return message


def report(message: RecvMessage) -> dict[str, Any]:
    """Return what the client shows of a received message."""
    return {
        "message_id": message.id,
        "topic": message.topic,
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "tag": message.tags.decode(),
        "keys": message.keys.decode(),
        "body": base64.b64encode(message.body).decode(),
        "reconsume_times": message.reconsume_times,
        "color": message.get_property("color").decode(),
    }


class Listener:
    """Takes deliveries; the first `failures` of each body fail."""

    def __init__(self, failures: int) -> None:
        self._failures = failures
        self._seen: Counter[bytes] = Counter()
        self._lock = threading.Condition()
        self.messages: list[dict[str, Any]] = []

    def __call__(self, message: RecvMessage) -> None:
        with self._lock:
            self.messages.append(report(message))
            self._seen[message.body] += 1
            fails = self._seen[message.body] <= self._failures
            self._lock.notify_all()
        if fails:
            raise ValueError("told to fail")

    def wait(self, count: int, timeout_s: float) -> list[dict[str, Any]]:
        with self._lock:
            self._lock.wait_for(lambda: len(self.messages) >= count, timeout_s)
            return list(self.messages)


class Driver:
    """The clients of this process, by name."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._clients: dict[str, Any] = {}
        self._listeners: dict[str, Listener] = {}

    def handle(self, line: dict[str, Any]) -> Any:
        """Carry out a command."""
        operation: Callable[[dict[str, Any]], Any] = getattr(self, f"do_{line['op']}")
        return operation(line)

    def do_producer(self, line: dict[str, Any]) -> dict[str, Any]:
        self._start(line["name"], Producer(line["group"], timeout=10_000))
        return {}

    def do_send(self, line: dict[str, Any]) -> dict[str, Any]:
        producer, how = self._clients[line["name"]], line.get("how", "sync")
        messages = [message_of(line["topic"], body, line) for body in line["bodies"]]
        if how == "batch":
            return shown(producer.send_batch(messages))
        [message] = messages
        if how == "oneway":
            producer.send_oneway(message)
            return {}
        if how == "orderly":
            return shown(producer.send_orderly(message, line["argument"]))
        if how == "async":
            return self._send_async(producer, message)
        return shown(producer.send_sync(message))

    def do_push(self, line: dict[str, Any]) -> dict[str, Any]:
        model = MessageModel.BROADCASTING if line["broadcast"] else MessageModel.CLUSTERING
        consumer = PushConsumer(line["group"], orderly=line["orderly"], message_model=model)
        listener = self._listeners[line["name"]] = Listener(line["failures"])
        consumer.set_instance_name(line["name"])
        consumer.subscribe(line["topic"], listener, line["expression"])
        self._start(line["name"], consumer)
        return {}

    def do_delivered(self, line: dict[str, Any]) -> list[dict[str, Any]]:
        return self._listeners[line["name"]].wait(line["count"], line["timeout_ms"] / 1_000)

    def do_pull(self, line: dict[str, Any]) -> list[dict[str, Any]]:
        consumer = PullConsumer(line["group"])
        self._start(line["name"], consumer)
        return [report(message) for message in consumer.pull(line["topic"])]

    def do_close(self, line: dict[str, Any]) -> dict[str, Any]:
        self._clients.pop(line["name"]).shutdown()
        return {}

    def _start(self, name: str, client: Any) -> None:
        client.set_namesrv_addr(self._options["nameserver"])
        if "access_key" in self._options:
            keys = self._options["access_key"], self._options["secret_key"]
            client.set_session_credentials(*keys, "ALIYUN")
        client.start()
        self._clients[name] = client

    def _send_async(self, producer: Any, message: Any) -> dict[str, Any]:
        answered, results, failures = threading.Event(), [], []

        def taken(result: Any) -> None:
            results.append(shown(result))
            answered.set()

        def failed(error: Exception) -> None:
            failures.append(error)
            answered.set()

        producer.send_async(message, taken, failed)
        answered.wait(SEND_TIMEOUT_S)
        if failures or not results:
            raise failures[0] if failures else TimeoutError("no answer to an async send")
        return results[0]


def shown(result: Any) -> dict[str, Any]:
    """Return the result of a send."""
    return {"status": result.status.name, "message_id": result.msg_id, "offset": result.offset}


def main() -> None:
    """Carry out the commands of the standard input."""
    driver = Driver(json.loads(sys.argv[1]))
    for text in sys.stdin:
        line = json.loads(text)
        answer: dict[str, Any] = {"id": line["id"]}
        try:
            answer["result"] = driver.handle(line)
        except Exception as error:  # noqa: BLE001 - whatever the client raises is the answer
            answer["error"] = {"code": None, "text": str(error), "class": type(error).__name__}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
