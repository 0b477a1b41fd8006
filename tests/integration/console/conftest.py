"""A console in the process of the test, over a standalone node in its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from strata_cli.options import Common
from strata_cli.processes.console_config import ConsoleSection
from strata_console.app import CSRF, Console
from strata_console.server import client_factory
from strata_runtime.clock import SystemClock
from strata_runtime.metrics import Metrics
from tests.e2e.leftovers import free_disk
from tests.integration.cli.conftest import Node


class Browser:
    """Calls a console as its page does.

    Attributes:
        http: client with the cookie.
        metrics: of the console.
    """

    def __init__(self, http: httpx.AsyncClient, metrics: Metrics) -> None:
        self.http = http
        self.metrics = metrics
        self._csrf = ""

    async def session(self) -> dict[str, Any]:
        """Ask who is signed in."""
        return self._taken(await self.http.get("/api/session"))

    async def sign_in(self, access_key: str, secret_key: str) -> httpx.Response:
        """Sign in with keys."""
        keys = {"access_key": access_key, "secret_key": secret_key}
        answer = await self.http.post("/api/session", json=keys)
        self._taken(answer)
        return answer

    async def read(self, read: str, /, **query: str | int) -> dict[str, Any]:
        """Return the data of a read that must succeed."""
        answer = await self.http.get(f"/api/read/{read}", params=query)
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        assert body["command"].startswith("strata ")
        data: dict[str, Any] = body["data"]
        return data

    async def post(self, path: str, **body: Any) -> httpx.Response:
        """Send a change with the session's token."""
        return await self.http.post(path, json=body, headers={CSRF: self._csrf})

    async def act(self, name: str, values: dict[str, Any], *, dry_run: bool = False) -> Any:
        """Return the result of an act that must succeed."""
        answer = await self.post(f"/api/acts/{name}", values=values, dry_run=dry_run)
        assert answer.status_code == 200, answer.text
        return answer.json()["result"]

    def _taken(self, answer: httpx.Response) -> dict[str, Any]:
        body: dict[str, Any] = answer.json()
        self._csrf = body.get("csrf", "")
        return body


@asynccontextmanager
async def console_for(endpoint: str, **keys: object) -> AsyncIterator[Browser]:
    """A browser of a console for a node, without a session yet."""
    config = ConsoleSection.model_validate(keys)
    metrics = Metrics()
    connect = client_factory(config, Common(endpoint=endpoint))
    console = Console(config, connect, SystemClock(), metrics=metrics)
    transport = httpx.ASGITransport(console.app)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            yield Browser(http, metrics)
    finally:
        console.close()
        metrics.close()


@pytest.fixture(scope="module")
def node(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Node]:
    """One node for the tests of a module; a module may say how it starts."""
    arguments = getattr(request.module, "NODE", ())
    started = Node(tmp_path_factory.mktemp("node") / "data", *arguments, environment={})
    yield started
    code, _, err = started.stop()
    assert code == 0, err
    free_disk(started.data_dir)


@pytest.fixture
async def browser(node: Node) -> AsyncIterator[Browser]:
    """A browser with a session, where access control is off."""
    async with console_for(node.endpoint) as opened:
        assert (await opened.session())["signed_in"]
        yield opened
