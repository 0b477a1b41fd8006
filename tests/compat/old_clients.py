"""The clients of the remoting protocol in C++ and Go as processes."""

import base64
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from tests.compat.drivers import BUILD, ClientError, end_by_input
from tests.parts.required import absent

CLIENTS = ("cpp", "goremoting")
_CPP = Path(__file__).parent / "clients" / "cpp" / "driver.py"


class OldClient:
    """The process of one client; a context manager that ends it.

    Args:
        language: of CLIENTS; `cpp` is used through its Python face.
        nameserver: HOST:PORT.
        keys: access key and secret key that sign all requests; None: empty ones do.
    """

    def __init__(self, language: str, nameserver: str, keys: tuple[str, str] | None = None) -> None:
        folder = BUILD / language
        if not (folder / ".installed").exists():
            absent(f"the remoting client {language} is missing: make compat-{language}")
        home = BUILD / "home" / language
        home.mkdir(parents=True, exist_ok=True)
        signer = dict(zip(("access_key", "secret_key"), keys, strict=True)) if keys else {}
        program = [folder / "venv/bin/python", _CPP] if language == "cpp" else [folder / "driver"]
        options = json.dumps({"nameserver": nameserver, **signer})
        with (home / "driver.log").open("a") as log:
            self._process = subprocess.Popen(
                [*program, options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
                env={**os.environ, "HOME": str(home)},
            )
        self.language = language
        self._number = 0

    def call(self, op: str, name: str, **fields: Any) -> Any:
        """Send a command and wait for its result.

        Raises:
            ClientError: what the client raised.
        """
        self._number += 1
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = {"id": self._number, "op": op, "name": name, **fields}
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        assert answer["id"] == self._number
        if error := answer.get("error"):
            raise ClientError(error["code"], error["text"], error["class"])
        return answer["result"]

    def producer(self, name: str) -> None:
        """Start a producer."""
        self.call("producer", name, group=f"{name}-producers")

    def send(self, name: str, topic: str, *bodies: bytes, **fields: Any) -> dict[str, Any]:
        """Send one message, or a batch (`how`), and return the client's result."""
        texts = [base64.b64encode(body).decode() for body in bodies]
        sent: dict[str, Any] = self.call("send", name, topic=topic, bodies=texts, **fields)
        return sent

    def transactions(self, name: str, check: str = "") -> None:
        """Start a producer of transactions (Go).

        Args:
            name: of the producer.
            check: how it answers a check, `commit` or `rollback`; "": it commits at once.
        """
        self.call("transactions", name, group=f"{name}-producers", check=check)

    def send_half(self, name: str, topic: str, body: bytes) -> dict[str, Any]:
        """Send a message of a transaction (Go)."""
        text = base64.b64encode(body).decode()
        sent: dict[str, Any] = self.call("send_half", name, topic=topic, bodies=[text])
        return sent

    def push(
        self,
        name: str,
        group: str,
        topic: str,
        expression: str = "*",
        *,
        orderly: bool = False,
        broadcast: bool = False,
        failures: int = 0,
    ) -> None:
        """Start a push consumer."""
        self.call(
            "push",
            name,
            group=group,
            topic=topic,
            expression=expression,
            orderly=orderly,
            broadcast=broadcast,
            failures=failures,
        )

    def delivered(self, name: str, count: int, timeout_s: float = 60.0) -> list[dict[str, Any]]:
        """Wait for so many deliveries; return all there are so far, with their bodies."""
        return _with_bodies(
            self.call("delivered", name, count=count, timeout_ms=int(timeout_s * 1_000))
        )

    def pull(self, name: str, group: str, topic: str) -> list[dict[str, Any]]:
        """Pull what a topic has."""
        return _with_bodies(self.call("pull", name, group=group, topic=topic))

    def close(self, name: str) -> None:
        """Shut a client down."""
        self.call("close", name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdout is not None
        end_by_input(self._process)
        self._process.stdout.close()


def _with_bodies(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**each, "body": base64.b64decode(each["body"])} for each in messages]
