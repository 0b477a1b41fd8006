"""The port Prometheus scrapes: `/metrics` and `/health`, on the event loop, bounded.

Gauges are read on the loop, where what they look at lives; the text is made in a thread. It
speaks just enough HTTP/1.1 for a scraper or a probe: GET, one request per connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from strata_runtime.metrics import Metrics

_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_STATUS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


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
        unready: why the process is not ready, or None when it is; asked by `/health`.
    """

    name = "metrics server"

    def __init__(
        self,
        metrics: Metrics,
        options: MetricsServerOptions | None = None,
        *,
        unready: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._metrics = metrics
        self._options = options or MetricsServerOptions()
        self._unready = unready
        self._server: asyncio.Server | None = None
        self._connections = 0
        self.port = 0

    async def start(self) -> None:
        """Listen; `port` is then the real one."""
        options = self._options
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
            async with asyncio.timeout(self._options.request_timeout_s):
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
            return _response(200, await asyncio.to_thread(self._metrics.render))
        if path == b"/health":
            reason = self._unready()
            return _response(200, b"ok\n") if reason is None else _response(503, reason.encode())
        return _response(404, b"/metrics or /health\n")


def _response(status: int, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status} {_STATUS[status]}\r\nContent-Type: {_CONTENT_TYPE}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
