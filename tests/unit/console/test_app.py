"""The application without a cluster: sign-ins that come at once, and threads of calls."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import grpc
import httpx
import pytest

from strata.admin.v1 import admin_pb2
from strata_cli.client import AdminClient, CallFailed
from strata_cli.processes.console_config import ConsoleSection
from strata_console.app import CSRF, Console
from strata_console.metrics import METRICS
from strata_runtime.metrics import Metrics
from strata_testing.clock import ManualClock
from strata_testing.waiting import until

RIGHT = "right"


class Cluster:
    """A cluster with one secret key for all users, or one without access control.

    Attributes:
        tried: secret keys that calls were signed with.
    """

    def __init__(self, *, is_open: bool = False) -> None:
        self.tried: list[str] = []
        self._is_open = is_open

    def connect(self, access_key: str, secret_key: str, session_token: str) -> AdminClient:
        """Open a connection."""
        admin = SimpleNamespace(ListTopics=None)

        def call(method: Callable[..., Any], request: Any) -> Any:
            if secret_key:
                self.tried.append(secret_key)
            if self._is_open or secret_key == RIGHT:
                return admin_pb2.ListTopicsResponse()
            raise CallFailed("check signature failed.", grpc.StatusCode.UNAUTHENTICATED)

        client = SimpleNamespace(
            admin=admin, call=call, close=lambda: None, endpoint="h:1", timeout_s=1.0
        )
        client.under = lambda common: client
        return cast(AdminClient, client)


@asynccontextmanager
async def console(cluster: Cluster, **keys: int) -> AsyncIterator[Console]:
    """A console with some limits."""
    config = ConsoleSection.model_validate(keys)
    made = Console(config, cluster.connect, ManualClock(), metrics=Metrics(METRICS))
    try:
        yield made
    finally:
        made.close()


async def test_sign_ins_whose_keys_come_late_do_not_get_around_the_limit() -> None:
    """Requests that were let in together are counted before each of them is tried."""
    cluster, keys_come = Cluster(), asyncio.Event()
    waiting = 0

    async def body(secret_key: str) -> AsyncIterator[bytes]:
        nonlocal waiting
        yield b'{"access_key": "admin", '
        waiting += 1
        await keys_come.wait()
        yield b'"secret_key": "%s"}' % secret_key.encode()

    headers = {"content-type": "application/json"}
    async with console(cluster, sign_in_failures=3) as made:
        transport = httpx.ASGITransport(made.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            guesses = [f"guess-{number}" for number in range(20)]
            calls = [
                asyncio.ensure_future(
                    http.post("/api/session", content=body(guess), headers=headers)
                )
                for guess in guesses
            ]
            await until(lambda: waiting == len(calls))
            keys_come.set()
            answers = [(await call).status_code for call in calls]
    assert len(cluster.tried) == 3
    assert (answers.count(401), answers.count(429)) == (3, 17)


async def test_calls_of_browsers_that_went_count_until_they_end() -> None:
    """A page that is closed and opened again and again gets no more threads than are allowed."""
    may_end, lock = threading.Event(), threading.Lock()
    under_way = most = 0

    def call() -> None:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        may_end.wait(30)
        with lock:
            under_way -= 1

    def has_begun(number: int) -> bool:
        return under_way >= number

    async with console(Cluster(), max_calls=2) as made:
        for number in range(6):
            gone = asyncio.ensure_future(made.run(call))
            await until(partial(has_begun, min(number + 1, 2)))
            for _ in range(5):
                await asyncio.sleep(0)
            gone.cancel()
            with pytest.raises(asyncio.CancelledError):
                await gone
        last = asyncio.ensure_future(made.run(lambda: "answer"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert (most, last.done()) == (2, False)
        may_end.set()
        assert await last == "answer"
        await until(lambda: under_way == 0)


async def test_keys_are_small_and_what_is_larger_is_not_read() -> None:
    """A stranger takes little memory and time."""
    read = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal read
        yield b'{"access_key": "'
        for _ in range(64):
            read += 1
            yield b"x" * 4_096
        yield b'"}'

    async with console(Cluster()) as made:
        transport = httpx.ASGITransport(made.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            headers = {"content-type": "application/json"}
            answer = await http.post("/api/session", content=body(), headers=headers)
    assert (answer.status_code, answer.json()["error"]) == (413, "keys may have 16,384 bytes")
    assert read < 10


async def test_a_user_has_one_name() -> None:
    """Texts that a broker reads as one user are not several users with limits of their own."""
    async with console(Cluster(), sign_in_failures=100) as made:
        transport = httpx.ASGITransport(made.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            for name in ("ada/1", "ada, X=1", " ada", "ada\n", "ad\u00e4", "x" * 200):
                keys = {"access_key": name, "secret_key": RIGHT}
                answer = await http.post("/api/session", json=keys)
                assert answer.status_code == 400, name
            keys = {"access_key": "ada.b@c-d_1", "secret_key": RIGHT}
            answer = await http.post("/api/session", json=keys)
            assert (answer.status_code, answer.json()["user"]) == (200, "ada.b@c-d_1")


async def test_another_site_begins_no_session_and_so_ends_none() -> None:
    """Without access control a look begins a session, and too many end the oldest."""
    async with console(Cluster(is_open=True), max_sessions_per_user=2) as made:
        transport = httpx.ASGITransport(made.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            assert (await http.get("/api/session")).json()["signed_in"]
            own = dict(http.cookies)
        for site in ("cross-site", "same-site"):
            for _ in range(4):
                async with httpx.AsyncClient(
                    transport=transport, base_url="http://127.0.0.1"
                ) as other:
                    answer = await other.get("/api/session", headers={"sec-fetch-site": site})
                assert answer.json()["signed_in"] is False
                assert "set-cookie" not in answer.headers
        async with httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1", cookies=own
        ) as http:
            assert (await http.get("/api/acts")).status_code == 200


MESSAGE = {"topic": "orders", "body": "b"}


@pytest.mark.parametrize(
    ("act", "values"),
    [
        ("message-send", MESSAGE | {"priority": 1 << 40}),
        ("message-send", MESSAGE | {"delay": f"{'9' * 400}d"}),
        ("message-send", MESSAGE | {"body": "\\ud800"}),
        ("message-send", MESSAGE | {"properties": [7]}),
        ("queue-move", {"topic": "orders", "queue": "0", "to": "99999999999"}),
        ("topic-create", {"name": "\\ud800"}),
        ("group-reset", {"name": "readers", "to_time": "9" * 60}),
        ("user-rotate-key", {"name": "ada", "previous_valid": f"{'9' * 400}d"}),
    ],
)
async def test_values_that_no_request_can_hold_are_mistakes_of_the_form(
    act: str, values: dict[str, Any]
) -> None:
    """The browser is told, and the log has no stack of a failure of ours."""
    async with console(Cluster(is_open=True)) as made:
        transport = httpx.ASGITransport(made.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            csrf = (await http.get("/api/session")).json()["csrf"]
            headers = {CSRF: csrf, "content-type": "application/json"}
            content = json.dumps({"values": values}).replace("\\\\", "\\")
            answer = await http.post(f"/api/acts/{act}", content=content, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (400, "usage"), answer.text


@pytest.mark.parametrize(
    "path",
    ["queue?topic=orders&queue=99999999999", "raft-group?number=99999999999"],
)
async def test_numbers_of_a_read_that_are_too_large_are_mistakes_of_the_page(path: str) -> None:
    """As those of a form."""
    async with console(Cluster(is_open=True)) as made:
        transport = httpx.ASGITransport(made.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            await http.get("/api/session")
            answer = await http.get(f"/api/read/{path}")
    assert (answer.status_code, answer.json()["code"]) == (400, "usage"), answer.text
