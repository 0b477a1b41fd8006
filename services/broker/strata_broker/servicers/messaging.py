"""`apache.rocketmq.v2.MessagingService`: all RPCs except the hot ones, bytes to bytes.

A translator: it parses, calls, and puts every `RequestError` into a Status. Malformed requests
fail the call with INVALID_ARGUMENT, because there is no request to answer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata_broker.base import errors, wire
from strata_broker.base.failures import ContainingEdge, contained
from strata_broker.base.parsing import parse
from strata_broker.base.watermarks import show_watermark
from strata_broker.clients.provision import Provisioner
from strata_broker.clients.route import Routes
from strata_broker.clients.sessions import Sessions
from strata_broker.clients.telemetry import Telemetry
from strata_broker.metadata.call_runtime import CallRuntime
from strata_broker.metadata.requests import Caller, addresses_of, caller_of, time_for
from strata_broker.receives.ack import LeaseKeeper
from strata_broker.receives.pulls import IllegalOffset, Puller
from strata_broker.sends.recalls import Recaller
from strata_broker.sends.transactions import Transactions
from strata_broker.servicers.hot import HotCalls
from strata_edge.ports import CallError, CallInfo, Edge
from strata_mq.requests import (
    Code,
    RequestError,
    check_access_point,
    check_consumer_group,
    check_namespace,
)
from strata_runtime.limits import Limit

SERVICE = "apache.rocketmq.v2.MessagingService"

Request = TypeVar("Request", bound=Message)

_LATER_UNARY: dict[str, tuple[type[Message], type[Message], str]] = {
    "SyncLiteSubscription": (
        service_pb2.SyncLiteSubscriptionRequest,
        service_pb2.SyncLiteSubscriptionResponse,
        "lite topics are not supported yet",
    ),
}


@dataclass(frozen=True, slots=True)
class WaitingMessages:
    """What is done with messages that are stored and not yet delivered.

    Attributes:
        transactions: commits and rolls back half messages.
        recaller: takes delayed messages back.
    """

    transactions: Transactions
    recaller: Recaller


class MessagingServicer:
    """See the module docstring."""

    def __init__(
        self,
        provisioner: Provisioner,
        routes: Routes,
        *,
        leases: LeaseKeeper,
        waiting: WaitingMessages,
        puller: Puller,
        telemetry: Telemetry,
        sessions: Sessions,
        runtime: CallRuntime,
    ) -> None:
        config, metrics = runtime.config, runtime.metrics
        self._view = provisioner.view
        self._provisioner = provisioner
        self._routes = routes
        self._leases = leases
        self._transactions = waiting.transactions
        self._recaller = waiting.recaller
        self._puller = puller
        self._telemetry = telemetry
        self._sessions = sessions
        self._timeout_s = config.storage_client.call_timeout_ms / 1000
        self._max_timeout_s = config.calls.max_timeout_ms / 1000
        self._clock = runtime.clock
        self._requests = runtime.requests
        self._recorder = runtime.recorder
        self._in_flight = Limit("calls", config.calls.max_in_flight, "calls", metrics=metrics)
        show_watermark(metrics, "client_manager", lambda: self._in_flight.used)

    def register(self, edge: Edge, hot: HotCalls) -> None:
        """Serve all RPCs of the service on an edge."""
        edge.set_hot_handler(SERVICE, hot)
        methods = ContainingEdge(edge, self._requests)
        for rpc, handler in (
            ("QueryRoute", self.query_route),
            ("QueryAssignment", self.query_assignment),
            ("Heartbeat", self.heartbeat),
            ("NotifyClientTermination", self.notify_client_termination),
            ("ChangeInvisibleDuration", self.change_invisible_duration),
            ("ForwardMessageToDeadLetterQueue", self.forward_to_dead_letter_queue),
            ("EndTransaction", self.end_transaction),
            ("RecallMessage", self.recall_message),
            ("GetOffset", self.get_offset),
            ("UpdateOffset", self.update_offset),
            ("QueryOffset", self.query_offset),
        ):
            methods.add_unary(f"/{SERVICE}/{rpc}", handler)
        for rpc in _LATER_UNARY:
            methods.add_unary(f"/{SERVICE}/{rpc}", self._later(rpc))
        methods.add_server_stream(f"/{SERVICE}/PullMessage", self.pull_message)
        methods.add_stream(f"/{SERVICE}/Telemetry", self._telemetry.serve)

    async def query_route(self, data: bytes, info: CallInfo) -> bytes:
        """Answer with the queues of a topic."""

        async def answer(caller: Caller, request: service_pb2.QueryRouteRequest) -> bytes:
            check_access_point(addresses_of(request.endpoints))
            topic = await self._provisioner.topic_for_use(*caller.name_of(request.topic))
            return self._routes.route(topic)

        return await self._serve(
            "QueryRoute",
            data,
            info,
            service_pb2.QueryRouteRequest,
            service_pb2.QueryRouteResponse,
            answer,
        )

    async def query_assignment(self, data: bytes, info: CallInfo) -> bytes:
        """Answer with the assignment of a push consumer."""

        async def answer(caller: Caller, request: service_pb2.QueryAssignmentRequest) -> bytes:
            check_access_point(addresses_of(request.endpoints))
            topic = await self._provisioner.topic_for_use(*caller.name_of(request.topic))
            group = self._view.consumer_group(*caller.name_of(request.group))
            if group is None:
                check_consumer_group(request.group.name)
            fifo = group is not None and group.fifo
            return service_pb2.QueryAssignmentResponse(
                status=errors.ok_status(), assignments=self._routes.assignments(topic, fifo=fifo)
            ).SerializeToString()

        return await self._serve(
            "QueryAssignment",
            data,
            info,
            service_pb2.QueryAssignmentRequest,
            service_pb2.QueryAssignmentResponse,
            answer,
        )

    async def heartbeat(self, data: bytes, info: CallInfo) -> bytes:
        """Note that a client lives."""

        async def answer(caller: Caller, request: service_pb2.HeartbeatRequest) -> bytes:
            if request.client_type not in definition_pb2.ClientType.values():
                raise RequestError(Code.UNRECOGNIZED_CLIENT_TYPE)
            if request.group.name:
                check_consumer_group(request.group.name)
                check_namespace(request.group.resource_namespace)
            client = self._sessions.heard(caller.client_id, info.peer)
            client.client_type = request.client_type or client.client_type
            if request.group.name:
                client.consumer_group = caller.name_of(request.group)
            return service_pb2.HeartbeatResponse(status=errors.ok_status()).SerializeToString()

        return await self._serve(
            "Heartbeat",
            data,
            info,
            service_pb2.HeartbeatRequest,
            service_pb2.HeartbeatResponse,
            answer,
        )

    async def notify_client_termination(self, data: bytes, info: CallInfo) -> bytes:
        """Forget a client; its auto-renewed leases are released."""

        async def answer(
            caller: Caller, request: service_pb2.NotifyClientTerminationRequest
        ) -> bytes:
            if request.group.name:
                check_consumer_group(request.group.name)
            self._sessions.terminated(caller.client_id)
            return service_pb2.NotifyClientTerminationResponse(
                status=errors.ok_status()
            ).SerializeToString()

        return await self._serve(
            "NotifyClientTermination",
            data,
            info,
            service_pb2.NotifyClientTerminationRequest,
            service_pb2.NotifyClientTerminationResponse,
            answer,
        )

    async def change_invisible_duration(self, data: bytes, info: CallInfo) -> bytes:
        """Change when a message is visible again."""

        async def answer(
            caller: Caller, request: service_pb2.ChangeInvisibleDurationRequest
        ) -> bytes:
            changed = await self._leases.change_invisible(caller, request, self._time_left_s(info))
            return service_pb2.ChangeInvisibleDurationResponse(
                status=errors.ok_status(), receipt_handle=changed
            ).SerializeToString()

        return await self._serve(
            "ChangeInvisibleDuration",
            data,
            info,
            service_pb2.ChangeInvisibleDurationRequest,
            service_pb2.ChangeInvisibleDurationResponse,
            answer,
        )

    async def forward_to_dead_letter_queue(self, data: bytes, info: CallInfo) -> bytes:
        """Give a message up."""

        async def answer(
            caller: Caller, request: service_pb2.ForwardMessageToDeadLetterQueueRequest
        ) -> bytes:
            await self._leases.forward_to_dead_letter(caller, request, self._time_left_s(info))
            return service_pb2.ForwardMessageToDeadLetterQueueResponse(
                status=errors.ok_status()
            ).SerializeToString()

        return await self._serve(
            "ForwardMessageToDeadLetterQueue",
            data,
            info,
            service_pb2.ForwardMessageToDeadLetterQueueRequest,
            service_pb2.ForwardMessageToDeadLetterQueueResponse,
            answer,
        )

    async def end_transaction(self, data: bytes, info: CallInfo) -> bytes:
        """Commit or roll back a half message."""

        async def answer(caller: Caller, request: service_pb2.EndTransactionRequest) -> bytes:
            await self._transactions.end(caller, request, self._time_left_s(info))
            return service_pb2.EndTransactionResponse(status=errors.ok_status()).SerializeToString()

        return await self._serve(
            "EndTransaction",
            data,
            info,
            service_pb2.EndTransactionRequest,
            service_pb2.EndTransactionResponse,
            answer,
        )

    async def recall_message(self, data: bytes, info: CallInfo) -> bytes:
        """Take back a message that nobody got."""

        async def answer(caller: Caller, request: service_pb2.RecallMessageRequest) -> bytes:
            recalled = await self._recaller.recall(caller, request, self._time_left_s(info))
            return service_pb2.RecallMessageResponse(
                status=errors.ok_status(), message_id=recalled
            ).SerializeToString()

        return await self._serve(
            "RecallMessage",
            data,
            info,
            service_pb2.RecallMessageRequest,
            service_pb2.RecallMessageResponse,
            answer,
        )

    async def pull_message(self, data: bytes, info: CallInfo) -> AsyncIterator[Sequence[bytes]]:
        """Read messages of a queue from an offset on."""
        started_s = self._clock.monotonic_s()
        code = Code.OK
        admitted = None
        try:
            try:
                caller = caller_of(info.metadata)
                admitted = self._puller.admit(caller, info.peer, len(data))
                request = _parsed(data, service_pb2.PullMessageRequest)
                with contained(self._requests, "PullMessage"):
                    left_s = info.time_left_s()
                    responses = await self._puller.pull(caller, request, left_s, admitted)
            except RequestError as bad:
                code = bad.code
                responses = [wire.receive_status(bad.code, bad.text)]
                if isinstance(bad, IllegalOffset):
                    responses.append(wire.next_offset(bad.nearest))
            self._recorder.answered("PullMessage", code, started_s)
            yield responses
        finally:
            # An answer counts until its client has read it.
            if admitted is not None:
                admitted.leave()

    async def get_offset(self, data: bytes, info: CallInfo) -> bytes:
        """Answer with the offset that a consumer group stored."""

        async def answer(caller: Caller, request: service_pb2.GetOffsetRequest) -> bytes:
            offset = await self._puller.get_offset(caller, request)
            return service_pb2.GetOffsetResponse(
                status=errors.ok_status(), offset=offset
            ).SerializeToString()

        return await self._serve(
            "GetOffset",
            data,
            info,
            service_pb2.GetOffsetRequest,
            service_pb2.GetOffsetResponse,
            answer,
        )

    async def update_offset(self, data: bytes, info: CallInfo) -> bytes:
        """Store the offset of a consumer group."""

        async def answer(caller: Caller, request: service_pb2.UpdateOffsetRequest) -> bytes:
            await self._puller.update_offset(caller, request)
            return service_pb2.UpdateOffsetResponse(status=errors.ok_status()).SerializeToString()

        return await self._serve(
            "UpdateOffset",
            data,
            info,
            service_pb2.UpdateOffsetRequest,
            service_pb2.UpdateOffsetResponse,
            answer,
        )

    async def query_offset(self, data: bytes, info: CallInfo) -> bytes:
        """Answer with an offset of a queue by policy."""

        async def answer(caller: Caller, request: service_pb2.QueryOffsetRequest) -> bytes:
            offset = await self._puller.query_offset(caller, request)
            return service_pb2.QueryOffsetResponse(
                status=errors.ok_status(), offset=offset
            ).SerializeToString()

        return await self._serve(
            "QueryOffset",
            data,
            info,
            service_pb2.QueryOffsetRequest,
            service_pb2.QueryOffsetResponse,
            answer,
        )

    def _later(self, rpc: str) -> Callable[[bytes, CallInfo], Awaitable[bytes]]:
        request_type, response_type, text = _LATER_UNARY[rpc]

        async def refuse(_: Caller, __: Message) -> bytes:
            raise RequestError(Code.NOT_IMPLEMENTED, text)

        async def serve(data: bytes, info: CallInfo) -> bytes:
            return await self._serve(
                rpc,
                data,
                info,
                request_type,
                response_type,
                refuse,
            )

        return serve

    async def _serve(
        self,
        rpc: str,
        data: bytes,
        info: CallInfo,
        request_type: type[Request],
        response_type: type[Message],
        answer: Callable[[Caller, Request], Awaitable[bytes]],
    ) -> bytes:
        """Parse, check the client id, answer; a RequestError becomes the response's Status."""
        started_s = self._clock.monotonic_s()
        request = _parsed(data, request_type)
        code = Code.OK
        try:
            caller = caller_of(info.metadata)
            if not self._in_flight.try_take():
                raise errors.too_many_requests()
            try:
                with contained(self._requests, rpc):
                    response = await answer(caller, request)
            finally:
                self._in_flight.give_back()
        except RequestError as bad:
            code = bad.code
            response = _refusal(bad, request, response_type).SerializeToString()
        self._recorder.answered(rpc, code, started_s)
        return response

    def _time_left_s(self, info: CallInfo) -> float:
        return time_for(info.time_left_s(), self._timeout_s, self._max_timeout_s)


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
