"""The official clients as processes, behind the line protocol of `clients/README.md`.

A driver decides nothing. It starts the program of one language, sends it commands, matches answers
by id, and gives results as Python values. Commands may run at the same time.
"""

import base64
import itertools
import json
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

BUILD = Path(__file__).parents[2] / "build" / "compat"
LANGUAGES = ("python", "node", "java", "go")
# As their users find them: without a setting, these two speak TLS and the others do not.
TLS_BY_DEFAULT = {"python": False, "node": False, "java": True, "go": True}
COMMAND_TIMEOUT_S = 60.0
MIB = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a client connects."""

    endpoint: str
    tls: bool
    namespace: str = ""
    timeout_ms: int = 5_000
    access_key: str = ""
    secret_key: str = ""


@dataclass(frozen=True)
class Received:
    """A received message as a client shows it; `offset` is None where the client hides it."""

    ref: int
    message_id: str
    topic: str
    tag: str | None
    keys: list[str]
    group: str | None
    body_sha256: str
    body_size: int
    properties: dict[str, str]
    attempt: int
    offset: int | None
    lite_topic: str | None = None


@dataclass(frozen=True)
class Receipt:
    """A sent message as a client shows it; None where the client hides a field."""

    message_id: str
    transaction_id: str | None = None
    offset: int | None = None
    recall_handle: str | None = None


@dataclass(frozen=True)
class Half:
    """A sent transactional message as a client shows it."""

    ref: int
    message_id: str
    transaction_id: str


class ClientError(Exception):
    """Error that the client raised; `code` is the server's, None when the client itself refused."""

    def __init__(self, code: int | None, text: str, class_name: str) -> None:
        super().__init__(f"{class_name} {code}: {text}")
        self.code = code
        self.text = text
        self.class_name = class_name


class DriverEndedError(Exception):
    """The client's process is gone."""


class Driver:
    """The process of one client; a context manager that ends it."""

    def __init__(
        self, language: str, options: Options, environment: Mapping[str, str] | None = None
    ) -> None:
        self.language = language
        self.options = options
        home = BUILD / "home" / language
        home.mkdir(parents=True, exist_ok=True)
        with (home / "driver.log").open("a") as log:
            self._process = subprocess.Popen(
                [*_program(language, home), json.dumps(asdict(options))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
                # Clients log into the home folder.
                env={**os.environ, "HOME": str(home), **(environment or {})},
            )
        self._ids = itertools.count(1)
        self._names = itertools.count(1)
        self._waiting: dict[int, Future[dict[str, Any]]] = {}
        self._lock = threading.Lock()
        self._ended = False
        self._reader = threading.Thread(target=self._read_answers, daemon=True)
        self._reader.start()

    def begin(self, op: str, **fields: Any) -> "Future[dict[str, Any]]":
        """Send a command; the future gives its result or raises ClientError."""
        answer: Future[dict[str, Any]] = Future()
        with self._lock:
            if self._ended:
                raise DriverEndedError(self.language)
            command_id = next(self._ids)
            self._waiting[command_id] = answer
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({"id": command_id, "op": op, **fields}) + "\n")
            self._process.stdin.flush()
        return answer

    def call(self, op: str, timeout_s: float = COMMAND_TIMEOUT_S, **fields: Any) -> dict[str, Any]:
        """Send a command and wait for its result.

        Raises:
            ClientError: what the client raised.
            TimeoutError: no answer in time.
        """
        return self.begin(op, **fields).result(timeout_s)

    def producer(self, *topics: str, checker: str | None = None) -> "Producer":
        """Start a producer of these topics.

        With a checker it may begin transactions and answers every check with "commit", "rollback"
        or "unknown".
        """
        name = self._start("producer", topics=topics, checker=checker)
        return Producer(self, name, topics)

    def simple(
        self,
        group: str,
        subscriptions: Mapping[str, str],
        await_ms: int = 5_000,
        *,
        sql: bool = False,
    ) -> "SimpleConsumer":
        """Start a simple consumer; subscriptions map a topic to a tag or SQL92 expression."""
        name = self._start(
            "simple", group=group, subscriptions=dict(subscriptions), await_ms=await_ms, sql=sql
        )
        return SimpleConsumer(self, name)

    def push(
        self,
        group: str,
        subscriptions: Mapping[str, str],
        failures: int = 0,
        *,
        sql: bool = False,
    ) -> "PushConsumer":
        """Start a push consumer that fails each message's first deliveries (-1: all of them)."""
        name = self._start(
            "push", group=group, subscriptions=dict(subscriptions), failures=failures, sql=sql
        )
        return PushConsumer(self, name)

    def lite(self, group: str, topic: str, failures: int = 0) -> "LiteConsumer":
        """Start a lite push consumer of a topic of type LITE; its listener is that of `push`."""
        name = self._start("lite", group=group, topic=topic, failures=failures)
        return LiteConsumer(self, name)

    @property
    def ended(self) -> bool:
        """Whether the process is gone."""
        return self._ended

    def close(self) -> None:
        """End the process; clients that still run are cut off."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdin is not None
        self._process.stdin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, op: str, **fields: Any) -> str:
        name = f"{op}-{next(self._names)}"
        self.call(op, name=name, **fields)
        return name

    def _read_answers(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                answer = json.loads(line)
                with self._lock:
                    waiting = self._waiting.pop(answer["id"])
                if "error" in answer:
                    error = answer["error"]
                    waiting.set_exception(ClientError(error["code"], error["text"], error["class"]))
                else:
                    waiting.set_result(answer["result"])
        with self._lock:
            self._ended = True
            orphans = list(self._waiting.values())
        for orphan in orphans:
            orphan.set_exception(DriverEndedError(self.language))


class _Client:
    """A client inside a driver's process."""

    def __init__(self, driver: Driver, name: str) -> None:
        self._driver = driver
        self._name = name

    def begin_close(self) -> None:
        """Ask the client to stop; not awaited, since some finish their long poll first."""
        self._driver.begin("close", name=self._name)

    def close(self) -> None:
        """Stop the client and wait for it."""
        self._driver.call("close", name=self._name)


class Producer(_Client):
    """A producer; `send` goes to its first topic when none is named."""

    def __init__(self, driver: Driver, name: str, topics: Sequence[str]) -> None:
        super().__init__(driver, name)
        self._topic = topics[0]

    def send(
        self,
        body: bytes = b"hello",
        *,
        topic: str | None = None,
        size: int | None = None,
        tag: str | None = None,
        keys: Sequence[str] | None = None,
        group: str | None = None,
        properties: Mapping[str, str] | None = None,
        deliver_at_ms: int | None = None,
        priority: int | None = None,
        lite_topic: str | None = None,
    ) -> Receipt:
        """Send one message; with `size` the body is repeated, and cut, to so many bytes.

        The Python client cuts `deliver_at_ms` to whole seconds.
        """
        optional = {
            "size": size,
            "tag": tag,
            "keys": keys,
            "group": group,
            "properties": properties,
            "deliver_at_ms": deliver_at_ms,
            "priority": priority,
            "lite_topic": lite_topic,
        }
        given: dict[str, Any] = {
            name: value for name, value in optional.items() if value is not None
        }
        result = self._driver.call(
            "send",
            name=self._name,
            topic=topic or self._topic,
            body=base64.b64encode(body).decode(),
            **given,
        )
        return Receipt(**result)

    def recall(self, handle: str) -> str:
        """Recall a message of the first topic; return its id."""
        result = self._driver.call("recall", name=self._name, topic=self._topic, handle=handle)
        return str(result["message_id"])

    def send_half(self, body: bytes = b"hello") -> Half:
        """Send a transactional message to the first topic."""
        result = self._driver.call(
            "send_half",
            name=self._name,
            topic=self._topic,
            body=base64.b64encode(body).decode(),
        )
        return Half(**result)

    def commit(self, half: Half) -> None:
        """Commit a transaction of this producer."""
        self._driver.call("end", name=self._name, ref=half.ref, resolution="commit")

    def rollback(self, half: Half) -> None:
        """Roll a transaction of this producer back."""
        self._driver.call("end", name=self._name, ref=half.ref, resolution="rollback")

    def checked(self, count: int, timeout_s: float) -> list[str]:
        """Return message ids it was asked about, once there are `count` or the time is up."""
        result = self._driver.call(
            "checked",
            timeout_s + COMMAND_TIMEOUT_S,
            name=self._name,
            count=count,
            timeout_ms=int(timeout_s * 1_000),
        )
        return list(result["message_ids"])


class SimpleConsumer(_Client):
    """A simple consumer."""

    def receive(self, max_messages: int = 32, invisible_ms: int = 20_000) -> list[Received]:
        """Receive once; an empty list when the long poll brought nothing."""
        return _messages(
            self._driver.call(
                "receive", name=self._name, max_messages=max_messages, invisible_ms=invisible_ms
            )
        )

    def ack(self, message: Received) -> None:
        """Acknowledge a message this client received."""
        self._driver.call("ack", name=self._name, ref=message.ref)

    def change_invisible(self, message: Received, invisible_ms: int) -> None:
        """Change how long a message this client received stays invisible."""
        self._driver.call(
            "change_invisible", name=self._name, ref=message.ref, invisible_ms=invisible_ms
        )


class PushConsumer(_Client):
    """A push consumer with its scripted listener."""

    def delivered(self, count: int, timeout_s: float = 40.0) -> list[Received]:
        """Return all deliveries so far, as soon as there are `count` or the time is up."""
        return _messages(
            self._driver.call(
                "delivered",
                timeout_s + COMMAND_TIMEOUT_S,
                name=self._name,
                count=count,
                timeout_ms=int(timeout_s * 1_000),
            )
        )


class LiteConsumer(PushConsumer):
    """A lite push consumer with its scripted listener."""

    def subscribe(self, lite_topic: str) -> None:
        """Subscribe to a lite topic."""
        self._driver.call("subscribe_lite", name=self._name, lite_topic=lite_topic)

    def unsubscribe(self, lite_topic: str) -> None:
        """End a subscription."""
        self._driver.call("unsubscribe_lite", name=self._name, lite_topic=lite_topic)

    def lite_topics(self) -> list[str]:
        """Return the subscriptions that the client believes it has."""
        return list(self._driver.call("lite_topics", name=self._name)["lite_topics"])


def end_by_input(process: "subprocess.Popen[str]") -> None:
    """End a driver by the end of its input; one that goes on is killed."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def installed(language: str) -> bool:
    """Whether `make compat-<language>` has run."""
    return (BUILD / language / ".installed").exists()


def _messages(result: dict[str, Any]) -> list[Received]:
    return [Received(**message) for message in result["messages"]]


def _program(language: str, home: Path) -> list[str]:
    folder = BUILD / language
    sources = Path(__file__).parent / "clients"
    match language:
        case "python":
            return [str(folder / "venv/bin/python"), "-I", str(sources / "python/driver.py")]
        case "node":
            return ["node", str(folder / "driver.js")]
        case "java":
            options = [f"-Duser.home={home}", "-Drocketmq.log.level=warn", "-Xmx256m"]
            options += ["-XX:TieredStopAtLevel=1", "-Dfile.encoding=UTF-8"]
            return ["java", *options, "-cp", f"{folder}/classes:{folder}/lib/*", "compat.Driver"]
        case "go":
            return [str(folder / "driver")]
        case _:
            raise ValueError(language)
