"""Adapter from grpcio's context of a call to the context of the port."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NoReturn

import grpc

from strata_edge.ports import CallError

Context = grpc.aio.ServicerContext[bytes, bytes]


class GrpcioCallInfo:
    """The call, as the handler of a rare RPC sees it; see `ports.CallInfo`."""

    __slots__ = ("_context", "_time")

    def __init__(self, context: Context, max_time_s: float | None) -> None:
        self._context = context
        self._time = TimeLeft(context, max_time_s)

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


class TimeLeft:
    """How long a client waits, clamped: nobody behind the edge sees a number a client chose.

    Args:
        context: of the call.
        max_s: the most there is; None: as the client says.
    """

    __slots__ = ("_context", "_ends_s", "_max_s")

    def __init__(self, context: Context, max_s: float | None) -> None:
        self._context = context
        self._max_s = max_s
        self._ends_s = 0.0  # of the loop's clock, from the first question on

    def left_s(self) -> float | None:
        """See `ports.HotCall.time_left_s`."""
        left_s: float | None = self._context.time_remaining()
        if left_s is None or self._max_s is None or left_s <= self._max_s:
            return left_s
        now_s = asyncio.get_running_loop().time()
        self._ends_s = self._ends_s or now_s + self._max_s
        return max(0.0, self._ends_s - now_s)


async def abort(context: Context, error: CallError) -> NoReturn:
    """End a call with a status."""
    await context.abort(grpc.StatusCode[error.status], error.reason)


def without_stack(aborted: grpc.aio.AbortError) -> grpc.aio.AbortError:
    """Return the exception that ends a call without the frames that it has come through.

    gRPC's state of a call holds this exception, and the frames hold the call: a cycle with all that
    the call held, which stays until a collection. The last frame has to drop its context itself.
    """
    aborted.__context__ = None
    return aborted.with_traceback(None)


def metadata_of(context: Context) -> Mapping[str, str]:
    """Return a call's headers."""
    # Binary headers (`-bin`) carry bytes and are nobody's business here.
    return {
        str(key): value
        for key, value in context.invocation_metadata() or ()
        if isinstance(value, str)
    }


def peer_of(context: Context) -> str:
    """Return `host:port`; the front puts it at the end of its socket's name (relay.py)."""
    peer: str = context.peer()
    if peer.startswith("unix"):
        return peer.rpartition("/")[2]
    return peer.partition(":")[2]
