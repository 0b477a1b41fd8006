"""Methods of a broker behind their rules: a handler runs only for callers who may call it.

A refusal has the form of its service: RocketMQ's services answer with a Status, the others end the
call with UNAUTHENTICATED or PERMISSION_DENIED and one line. A stream is checked again before it
sends or takes anything after the users or policies changed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, suppress
from typing import Any, cast

from google.protobuf.message import DecodeError, Message

from apache.rocketmq.v2 import service_pb2
from strata_broker.access.authentication import NO_KEY, Authenticator
from strata_broker.access.handle_signer import HandleSigner
from strata_broker.access.principals import ANYBODY, AccessRefused, Acting, Principal
from strata_broker.access.rules import Asked, Needed, check
from strata_broker.access.table import Ruled, ruled_at
from strata_broker.base import errors
from strata_broker.base.failures import Methods
from strata_broker.base.parsing import parse
from strata_broker.metadata.metadata import MetadataView
from strata_broker.metadata.requests import operator_of
from strata_edge.ports import (
    CallError,
    CallInfo,
    ServerStreamHandler,
    StreamHandler,
    UnaryHandler,
)
from strata_mq.requests import Code
from strata_runtime.timeouts import Timeout

_NO_KEY_TEXT = (
    "the call is not signed, and this cluster controls access: give an access key and its secret "
    "key"
)
# How long a refused client has to send its first frame.
_FIRST_FRAME_S = 1.0


class CheckedInfo:
    """A `CallInfo` of a caller who was let in.

    Attributes:
        principal: the caller.
    """

    __slots__ = ("_info", "principal")

    def __init__(self, info: CallInfo, principal: Principal) -> None:
        self._info = info
        self.principal = principal

    @property
    def metadata(self) -> Any:
        """See `CallInfo`."""
        return self._info.metadata

    @property
    def peer(self) -> str:
        """See `CallInfo`."""
        return self._info.peer

    def time_left_s(self) -> float | None:
        """See `CallInfo`."""
        return self._info.time_left_s()


def principal_of(info: CallInfo) -> Principal:
    """Return who makes a call; anybody, where access control is off."""
    return info.principal if isinstance(info, CheckedInfo) else ANYBODY


class GuardedMethods:
    """`Methods` that check every call. See the module docstring.

    Args:
        methods: where the checked handlers are put.
        authenticator: knows callers.
        view: of the metadata.
        handles: reads transaction ids.
    """

    def __init__(
        self,
        methods: Methods,
        authenticator: Authenticator,
        view: MetadataView,
        *,
        handles: HandleSigner,
    ) -> None:
        self._methods = methods
        self._authenticator = authenticator
        self._view = view
        self._handles = handles

    def add_unary(self, path: str, handler: UnaryHandler) -> None:
        """See `Methods.add_unary`.

        Raises:
            TypeError: the RPC has no rule; so for every method here.
        """
        ruled = ruled_at(path)
        if not self._authenticator.is_on:
            self._methods.add_unary(path, handler)
            return

        async def serve(data: bytes, info: CallInfo) -> bytes:
            try:
                principal = self._authenticator.principal_of_call(info)
                check(principal, ruled.rule, self._needs(ruled, data, info))
            except AccessRefused as refused:
                return self._refusal(refused, ruled, data, info).SerializeToString()
            with Acting(principal):
                response = await handler(data, CheckedInfo(info, principal))
            return _hidden(ruled, response, principal)

        self._methods.add_unary(path, serve)

    def add_server_stream(self, path: str, handler: ServerStreamHandler) -> None:
        """See `Methods.add_server_stream`."""
        ruled = ruled_at(path)
        if not self._authenticator.is_on:
            self._methods.add_server_stream(path, handler)
            return

        async def serve(data: bytes, info: CallInfo) -> AsyncIterator[bytes | Sequence[bytes]]:
            try:
                watch = self._watch(ruled, info)
                watch.check(self._needs(ruled, data, info))
                responses = handler(data, CheckedInfo(info, watch.principal))
                async with aclosing(responses):  # type: ignore[type-var]
                    async for response in responses:
                        watch.check_again()
                        yield response
            except AccessRefused as refused:
                yield self._refusal(refused, ruled, data, info).SerializeToString()

        self._methods.add_server_stream(path, serve)

    def add_stream(self, path: str, handler: StreamHandler) -> None:
        """See `Methods.add_stream`. A stream of refused settings ends after the refusal."""
        ruled = ruled_at(path)
        if not self._authenticator.is_on:
            self._methods.add_stream(path, handler)
            return

        async def serve(requests: AsyncIterator[bytes], info: CallInfo) -> AsyncIterator[bytes]:
            watch: _Watch | None = None
            try:
                watch = self._watch(ruled, info)
                responses = handler(
                    self._checked(requests, watch, info), CheckedInfo(info, watch.principal)
                )
                async with aclosing(responses):  # type: ignore[type-var]
                    async for response in responses:
                        watch.check_again()
                        if self._may_be_told(watch, response, info):
                            yield response
                if watch.refused is not None:
                    raise watch.refused
            except AccessRefused as refused:
                if watch is None or not watch.is_reading:
                    await _first_frame(requests)
                yield self._refusal(refused, ruled, b"", info).SerializeToString()

        self._methods.add_stream(path, serve)

    async def _checked(
        self, requests: AsyncIterator[bytes], watch: _Watch, info: CallInfo
    ) -> AsyncIterator[bytes]:
        """Yield what a client sends, up to the first frame that it may not send."""
        watch.is_reading = True
        async for request in requests:
            try:
                needs = self._needs(watch.ruled, request, info)
                if needs.rights:
                    watch.check(needs)
                else:
                    # It says nothing new of what the caller needs.
                    watch.check_again()
            except AccessRefused as refused:
                watch.refused = refused
                return
            yield request

    def _may_be_told(self, watch: _Watch, data: bytes, info: CallInfo) -> bool:
        tells = watch.ruled.rule.tells
        if tells is None or watch.principal.is_admin:
            return True
        response = watch.ruled.response_type.FromString(data)
        return tells(response, self._asked(info), watch.principal)

    def _watch(self, ruled: Ruled, info: CallInfo) -> _Watch:
        principal = self._authenticator.principal_of_call(info)
        return _Watch(self._authenticator, ruled, principal)

    def _needs(self, ruled: Ruled, data: bytes, info: CallInfo) -> Needed:
        try:
            request = parse(ruled.request_type, data)
        except DecodeError as error:
            raise CallError("INVALID_ARGUMENT", str(error)) from error
        return ruled.rule.needs_of(request, self._asked(info))

    def _asked(self, info: CallInfo) -> Asked:
        return Asked(operator_of(info.metadata), self._view, self._handles)

    def _refusal(
        self, refused: AccessRefused, ruled: Ruled, data: bytes, info: CallInfo
    ) -> Message:
        """Tell of a refusal, and return the response that has it.

        Raises:
            CallError: the service has no Status in its responses.
        """
        rpc = ruled.path.rpartition("/")[2]
        self._authenticator.tell_refused(refused, info, rpc)
        if (
            not ruled.speaks_rocketmq
            or "status" not in ruled.response_type.DESCRIPTOR.fields_by_name
        ):
            raise call_refusal(refused) from refused
        response = cast("Any", ruled.response_type(status=errors.status_of(refused)))
        if isinstance(response, service_pb2.ChangeInvisibleDurationResponse):
            # Python clients take the handle of any answer, an empty one too.
            with suppress(DecodeError):
                request = parse(service_pb2.ChangeInvisibleDurationRequest, data)
                response.receipt_handle = request.receipt_handle
        return cast("Message", response)


class _Watch:
    """The checks of one stream.

    Attributes:
        ruled: its RPC.
        principal: its caller.
        refused: why what its client sent last was refused.
        is_reading: whether somebody reads what its client sends.
    """

    __slots__ = (
        "_authenticator",
        "_needed",
        "_version",
        "is_reading",
        "principal",
        "refused",
        "ruled",
    )

    def __init__(self, authenticator: Authenticator, ruled: Ruled, principal: Principal) -> None:
        self._authenticator = authenticator
        self._version = authenticator.version
        self._needed = Needed()
        self.ruled = ruled
        self.principal = principal
        self.refused: AccessRefused | None = None
        self.is_reading = False

    def check(self, needed: Needed) -> None:
        """Check needs by the rows of now, and remember them.

        Raises:
            AccessRefused: FORBIDDEN; UNAUTHORIZED: the user is gone or disabled.
        """
        self._needed = needed
        self._check()

    def check_again(self) -> None:
        """Check the needs again if the rows changed.

        Raises:
            AccessRefused: as for `check`.
        """
        if self._authenticator.version != self._version:
            self._check()

    def _check(self) -> None:
        self._version = self._authenticator.version
        self.principal = self._authenticator.renewed(self.principal)
        check(self.principal, self.ruled.rule, self._needed)


def call_refusal(refused: AccessRefused) -> CallError:
    """Return the error that ends a call with a gRPC status."""
    unknown = refused.code is Code.UNAUTHORIZED
    # RocketMQ's text of this says nothing to an operator.
    text = _NO_KEY_TEXT if refused.reason == NO_KEY else refused.text
    return CallError("UNAUTHENTICATED" if unknown else "PERMISSION_DENIED", text)


async def _first_frame(requests: AsyncIterator[bytes]) -> None:
    """Wait for a client's first frame: a client that fails to write it reads no answer."""
    with suppress(TimeoutError, StopAsyncIteration):
        async with Timeout(_FIRST_FRAME_S):
            await anext(requests)


def _hidden(ruled: Ruled, data: bytes, principal: Principal) -> bytes:
    """Return a response without what its caller may not see."""
    hides = ruled.rule.hides
    if hides is None or principal.is_admin:
        return data
    response = ruled.response_type.FromString(data)
    hides(response, principal)
    return response.SerializeToString()
