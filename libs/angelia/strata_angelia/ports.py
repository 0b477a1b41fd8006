"""Angelia's two sides: a service is registered, a channel calls it.

A service is named by its protobuf descriptor; a handler is any object with one method per RPC
(snake_case of the RPC's name): unary `async def append(request, context) -> response`, server
streaming `async def watch(request, context) -> AsyncIterator[response]`. Transports: in-process,
tcp, http2 (gRPC); codecs: protobuf, json, avro. One contract suite runs over all.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message

from strata_runtime.roles import PeerRole

Response = TypeVar("Response", bound=Message)


@dataclass(frozen=True, slots=True)
class CallContext:
    """The facts that a handler has about its call."""

    # Seconds left when the call arrived; None: no deadline.
    timeout_s: float | None
    trace_parent: str = ""
    peer: str = ""
    # In the caller's certificate; None: it came without TLS, or its certificate names none.
    role: PeerRole | None = None


class AngeliaError(Exception):
    """A call that has no response; `code` is one of the constants below."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(f"{code}: {reason}")
        self.code = code
        self.reason = reason


UNAVAILABLE = "unavailable"
DEADLINE_EXCEEDED = "deadline_exceeded"
UNKNOWN_METHOD = "unknown_method"
OVERLOADED = "overloaded"
TOO_LARGE = "too_large"
BAD_REQUEST = "bad_request"
WRONG_CLUSTER = "wrong_cluster"
FORBIDDEN = "forbidden"
INTERNAL = "internal"


class Channel(Protocol):
    """The calling side of a service."""

    async def call(
        self,
        method: str,
        request: Message,
        response_type: type[Response],
        *,
        timeout_s: float | None = None,
    ) -> Response:
        """Call a unary RPC. `method` is `/package.Service/Rpc`.

        Raises:
            AngeliaError: the call has no response.
        """

    def stream(
        self, method: str, request: Message, response_type: type[Response]
    ) -> AsyncIterator[Response]:
        """Call a server-streaming RPC; ends with AngeliaError when the peer is lost."""

    async def close(self) -> None:
        """Fail what is under way with UNAVAILABLE and free the connection."""


class Server(Protocol):
    """The serving side."""

    def register(self, service: ServiceDescriptor, handler: object) -> None:
        """Serve every RPC of `service` by the handler's methods.

        Raises:
            TypeError: the handler lacks a method.
        """

    async def start(self) -> str:
        """Listen; return the endpoint (`host:port` or `inproc:NAME`)."""

    async def stop(self, grace_s: float) -> None:
        """Take no new call, give running ones `grace_s`, then cancel them."""
