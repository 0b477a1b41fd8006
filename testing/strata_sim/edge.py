"""A broker's edge on the simulated network, and the clients' side of it.

A call is request bytes and response bytes with headers, as over HTTP/2. A client that goes away, a
reset and a broker's death look to both sides as they do over a real connection.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from google.protobuf.message import Message

from strata_angelia.ports import (
    DEADLINE_EXCEEDED,
    UNAVAILABLE,
    UNKNOWN_METHOD,
    AngeliaError,
    Response,
)
from strata_edge.ports import (
    HOT_METHODS,
    CallError,
    HotHandler,
    ServerStreamHandler,
    StreamHandler,
    UnaryHandler,
)
from strata_runtime.health import Health
from strata_runtime.tasks import Tasks
from strata_sim.machine import Machine
from strata_sim.network import Direction, SimNetwork
from strata_sim.virtual_loop import Incarnation

_RESET_S = 0.02
"""Longest time after a process died until its peers know."""

_RETRY_S = 0.5
_PATIENCE_S = 60.0


class Disconnected(Exception):
    """The connection ended before the answer: nobody knows what became of the call."""


class CallRefused(Exception):
    """The call ended with a gRPC status and no response."""


class SimEdge:
    """The broker's side; implements `strata_edge.ports.Edge`.

    Args:
        network: where it listens.
        machine: whose process it is a part of.
        port: of its endpoint.
    """

    passes = None
    handover = None

    def __init__(self, network: SimNetwork, machine: Machine, port: int) -> None:
        incarnation = machine.incarnation
        assert incarnation is not None, "an edge belongs to a running process"
        self.incarnation: Incarnation = incarnation
        self.context = machine.context()
        self.endpoint = f"{machine.name}:{port}"
        self._network = network
        self._port = port
        self._hot: HotHandler | None = None
        self._service = ""
        self._unary: dict[str, UnaryHandler] = {}
        self._streams: dict[str, ServerStreamHandler] = {}
        self._calls = Tasks(f"edge:{self.endpoint}", self._mistake, max_tasks=100_000)
        self.open_calls: dict[SimCall, None] = {}
        self.incarnation.on_death.append(self._died)

    def add_unary(self, path: str, handler: UnaryHandler) -> None:
        """See `ports.Edge.add_unary`."""
        self._unary[path] = handler

    def add_server_stream(self, path: str, handler: ServerStreamHandler) -> None:
        """See `ports.Edge.add_server_stream`."""
        self._streams[path] = handler

    def add_stream(self, path: str, handler: StreamHandler) -> None:
        """Simulated clients open no telemetry: they are pull clients with their own leases."""

    def set_hot_handler(self, service: str, handler: HotHandler) -> None:
        """See `ports.Edge.set_hot_handler`."""
        self._service, self._hot = service, handler

    async def start(self) -> int:
        """Listen."""
        self._network.listen(self.endpoint, self)
        return self._port

    def health(self) -> Health:
        """See `ports.Edge.health`: there is no certificate."""
        return Health()

    def connections(self) -> int | None:
        """See `ports.Edge.connections`: nothing here lasts longer than a call."""
        return None

    async def send_away(self, most: int) -> Sequence[str]:
        """See `ports.Edge.send_away`: nobody stays."""
        return ()

    async def drain(self, timeout_s: float) -> None:
        """See `ports.Edge.drain`: a simulated client makes a connection for each call."""
        self._network.unlisten(self.endpoint, self)

    async def stop(self, grace_s: float) -> None:
        """See `ports.Edge.stop`."""
        self._network.unlisten(self.endpoint, self)
        await self._calls.drain(min(grace_s, 5.0))
        await self._calls.stop()

    def _died(self) -> None:
        """The machine resets the connections of the dead process."""
        for call in self.open_calls:
            self._network.loop.call_later(
                self._network.chance.uniform(0, _RESET_S), call.broker_died, context=call.context
            )
        self.open_calls.clear()

    def _mistake(self, name: str, failure: BaseException) -> None:
        self._network.trace.violation(f"handler {name} raised {failure!r}")

    def arrive(self, call: SimCall) -> None:
        """Take a call that reached the broker; runs in its context."""
        service, _, method = call.path.removeprefix("/").partition("/")
        if service == self._service and method in HOT_METHODS and self._hot is not None:
            self._hot.handle([_HotCall(call, method)])
        else:
            self._calls.spawn(call.path, self._serve(call))

    async def _serve(self, call: SimCall) -> None:
        unary = self._unary.get(call.path)
        try:
            if unary is not None:
                call.answer([await unary(call.request, call)])
            elif call.path in self._streams:
                items = self._streams[call.path](call.request, call)
                answer: list[bytes] = []
                async for item in items:
                    answer += [item] if isinstance(item, bytes) else item
                call.answer(answer)
            else:
                call.fail(CallRefused(f"UNIMPLEMENTED: {call.path}"))
        except CallError as error:
            call.fail(CallRefused(str(error)))


@dataclass(eq=False, slots=True)
class SimCall:
    """One call under way; to a rare RPC's handler its `CallInfo`."""

    network: SimNetwork
    client: str
    broker: str
    path: str
    request: bytes
    metadata: Mapping[str, str]
    deadline_s: float
    back: Direction
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    outcome: asyncio.Future[Sequence[bytes]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    answered: bool = False
    gone: bool = False
    on_gone: list[Callable[[], None]] = field(default_factory=list)

    @property
    def peer(self) -> str:
        """Address of the client."""
        return f"{self.client}:1"

    def time_left_s(self) -> float | None:
        """Seconds until the client gives up."""
        return self.deadline_s - self.network.loop.time()

    def answer(self, responses: Sequence[bytes]) -> None:
        """Send the answer to the client; only the first one counts."""
        if not self.answered:
            self.answered = True
            self.network.post(
                self.broker, self.client, self.back, lambda: self._end(responses), self.context
            )

    def fail(self, failure: Exception) -> None:
        """Send a failure to the client."""
        if not self.answered:
            self.answered = True
            self.network.post(
                self.broker, self.client, self.back, lambda: self._end(failure), self.context
            )

    def _end(self, outcome: Sequence[bytes] | Exception) -> None:
        if self.outcome.done():
            return
        if isinstance(outcome, Exception):
            self.outcome.set_exception(outcome)
        else:
            self.outcome.set_result(outcome)

    def reset(self) -> None:
        """End the call for its client: the connection broke, on whichever way."""
        self._end(Disconnected(f"the connection to {self.broker} was reset"))

    def broker_died(self) -> None:
        """End the call: the broker's machine resets the connection, once that can arrive."""
        if self.network.is_cut(self.broker, self.client):
            self.network.loop.call_later(_RETRY_S, self.broker_died)
        else:
            self._end(Disconnected(f"{self.broker} went away"))

    def leave(self) -> None:
        """The client has gone: tell the broker, if the link still carries that."""
        if self.gone or self.answered:
            return
        self.gone = True
        for callback in self.on_gone:
            callback()


class _HotCall:
    """See `strata_edge.ports.HotCall`."""

    def __init__(self, call: SimCall, method: str) -> None:
        self._call = call
        self.method = method
        self.request = call.request
        self.metadata = call.metadata
        self.peer = call.peer

    def time_left_s(self) -> float | None:
        """See the port."""
        return self._call.time_left_s()

    def done(self) -> bool:
        """See the port."""
        return self._call.answered or self._call.gone

    def on_gone(self, callback: Callable[[], None]) -> None:
        """See the port."""
        self._call.on_gone.append(callback)

    def complete(
        self, responses: Sequence[bytes], on_not_taken: Callable[[], None] | None = None
    ) -> None:
        """See the port; what the network loses on its way counts as taken."""
        if self.done():
            if on_not_taken is not None:
                self._call.network.loop.call_soon(on_not_taken)
            return
        self._call.answer(responses)

    def fail(self, status: str, reason: str) -> None:
        """See the port."""
        if not self.done():
            self._call.fail(CallRefused(f"{status}: {reason}"))


class SimConnection:
    """A client's connection to one broker endpoint.

    Args:
        network: what carries it.
        client: name of the client's machine.
        endpoint: of the broker.
    """

    def __init__(self, network: SimNetwork, client: str, endpoint: str) -> None:
        self._network = network
        self._client = client
        self._endpoint = endpoint
        self._there = Direction()
        self._back = Direction()

    async def call(
        self, path: str, request: bytes, metadata: Mapping[str, str], timeout_s: float
    ) -> Sequence[bytes]:
        """Call and return all responses.

        Raises:
            Disconnected: the connection broke.
            CallRefused: the broker ended the call.
            TimeoutError: no answer in time.
        """
        network = self._network
        broker = network.machine_at(self._endpoint)
        call = SimCall(
            network,
            self._client,
            broker,
            path,
            request,
            metadata,
            network.loop.time() + timeout_s,
            self._back,
        )
        edge = network.listening(self._endpoint)
        if not network.is_cut(self._client, broker):
            if not isinstance(edge, SimEdge):
                await asyncio.sleep(network.options.delay_s[1])
                raise Disconnected(f"{self._endpoint} refused the connection")
            context = edge.context
            network.post(self._client, broker, self._there, lambda: edge.arrive(call), context)
            edge.open_calls[call] = None
            if network.chance.random() < network.options.reset_share:
                delay_s = network.chance.uniform(0, _RESET_S)
                network.loop.call_later(delay_s, call.reset, context=call.context)
        try:
            async with asyncio.timeout(timeout_s):
                return await call.outcome
        finally:
            if isinstance(edge, SimEdge):
                edge.open_calls.pop(call, None)
            if isinstance(edge, SimEdge) and not edge.incarnation.dead:
                network.post(self._client, broker, self._there, call.leave, edge.context)


class SimEdgeChannel:
    """One broker's way to another one's edge; implements `strata_angelia.ports.Channel`."""

    def __init__(
        self,
        network: SimNetwork,
        source: str,
        endpoint: str,
        *,
        headers: Callable[[], Sequence[tuple[str, str]]] = tuple,
    ) -> None:
        self._connection = SimConnection(network, source, endpoint)
        self._headers = headers

    async def call(
        self,
        method: str,
        request: Message,
        response_type: type[Response],
        *,
        timeout_s: float | None = None,
    ) -> Response:
        """See `ports.Channel.call`."""
        data = request.SerializeToString()
        limit_s = _PATIENCE_S if timeout_s is None else timeout_s
        try:
            headers = dict(self._headers())
            (answer,) = await self._connection.call(method, data, headers, limit_s)
        except TimeoutError:
            raise AngeliaError(DEADLINE_EXCEEDED, method) from None
        except Disconnected as error:
            raise AngeliaError(UNAVAILABLE, str(error)) from None
        except CallRefused as error:
            raise AngeliaError(UNKNOWN_METHOD, str(error)) from None
        return response_type.FromString(answer)

    async def stream(
        self, method: str, request: Message, response_type: type[Response]
    ) -> AsyncIterator[Response]:
        """Brokers ask each other for nothing that is streamed."""
        raise AngeliaError(UNKNOWN_METHOD, method)
        yield

    async def close(self) -> None:
        """A simulated connection to an edge lasts for one call."""
