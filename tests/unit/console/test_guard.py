"""Rules of every request: headers, hosts, sizes; addresses that the console may serve."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from strata_cli.errors import CliError
from strata_cli.processes.console_config import ConsoleSection
from strata_cli.processes.console_port import check_console, reachable
from strata_console.errors import status_of
from strata_console.guard import Guard, host_name, kind_of
from strata_console.metrics import METRICS
from strata_runtime.clock import SystemClock
from strata_runtime.errors import ConfigError
from strata_runtime.metrics import Metrics


async def echo(request: Request) -> Response:
    """Say how much came."""
    return JSONResponse({"bytes": len(await request.body())})


async def failed(request: Request, error: Exception) -> Response:
    """As the console answers a refusal."""
    assert isinstance(error, CliError)
    return JSONResponse({"error": str(error)}, status_of(error))


def guarded(**keys: object) -> tuple[httpx.AsyncClient, Metrics]:
    """A client of an application behind a guard."""
    metrics = Metrics(METRICS)
    app = Starlette(
        routes=[Route("/api/acts/x", echo, methods=["POST"]), Route("/", echo)],
        exception_handlers={CliError: failed},
    )
    guard = Guard(app, ConsoleSection.model_validate(keys), SystemClock(), metrics=metrics)
    transport = httpx.ASGITransport(guard)
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1"), metrics


async def test_every_answer_has_the_headers_that_protect_the_page() -> None:
    """No inline script, no frame, no guessing of types, no cache; refusals have them, too."""
    client, metrics = guarded()
    async with client:
        for answer in (await client.get("/"), await client.get("/nothing")):
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "script-src 'self';" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"
            assert answer.headers["cache-control"] == "no-store"
    assert b'strata_console_requests_total{kind="page",status="404"} 1.0' in metrics.render()


async def test_another_host_name_is_refused_on_loopback() -> None:
    """A page of another site cannot reach the console by a name of its own."""
    client, _ = guarded()
    async with client:
        for host in ("evil.invalid", "127.0.0.1.evil.invalid:80", ""):
            assert (await client.get("/", headers={"host": host})).status_code == 421
        for host in ("localhost:8085", "127.0.0.1", "[::1]:8085", "[0:0:0:0:0:0:0:1]"):
            assert (await client.get("/", headers={"host": host})).status_code == 200


async def test_allowed_hosts_replace_the_names_of_the_loopback_interface() -> None:
    """The configured names count, whatever their case."""
    client, _ = guarded(allowed_hosts="Console.invalid, other.invalid")
    async with client:
        headers = {"host": "console.invalid:443"}
        assert (await client.get("/", headers=headers)).status_code == 200
        assert (await client.get("/")).status_code == 421


async def test_a_large_request_is_refused_with_and_without_a_length() -> None:
    """The limit counts what is told, and what comes."""
    client, _ = guarded(max_request_bytes=2_000)

    async def parts() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield b"x" * 500

    async with client:
        fits = await client.post("/api/acts/x", content=b"x" * 2_000)
        assert fits.json() == {"bytes": 2_000}
        for content in (b"x" * 2_001, parts()):
            refused = await client.post("/api/acts/x", content=content)
            assert refused.status_code == 413
            assert "2,000 bytes" in json.loads(refused.text)["error"]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "page"),
        ("/app.js", "page"),
        ("/api/read/topics", "read"),
        ("/api/live/topics", "live"),
        ("/api/tail", "live"),
        ("/api/acts/topic-create", "act"),
        ("/api/session", "session"),
        ("/api/else", "page"),
    ],
)
def test_requests_are_counted_by_kind(path: str, kind: str) -> None:
    """A path that a browser chooses makes no series of its own."""
    assert kind_of(path) == kind


def test_a_host_is_read_without_its_port() -> None:
    """An IPv6 address in brackets, too."""
    assert host_name("[::1]:8085") == "::1"
    assert host_name("Localhost:8085") == "localhost"


@pytest.mark.parametrize(
    "keys", [{"certificate_file": "a", "key_file": "b"}, {"behind_tls": True}, {"insecure": True}]
)
def test_other_machines_are_served_with_tls_only(keys: dict[str, object]) -> None:
    """Without TLS the console listens on loopback addresses, unless it is told to."""
    host = {"host": "0.0.0.0"}
    with pytest.raises(ConfigError, match="without TLS"):
        check_console(ConsoleSection.model_validate(host))
    check_console(ConsoleSection.model_validate(host | keys))
    check_console(ConsoleSection())


def test_half_a_certificate_is_refused() -> None:
    """Certificate and key belong together."""
    with pytest.raises(ConfigError, match="none of them"):
        check_console(ConsoleSection(certificate_file="a"))


def test_a_console_reaches_a_node_that_listens_on_all_addresses() -> None:
    """The address that means all of them is replaced by the loopback address."""
    assert reachable("0.0.0.0:8081") == "127.0.0.1:8081"
    assert reachable("[::]:8081") == "[::1]:8081"
    assert reachable("10.0.0.7:8081") == "10.0.0.7:8081"
