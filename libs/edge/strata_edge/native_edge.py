"""The edge in native code: HTTP/2, TLS and limits on a thread of their own, without the GIL.

The extension (`libs/edge/native`) collects calls and makes an eventfd readable; the event loop then
takes all of them together (`drain`) and gives its answers back together (`flush`). Python's part is
the batch of hot calls, a task per rare call (native_rare.py), metrics and the certificate.

It needs no front process: the thread takes TLS and plaintext on one port by the first byte.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from strata_edge.handover import HandedConnection, Handover
from strata_edge.listener import open_listener
from strata_edge.metrics import METRICS
from strata_edge.native_certificate import NativeCertificate
from strata_edge.native_numbers import NativeNumbers
from strata_edge.native_options import native_options
from strata_edge.native_rare import NativeRareCalls
from strata_edge.options import EdgeOptions
from strata_edge.passes import NativePasses
from strata_edge.ports import (
    HOT_METHODS,
    MISTAKE,
    HotHandler,
    ServerStreamHandler,
    StreamHandler,
    UnaryHandler,
)
from strata_runtime.health import Health
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import RequestTasks
from strata_runtime.timeouts import Timeout

if TYPE_CHECKING:
    import strata_edge_native

_STREAMING_HOT_METHODS = frozenset({"ReceiveMessage"})
# Kinds of events, after those of native_rare.py.
_SENT_AWAY, _HANDED_OVER = 5, 6
_GOODBYE_S = 1.0  # for connections without calls, when the edge stops


class NativeEdge:
    """See `ports.Edge`; a `Service` of the runtime's lifecycle too.

    Args:
        options: address and limits.
        metrics: where calls and connections are counted.

    Raises:
        ImportError: the extension is not there.
        ValueError: TLS is wanted and there is no certificate.
    """

    name = "edge"
    kind = "native"
    front_pid = None

    def __init__(self, options: EdgeOptions, metrics: Metrics | None = None) -> None:
        import strata_edge_native  # absent where nobody built it

        if options.front and options.certificate is None:
            raise ValueError("an edge with TLS needs a certificate")
        self._options = options
        self.passes: NativePasses = strata_edge_native
        self.handover = Handover(is_port_shared=options.is_port_shared)
        metrics = metrics or Metrics.disabled()
        metrics.declare(METRICS)
        self._server = strata_edge_native.Server(native_options(options))
        self._mistakes = RequestTasks("edge", metrics)
        self._numbers = NativeNumbers(self._server, options, metrics)
        self._rare = NativeRareCalls(self._server, options.max_rare_calls, metrics)
        self._certificate: NativeCertificate | None = None
        if options.front and options.certificate is not None:
            self._certificate = NativeCertificate(
                self._server, options.certificate, metrics, policy=options.tls_policy
            )
        self._handler: HotHandler | None = None
        self._calls = metrics.counter("strata_edge_calls_total")
        self._batches = metrics.histogram("strata_edge_batch_calls")
        self._labels = [{"method": method} for method in HOT_METHODS]
        self._loop: asyncio.AbstractEventLoop | None = None
        self._moved = asyncio.Event()
        # Callers of `send_away` that wait for their answer, in the order of their calls.
        self._asked: deque[asyncio.Future[Sequence[str]]] = deque()
        self.port = 0

    def add_unary(self, path: str, handler: UnaryHandler) -> None:
        """See `ports.Edge.add_unary`. A `CallError` ends the call with its status."""
        self._rare.add(self._add(path, "unary"), self._rare.unary(handler), path)

    def add_server_stream(self, path: str, handler: ServerStreamHandler) -> None:
        """See `ports.Edge.add_server_stream`."""
        self._rare.add(self._add(path, "server stream"), self._rare.server_stream(handler), path)

    def add_stream(self, path: str, handler: StreamHandler) -> None:
        """See `ports.Edge.add_stream`."""
        self._rare.add(self._add(path, "talk"), self._rare.stream(handler), path)

    def set_hot_handler(self, service: str, handler: HotHandler) -> None:
        """See `ports.Edge.set_hot_handler`; `service` is `package.Service`."""
        self._handler = handler
        for method in HOT_METHODS:
            kind = "hot stream" if method in _STREAMING_HOT_METHODS else "hot unary"
            self._add(f"/{service}/{method}", kind)

    async def start(self) -> int:
        """Listen; return the port.

        Raises:
            ListenError: the address cannot be listened on.
            ConfigError: the certificate cannot be used.
        """
        if self._certificate is not None:
            await self._certificate.load()
        _raise_descriptor_limit()
        options = self._options
        listener = open_listener(
            options.host,
            options.port,
            keepalive=options.keepalive,
            is_shared=options.is_port_shared,
        )
        self.port = listener.getsockname()[1]
        self._loop = loop = asyncio.get_running_loop()
        flush = self._server.flush
        self._server.start(
            listener.detach(), lambda: loop.call_soon(flush), self.handover.is_wanted
        )
        loop.add_reader(self._server.event_descriptor, self._on_ready)
        if self._certificate is not None:
            self._certificate.watch()
        return self.port

    def health(self) -> Health:
        """See `ports.Edge.health`."""
        return self._certificate.health() if self._certificate is not None else Health()

    def connections(self) -> int | None:
        """See `ports.Edge.connections`."""
        return self._numbers.staying()

    async def send_away(self, most: int) -> Sequence[str]:
        """See `ports.Edge.send_away`."""
        if self._loop is None or most <= 0:
            return ()
        told: asyncio.Future[Sequence[str]] = self._loop.create_future()
        self._asked.append(told)
        self._server.send_some_away(most)
        return await told

    async def drain(self, timeout_s: float) -> None:
        """See `ports.Edge.drain`."""
        if self._loop is None:
            return
        self._server.send_away()
        await self._until_gone(timeout_s, timeout_s)

    async def stop(self, grace_s: float) -> None:
        """See `ports.Edge.stop`."""
        loop, self._loop = self._loop, None
        if loop is not None:
            if grace_s > 0:
                self._server.send_away()
                await self._until_gone(grace_s, min(grace_s, _GOODBYE_S))
            await asyncio.to_thread(self._server.stop)
            loop.remove_reader(self._server.event_descriptor)
            self._on_ready()  # what ended with the connections
            while self._asked:
                self._told_away(())
            await self._rare.stop()
        if self._certificate is not None:
            await self._certificate.close()
        self._numbers.close()

    def _add(self, path: str, kind: str) -> int:
        if self._loop is not None:
            raise RuntimeError("methods are added before the start")
        limits = self._options.method_limits.get(path, self._options.default_limits)
        return self._server.add_route(path, kind, limits.max_request_bytes, limits.max_time_s)

    async def _until_gone(self, calls_s: float, idle_s: float) -> None:
        """Wait until the last connection has gone.

        Args:
            calls_s: at most so long while there are calls.
            idle_s: at most so long while there are none.
        """
        assert self._server is not None
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while self._numbers.connections():
            limit_s = calls_s if self._numbers.busy() else idle_s
            left_s = began_s + limit_s - loop.time()
            if left_s <= 0:
                return
            self._moved.clear()
            try:
                # Calls may end without a word; the edge tells of connections.
                async with Timeout(min(left_s, 0.1)):
                    await self._moved.wait()
            except TimeoutError:
                continue

    def _on_ready(self) -> None:
        """Take what the thread has collected, and send all answers that are ready together."""
        hot, counts, events = self._server.drain()
        try:
            self._numbers.read()
            for kind, call_id, value in events:
                if kind == self._rare.ENDED:
                    self._ended(call_id, value)
                elif kind == _SENT_AWAY:
                    self._told_away(value)
                elif kind == _HANDED_OVER:
                    descriptor, peer, is_secured = value
                    given = HandedConnection(socket.socket(fileno=descriptor), peer, is_secured)
                    self.handover.give(given)
                else:
                    self._rare.take(kind, call_id, value)
            if hot:
                self._hand_over(hot, counts)
        finally:
            self._server.flush()
            self._moved.set()

    def _told_away(self, peers: Sequence[str]) -> None:
        told = self._asked.popleft()
        if not told.done():
            told.set_result(peers)

    def _ended(self, call_id: int, callbacks: Sequence[strata_edge_native.Callback]) -> None:
        for callback in callbacks:
            try:
                callback()
            except Exception as failure:  # noqa: BLE001 (a mistake with one call goes no further)
                self._mistakes.failed("ended call", failure)
        self._rare.ended(call_id)

    def _hand_over(
        self, calls: Sequence[strata_edge_native.HotCall], counts: Sequence[int]
    ) -> None:
        assert self._handler is not None
        self._batches.record(len(calls))
        for count, labels in zip(counts, self._labels, strict=True):
            if count:
                self._calls.add(count, labels)
        try:
            self._handler.handle(calls)
        except Exception as failure:  # noqa: BLE001 (the boundary: each call gets an answer)
            self._mistakes.failed("hot calls", failure)
            for call in calls:
                call.fail("INTERNAL", MISTAKE)


def _raise_descriptor_limit() -> None:
    """Allow as many connections as the system lets this process have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
