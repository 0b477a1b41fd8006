"""Server-sent events: a page that shows a read gets it again when it has changed; live tails.

A stream ends with its session, with the process, or when its browser goes; its browser asks again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from strata_cli.client import AdminClient
from strata_cli.errors import CliError
from strata_cli.processes.console_config import ConsoleSection
from strata_cli.views import View
from strata_console.errors import ConsoleError, status_of
from strata_console.query import Query
from strata_console.reads import shown_line
from strata_console.tail import LiveTail
from strata_runtime.metrics import Metrics
from strata_runtime.timeouts import Timeout

_COMMENT_EVERY_S = 15.0
_COMMENT = ": still there\n\n"

Run = Callable[[Callable[[], Any]], Awaitable[Any]]
Look = Callable[[], View | list[View]]


class LiveStreams:
    """All streams of the process.

    Args:
        config: limits and intervals.
        run: runs blocking work in a thread.
        is_there: whether the session of a request has not ended.
        metrics: how many streams there are.
        stopping: set when they should end.
    """

    def __init__(
        self,
        config: ConsoleSection,
        run: Run,
        is_there: Callable[[Request], bool],
        *,
        metrics: Metrics,
        stopping: asyncio.Event,
    ) -> None:
        self._config = config
        self._run = run
        self._is_there = is_there
        self._stopping = stopping
        self._streams = 0
        metrics.gauge("strata_console_streams", lambda: self._streams)

    def read(self, request: Request, look: Callable[[], View]) -> StreamingResponse:
        """Return a stream of what `look` gives, whenever it is something else."""
        return self._response(request, look, self._config.refresh_ms / 1_000)

    def tail(self, request: Request, client: AdminClient, query: Query) -> StreamingResponse:
        """Return a stream of new messages of a topic.

        Raises:
            UsageError: there is no topic among the parameters.
        """
        tail = LiveTail(
            client,
            query.text("namespace"),
            query.name("topic"),
            tag=query.text("tag"),
            max_messages=self._config.max_tail_messages,
        )
        tag = (f"--tag={query.text('tag')}",) if query.text("tag") else ()
        line = ("message", "tail", query.name("topic"), "--follow", *tag, *query.namespace)
        shown = {"command": shown_line(client, line)}
        interval_s = self._config.tail_ms / 1_000
        return self._response(request, tail.look, interval_s, _event("command", shown))

    def _response(
        self, request: Request, look: Look, interval_s: float, first: str = ""
    ) -> StreamingResponse:
        if self._streams >= self._config.max_streams:
            raise ConsoleError(f"{self._config.max_streams} live pages are open", 429)
        # From here on it counts, not from its first event: many may be asked for at once.
        self._streams += 1
        return _Events(self._events(request, look, interval_s, first), self._ended)

    def _ended(self) -> None:
        self._streams -= 1

    async def _events(
        self, request: Request, look: Look, interval_s: float, first: str
    ) -> AsyncIterator[str]:
        last, silent_s = "", 0.0
        # The browser knows at once that it is connected.
        yield first or _COMMENT
        while self._is_there(request):
            event = await self._look(look)
            # A tail that finds no message has nothing to say.
            if event not in (last, _EMPTY):
                last, silent_s = event, 0.0
                yield event
            elif silent_s >= _COMMENT_EVERY_S:
                silent_s = 0.0
                yield _COMMENT
            if await self._stops_within(interval_s):
                return
            silent_s += interval_s
        yield _event("ended", {})

    async def _look(self, look: Look) -> str:
        try:
            return _event("data", await self._run(look))
        except CliError as error:
            told = {"error": str(error), "code": error.code, "status": status_of(error)}
            return _event("failed", told)

    async def _stops_within(self, interval_s: float) -> bool:
        try:
            async with Timeout(interval_s):
                await self._stopping.wait()
        except TimeoutError:
            return False
        return True


class _Events(StreamingResponse):
    """A stream of events that tells when it has ended, however far it came.

    Args:
        events: texts.
        on_end: called once.
    """

    def __init__(self, events: AsyncIterator[str], on_end: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()


def _event(name: str, value: Any) -> str:
    return f"event: {name}\ndata: {json.dumps(value, ensure_ascii=False)}\n\n"


_EMPTY = _event("data", [])
