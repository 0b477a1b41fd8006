"""The broker's own handlers, called without an edge.

Every call of the remoting protocol that has a counterpart in `MessagingService` is made through the
handler that gRPC clients reach: with the same checks of access, limits, counters and failures.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import NamedTuple, TypeVar

from google.protobuf.message import Message

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata_broker.base.failures import unexpected
from strata_broker.base.kept_methods import KeptMethods
from strata_broker.receives.pulls import PullWindow
from strata_broker.remoting.face_calls import FaceAck, FaceCaller, FacePop, FaceSend
from strata_broker.servicers.messaging_rpc import SERVICE
from strata_edge.ports import (
    CallError,
    CallInfo,
    HotHandler,
)
from strata_mq.requests import Code, RequestError

Response = TypeVar("Response", bound=Message)

_CODES = frozenset(map(int, Code))


class PoppedAnswer(NamedTuple):
    """Answer of a pop.

    Attributes:
        failure: why nothing could be leased; None: all is well.
        messages: that were leased, each with its receipt handle.
    """

    failure: RequestError | None
    messages: Sequence[definition_pb2.Message]


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


class MessagingFace(KeptMethods):
    """`Methods` that keeps the handlers instead of serving them, and calls them.

    Args:
        hot: takes sends.
    """

    def __init__(self, hot: HotHandler) -> None:
        super().__init__()
        self._hot = hot

    async def call(
        self, rpc: str, request: Message, response_type: type[Response], caller: CallInfo
    ) -> Response:
        """Make a call of one answer.

        Raises:
            RequestError: the answer's status.
        """
        handler = self.unary[f"/{SERVICE}/{rpc}"]
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
        call = FaceSend(request.SerializeToString(), caller, queue)
        self._hot.handle((call,))
        try:
            (data,) = await call.answer
        except CallError as failure:
            raise unexpected() from failure
        response = service_pb2.SendMessageResponse.FromString(data)
        _require_ok(response.status)
        return response

    async def ack(self, request: service_pb2.AckMessageRequest, caller: FaceCaller) -> None:
        """Ack a message.

        Raises:
            RequestError: the handle is invalid, or storage refused.
        """
        _require_ok((await self._acked(request, caller)).status)

    async def ack_each(
        self, request: service_pb2.AckMessageRequest, caller: FaceCaller
    ) -> list[int]:
        """Ack messages; return a code for each of them.

        Raises:
            RequestError: the request as a whole was refused.
        """
        response = await self._acked(request, caller)
        codes = [int(entry.status.code) for entry in response.entries]
        if not codes or len(set(codes)) == 1:
            _require_ok(response.status)
        return codes

    async def _acked(
        self, request: service_pb2.AckMessageRequest, caller: FaceCaller
    ) -> service_pb2.AckMessageResponse:
        call = FaceAck(request.SerializeToString(), caller)
        self._hot.handle((call,))
        try:
            (data,) = await call.answer
        except CallError as failure:
            raise unexpected() from failure
        return service_pb2.AckMessageResponse.FromString(data)

    async def pop(self, call: FacePop, deliver: Callable[[PoppedAnswer], Awaitable[None]]) -> None:
        """Lease messages for a client; the leases end if it does not get the answer.

        Args:
            call: the pop.
            deliver: gives the answer to the client.

        Raises:
            RequestError: the pop failed unexpectedly; whatever else is wrong is in the answer.
        """
        self._hot.handle((call,))
        try:
            await deliver(_popped(await call.answer))
        except CallError as failure:
            raise unexpected() from failure
        except BaseException:
            call.not_taken()
            raise

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
        handler = self.server_streams[f"/{SERVICE}/PullMessage"]
        responses = handler(request.SerializeToString(), caller)
        try:
            async with aclosing(responses):  # type: ignore[type-var]
                async for some in responses:
                    await deliver(_pulled([some] if isinstance(some, bytes) else some))
        except CallError as failure:
            raise unexpected() from failure


def _popped(responses: Sequence[bytes]) -> PoppedAnswer:
    """Read an answer; its last element is the time of the delivery."""
    parse = service_pb2.ReceiveMessageResponse.FromString
    failure = _failure_of(parse(responses[0]).status)
    if failure is not None and failure.code is Code.MESSAGE_NOT_FOUND:
        failure = None
    rest = [parse(data) for data in responses[1:]]
    return PoppedAnswer(failure, [each.message for each in rest if each.HasField("message")])


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
