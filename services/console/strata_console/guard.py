"""A wrapper of every request: headers of answers, hosts, sizes, counting. Pure ASGI."""

from __future__ import annotations

from ipaddress import ip_address

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from strata_cli.processes.console_config import ConsoleSection
from strata_console.errors import ConsoleError
from strata_runtime.clock import Clock
from strata_runtime.listening import is_loopback
from strata_runtime.metrics import Metrics

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
_YEAR_S = 31_536_000


class Guard:
    """Wraps the application; see the module docstring.

    Args:
        app: the application.
        config: hosts and sizes.
        clock: measures requests.
        metrics: counts them.
    """

    def __init__(
        self, app: ASGIApp, config: ConsoleSection, clock: Clock, *, metrics: Metrics
    ) -> None:
        self._app = app
        self._config = config
        self._clock = clock
        self._requests = metrics.counter("strata_console_requests_total")
        self._times = metrics.histogram("strata_console_request_ms")
        self._hosts = allowed_hosts(config)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s, kind = self._clock.monotonic_s(), kind_of(scope["path"])

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._finish(message, scope)
                self._requests.add(1, {"kind": kind, "status": str(message["status"])})
            await send(message)

        refusal = self._refusal(scope)
        limited = BodyLimit(receive, self._config.max_request_bytes)
        await (refusal or self._app)(scope, limited.receive, send_guarded)
        if kind != "live":
            took_ms = (self._clock.monotonic_s() - began_s) * 1_000
            self._times.record(took_ms, {"kind": kind})

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        headers = Headers(scope=scope)
        host = host_name(headers.get("host", ""))
        if self._hosts and host not in self._hosts:
            return _refused(421, f"the console has no host name {host}: see console.allowed_hosts")
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > self._config.max_request_bytes:
            return _refused(413, f"a request may have {self._config.max_request_bytes:,} bytes")
        return None

    def _finish(self, message: Message, scope: Scope) -> None:
        headers = MutableHeaders(scope=message)
        for name, value in _HEADERS.items():
            headers[name] = value
        if "cache-control" not in headers:
            headers["cache-control"] = "no-store"
        if scope["scheme"] == "https":
            headers["strict-transport-security"] = f"max-age={_YEAR_S}"


class BodyLimit:
    """Counts the bytes of a request whose length was not told, or not told truly."""

    def __init__(self, receive: Receive, max_bytes: int) -> None:
        self._receive = receive
        self._max_bytes = self._left_bytes = max_bytes

    async def receive(self) -> Message:
        """Return the next part.

        Raises:
            ConsoleError: the request is too large.
        """
        message = await self._receive()
        self._left_bytes -= len(message.get("body", b""))
        if self._left_bytes < 0:
            raise ConsoleError(f"a request may have {self._max_bytes:,} bytes", 413)
        return message


def kind_of(path: str) -> str:
    """Return the kind of a request, for metrics."""
    parts = path.split("/")
    if len(parts) < 3 or parts[1] != "api":
        return "page"
    kinds = {"read": "read", "acts": "act", "live": "live", "tail": "live", "session": "session"}
    return kinds.get(parts[2], "page")


def allowed_hosts(config: ConsoleSection) -> frozenset[str]:
    """Return the host names that requests may have; none: any.

    Where anybody on the machine may do anything, a page of another site must not get here by a name
    of its own that leads to this machine (DNS rebinding).
    """
    if config.allowed_hosts:
        return frozenset(host.lower() for host in config.allowed_hosts)
    if is_loopback(config.host):
        return frozenset(("localhost", "127.0.0.1", "::1", config.host.lower()))
    return frozenset()


def host_name(header: str) -> str:
    """Return the host of a Host header without its port."""
    if header.startswith("["):
        return _plain(header[1:].partition("]")[0])
    return header.partition(":")[0].lower()


def is_same_origin(headers: Headers) -> bool:
    """Whether a change comes from a page of the console itself."""
    origin = headers.get("origin")
    if origin is None:
        return headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")
    return origin.partition("://")[2].lower() == headers.get("host", "").lower()


def _plain(address: str) -> str:
    try:
        return str(ip_address(address))
    except ValueError:
        return address.lower()


def _refused(status: int, reason: str) -> JSONResponse:
    return JSONResponse({"error": reason, "code": "refused"}, status)
