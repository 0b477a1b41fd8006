"""The broker's own handlers, called without an edge.

Every call of the remoting protocol that has a counterpart in `MessagingService` is made through the
handler that gRPC clients reach: with the same checks of access, limits, counters and failures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import NamedTuple, TypeVar

from google.protobuf.message import Message

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata_broker.access.authentication import AdmittedCall
from strata_broker.access.principals import Principal
from strata_broker.base.failures import unexpected
from strata_broker.receives.pulls import PullWindow
from strata_broker.sends.named_queue import QueuedCall
from strata_broker.sends.pending_send import SEND
from strata_broker.servicers.messaging_rpc import SERVICE
from strata_edge.ports import (
    CallError,
    CallInfo,
    HotHandler,
    ServerStreamHandler,
    StreamHandler,
    UnaryHandler,
)
from strata_mq.requests import Code, RequestError

Response = TypeVar("Response", bound=Message)

_CODES = frozenset(map(int, Code))


class FaceCaller(AdmittedCall):
    """A `CallInfo` of a remoting client's call.

    Args:
        metadata: as a gRPC client would give it.
        peer: `host:port` of the connection.
        principal: who signed the request; None: nobody was admitted.
        claimed: name of the user as it was claimed.
    """

    def __init__(
        self,
        metadata: Mapping[str, str],
        peer: str,
        principal: Principal | None = None,
        *,
        claimed: str = "",
    ) -> None:
        self.metadata = metadata
        self.peer = peer
        self.principal = principal
        self.claimed = claimed

    def time_left_s(self) -> float | None:
        """See `CallInfo`; the protocol has no deadlines."""
        return None


class PulledAnswer(NamedTuple):
    """Answer of a pull.

    Attributes:
        failure: why nothing could be read; None: all is well.
        messages: of the queue, in order.
        next_offset: of the next pull; None: not known.
        window: where the queue begins and ends; None: not known.
    """

    failure: RequestError | None
    messages: Sequence[definition_pb2.Message]
    next_offset: int | None
    window: PullWindow | None


class _FaceSend(QueuedCall, AdmittedCall):
    """A hot call whose answer is a future; see `strata_edge.ports.HotCall`."""

    method = SEND

    def __init__(self, request: bytes, caller: FaceCaller, queue: int) -> None:
        super().__init__(queue)
        self.request = request
        self.metadata = caller.metadata
        self.peer = caller.peer
        self.principal = caller.principal
        self.claimed = caller.claimed
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def time_left_s(self) -> float | None:
        return None

    def done(self) -> bool:
        return self.answer.done()

    def on_gone(self, callback: Callable[[], None]) -> None:
        """Note nothing: a send is carried out whether its client waits or not."""

    def complete(
        self, responses: Sequence[bytes], on_not_taken: Callable[[], None] | None = None
    ) -> None:
        if not self.answer.done():
            self.answer.set_result(responses[0])

    def fail(self, status: str, reason: str) -> None:
        if not self.answer.done():
            self.answer.set_exception(CallError(status, reason))


class MessagingFace:
    """`Methods` that keeps the handlers instead of serving them, and calls them.

    Args:
        hot: takes sends.
    """

    def __init__(self, hot: HotHandler) -> None:
        self._hot = hot
        self._unary: dict[str, UnaryHandler] = {}
        self._streams: dict[str, ServerStreamHandler] = {}

    def add_unary(self, path: str, handler: UnaryHandler) -> None:
        """See `Methods.add_unary`."""
        self._unary[path] = handler

    def add_server_stream(self, path: str, handler: ServerStreamHandler) -> None:
        """See `Methods.add_server_stream`."""
        self._streams[path] = handler

    def add_stream(self, path: str, handler: StreamHandler) -> None:
        """Keep nothing: remoting clients have no streams."""

    async def call(
        self, rpc: str, request: Message, response_type: type[Response], caller: CallInfo
    ) -> Response:
        """Make a call of one answer.

        Raises:
            RequestError: the answer's status.
        """
        handler = self._unary[f"/{SERVICE}/{rpc}"]
        try:
            data = await handler(request.SerializeToString(), caller)
        except CallError as failure:
            raise unexpected() from failure
        response = response_type.FromString(data)
        _require_ok(response.status)  # type: ignore[attr-defined]
        return response

    async def send(
        self, request: service_pb2.SendMessageRequest, caller: FaceCaller, queue: int
    ) -> service_pb2.SendMessageResponse:
        """Send messages to a queue.

        Raises:
            RequestError: a message was refused; others of the request may be stored.
        """
        call = _FaceSend(request.SerializeToString(), caller, queue)
        self._hot.handle((call,))
        try:
            response = service_pb2.SendMessageResponse.FromString(await call.answer)
        except CallError as failure:
            raise unexpected() from failure
        _require_ok(response.status)
        return response

    async def pull(
        self,
        request: service_pb2.PullMessageRequest,
        caller: CallInfo,
        deliver: Callable[[PulledAnswer], Awaitable[None]],
    ) -> None:
        """Pull messages of a queue.

        Args:
            request: as a gRPC client makes it.
            caller: who pulls.
            deliver: gives the answer to the client; the answer counts until this returns.

        Raises:
            RequestError: the handler failed; whatever else is wrong is in the answer.
        """
        handler = self._streams[f"/{SERVICE}/PullMessage"]
        responses = handler(request.SerializeToString(), caller)
        try:
            async with aclosing(responses):  # type: ignore[type-var]
                async for some in responses:
                    await deliver(_pulled([some] if isinstance(some, bytes) else some))
        except CallError as failure:
            raise unexpected() from failure


def _pulled(responses: Sequence[bytes]) -> PulledAnswer:
    """Read an answer; its last element is the window, unless access was refused."""
    parse = service_pb2.PullMessageResponse.FromString
    first = parse(responses[0])
    if len(responses) == 1:
        return PulledAnswer(_failure_of(first.status), (), None, None)
    window = PullWindow.unpack(responses[-1])
    rest = [parse(data) for data in responses[1:-1]]
    messages = [response.message for response in rest if response.HasField("message")]
    ends = [response.next_offset for response in rest if response.HasField("next_offset")]
    return PulledAnswer(_failure_of(first.status), messages, ends[0] if ends else None, window)


def _failure_of(status: definition_pb2.Status) -> RequestError | None:
    if status.code == definition_pb2.OK:
        return None
    code = Code(status.code) if status.code in _CODES else Code.INTERNAL_SERVER_ERROR
    return RequestError(code, status.message)


def _require_ok(status: definition_pb2.Status) -> None:
    failure = _failure_of(status)
    if failure is not None:
        raise failure
