"""The official remoting client of Java as a process, behind the line protocol of `clients`."""

import base64
import itertools
import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Self

from tests.compat.drivers import BUILD, ClientError, end_by_input
from tests.parts.required import absent

VERSIONS = ("4.9.8", "5.1.4", "5.5.0")
TIMEOUT_S = 60.0


@dataclass(frozen=True)
class OldReceipt:
    """Answer of a send as the client shows it."""

    status: str
    message_id: str
    offset_message_id: str
    broker: str
    queue: int
    offset: int
    recall_handle: str | None


@dataclass(frozen=True)
class OldMessage:
    """A message as a listener got it."""

    message_id: str
    topic: str
    queue: int
    offset: int
    tag: str | None
    keys: str | None
    body: bytes
    reconsume_times: int
    born_host: str
    properties: dict[str, str]


class RemotingDriver:
    """The process of one version of the client; a context manager that ends it.

    Args:
        version: of the client.
        nameserver: HOST:PORT.
        keys: access key and secret key that sign all requests; None: nobody signs.
        tls: whether all connections have TLS; the client verifies no certificate.
        route_ms: how often the clients look for routes; 0: as they do by themselves.
        compress_type: of producers' large bodies: ZLIB, LZ4 or ZSTD; empty: the client's own.
    """

    def __init__(
        self,
        version: str,
        nameserver: str,
        keys: tuple[str, str] | None = None,
        *,
        tls: bool = False,
        route_ms: int = 0,
        compress_type: str = "",
    ) -> None:
        self.version = version
        folder = BUILD / f"remoting-{version}"
        if not (folder / ".installed").exists():
            absent("the official remoting client is missing: make compat-remoting")
        home = BUILD / "home" / f"remoting-{version}"
        home.mkdir(parents=True, exist_ok=True)
        options = [f"-Duser.home={home}", f"-Drocketmq.client.logRoot={home}", "-Xmx256m"]
        options += ["-XX:TieredStopAtLevel=1", "-Dfile.encoding=UTF-8"]
        # Broadcast consumers keep their positions in files; those of an earlier run are not ours.
        self._positions = tempfile.TemporaryDirectory(prefix="positions-")
        options.append(f"-Drocketmq.client.localOffsetStoreDir={self._positions.name}")
        if compress_type:
            options.append(f"-Drocketmq.message.compressType={compress_type}")
        classes = f"{folder}/classes:{folder}/lib/*"
        signer = dict(zip(("access_key", "secret_key"), keys, strict=True)) if keys else {}
        given = {"tls": tls, "route_ms": route_ms}
        chosen = {key: value for key, value in given.items() if value}
        arguments = json.dumps({"nameserver": nameserver, **signer, **chosen})
        with (home / "driver.log").open("a") as log:
            self._process = subprocess.Popen(
                ["java", *options, "-cp", classes, "compat.RemotingDriver", arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
                env={**os.environ, "HOME": str(home)},
            )
        self._ids = itertools.count(1)
        self._waiting: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read_answers, daemon=True)
        self._reader.start()

    def call(self, op: str, name: str, timeout_s: float = TIMEOUT_S, **fields: Any) -> Any:
        """Send a command and wait for its result.

        Raises:
            ClientError: what the client raised.
        """
        answer: Future[Any] = Future()
        with self._lock:
            number = next(self._ids)
            self._waiting[number] = answer
            assert self._process.stdin is not None
            line = json.dumps({"id": number, "op": op, "name": name, **fields})
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        return answer.result(timeout_s)

    def producer(self, name: str) -> "OldProducer":
        """Start a DefaultMQProducer."""
        self.call("producer", name, group=f"{name}-producers")
        return OldProducer(self, name)

    def transactions(self, name: str) -> "OldProducer":
        """Start a TransactionMQProducer; properties `local` and `check` are its decisions."""
        self.call("transactions", name, group=f"{name}-producers")
        return OldProducer(self, name)

    def consumer(
        self,
        name: str,
        group: str,
        topic: str,
        expression: str = "*",
        *,
        model: str = "concurrent",
        failures: int = 0,
        max_times: int = 16,
        first: bool = True,
        **fields: Any,
    ) -> "OldConsumer":
        """Start a DefaultMQPushConsumer; `model`: concurrent, orderly or broadcast.

        With `replies_by` it replies to each message by that producer.
        """
        where = f"CONSUME_FROM_{'FIRST' if first else 'LAST'}_OFFSET"
        self.call(
            "push",
            name,
            group=group,
            topic=topic,
            expression=expression,
            model=model,
            failures=failures,
            max_times=max_times,
            where=where,
            **fields,
        )
        return OldConsumer(self, name)

    def broker_of(self, topic: str) -> str:
        """The address of the broker behind a topic; a producer must have started."""
        return str(self.call("broker_of", "", topic=topic)["address"])

    def lite_pull(
        self,
        name: str,
        group: str,
        topic: str,
        expression: str = "*",
        *,
        queues: Sequence[int] = (),
        auto_commit: bool = True,
    ) -> "OldLitePull":
        """Start a DefaultLitePullConsumer: of some queues, or one that subscribes."""
        assigned: dict[str, Any] = {"queues": list(queues)} if queues else {}
        self.call(
            "lite",
            name,
            group=group,
            topic=topic,
            expression=expression,
            auto_commit=auto_commit,
            **assigned,
        )
        return OldLitePull(self, name)

    def close(self) -> None:
        """End the process."""
        end_by_input(self._process)
        self._reader.join()
        self._positions.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read_answers(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                reply = json.loads(line)
                waiting = self._waiting.pop(reply["id"])
                if error := reply.get("error"):
                    failure = ClientError(error["code"], error["text"], error["class"])
                    waiting.set_exception(failure)
                else:
                    waiting.set_result(reply["result"])


@dataclass(frozen=True)
class OldProducer:
    """A DefaultMQProducer of a driver."""

    driver: RemotingDriver
    name: str

    def send(
        self, topic: str, *bodies: bytes, how: str = "sync", **fields: Any
    ) -> OldReceipt | None:
        """Send one message, or a batch; None: one-way."""
        texts = [base64.b64encode(body).decode() for body in bodies]
        result = self.driver.call("send", self.name, topic=topic, bodies=texts, how=how, **fields)
        return OldReceipt(**result) if result else None

    def request_mode(self, topic: str, group: str, mode: str) -> None:
        """Set whether the members of a group POP a topic, or PULL it."""
        self.driver.call("request_mode", self.name, topic=topic, group=group, mode=mode)

    def request(
        self, topic: str, body: bytes, how: str = "sync", timeout_ms: int = 20_000
    ) -> bytes:
        """Send a request and return the body of the reply; `how`: sync or async."""
        result = self.driver.call(
            "request",
            self.name,
            topic=topic,
            body=base64.b64encode(body).decode(),
            how=how,
            timeout_ms=timeout_ms,
        )
        return base64.b64decode(result["body"])

    def recall(self, topic: str, handle: str) -> str:
        """Take a delayed message back; return its id."""
        return str(self.driver.call("recall", self.name, topic=topic, handle=handle))

    def close(self) -> None:
        """Shut it down."""
        self.driver.call("close", self.name)


@dataclass(frozen=True)
class OldConsumer:
    """A DefaultMQPushConsumer of a driver."""

    driver: RemotingDriver
    name: str

    def delivered(self, count: int, timeout_s: float = 60.0) -> list[OldMessage]:
        """Wait for so many deliveries; return all there are so far."""
        result = self.driver.call(
            "delivered",
            self.name,
            timeout_s + TIMEOUT_S,
            count=count,
            timeout_ms=int(timeout_s * 1_000),
        )
        return _messages_of(result)

    def close(self) -> None:
        """Shut it down; it stores its positions."""
        self.driver.call("close", self.name)


@dataclass(frozen=True)
class OldLitePull:
    """A DefaultLitePullConsumer of a driver."""

    driver: RemotingDriver
    name: str

    def poll(self, count: int, timeout_s: float = 60.0) -> list[OldMessage]:
        """Poll until there are so many messages, or for so long; return those of these polls."""
        result = self.driver.call(
            "lite_poll",
            self.name,
            timeout_s + TIMEOUT_S,
            count=count,
            timeout_ms=int(timeout_s * 1_000),
        )
        return _messages_of(result)

    def seek(self, queue: int, where: str) -> None:
        """Go to an offset of a queue, or to its `begin` or `end`."""
        self.driver.call("lite_seek", self.name, queues=[queue], where=where)

    def commit(self) -> None:
        """Store the positions."""
        self.driver.call("lite_commit", self.name)

    def committed(self, queue: int) -> int:
        """The position that is stored for a queue."""
        return int(self.driver.call("lite_committed", self.name, queues=[queue])["offset"])

    def offset_at(self, queue: int, time_ms: int) -> int:
        """The offset of the first message since a time."""
        found = self.driver.call("lite_time", self.name, queues=[queue], time_ms=time_ms)
        return int(found["offset"])

    def pause(self, *queues: int) -> None:
        """Poll nothing of some queues."""
        self.driver.call("lite_pause", self.name, queues=list(queues))

    def resume(self, *queues: int) -> None:
        """Poll them again."""
        self.driver.call("lite_resume", self.name, queues=list(queues))

    def close(self) -> None:
        """Shut it down."""
        self.driver.call("close", self.name)


def _messages_of(result: Any) -> list[OldMessage]:
    return [
        OldMessage(**one | {"body": base64.b64decode(one["body"])}) for one in result["messages"]
    ]
