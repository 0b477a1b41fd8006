"""Checks for every call of a grpcio edge: its request on the way in, its answer on the way out.

In: the size that the method allows is checked before anything is parsed. grpcio has one limit for
all methods while it collects a request; the limit of the method is checked once the request is
complete. Out: the bytes of all kinds of calls that wait for their clients are bounded, in shares.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from strata_edge.grpcio_context import Context, abort, peer_of
from strata_edge.grpcio_unread import GrpcioUnread
from strata_edge.grpcio_uploads import TooSlowError, Uploads
from strata_edge.method_limits import MethodLimits
from strata_edge.options import EdgeOptions
from strata_edge.ports import CallError
from strata_edge.shares import Shares
from strata_runtime.metrics import Metrics


class Gate:
    """The limits of one edge and what is held of them.

    Args:
        options: the limits.
        metrics: where they and refusals show.
        end_connection: ends the connection of a client, by its `host:port`; None: nobody can.
    """

    def __init__(
        self,
        options: EdgeOptions,
        metrics: Metrics,
        end_connection: Callable[[str], None] | None = None,
    ) -> None:
        self._options = options
        self._refused = metrics.counter("strata_edge_refused_calls_total")
        self.unread = GrpcioUnread(options, metrics, end_connection)
        # Connections with a call beyond their address's share.
        self._guests: set[str] = set()
        slow = options.max_slow_uploads_per_address
        self._uploads = Uploads(
            options.slow_upload_ms / 1_000,
            options.max_upload_ms / 1_000,
            Shares(options.max_slow_uploads, slow, slow),
        )

    def limits_of(self, path: str) -> MethodLimits:
        """Return the limits of a method."""
        return self._options.method_limits.get(path, self._options.default_limits)

    async def next_request(self, context: Context, limits: MethodLimits) -> bytes | None:
        """Return the next request of a stream, None at its end.

        One that is larger than it may be ends its call here.
        """
        request = await context.read()
        if not isinstance(request, bytes):
            return None
        if (size_bytes := len(request)) > limits.max_request_bytes:
            # The refusal is raised through this frame, which outlives it: it holds no request.
            del request
            await self._refuse_size(context, size_bytes, limits.max_request_bytes)
        return request

    async def first_request(self, context: Context, limits: MethodLimits) -> bytes:
        """Return a call's request; one that may not pass ends its call here."""
        try:
            request = await self._uploads.read(context)
        except TooSlowError as slow:
            await self.refuse(context, "upload", str(slow))
        if request is None:
            await abort(context, CallError("INVALID_ARGUMENT", "the request is empty"))
        if (size_bytes := len(request)) > limits.max_request_bytes:
            del request  # as above
            await self._refuse_size(context, size_bytes, limits.max_request_bytes)
        return request

    async def check_unread(self, context: Context) -> None:
        """End a call with a large answer while there is too much that clients have not read.

        Others at the address of a client that does not read are not refused for it: a connection
        that has read everything may have one such call at a time beyond its address's share, and
        from the reserve beyond the total.
        """
        if not self.unread.held:
            return
        peer, budget = peer_of(context), self.unread.budget
        if budget.has_room(peer):
            return
        # The client that is the cause of it has a limited time to read on.
        self.unread.watch()
        if peer in self._guests or not budget.has_room_for_first(peer):
            await self.refuse(context, "unread", "clients have too many unread answers")
        self._guests.add(peer)

        def ended(_: Context) -> None:
            self._guests.discard(peer)

        context.add_done_callback(ended)  # type: ignore[arg-type]  # the stub's type is no protocol

    async def check_unread_of_connection(self, context: Context) -> None:
        """End a call whose own connection has too much to read.

        Those of others keep no send and no ack out.
        """
        if self.unread.held and not self.unread.budget.connection_has_room(peer_of(context)):
            await self.refuse(context, "unread", "this client has too many unread answers")

    def hold_until_done(self, context: Context, size_bytes: int) -> None:
        """Count the answer of a unary call until the transport has taken it."""
        answer = self.unread.hold(peer_of(context), size_bytes)

        def taken(_: Context) -> None:
            answer.taken(size_bytes)
            answer.end()

        context.add_done_callback(taken)  # type: ignore[arg-type]  # the stub's type is no protocol

    async def refuse(self, context: Context, limit: str, reason: str) -> NoReturn:
        """End a call because of a limit, and count it."""
        self._refused.add(1, {"limit": limit})
        await abort(context, CallError("RESOURCE_EXHAUSTED", reason))

    async def _refuse_size(self, context: Context, size_bytes: int, limit_bytes: int) -> NoReturn:
        reason = f"the request has {size_bytes} bytes, the limit is {limit_bytes}"
        await self.refuse(context, "size", reason)
