"""Hot calls on grpcio: each is a future in a list; the calls of one loop turn are one batch.

A call ends in one of four ways: the transport took its answer; the transport did not take it, and
the broker learns of it; the call failed with a status; the client left before the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import grpc

from strata_edge.grpcio_context import (
    Context,
    TimeLeft,
    abort,
    metadata_of,
    peer_of,
    without_stack,
)
from strata_edge.grpcio_gate import Gate
from strata_edge.method_limits import MethodLimits
from strata_edge.options import EdgeOptions
from strata_edge.ports import HOT_METHODS, MISTAKE, CallError, HotHandler
from strata_edge.shares import SharedBudget, Shares
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import RequestTasks

_STREAMING_HOT_METHODS = frozenset({"ReceiveMessage"})
_SMALL_ANSWER_BYTES = 4 << 10  # of sends and acks: not worth the counting


class GrpcioHotCall:
    """One call of a hot method; see `ports.HotCall`."""

    __slots__ = ("_context", "_future", "_on_not_taken", "_time", "method", "request")

    def __init__(
        self,
        method: str,
        request: bytes,
        context: Context,
        *,
        future: asyncio.Future[Sequence[bytes]],
        max_time_s: float,
    ) -> None:
        self.method = method
        self.request = request
        self._context = context
        self._future = future
        self._time = TimeLeft(context, max_time_s)
        self._on_not_taken: Callable[[], None] | None = None

    @property
    def metadata(self) -> Mapping[str, str]:
        """See the port."""
        return metadata_of(self._context)

    @property
    def peer(self) -> str:
        """See the port."""
        return peer_of(self._context)

    def time_left_s(self) -> float | None:
        """See the port."""
        return self._time.left_s()

    def done(self) -> bool:
        """See the port."""
        return self._future.done()

    def on_gone(self, callback: Callable[[], None]) -> None:
        """See the port."""

        # grpc.aio cancels the servicer's coroutine when the client cancels, its deadline passes
        # or its connection ends, and with it the future it waits for.
        def check(future: asyncio.Future[Sequence[bytes]]) -> None:
            if future.cancelled():
                callback()

        self._future.add_done_callback(check)

    def complete(
        self, responses: Sequence[bytes], on_not_taken: Callable[[], None] | None = None
    ) -> None:
        """See the port."""
        if not self._future.done():
            self._on_not_taken = on_not_taken
            self._future.set_result(responses)
        elif on_not_taken is not None:
            asyncio.get_running_loop().call_soon(on_not_taken)

    def fail(self, status: str, reason: str) -> None:
        """See the port."""
        if not self._future.done():
            self._future.set_exception(CallError(status, reason))

    def not_taken(self) -> None:
        """Tell whoever answered that the answer did not go out; nothing if nobody asked."""
        on_not_taken, self._on_not_taken = self._on_not_taken, None
        if on_not_taken is not None:
            on_not_taken()

    @property
    def answered(self) -> bool:
        """Whether there is an answer; the client may have gone."""
        return self._future.done() and not self._future.cancelled()


class GrpcioHotCalls:
    """Collects the hot calls of one turn of the loop and hands them over together.

    Args:
        handler: the broker's.
        gate: limits of requests and answers.
        options: limits of calls.
        metrics: calls, batches, refusals.
    """

    def __init__(
        self, handler: HotHandler, gate: Gate, options: EdgeOptions, *, metrics: Metrics
    ) -> None:
        self._handler = handler
        self._gate = gate
        self._max_calls = options.max_hot_calls
        self._waiting = 0
        # Those that may wait for long; the others are bounded by `max_hot_calls`.
        share = options.max_calls_per_address
        self._parked = SharedBudget(Shares(options.max_hot_calls, share, share))
        self._arrived: list[GrpcioHotCall] = []
        self._calls = metrics.counter("strata_edge_calls_total")
        self._not_taken = metrics.counter("strata_edge_answers_not_taken_total")
        self._batches = metrics.histogram("strata_edge_batch_calls")
        self._labels = {method: {"method": method} for method in HOT_METHODS}
        self._mistakes = RequestTasks("edge", metrics)
        metrics.gauge("strata_edge_hot_calls", lambda: self._waiting)

    def method_handler(self, path: str, method: str) -> grpc.RpcMethodHandler[bytes, bytes]:
        """Return what grpc calls for `method`."""
        gate, limits = self._gate, self._gate.limits_of(path)

        async def unary(requests: object, context: Context) -> bytes:
            try:
                await gate.check_unread_of_connection(context)
                request = await gate.first_request(context, limits)
                _, responses = await self._answer(method, request, context, limits)
                if len(responses[0]) > _SMALL_ANSWER_BYTES:
                    gate.hold_until_done(context, len(responses[0]))
                return responses[0]
            except grpc.aio.AbortError as aborted:
                del requests, context
                raise without_stack(aborted) from None

        async def stream(requests: object, context: Context) -> None:
            try:
                await gate.check_unread(context)
                peer = peer_of(context)
                request = await gate.first_request(context, limits)
                if not self._parked.has_room(peer):
                    await gate.refuse(context, "calls", "too many calls under way")
                self._parked.take(peer, 1)
                try:
                    call, responses = await self._answer(method, request, context, limits)
                finally:
                    self._parked.give_back(peer, 1)
                await self._send(context, peer, call, responses)
            except grpc.aio.AbortError as aborted:
                del requests, context
                raise without_stack(aborted) from None

        if method in _STREAMING_HOT_METHODS:
            return grpc.stream_stream_rpc_method_handler(stream)
        return grpc.stream_unary_rpc_method_handler(unary)

    async def _send(
        self, context: Context, peer: str, call: GrpcioHotCall, responses: Sequence[bytes]
    ) -> None:
        """Send a stream's answer; all of it is unread until the transport has taken the last."""
        size_bytes = sum(map(len, responses))
        taken = False
        try:
            with self._gate.unread.hold(peer, size_bytes) as answer:
                for response in responses:
                    await context.write(response)
                    answer.taken(len(response))
            taken = True
        finally:
            if not taken:
                self._tell_not_taken(call)

    async def _answer(
        self, method: str, request: bytes, context: Context, limits: MethodLimits
    ) -> tuple[GrpcioHotCall, Sequence[bytes]]:
        if self._waiting >= self._max_calls:
            await self._gate.refuse(context, "calls", "too many calls under way")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Sequence[bytes]] = loop.create_future()
        if not self._arrived:
            loop.call_soon(self._hand_over)
        call = GrpcioHotCall(method, request, context, future=future, max_time_s=limits.max_time_s)
        self._arrived.append(call)
        self._waiting += 1
        try:
            return call, await future
        except CallError as error:
            await abort(context, error)
        except asyncio.CancelledError:
            if call.answered:  # the client left in the turn of its answer
                self._tell_not_taken(call)
            raise
        finally:
            self._waiting -= 1
            # A failure has this frame in its stack, and the future has the failure.
            del future, call

    def _tell_not_taken(self, call: GrpcioHotCall) -> None:
        self._not_taken.add()
        try:
            call.not_taken()
        except Exception as failure:  # noqa: BLE001 (a mistake with one answer goes no further)
            self._mistakes.failed("not taken", failure)

    def _hand_over(self) -> None:
        calls, self._arrived = self._arrived, []
        self._batches.record(len(calls))
        for call in calls:
            self._calls.add(1, self._labels[call.method])
        try:
            self._handler.handle(calls)
        except Exception as failure:  # noqa: BLE001 (the boundary: each call gets an answer)
            self._mistakes.failed("hot calls", failure)
            for call in calls:
                call.fail("INTERNAL", MISTAKE)
