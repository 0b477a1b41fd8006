"""What grpcio knows of a call, in the words of the port."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

import grpc

from strata_edge.ports import CallError

MISTAKE = "the server failed at this call by a mistake of its own"

Context = grpc.aio.ServicerContext[bytes, bytes]


class GrpcioCallInfo:
    """What a rare RPC's handler sees of its call; see `ports.CallInfo`."""

    __slots__ = ("_context",)

    def __init__(self, context: Context) -> None:
        self._context = context

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


async def abort(context: Context, error: CallError) -> NoReturn:
    """End a call with a status."""
    await context.abort(grpc.StatusCode[error.status], error.reason)


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


def time_left_s(context: Context) -> float | None:
    """Return the seconds until the client gives up; None: no deadline."""
    left_s: float | None = context.time_remaining()
    return left_s
