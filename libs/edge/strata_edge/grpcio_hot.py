"""Hot calls on grpcio: each is a future in a list, those of one turn of the loop are one batch.

A call ends in one of four ways: its answer was taken by the transport; its answer was not taken,
which whoever gave it is told; it failed with a status; the client went before the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import grpc

from strata_edge.grpcio_context import MISTAKE, Context, abort, metadata_of, peer_of, time_left_s
from strata_edge.options import EdgeOptions
from strata_edge.ports import HOT_METHODS, CallError, HotHandler
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import RequestTasks

_STREAMING_HOT_METHODS = frozenset({"ReceiveMessage"})


class GrpcioHotCall:
    """One call of a hot method; see `ports.HotCall`."""

    __slots__ = ("_context", "_future", "_on_not_taken", "method", "request")

    def __init__(
        self, method: str, request: bytes, context: Context, future: asyncio.Future[Sequence[bytes]]
    ) -> None:
        self.method = method
        self.request = request
        self._context = context
        self._future = future
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
        return time_left_s(self._context)

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
        options: limits.
        metrics: calls, batches, refusals.
    """

    def __init__(self, handler: HotHandler, options: EdgeOptions, metrics: Metrics) -> None:
        self._handler = handler
        self._max_calls = options.max_hot_calls
        self._max_unread_bytes = options.max_unread_bytes
        self._waiting = 0
        # Answers of streams that gRPC has not taken: their clients read slowly.
        self._unread_bytes = 0
        self._arrived: list[GrpcioHotCall] = []
        self._calls = metrics.counter("strata_edge_calls_total")
        self._refused = metrics.counter("strata_edge_refused_calls_total")
        self._not_taken = metrics.counter("strata_edge_answers_not_taken_total")
        self._batches = metrics.histogram("strata_edge_batch_calls")
        self._labels = {method: {"method": method} for method in HOT_METHODS}
        self._mistakes = RequestTasks("edge", metrics)
        metrics.gauge("strata_edge_hot_calls", lambda: self._waiting)
        metrics.gauge("strata_edge_unread_bytes", lambda: self._unread_bytes)

    def method_handler(self, method: str) -> grpc.RpcMethodHandler[bytes, bytes]:
        """Return what grpc calls for `method`."""

        async def unary(request: bytes, context: Context) -> bytes:
            _, responses = await self._answer(method, request, context)
            return responses[0]

        async def stream(request: bytes, context: Context) -> None:
            if self._unread_bytes >= self._max_unread_bytes:
                self._refused.add()
                await context.abort(
                    grpc.StatusCode.RESOURCE_EXHAUSTED, "clients have not read what they received"
                )
            call, responses = await self._answer(method, request, context)
            size_bytes = sum(map(len, responses))
            self._unread_bytes += size_bytes
            taken = False
            try:
                for response in responses:
                    await context.write(response)
                taken = True
            finally:
                self._unread_bytes -= size_bytes
                if not taken:
                    self._tell_not_taken(call)

        if method in _STREAMING_HOT_METHODS:
            return grpc.unary_stream_rpc_method_handler(stream)
        return grpc.unary_unary_rpc_method_handler(unary)

    async def _answer(
        self, method: str, request: bytes, context: Context
    ) -> tuple[GrpcioHotCall, Sequence[bytes]]:
        if self._waiting >= self._max_calls:
            self._refused.add()
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many calls under way")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Sequence[bytes]] = loop.create_future()
        if not self._arrived:
            loop.call_soon(self._hand_over)
        call = GrpcioHotCall(method, request, context, future)
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
