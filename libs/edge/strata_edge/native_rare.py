"""Rare calls on the native edge: one task each, behind a boundary that no handler's bug crosses."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from strata_edge.ports import (
    MISTAKE,
    CallError,
    CallInfo,
    ServerStreamHandler,
    StreamHandler,
    UnaryHandler,
)
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import RequestTasks

if TYPE_CHECKING:
    import strata_edge_native

_STOP_S = 5.0


class _Call:
    """One call under way.

    Attributes:
        moved: what its task waits for: the next message, or that responses are taken.
        over: it has ended without this process's doing.
    """

    __slots__ = ("ended", "info", "message", "number", "request", "taken", "task")

    def __init__(self, number: int, request: bytes | None, info: CallInfo) -> None:
        self.number = number
        self.request = request
        self.info = info
        self.message: asyncio.Future[bytes | None] | None = None
        self.taken: asyncio.Future[None] | None = None
        self.task: asyncio.Task[None] | None = None
        self.ended = False


Serve: TypeAlias = Callable[[_Call], Coroutine[Any, Any, None]]


class NativeRareCalls:
    """Runs the handlers of the port.

    Args:
        server: brings calls, takes answers.
        max_calls: tasks at once; the server admits no more calls.
        metrics: where failures show.
    """

    RARE, MESSAGE, HALF_CLOSED, ENDED, TAKEN = range(5)

    def __init__(self, server: strata_edge_native.Server, max_calls: int, metrics: Metrics) -> None:
        self._server = server
        # A task may outlive its call by a turn of the loop.
        self._tasks = RequestTasks("edge", metrics, max_tasks=2 * max_calls)
        self._routes: dict[int, tuple[str, Serve]] = {}
        self._calls: dict[int, _Call] = {}

    def add(self, route: int, serve: Serve, path: str) -> None:
        """Run `serve` for the calls of a route."""
        self._routes[route] = path, serve

    def take(self, kind: int, number: int, value: Any) -> None:
        """Take an event of the server."""
        if kind == self.RARE:
            self._begin(number, *value)
            return
        call = self._calls.get(number)
        if call is None:
            return
        if kind == self.TAKEN:
            if call.taken is not None and not call.taken.done():
                call.taken.set_result(None)
        elif call.message is not None and not call.message.done():
            call.message.set_result(value)

    def ended(self, number: int) -> None:
        """A call has ended: so does its handler. Nothing if it is unknown."""
        call = self._calls.pop(number, None)
        if call is not None and call.task is not None:
            call.ended = True
            call.task.cancel()

    async def stop(self) -> None:
        """End the handlers that still run."""
        await self._tasks.stop(_STOP_S)

    def unary(self, handler: UnaryHandler) -> Serve:
        """Return what serves a unary RPC."""

        async def serve(call: _Call) -> None:
            assert call.request is not None
            self._server.answer(call.number, await handler(call.request, call.info))

        return serve

    def server_stream(self, handler: ServerStreamHandler) -> Serve:
        """Return what serves a server-streaming RPC."""

        async def serve(call: _Call) -> None:
            assert call.request is not None
            await self._send(call, handler(call.request, call.info))

        return serve

    def stream(self, handler: StreamHandler) -> Serve:
        """Return what serves a bidirectional RPC."""

        async def serve(call: _Call) -> None:
            await self._send(call, handler(self._requests(call), call.info))

        return serve

    def _begin(self, number: int, route: int, request: bytes | None, info: CallInfo) -> None:
        path, serve = self._routes[route]
        call = self._calls[number] = _Call(number, request, info)
        call.task = self._tasks.spawn(path, self._run(call, path, serve))

    async def _run(self, call: _Call, path: str, serve: Serve) -> None:
        """Serve a call: the boundary that a mistake of its handler does not pass (rule 33)."""
        try:
            await serve(call)
        except CallError as error:
            self._fail(call, error)
        except asyncio.CancelledError:
            self._fail(call, CallError("CANCELLED", "the call was cancelled"))
            raise
        except Exception as failure:  # noqa: BLE001 (the boundary)
            self._tasks.failed(path, failure)
            self._fail(call, CallError("INTERNAL", MISTAKE))
        finally:
            self._calls.pop(call.number, None)
            # A cancelled task keeps its stack, and the stack has this frame: without the way back
            # it goes with its last reference, and so does what the handler held.
            call.task = None

    def _fail(self, call: _Call, error: CallError) -> None:
        if not call.ended:
            self._server.fail(call.number, error.status, error.reason)

    async def _requests(self, call: _Call) -> AsyncIterator[bytes]:
        """Yield what the client sends, a message when the one before was taken."""
        while not call.ended:
            call.message = asyncio.get_running_loop().create_future()
            self._server.next(call.number)
            request = await call.message
            if request is None:
                return
            yield request

    async def _send(self, call: _Call, responses: AsyncIterator[bytes | Sequence[bytes]]) -> None:
        """Send responses, the next when the transport has taken those before, and the end."""
        # The handler ends with its call, whoever ends that.
        async with contextlib.aclosing(responses) as yielded:  # type: ignore[type-var]
            async for together in yielded:
                call.taken = asyncio.get_running_loop().create_future()
                if isinstance(together, bytes):
                    self._server.send(call.number, [together])
                else:
                    self._server.send(call.number, together)
                    if isinstance(together, list):
                        # The server has a copy: the bytes are not here a second time meanwhile.
                        together.clear()
                del together
                await call.taken
        self._server.finish(call.number)
