"""A simulated network: Angelia's channels and servers over links that delay, lose and reset.

A link is one direction between two machines. A channel behaves as over TCP: its bytes arrive in
order or not at all; a reset ends everything under way with UNAVAILABLE, and the caller does not
know whether its request was served. A cut link holds bytes under way back until it is repaired, as
retransmission does, and takes no new connection: the caller learns by its deadline. Messages are
serialised, so that no two machines share an object.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, cast

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message

from strata_angelia.methods import Method, MethodTable
from strata_angelia.ports import (
    DEADLINE_EXCEEDED,
    INTERNAL,
    UNAVAILABLE,
    AngeliaError,
    CallContext,
)
from strata_runtime.tasks import Tasks
from strata_sim.machine import Machine
from strata_sim.trace import Trace
from strata_sim.virtual_loop import Incarnation, VirtualLoop

Response = TypeVar("Response", bound=Message)


_RETRANSMIT_S = 0.5
"""Longest time after a cut was mended until what it held arrives."""

_RESET_S = 0.02
"""Longest time after a process died until its peers know."""


@dataclass(frozen=True, slots=True)
class NetworkOptions:
    """How the network behaves between cuts.

    Attributes:
        delay_s: shortest and longest time of a message.
        slow_share, slow_s: share of messages that take longer, and how long at most.
        reset_share: share of calls during which the connection is reset.
        repeat_share: share of requests that are served twice (a sender's own retry looks so).
        reorder_share: share of requests that those sent later may overtake.
        connect_timeout_s: how long a caller waits for a machine that does not answer at all.
    """

    delay_s: tuple[float, float] = (0.0001, 0.002)
    slow_share: float = 0.01
    slow_s: float = 0.1
    reset_share: float = 0.001
    repeat_share: float = 0.0
    reorder_share: float = 0.0
    connect_timeout_s: float = 5.0


@dataclass(eq=False, slots=True)
class Direction:
    """One way of one connection: what was sent first arrives first.

    Attributes:
        arrives_s: when the last message arrives.
        held: what a cut keeps from arriving, and what was sent after it.
    """

    arrives_s: float = 0.0
    held: deque[tuple[Callable[[], None], contextvars.Context]] = field(default_factory=deque)


class Listener(Protocol):
    """Listener at an endpoint."""

    @property
    def incarnation(self) -> Incarnation:
        """The process that it is a part of."""


class SimNetwork:
    """Links, and who listens where.

    Args:
        loop: time.
        chance: delays and resets.
        options: how it behaves; may be replaced at any time.
        trace: where mistakes of handlers go, and every message for the checksum.

    Attributes:
        messages: how many were carried.
        on_post: called with the sending machine's name before each message.
    """

    def __init__(
        self,
        loop: VirtualLoop,
        chance: random.Random,
        options: NetworkOptions | None = None,
        *,
        trace: Trace | None = None,
    ) -> None:
        self.loop = loop
        self.options = options or NetworkOptions()
        self.trace = trace or Trace(loop.time)
        self.chance = chance
        self.messages = 0
        self.on_post: Callable[[str], None] | None = None
        self._cut: set[tuple[str, str]] = set()
        # Link -> ways over it that hold messages, in the order of their first one.
        self._held: dict[tuple[str, str], dict[Direction, None]] = defaultdict(dict)
        self._listeners: dict[str, Listener] = {}

    # Faults -------------------------------------------------------------------------------------

    def cut(self, source: str, target: str) -> None:
        """Carry nothing from one machine to another; the other way stays as it is."""
        self._cut.add((source, target))

    def isolate(self, name: str, others: list[str]) -> None:
        """Cut a machine off from others, both ways."""
        for other in others:
            self.cut(name, other)
            self.cut(other, name)

    def mend(self, source: str, target: str) -> None:
        """Take back a cut."""
        self._cut.discard((source, target))
        for way in self._held.pop((source, target), {}):
            self.loop.call_later(
                self.chance.uniform(0, _RETRANSMIT_S), self._release, source, target, way
            )

    def heal(self) -> None:
        """Take back all cuts."""
        for source, target in sorted(self._cut):
            self.mend(source, target)

    def is_cut(self, source: str, target: str) -> bool:
        """Whether nothing is carried that way."""
        return (source, target) in self._cut

    # Endpoints ----------------------------------------------------------------------------------

    def server(self, machine: Machine, endpoint: str) -> SimServer:
        """Return a server of a machine; it listens at `endpoint` between start and stop."""
        return SimServer(self, machine, endpoint)

    def channel(self, machine: Machine, endpoint: str) -> SimChannel:
        """Return a channel from a machine (its process, or a client of the simulation)."""
        return SimChannel(self, machine.name, endpoint)

    def listening(self, endpoint: str) -> Listener | None:
        """Return who listens at an endpoint; None: the port is closed."""
        listener = self._listeners.get(endpoint)
        if listener is not None and listener.incarnation.dead:
            del self._listeners[endpoint]
            return None
        return listener

    def machine_at(self, endpoint: str) -> str:
        """Return the machine whose address an endpoint is."""
        return endpoint.rpartition(":")[0]

    def listen(self, endpoint: str, listener: Listener) -> None:
        """Open a port.

        Raises:
            OSError: it is in use.
        """
        if self.listening(endpoint) is not None:
            raise OSError(f"{endpoint} is in use")
        self._listeners[endpoint] = listener

    def unlisten(self, endpoint: str, listener: Listener) -> None:
        """Close a port."""
        if self._listeners.get(endpoint) is listener:
            del self._listeners[endpoint]

    # Messages -----------------------------------------------------------------------------------

    def post(
        self,
        source: str,
        target: str,
        way: Direction,
        arrive: Callable[[], None],
        context: contextvars.Context,
    ) -> None:
        """Carry one message: `arrive` runs in `context` once it is there."""
        if self.on_post is not None:
            self.on_post(source)
        self.messages += 1
        delay_s = self.chance.uniform(*self.options.delay_s)
        if self.chance.random() < self.options.slow_share:
            delay_s += self.chance.uniform(0, self.options.slow_s)
        way.arrives_s = max(way.arrives_s + 1e-6, self.loop.time() + delay_s)

        def deliver() -> None:
            if way.held or self.is_cut(source, target):
                way.held.append((arrive, context))
                self._held[source, target][way] = None
            else:
                arrive()

        self.loop.call_at(way.arrives_s, deliver, context=context)

    def _release(self, source: str, target: str, way: Direction) -> None:
        """Let a way's messages arrive, unless the link was cut again."""
        if self.is_cut(source, target):
            self._held[source, target][way] = None
            return
        while way.held:
            arrive, context = way.held.popleft()
            self.loop.call_soon(arrive, context=context)


class SimServer:
    """The serving side; made by `SimNetwork.server`. Implements `strata_angelia.ports.Server`."""

    def __init__(self, network: SimNetwork, machine: Machine, endpoint: str) -> None:
        incarnation = machine.incarnation
        assert incarnation is not None, "a server belongs to a running process"
        self.incarnation: Incarnation = incarnation
        self.context = machine.context()
        self.table = MethodTable()
        self.calls = Tasks(f"sim:{endpoint}", self._mistake, max_tasks=100_000)
        # Calls that have not ended -> who is told when this process dies.
        self.open_calls: dict[object, tuple[Callable[[], None], contextvars.Context]] = {}
        self.incarnation.on_death.append(self._died)
        self._network = network
        self._endpoint = endpoint

    def register(self, service: ServiceDescriptor, handler: object) -> None:
        """See `ports.Server.register`."""
        self.table.add(service, handler)

    async def start(self) -> str:
        """Listen."""
        self._network.listen(self._endpoint, self)
        return self._endpoint

    def _died(self) -> None:
        """The machine resets the connections of the dead process."""
        for reset, context in self.open_calls.values():
            delay_s = self._network.chance.uniform(0, _RESET_S)
            self._network.loop.call_later(delay_s, reset, context=context)
        self.open_calls.clear()

    def _mistake(self, name: str, failure: BaseException) -> None:
        self._network.trace.violation(f"handler {name} raised {failure!r}")

    async def stop(self, grace_s: float) -> None:
        """See `ports.Server.stop`."""
        self._network.unlisten(self._endpoint, self)
        await self.calls.drain(min(grace_s, 1.0))
        await self.calls.stop()


@dataclass(eq=False, slots=True)
class _Call:
    """One call as its caller sees it: what arrived, and whether it ended."""

    # The caller's: what is on its way to it arrives even if the sender has died meanwhile.
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    arrived: asyncio.Queue[Message | AngeliaError | None] = field(default_factory=asyncio.Queue)
    ended: bool = False

    def put(self, item: Message | AngeliaError | None) -> None:
        """Hand something to the caller; nothing after the end."""
        if not self.ended:
            self.ended = item is None or isinstance(item, AngeliaError)
            self.arrived.put_nowait(item)


class SimChannel:
    """The calling side; made by `SimNetwork.channel`. Implements `strata_angelia.ports.Channel`."""

    def __init__(self, network: SimNetwork, source: str, endpoint: str) -> None:
        self._network = network
        self._source = source
        self._endpoint = endpoint
        self._there = Direction()
        self._back = Direction()
        self._connected = False
        # A dict, for its order: calls end in the order in which they began.
        self._open: dict[_Call, None] = {}
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
        call, server = self._begin(method, request, timeout_s, streaming=False)
        try:
            async with asyncio.timeout(timeout_s):
                item = await call.arrived.get()
        except TimeoutError:
            raise AngeliaError(DEADLINE_EXCEEDED, method) from None
        finally:
            self._end(call, server)
        if isinstance(item, AngeliaError):
            raise item
        return cast("Response", item)

    async def stream(
        self, method: str, request: Message, response_type: type[Response]
    ) -> AsyncIterator[Response]:
        """See `ports.Channel.stream`."""
        call, server = self._begin(method, request, None, streaming=True)
        try:
            while (item := await call.arrived.get()) is not None:
                if isinstance(item, AngeliaError):
                    raise item
                yield cast("Response", item)
        finally:
            self._end(call, server)

    async def close(self) -> None:
        """See `ports.Channel.close`."""
        self._closed = True
        self._reset("the channel was closed")

    # One call -----------------------------------------------------------------------------------

    def _begin(
        self, method: str, request: Message, timeout_s: float | None, *, streaming: bool
    ) -> tuple[_Call, SimServer | None]:
        if self._closed:
            raise AngeliaError(UNAVAILABLE, "the channel is closed")
        call = _Call()
        self._open[call] = None
        network = self._network
        target = network.machine_at(self._endpoint)
        server = network.listening(self._endpoint)
        if not isinstance(server, SimServer):
            self._connected = False
        is_cut = network.is_cut(self._source, target) or network.is_cut(target, self._source)
        if is_cut and not self._connected:
            wait_s = network.options.connect_timeout_s
            network.loop.call_later(
                wait_s, call.put, AngeliaError(UNAVAILABLE, f"{self._endpoint} does not answer")
            )
            return call, None
        if not isinstance(server, SimServer):
            # The machine answers that the port is closed.
            refused = AngeliaError(UNAVAILABLE, f"{self._endpoint} refused the connection")
            network.loop.call_later(network.options.delay_s[1], call.put, refused)
            return call, None
        if not self._connected:
            # A new connection: nothing of the old one is before it.
            self._connected, self._there, self._back = True, Direction(), Direction()
        serving = _Serving(
            self,
            server,
            call,
            path=method,
            request=request.SerializeToString(),
            streaming=streaming,
        )
        context = CallContext(timeout_s, "", f"{self._source}:0")
        network.trace.mix(f"{network.loop.time():.9f} {self._source} {target} {method}")
        repeated = not streaming and network.chance.random() < network.options.repeat_share
        late = not streaming and network.chance.random() < network.options.reorder_share
        # Handlers run beside each other: nobody may count on the order of calls.
        way = Direction() if late else self._there
        for _ in range(2 if repeated else 1):
            network.post(self._source, target, way, lambda: serving.arrive(context), server.context)
        server.open_calls[call] = (lambda: self._server_died(call), call.context)
        if network.chance.random() < network.options.reset_share:
            network.loop.call_later(
                network.chance.uniform(0, 0.01), self._reset, "the connection was reset"
            )
        return call, server

    def answer(self, call: _Call, item: Message | AngeliaError | None) -> None:
        """Send something back from the server to the caller."""
        target = self._network.machine_at(self._endpoint)
        self._network.post(target, self._source, self._back, lambda: call.put(item), call.context)

    def _server_died(self, call: _Call) -> None:
        """End the call: the other machine resets the connection, once that can arrive."""
        target = self._network.machine_at(self._endpoint)
        if self._network.is_cut(target, self._source):
            self._network.loop.call_later(_RETRANSMIT_S, self._server_died, call)
        else:
            self._connected = False
            call.put(AngeliaError(UNAVAILABLE, f"{self._endpoint} went away"))

    def _end(self, call: _Call, server: SimServer | None) -> None:
        call.ended = True
        self._open.pop(call, None)
        if server is not None:
            server.open_calls.pop(call, None)

    def _reset(self, reason: str) -> None:
        self._connected = False
        for call in list(self._open):
            call.put(AngeliaError(UNAVAILABLE, reason))


class _Serving:
    """One request at the server."""

    def __init__(
        self,
        channel: SimChannel,
        server: SimServer,
        call: _Call,
        *,
        path: str,
        request: bytes,
        streaming: bool,
    ) -> None:
        self._channel = channel
        self._server = server
        self._call = call
        self._path = path
        self._request = request
        self._streaming = streaming

    def arrive(self, context: CallContext) -> None:
        """Begin the handler; runs in the server's context."""
        try:
            method = self._server.table.find(self._path, streaming=self._streaming)
        except AngeliaError as unknown:
            self._channel.answer(self._call, unknown)
            return
        request = method.request_type.FromString(self._request)
        work = self._stream if self._streaming else self._unary
        self._server.calls.spawn(self._path, work(method, request, context))

    async def _unary(self, method: Method, request: Message, context: CallContext) -> None:
        try:
            response = await method.unary(request, context)
        except AngeliaError as failure:
            self._channel.answer(self._call, failure)
        except Exception as failure:
            self._channel.answer(self._call, AngeliaError(INTERNAL, repr(failure)))
            raise
        else:
            self._channel.answer(self._call, _copy(method, response))

    async def _stream(self, method: Method, request: Message, context: CallContext) -> None:
        try:
            async for item in method.stream(request, context):
                if self._call.ended:
                    return
                self._channel.answer(self._call, _copy(method, item))
        except AngeliaError as failure:
            self._channel.answer(self._call, failure)
        else:
            self._channel.answer(self._call, None)


def _copy(method: Method, message: Message) -> Message:
    """Return what the other side parses."""
    return method.response_type.FromString(message.SerializeToString())
