"""Rare calls on grpcio: one coroutine each, behind a boundary that no handler's bug crosses."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import NoReturn, TypeAlias, TypeVar

import grpc

from strata_edge.grpcio_context import Context, GrpcioCallInfo, abort, peer_of, without_stack
from strata_edge.grpcio_gate import Gate
from strata_edge.method_limits import MethodLimits
from strata_edge.options import EdgeOptions
from strata_edge.ports import (
    MISTAKE,
    CallError,
    ServerStreamHandler,
    StreamHandler,
    UnaryHandler,
)
from strata_edge.shares import SharedBudget, Shares
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import RequestTasks

Handler: TypeAlias = "grpc.RpcMethodHandler[bytes, bytes]"
Answer = TypeVar("Answer")


class GrpcioRareCalls:
    """Turns handlers of the port into what grpc calls.

    Args:
        gate: limits of requests and answers.
        options: limits of calls.
        metrics: where they show, and failures.
    """

    def __init__(self, gate: Gate, options: EdgeOptions, metrics: Metrics) -> None:
        self._gate = gate
        share = options.max_calls_per_address
        self._calls = SharedBudget(Shares(options.max_rare_calls, share, share))
        self._mistakes = RequestTasks("edge", metrics)
        metrics.gauge("strata_edge_rare_calls", lambda: self._calls.held)

    def unary(self, path: str, handler: UnaryHandler) -> Handler:
        """Return what serves a unary RPC."""
        limits = self._gate.limits_of(path)

        async def serve(context: Context) -> bytes:
            try:
                await self._gate.check_unread_of_connection(context)
                async with self._admitted(context):
                    request = await self._gate.first_request(context, limits)
                    answer = await handler(request, GrpcioCallInfo(context, limits.max_time_s))
            except Exception as error:  # noqa: BLE001 (see _end)
                await self._end(context, path, error)
            self._gate.hold_until_done(context, len(answer))
            return answer

        return grpc.stream_unary_rpc_method_handler(_without_stacks(serve))

    def server_stream(self, path: str, handler: ServerStreamHandler) -> Handler:
        """Return what serves a server-streaming RPC."""
        limits = self._gate.limits_of(path)

        async def serve(context: Context) -> None:
            try:
                await self._gate.check_unread(context)
                async with self._admitted(context) as peer:
                    request = await self._gate.first_request(context, limits)
                    # A stream has no end of its own, so no deadline is none.
                    timed = context.time_remaining() is not None
                    info = GrpcioCallInfo(context, limits.max_time_s if timed else None)
                    await self._send(context, peer, handler(request, info))
            except Exception as error:  # noqa: BLE001 (see _end)
                await self._end(context, path, error)

        return grpc.stream_stream_rpc_method_handler(_without_stacks(serve))

    def stream(self, path: str, handler: StreamHandler) -> Handler:
        """Return what serves a bidirectional RPC."""
        limits = self._gate.limits_of(path)

        async def serve(context: Context) -> None:
            try:
                await self._gate.check_unread(context)
                async with self._admitted(context) as peer:
                    info = GrpcioCallInfo(context, None)
                    await self._send(context, peer, handler(self._requests(context, limits), info))
            except Exception as error:  # noqa: BLE001 (see _end)
                await self._end(context, path, error)

        return grpc.stream_stream_rpc_method_handler(_without_stacks(serve))

    async def _requests(self, context: Context, limits: MethodLimits) -> AsyncIterator[bytes]:
        """Yield what the client sends; a message that ends the call ends this, too."""
        with contextlib.suppress(grpc.aio.AbortError):
            while (request := await self._gate.next_request(context, limits)) is not None:
                yield request

    async def _send(
        self, context: Context, peer: str, responses: AsyncIterator[bytes | Sequence[bytes]]
    ) -> None:
        """Send responses; what the handler holds counts as unread until it is taken."""
        unread = self._gate.unread
        # The handler ends with its call, whoever ends that.
        async with contextlib.aclosing(responses) as yielded:  # type: ignore[type-var]
            async for together in yielded:
                parts = [together] if isinstance(together, bytes) else together
                size_bytes = sum(map(len, parts))
                with unread.hold(peer, size_bytes) as answer:
                    for part in parts:
                        await context.write(part)
                        answer.taken(len(part))

    @contextlib.asynccontextmanager
    async def _admitted(self, context: Context) -> AsyncIterator[str]:
        """Hold a call's place for the time of the block, if there is one."""
        peer = peer_of(context)
        if not self._calls.has_room(peer):
            await self._gate.refuse(context, "calls", "too many calls under way")
        self._calls.take(peer, 1)
        try:
            yield peer
        finally:
            self._calls.give_back(peer, 1)

    async def _end(self, context: Context, path: str, failure: Exception) -> NoReturn:
        """End a call whose handler raised: with the status it chose, or INTERNAL.

        The boundary that a mistake of one handler does not pass (rule 33).
        """
        if isinstance(failure, grpc.aio.BaseError):
            try:
                raise failure  # gRPC's own: the client has gone, or the server stops
            finally:
                # Its stack has this frame: a cycle, and in it all that the handler held.
                del failure
        if not isinstance(failure, CallError):
            self._mistakes.failed(path, failure)
            failure = CallError("INTERNAL", MISTAKE)
        await abort(context, failure)


def _without_stacks(
    serve: Callable[[Context], Awaitable[Answer]],
) -> Callable[[object, Context], Awaitable[Answer]]:
    """Return what grpc calls: a call that is ended leaves no cycle behind (`without_stack`)."""

    async def serve_and_forget(requests: object, context: Context) -> Answer:
        try:
            return await serve(context)
        except grpc.aio.AbortError as aborted:
            del requests, context
            raise without_stack(aborted) from None

    return serve_and_forget
