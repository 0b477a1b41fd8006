"""The port in front of a broker: hot calls as batches of bytes, the rest as coroutines.

An edge owns HTTP/2, TLS, connections and the limits of clients on them. It gives the broker whole
batches of serialised requests and takes serialised responses, so that another HTTP/2 implementation
can take its place without touching broker logic (docs/adr: edge port). The adapters are
`native_edge` and `grpcio_edge`.

Every adapter holds to `tests/contract/test_edge*.py`:
- A request that is too large is refused with RESOURCE_EXHAUSTED before it is parsed, by its
  announced length where the adapter sees that; unfinished requests are bounded.
- Requests are not compressed: a compressed request is refused (UNIMPLEMENTED), never inflated.
- Connections, calls and unread answers have limits, and no connection and no address has more
  than its share.
- Large requests share a limited number of bytes from their first byte until they are answered;
  further large requests wait at their clients, in order, and never delay a small request. No
  connection and no address has more than its share of these bytes, either.
- A client that holds what others wait for has to make use of it: large requests that come too
  slowly, and answers that are not read, end their connection while others wait or are refused.
- An address of IPv6 is its first 64 bits wherever addresses have shares.
- A client that resets streams, pings or sends headers without end is paused or disconnected.
- Times that clients choose are clamped; a client that chose none is seen as such.
- Each call is answered or ended, whatever a handler does; the broker learns of answers that were
  not taken.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from strata_edge.handover import Handover
from strata_edge.passes import NativePasses
from strata_runtime.health import Health

HOT_METHODS = ("SendMessage", "ReceiveMessage", "AckMessage", "EndTransaction")
MISTAKE = "the server failed at this call because of a bug"


class CallError(Exception):
    """Raised by the handler of a rare RPC: the call ends with a gRPC status and no response.

    Args:
        status: name of a gRPC status, `NOT_FOUND`.
        reason: text for the caller.
    """

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(f"{status}: {reason}")
        self.status = status
        self.reason = reason


class HotCall(Protocol):
    """One call of a hot method, waiting for its answer. Must be used on the event loop."""

    @property
    def method(self) -> str:
        """RPC name, one of HOT_METHODS."""

    @property
    def request(self) -> bytes:
        """The serialised request."""

    @property
    def metadata(self) -> Mapping[str, str]:
        """Lower-case header names to values."""

    @property
    def peer(self) -> str:
        """Address of the client, `host:port`."""

    def time_left_s(self) -> float | None:
        """Seconds until the client gives up, at most what the method allows (`MethodLimits`).

        None: the client set no deadline; the handler's own default holds.
        """

    def done(self) -> bool:
        """Whether it was answered or the client has gone."""

    def on_gone(self, callback: Callable[[], None]) -> None:
        """Call back once if the client goes away before the answer."""

    def complete(
        self, responses: Sequence[bytes], on_not_taken: Callable[[], None] | None = None
    ) -> None:
        """Answer: one response (unary) or all responses of the stream, then end the call.

        A call that is done already takes no answer.

        Args:
            responses: never empty.
            on_not_taken: called once, on the event loop and never from within `complete`, when
                the client does not get this answer: the call was done already, or the client
                reset it, its connection ended or the edge stopped before the transport had taken
                the last response. A handler that gave leases with the
                answer takes all of them back: a client whose stream breaks discards what it got.
                Not called otherwise. An adapter knows what its transport took, not what the
                client reads: bytes that are on their way when a connection breaks count as taken.
                One that sees the reset of a stream which it ended a moment ago reports that, too.
                An adapter may know of a unary answer only whether the call was done.
        """

    def fail(self, status: str, reason: str) -> None:
        """End the call with a gRPC status (`INTERNAL`) and no response; nothing if it is done."""


class HotHandler(Protocol):
    """The broker's handler for hot calls."""

    def handle(self, calls: Sequence[HotCall]) -> None:
        """Take all hot calls that arrived in one turn of the loop; never blocks, never raises.

        Each call is completed at once or later. A call that the broker cannot take (limits) is
        completed with TOO_MANY_REQUESTS; one that it fails at by a mistake ends with INTERNAL,
        and the others are served (rule 33). Should it raise nevertheless, the edge ends every
        call of the batch that is not answered with INTERNAL, logs and counts it.
        """


class CallInfo(Protocol):
    """View of a call for the handler of a rare RPC."""

    @property
    def metadata(self) -> Mapping[str, str]:
        """Lower-case header names to values."""

    @property
    def peer(self) -> str:
        """Address of the client."""

    def time_left_s(self) -> float | None:
        """Seconds until the client gives up, at most what the method allows (`MethodLimits`).

        None: the client set no deadline; the handler's own default holds.
        """


UnaryHandler = Callable[[bytes, CallInfo], Awaitable[bytes]]
StreamHandler = Callable[[AsyncIterator[bytes], CallInfo], AsyncIterator[bytes]]
ServerStreamHandler = Callable[[bytes, CallInfo], AsyncIterator[bytes | Sequence[bytes]]]
"""Yields responses, one or several at once; a list of several belongs to the edge from then on."""


class Edge(Protocol):
    """A listening edge."""

    @property
    def passes(self) -> NativePasses | None:
        """Native passes over the bytes of its hot calls; None: it comes without any."""

    @property
    def handover(self) -> Handover | None:
        """Gives connections of another protocol away; None: this edge cannot."""

    def add_unary(self, path: str, handler: UnaryHandler) -> None:
        """Serve `/package.Service/Rpc` by a coroutine over bytes."""

    def add_server_stream(self, path: str, handler: ServerStreamHandler) -> None:
        """Serve a server-streaming RPC.

        A handler that holds several responses at once yields them together, as a list: all of
        them count as unread until the transport has taken the last.
        """

    def add_stream(self, path: str, handler: StreamHandler) -> None:
        """Serve a bidirectional RPC (Telemetry)."""

    def set_hot_handler(self, service: str, handler: HotHandler) -> None:
        """Serve HOT_METHODS of `service` through the batch port."""

    async def start(self) -> int:
        """Listen for TLS and plaintext on one port; return its number."""

    def health(self) -> Health:
        """Return what is wrong with the edge itself: its certificate, a front that is down."""

    def connections(self) -> int | None:
        """Return how many clients are connected, without those that were asked to go.

        None: this edge cannot tell.
        """

    async def send_away(self, most: int) -> Sequence[str]:
        """Ask some clients to make their next calls over another connection; the port stays open.

        The clients that connected first are asked first. Calls under way and those on their way
        are served, and a connection closes after its last call: streams that have no end of their
        own, such as telemetry, are the handler's to end.

        Args:
            most: connections to ask; those that were asked before do not count.

        Returns:
            The addresses of the clients, as `CallInfo.peer` gives them; empty where an edge cannot
            send single clients away.
        """

    async def drain(self, timeout_s: float) -> None:
        """Take no new connection and send clients elsewhere; wait until they have gone.

        Calls are served meanwhile, new ones too: one that is on its way when its client is told
        must not fail.
        """

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, give running ones `grace_s`, then end them."""
