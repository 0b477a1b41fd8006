"""Serves `apache.rocketmq.v2.MessagingService` on an edge: bytes to bytes.

It parses, calls, and puts every `RequestError` into a Status. Malformed requests fail the call
with INVALID_ARGUMENT, because there is no request to answer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from apache.rocketmq.v2 import service_pb2
from strata_angelia.methods import Rpc, rpcs_of
from strata_broker.access.call_runtime import CallRuntime
from strata_broker.access.guard import principal_of
from strata_broker.base import errors, wire
from strata_broker.base.call_room import CallRoom
from strata_broker.base.failures import Methods, contained
from strata_broker.base.parsing import parse
from strata_broker.base.shares import all_owners_of
from strata_broker.clients.telemetry import Telemetry
from strata_broker.metadata.requests import Caller, caller_of, time_for
from strata_broker.receives.pulls import IllegalOffset, Puller
from strata_broker.servicers.messaging import ClientCall, MessagingServicer
from strata_edge.ports import HOT_METHODS, CallError, CallInfo, UnaryHandler
from strata_mq.requests import Code, RequestError

_SERVICE = service_pb2.DESCRIPTOR.services_by_name["MessagingService"]
SERVICE: str = _SERVICE.full_name

# Handled in batches only, or streams with handlers of their own.
_BESIDE = ("SendMessage", "ReceiveMessage", "AckMessage", "PullMessage", "Telemetry")

Request = TypeVar("Request", bound=Message)


def serve_messaging(
    methods: Methods,
    unary: UnaryCalls,
    *,
    puller: Puller,
    telemetry: Telemetry,
    runtime: CallRuntime,
    face: Methods | None = None,
) -> None:
    """Serve all RPCs but the hot ones, whose handler takes batches and checks callers itself.

    Args:
        methods: of the edge.
        unary: the RPCs of one answer.
        puller: reads messages.
        telemetry: streams of settings.
        runtime: configuration, clock and counters.
        face: of another protocol, which shares the limits; None: there is none.

    Raises:
        TypeError: an RPC has no method.
    """
    unary.serve(methods, leaves_out=HOT_METHODS)
    if face is not None:
        unary.serve(face)
        pulls = PullCalls(puller, runtime, with_window=True)
        face.add_server_stream(f"/{SERVICE}/PullMessage", pulls.pull)
    methods.add_server_stream(f"/{SERVICE}/PullMessage", PullCalls(puller, runtime).pull)
    methods.add_stream(f"/{SERVICE}/Telemetry", telemetry.serve)


class UnaryCalls:
    """The RPCs of one answer.

    Args:
        servicer: has a method for each, of its name in snake_case.
        runtime: configuration, clock and counters.

    Attributes:
        room: bounds the calls under way.
    """

    def __init__(self, servicer: MessagingServicer, runtime: CallRuntime) -> None:
        config = runtime.config
        self._servicer = servicer
        self._timeout_s = config.storage_client.call_timeout_ms / 1000
        self._max_timeout_s = config.calls.max_timeout_ms / 1000
        self._clock = runtime.clock
        self._requests = runtime.requests
        self._recorder = runtime.recorder
        self._access = runtime.access
        self.room = CallRoom(config.calls, runtime.metrics)

    def serve(self, methods: Methods, leaves_out: Collection[str] = ()) -> None:
        """Serve every RPC by its method.

        Args:
            methods: where the handlers are put.
            leaves_out: RPCs that have another handler there.

        Raises:
            TypeError: an RPC has no method.
        """
        for rpc in rpcs_of(_SERVICE, self._servicer, beside=_BESIDE):
            if rpc.name not in leaves_out:
                methods.add_unary(rpc.path, self._answering(rpc))

    def _answering(self, rpc: Rpc) -> UnaryHandler:
        async def answer(data: bytes, info: CallInfo) -> bytes:
            started_s = self._clock.monotonic_s()
            request = _parsed(data, rpc.request_type)
            code = Code.OK
            try:
                response = await self._call(rpc, request, info)
            except RequestError as bad:
                code = bad.code
                self._access.tell_if_refused(bad, info, rpc.name)
                response = _refusal(bad, request, rpc.response_type).SerializeToString()
            self._recorder.answered(rpc.name, code, started_s)
            return response

        return answer

    async def _call(self, rpc: Rpc, request: Message, info: CallInfo) -> bytes:
        """Check the client id and the limit, and carry the call out."""
        caller = _caller(info)
        owners = all_owners_of(caller.client_id, info.peer)
        self.room.take(owners)
        try:
            with contained(self._requests, rpc.name):
                left_s = time_for(info.time_left_s(), self._timeout_s, self._max_timeout_s)
                response = await rpc.function(ClientCall(caller, info, left_s), request)
                if isinstance(response, bytes):
                    return response
                response.status.CopyFrom(errors.ok_status())
                return bytes(response.SerializeToString())
        finally:
            self.room.give_back(owners)


class PullCalls:
    """`PullMessage`, which answers with a stream.

    Args:
        puller: reads messages.
        runtime: clock and counters.
        with_window: a last element has the packed `PullWindow`, or no bytes if it is not known.
    """

    def __init__(self, puller: Puller, runtime: CallRuntime, *, with_window: bool = False) -> None:
        self._puller = puller
        self._with_window = with_window
        self._clock = runtime.clock
        self._requests = runtime.requests
        self._recorder = runtime.recorder

    async def pull(self, data: bytes, info: CallInfo) -> AsyncIterator[Sequence[bytes]]:
        """Read messages of a queue from an offset on."""
        started_s = self._clock.monotonic_s()
        code = Code.OK
        admitted = window = None
        try:
            try:
                caller = _caller(info)
                admitted = self._puller.admit(caller, info.peer, len(data))
                request = _parsed(data, service_pb2.PullMessageRequest)
                with contained(self._requests, "PullMessage"):
                    left_s = info.time_left_s()
                    responses, window = await self._puller.pull(caller, request, left_s, admitted)
            except RequestError as bad:
                code = bad.code
                responses = [wire.receive_status(bad.code, bad.text)]
                if isinstance(bad, IllegalOffset):
                    responses.append(wire.next_offset(bad.nearest))
            self._recorder.answered("PullMessage", code, started_s)
            if self._with_window:
                responses.append(b"" if window is None else window.pack())
            yield responses
        finally:
            # An answer counts until its client has read it.
            if admitted is not None:
                admitted.leave()


def _caller(info: CallInfo) -> Caller:
    """Return who calls.

    Raises:
        RequestError: see `caller_of`.
    """
    return caller_of(info.metadata)._replace(user=principal_of(info).user, peer=info.peer)


def _parsed(data: bytes, request_type: type[Request]) -> Request:
    try:
        return parse(request_type, data)
    except DecodeError as error:
        raise CallError("INVALID_ARGUMENT", str(error)) from error


def _refusal(failure: RequestError, request: Message, response_type: type[Message]) -> Message:
    """Return a response with a Status, and with the request's receipt handle if it has one.

    Python clients take the handle of any answer, an empty one too.
    """
    fields = {"status": errors.status_of(failure)}
    if "receipt_handle" in response_type.DESCRIPTOR.fields_by_name:
        return response_type(**fields, receipt_handle=request.receipt_handle)  # type: ignore[attr-defined]
    return response_type(**fields)
