"""Transport inside a process: a call is the handler's coroutine, nothing is serialised.

Rule for both sides: request and response objects are passed without a copy. The sender of a message
must not change it afterwards, and the receiver must not change it at all; a handler that keeps a
changed request copies it. The other transports give each side its own copy.

Deadlines, errors, the limits on calls and the death of the peer are as on the other transports.
Message sizes are not limited here: nothing is buffered, and measuring a message means serialising
it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar, cast

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message

from strata_angelia.budgets import Budgets, Usage
from strata_angelia.methods import Method, MethodTable
from strata_angelia.metrics import METRICS
from strata_angelia.options import AngeliaOptions
from strata_angelia.ports import (
    DEADLINE_EXCEEDED,
    INTERNAL,
    UNAVAILABLE,
    AngeliaError,
    CallContext,
)
from strata_angelia.stopping import end_calls
from strata_runtime.errors import one_line
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import RequestTasks, Tasks

Response = TypeVar("Response", bound=Message)

Result = TypeVar("Result")

_TRANSPORT = "inproc"
_PREFIX = f"{_TRANSPORT}:"


class InprocNetwork:
    """Where the in-process servers of one container are found by name.

    Args:
        options: of servers that are given none; None: the defaults.
    """

    def __init__(self, options: AngeliaOptions | None = None) -> None:
        self._options = options or AngeliaOptions()
        self._servers: dict[str, InprocServer] = {}

    def server(
        self, name: str, *, options: AngeliaOptions | None = None, metrics: Metrics | None = None
    ) -> InprocServer:
        """A server that will be reachable as `inproc:NAME` between its start and stop."""
        return InprocServer(
            self._servers, name, options or self._options, metrics=metrics or Metrics.disabled()
        )

    def channel(self, endpoint: str, *, trace_parent: Callable[[], str] = str) -> InprocChannel:
        """A channel to `inproc:NAME`; the server need not run yet.

        Raises:
            ValueError: not an in-process endpoint.
        """
        if not endpoint.startswith(_PREFIX):
            raise ValueError(f"{endpoint} is not an in-process endpoint")
        name = endpoint.removeprefix(_PREFIX)
        return InprocChannel(self._servers, name, trace_parent)


class InprocServer:
    """The serving side; made by `InprocNetwork.server`."""

    def __init__(
        self,
        servers: dict[str, InprocServer],
        name: str,
        options: AngeliaOptions,
        *,
        metrics: Metrics,
    ) -> None:
        self._servers = servers
        self._name = name
        self.options = options
        self.table = MethodTable(options.class_of)
        # Calls are bounded by class; the owner's own limit is only a last line.
        most = sum(limits.max_calls for limits in options.classes.values())
        self._mistakes = RequestTasks("angelia", metrics)
        self.calls = Tasks(f"{_PREFIX}{name}", self._call_failed, max_tasks=most)
        self.streams = Tasks(f"{_PREFIX}{name}", self._call_failed, max_tasks=most)
        metrics.declare(METRICS)
        self._usage = Usage(_TRANSPORT, metrics)
        self.budgets = Budgets(options, self._usage)
        self._ended_calls = metrics.counter("strata_angelia_calls_total")

    def register(self, service: ServiceDescriptor, handler: object) -> None:
        """See `ports.Server.register`."""
        self.table.add(service, handler)

    async def start(self) -> str:
        """Become reachable.

        Raises:
            OSError: a server of that name runs.
        """
        if self._name in self._servers:
            raise OSError(f"{_PREFIX}{self._name} is in use")
        self._servers[self._name] = self
        return f"{_PREFIX}{self._name}"

    async def stop(self, grace_s: float) -> None:
        """See `ports.Server.stop`."""
        if self._servers.get(self._name) is self:
            del self._servers[self._name]
        ends_s = asyncio.get_running_loop().time() + grace_s
        try:
            await end_calls(self.streams, self.calls, ends_s)
        finally:
            self._usage.close()

    def begin(
        self, owner: Tasks, method: Method, work: Coroutine[Any, Any, Result]
    ) -> asyncio.Task[Result]:
        """Run a call until its task ends, within the budget of its class.

        Raises:
            AngeliaError: OVERLOADED.
        """
        try:
            self.budgets.check_calls(method.call_class)
        except AngeliaError:
            work.close()
            raise
        task = owner.spawn(method.path, work)
        self.budgets.take(method.call_class, 0)
        task.add_done_callback(lambda _: self.budgets.give_back(method.call_class, 0))
        return task

    def count(self, method: Method, code: str) -> None:
        """Count an ended call."""
        self._ended_calls.add(1, {"method": method.path, "code": code})

    def _call_failed(self, name: str, failure: BaseException) -> None:
        if not isinstance(failure, AngeliaError):
            self._mistakes.failed(name, failure)


class InprocChannel:
    """The calling side; made by `InprocNetwork.channel`."""

    def __init__(
        self,
        servers: dict[str, InprocServer],
        name: str,
        trace_parent: Callable[[], str],
    ) -> None:
        self._servers = servers
        self._name = name
        self._trace_parent = trace_parent
        self._running: set[asyncio.Task[None] | asyncio.Task[Message]] = set()
        self._closed = False

    async def call(
        self,
        method: str,
        request: Message,
        response_type: type[Response],
        *,
        timeout_s: float | None = None,
    ) -> Response:
        """See `ports.Channel.call`."""
        server, found = self._find(method, streaming=False)
        context = CallContext(timeout_s, self._trace_parent(), f"{_PREFIX}caller")
        task = server.begin(server.calls, found, _call(found, request, context))
        self._running.add(task)
        try:
            await _ended(task, timeout_s)
        finally:
            done = task.done()
            self._running.discard(task)
            task.cancel()
        failure = _failure(task) if done else AngeliaError(DEADLINE_EXCEEDED, method)
        server.count(found, failure.code if failure else "ok")
        if failure is not None:
            raise failure
        return cast("Response", task.result())

    async def stream(
        self, method: str, request: Message, response_type: type[Response]
    ) -> AsyncIterator[Response]:
        """See `ports.Channel.stream`."""
        server, found = self._find(method, streaming=True)
        context = CallContext(None, self._trace_parent(), f"{_PREFIX}caller")
        handover = _Handover()
        task = server.begin(server.streams, found, handover.produce(found, request, context))
        task.add_done_callback(handover.wake)
        self._running.add(task)
        try:
            while (item := await handover.take()) is not None:
                yield cast("Response", item)
            failure = _failure(task)
            server.count(found, failure.code if failure else "ok")
            if failure is not None:
                raise failure
        finally:
            self._running.discard(task)
            task.cancel()

    async def close(self) -> None:
        """See `ports.Channel.close`."""
        self._closed = True
        for task in self._running:
            task.cancel()

    def _find(self, path: str, *, streaming: bool) -> tuple[InprocServer, Method]:
        server = self._servers.get(self._name)
        if self._closed or server is None:
            raise AngeliaError(UNAVAILABLE, f"{_PREFIX}{self._name} is not there")
        return server, server.table.find(path, streaming=streaming)


async def _ended(task: asyncio.Task[Message], timeout_s: float | None) -> None:
    """Wait until a task ended or the time is over; a leaner `asyncio.wait` for one."""
    running = asyncio.get_running_loop()
    over: asyncio.Future[None] = running.create_future()

    def end(_: asyncio.Task[Message] | None = None) -> None:
        if not over.done():
            over.set_result(None)

    task.add_done_callback(end)
    timer = None if timeout_s is None else running.call_later(timeout_s, end)
    try:
        await over
    finally:
        if timer is not None:
            timer.cancel()


async def _call(method: Method, request: Message, context: CallContext) -> Message:
    return await method.unary(request, context)


class _Handover:
    """Items of one stream on their way; one is the window, so the producer keeps pace."""

    def __init__(self) -> None:
        self._item: Message | None = None
        self._ended = False
        self._arrived = asyncio.Event()
        self._taken = asyncio.Event()

    async def produce(self, method: Method, request: Message, context: CallContext) -> None:
        """Run the handler, item by item."""
        async for item in method.stream(request, context):
            self._item = item
            self._taken.clear()
            self._arrived.set()
            await self._taken.wait()

    def wake(self, _: asyncio.Task[None]) -> None:
        """The producer ended: let the consumer look."""
        self._ended = True
        self._arrived.set()

    async def take(self) -> Message | None:
        """The next item; None when the producer ended and nothing is left."""
        await self._arrived.wait()
        item, self._item = self._item, None
        if not self._ended:
            self._arrived.clear()
        self._taken.set()
        return item


def _failure(task: asyncio.Task[None] | asyncio.Task[Message]) -> AngeliaError | None:
    """Why a task that ended gave no result."""
    if task.cancelled():
        return AngeliaError(UNAVAILABLE, "the call was ended by server stop or channel close")
    failure = task.exception()
    if failure is None or isinstance(failure, AngeliaError):
        return failure
    return AngeliaError(INTERNAL, one_line(failure))
