"""The port of scrapers and probes: `/metrics`, `/live`, `/ready`, `/health`.

`/live` answers when the event loop runs. `/ready` is 200 when the process serves and has caught
up, else 503, both with the reasons as JSON. `/health` is 200 when it serves, else 503, in text.

Gauges are read on the event loop, as their sources live there; the text is built in a thread. The
server supports just enough HTTP/1.1 for a scraper or a probe: GET, one request per connection.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from strata_runtime.exposition import joined
from strata_runtime.health import Health, HealthSource
from strata_runtime.listening import listening
from strata_runtime.metrics import Metrics
from strata_runtime.timeouts import Timeout

_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_JSON = "application/json"
_MAX_REASONS = 100
_STATUS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


Pages = Callable[[], Awaitable[Sequence[bytes]]]
"""Gets pages in the Prometheus text format."""


@dataclass(frozen=True, slots=True)
class MetricsServerOptions:
    """Where to listen and what is allowed."""

    host: str = "127.0.0.1"
    port: int = 5557  # 0: any free one
    max_connections: int = 16
    max_request_bytes: int = 8_192
    request_timeout_s: float = 5.0


class MetricsServer:
    """Serves a process's metrics and health; a `Service`.

    Args:
        metrics: what is scraped.
        options: address and limits.
        health: how the process does; None: it serves as long as it runs.
        others: gets the metrics of other processes, which are shown with its own.
    """

    name = "metrics server"

    def __init__(
        self,
        metrics: Metrics,
        options: MetricsServerOptions | None = None,
        *,
        health: HealthSource | None = None,
        others: Pages | None = None,
    ) -> None:
        self._metrics = metrics
        self._options = options or MetricsServerOptions()
        self._health = health or Health
        self._others = others
        self._server: asyncio.Server | None = None
        self._connections = 0
        self.port = 0

    async def start(self) -> None:
        """Listen; `port` is then the real one.

        Raises:
            ListenError: the address cannot be listened on.
        """
        options = self._options
        with listening(options.host, options.port, "for metrics"):
            self._server = await asyncio.start_server(
                self._serve, options.host, options.port, limit=options.max_request_bytes
            )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self, grace_s: float) -> None:
        """Close the port."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._connections >= self._options.max_connections:
            writer.close()
            return
        self._connections += 1
        try:
            async with Timeout(self._options.request_timeout_s):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._answer(head))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a bad or slow scraper harms nobody but itself
        finally:
            self._connections -= 1
            writer.close()

    async def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method != b"GET":
            return _response(405, b"only GET\n")
        if path == b"/metrics":
            self._metrics.read_gauges()
            own = await asyncio.to_thread(self._metrics.render)
            if self._others is None:
                return _response(200, own)
            return _response(200, await asyncio.to_thread(joined, [own, *await self._others()]))
        if path == b"/live":
            return _response(200, b"ok\n")
        if path == b"/ready":
            health = self._health()
            return _response(200 if health.is_ready else 503, _as_json(health), _JSON)
        if path == b"/health":
            health = self._health()
            return _response(200 if health.serves else 503, _as_text(health))
        return _response(404, b"/metrics, /live, /ready or /health\n")


def _as_json(health: Health) -> bytes:
    answer = {
        "ready": health.is_ready,
        "serves": health.serves,
        "caught_up": health.is_caught_up,
        "reasons": [
            problem._asdict() | {"severity": problem.severity.name.lower()}
            for problem in health.problems[:_MAX_REASONS]
        ],
        "more_reasons": max(0, len(health.problems) - _MAX_REASONS),
    }
    return json.dumps(answer).encode() + b"\n"


def _as_text(health: Health) -> bytes:
    lines = ["ok" if health.serves else "does not serve"]
    lines += [problem.line() for problem in health.problems[:_MAX_REASONS]]
    return "\n".join(lines).encode() + b"\n"


def _response(status: int, body: bytes, content_type: str = _CONTENT_TYPE) -> bytes:
    head = (
        f"HTTP/1.1 {status} {_STATUS[status]}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
