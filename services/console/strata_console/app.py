"""The console as an ASGI application: pages, sessions, reads, acts.

The console decides nothing about rights: each call is signed with the keys of the signed-in user,
and the cluster answers or refuses. Calls block, so they run in a bounded number of threads.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from strata.admin.v1 import admin_pb2
from strata_cli.client import AdminClient, CallFailed
from strata_cli.embedded import run_line
from strata_cli.errors import CliError, UsageError
from strata_cli.processes.console_config import ConsoleSection
from strata_cli.views import View
from strata_console import sending
from strata_console.act_table import ACTS
from strata_console.acts import Act
from strata_console.calls import CallThreads
from strata_console.catalogue import Catalogue
from strata_console.errors import ConsoleError, held_by_requests, status_of
from strata_console.guard import Guard, is_same_origin
from strata_console.live import LiveStreams
from strata_console.metrics import METRICS
from strata_console.pages import READS
from strata_console.query import Query
from strata_console.reads import Reader, run_read, shown_line
from strata_console.sessions import ClientFactory, ConsoleSession, ConsoleSessions, SignInLimit
from strata_console.static_files import static_routes
from strata_runtime.clock import Clock
from strata_runtime.errors import one_line
from strata_runtime.listening import is_loopback
from strata_runtime.metrics import Metrics
from strata_runtime.version import VERSION

COOKIE = "strata_console"
CSRF = "x-strata-csrf"

Result = TypeVar("Result")

_SEND = "message-send"
_MAX_KEY = 256
_MAX_KEYS_BYTES = 16 * 1_024
_USER = re.compile(r"[a-zA-Z0-9_.@-]{1,64}")


class Console:
    """The application with its state.

    Args:
        config: limits and hosts.
        connect: opens a connection to the cluster with keys; without keys for none.
        clock: time of sessions and lists.
        metrics: of the process.

    Attributes:
        app: the ASGI application.
        stopping: set when live streams should end.
    """

    def __init__(
        self,
        config: ConsoleSection,
        connect: ClientFactory,
        clock: Clock,
        *,
        metrics: Metrics,
    ) -> None:
        metrics.declare(METRICS)
        self._config = config
        self._connect = connect
        self._clock = clock
        self._anonymous = connect("", "", "")
        self._was_open = False
        self._open_until_s = -math.inf
        self._sessions = ConsoleSessions(config, clock, metrics)
        self._limit = SignInLimit(config, clock)
        self._catalogue = Catalogue(config, clock, metrics)
        self._calls = CallThreads(config.max_calls)
        self._sign_ins = metrics.counter("strata_console_sign_ins_total")
        self._errors = metrics.counter("strata_console_errors_total")
        metrics.gauge("strata_console_calls", lambda: self._calls.under_way)
        self.stopping = asyncio.Event()
        self._live = LiveStreams(
            config, self.run, self._still_there, metrics=metrics, stopping=self.stopping
        )
        self.app: ASGIApp = Guard(self._starlette(), config, clock, metrics=metrics)

    def close(self) -> None:
        """End all sessions and close their connections."""
        self.stopping.set()
        self._sessions.close_all()
        self._catalogue.close()
        self._anonymous.close()
        self._calls.close()

    async def run(self, work: Callable[[], Result]) -> Result:
        """Run blocking work in one of the threads."""
        return await self._calls.run(work)

    # Sessions ---------------------------------------------------------------------------------

    async def show_session(self, request: Request) -> Response:
        """Say who is signed in; where access control is off, begin a session at once."""
        token = request.cookies.get(COOKIE, "")
        session = self._sessions.find(token)
        # A page of another site must not end a session by beginning many.
        if session is None and is_same_origin(request.headers) and await self._is_open():
            self._check_anonymous()
            token, session = self._sessions.open("", self._connect("", "", ""))
        return self._session_answer(request, token, session)

    async def sign_in(self, request: Request) -> Response:
        """Begin a session with the keys of a user."""
        address = request.client.host if request.client is not None else ""
        if not is_same_origin(request.headers):
            raise ConsoleError("this request comes from another site", 403)
        self._check_may_try(address)
        body = _object_of(request, await _read_keys(request))
        keys = [_key_of(body, name) for name in ("access_key", "secret_key", "session_token")]
        if not keys[0] or not keys[1]:
            raise UsageError("give access key and secret key")
        if not _USER.fullmatch(keys[0]):
            # A broker reads what follows a slash or a comma as something else than the name.
            raise UsageError("access_key is not the name of a user")
        if await self._is_open():
            # Any keys would do: whoever believes to be signed in would be nobody.
            self._check_anonymous()
            raise ConsoleError("access control is off: there is no sign-in", 409)
        # Others may have begun since this one was let in.
        self._check_may_try(address)
        self._limit.begin(address)
        client = self._connect(*keys)
        try:
            await self.run(lambda: client.call(client.admin.ListTopics, _PROBE))
        except CallFailed as error:
            client.close()
            if status_of(error) == 401:
                self._sign_ins.add(1, {"outcome": "refused"})
            else:
                self._limit.not_failed(address)
            raise
        self._limit.not_failed(address)
        self._sessions.close(request.cookies.get(COOKIE, ""))
        token, session = self._sessions.open(keys[0], client)
        self._sign_ins.add(1, {"outcome": "done"})
        return self._session_answer(request, token, session)

    async def sign_out(self, request: Request) -> Response:
        """End the session."""
        self._changing_session(request)
        self._sessions.close(request.cookies.get(COOKIE, ""))
        answer = JSONResponse({"signed_in": False})
        answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return answer

    def _session_answer(
        self, request: Request, token: str, session: ConsoleSession | None
    ) -> Response:
        view: View = {"signed_in": session is not None, "version": VERSION}
        if session is None:
            return JSONResponse(view)
        view |= {
            "user": session.user,
            "csrf": session.csrf,
            "endpoint": session.client.endpoint,
            "refresh_ms": self._config.refresh_ms,
        }
        answer = JSONResponse(view)
        answer.set_cookie(
            COOKIE,
            token,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https" or self._config.behind_tls,
            max_age=self._config.session_ms // 1_000,
        )
        return answer

    async def _is_open(self) -> bool:
        """Whether the cluster answers calls that nobody signed.

        Raises:
            CliError: it does not answer at all.
        """
        now_s = self._clock.monotonic_s()
        if now_s < self._open_until_s:
            return self._was_open
        try:
            await self.run(lambda: self._anonymous.call(self._anonymous.admin.ListTopics, _PROBE))
        except CallFailed as error:
            if status_of(error) not in (401, 403):
                raise
            self._was_open = False
        else:
            self._was_open = True
        # Pages that nobody signed in for do not reach the cluster, and its audit trail, each time.
        self._open_until_s = now_s + _OPEN_S
        return self._was_open

    def _check_anonymous(self) -> None:
        """Refuse a cluster without access control where other machines reach the console."""
        if not (is_loopback(self._config.host) or self._config.insecure):
            raise ConsoleError(
                "access control is off and the console serves other machines: turn access control "
                "on, or serve a loopback address, or set console.insecure",
                403,
            )

    def _check_may_try(self, address: str) -> None:
        if not self._limit.allows(address):
            self._sign_ins.add(1, {"outcome": "limited"})
            raise ConsoleError("too many failed sign-ins: wait a minute", 429)

    def _session(self, request: Request) -> ConsoleSession:
        session = self._sessions.find(request.cookies.get(COOKIE, ""))
        if session is None:
            raise ConsoleError("sign in", 401)
        return session

    def _changing_session(self, request: Request) -> ConsoleSession:
        """Return the session of a request that changes something.

        Raises:
            ConsoleError: there is none, or the request was not made by a page of the console.
        """
        session = self._session(request)
        if not is_same_origin(request.headers) or not session.has_csrf(
            request.headers.get(CSRF, "")
        ):
            raise ConsoleError("this request comes from another site", 403)
        return session

    def _still_there(self, request: Request) -> bool:
        return self._sessions.find(request.cookies.get(COOKIE, ""), uses=False) is not None

    # Reads and acts ---------------------------------------------------------------------------

    async def read(self, request: Request) -> Response:
        """Answer one read."""
        reader = self._reader(self._session(request))
        query = Query(request.query_params, self._config.max_page)
        name = request.path_params["name"]
        return JSONResponse(await self.run(lambda: run_read(READS, name, reader, query)))

    async def live(self, request: Request) -> Response:
        """Answer one read again and again, whenever it gives something else."""
        reader = self._reader(self._session(request))
        query = Query(request.query_params, self._config.max_page)
        name = request.path_params["name"]
        return self._live.read(request, lambda: run_read(READS, name, reader, query))

    async def tail(self, request: Request) -> Response:
        """Send the messages of a topic as they are stored."""
        session = self._session(request)
        return self._live.tail(
            request, session.client, Query(request.query_params, self._config.max_page)
        )

    async def list_acts(self, request: Request) -> Response:
        """Describe the forms of all acts."""
        self._session(request)
        return JSONResponse({"acts": [act.view() for act in ACTS.values()]})

    async def preview(self, request: Request) -> Response:
        """Show the command line of an act; nothing is done."""
        session = self._changing_session(request)
        act = _act(request)
        values, dry_run = _values(await _body(request))
        shown = sending.shown_values(values) if act.name == _SEND else values
        return JSONResponse(
            {"command": shown_line(session.client, act.line(shown, dry_run=dry_run))}
        )

    async def act(self, request: Request) -> Response:
        """Do an act with the keys of the user."""
        session = self._changing_session(request)
        act = _act(request)
        values, dry_run = _values(await _body(request))
        client = session.client
        if act.name == _SEND:
            line = act.line(sending.shown_values(values), dry_run=dry_run)
            result = await self.run(lambda: _sent(client, act, values))
        else:
            line = act.line(values, dry_run=dry_run)
            result = await self.run(lambda: _done(client, line))
        if act.changes and not dry_run:
            self._catalogue.forget(act.changes)
        return JSONResponse({"result": result, "command": shown_line(client, line)})

    def _reader(self, session: ConsoleSession) -> Reader:
        return Reader(session.client, session.user, self._catalogue)

    # Wiring -----------------------------------------------------------------------------------

    def _starlette(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/api/session", self.show_session),
                Route("/api/session", self.sign_in, methods=["POST"]),
                Route("/api/session", self.sign_out, methods=["DELETE"]),
                Route("/api/read/{name}", self.read),
                Route("/api/live/{name}", self.live),
                Route("/api/tail", self.tail),
                Route("/api/acts", self.list_acts),
                Route("/api/acts/{name}", self.act, methods=["POST"]),
                Route("/api/acts/{name}/preview", self.preview, methods=["POST"]),
                *static_routes(),
            ],
            exception_handlers={CliError: self._failed, Exception: self._crashed},
            lifespan=self._lifespan,
        )

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        yield
        self.close()

    async def _failed(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, CliError)
        self._errors.add(1, {"code": error.code})
        return JSONResponse({"error": str(error), "code": error.code}, status_of(error))

    async def _crashed(self, request: Request, error: Exception) -> Response:
        """Answer a request that met a mistake of ours; uvicorn writes it to the log."""
        self._errors.add(1, {"code": "failed"})
        return JSONResponse(
            {"error": f"a mistake in the console: {one_line(error)}", "code": "failed"}, 500
        )


_OPEN_S = 5.0
_PROBE = admin_pb2.ListTopicsRequest(page_size=1)


def _sent(client: AdminClient, act: Act, values: Mapping[str, Any]) -> View:
    with held_by_requests():
        return sending.send(client, act, values)


def _done(client: AdminClient, line: Sequence[str]) -> View:
    with held_by_requests():
        return run_line(client, line)


def _act(request: Request) -> Act:
    act = ACTS.get(request.path_params["name"])
    if act is None:
        raise ConsoleError(f"there is no act named {request.path_params['name']}", 404, "not_found")
    return act


async def _read_keys(request: Request) -> bytes:
    """Return the body of a sign-in, which anybody may send.

    Raises:
        ConsoleError: it is larger than keys are.
    """
    parts, left_bytes = [], _MAX_KEYS_BYTES
    async for part in request.stream():
        left_bytes -= len(part)
        if left_bytes < 0:
            raise ConsoleError(f"keys may have {_MAX_KEYS_BYTES:,} bytes", 413)
        parts.append(part)
    return b"".join(parts)


async def _body(request: Request) -> Mapping[str, Any]:
    """Return the JSON object of a request; see `_object_of`."""
    return _object_of(request, await request.body())


def _object_of(request: Request, data: bytes) -> Mapping[str, Any]:
    """Return the JSON object in the body of a request.

    Raises:
        UsageError: it has another form.
    """
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise UsageError("send application/json")
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        raise UsageError("the request is no JSON") from None
    if not isinstance(body, dict):
        raise UsageError("the request is no JSON object")
    return body


def _values(body: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    values = body.get("values", {})
    if not isinstance(values, dict):
        raise UsageError("values is no object")
    return values, body.get("dry_run") is True


def _key_of(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name, "")
    if not isinstance(value, str) or len(value) > (_MAX_KEY if name != "session_token" else 4_096):
        raise UsageError(f"{name} is no key")
    return value
