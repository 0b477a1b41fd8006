"""`apache.rocketmq.v2.MessagingService`: all RPCs of one answer except the hot ones.

A method takes the call and the request, and returns the response without a status when all is
well; what it raises becomes the response's Status (`messaging_rpc`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from google.protobuf.message import Message

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata_broker.access.guard import principal_of
from strata_broker.access.principals import ANYBODY
from strata_broker.clients.provision import Provisioner
from strata_broker.clients.route import Routes
from strata_broker.clients.sessions import Sessions, not_owned
from strata_broker.metadata.requests import Caller, addresses_of, use_of
from strata_broker.receives.ack import LeaseKeeper
from strata_broker.receives.lite_subscriptions import LiteSubscriptions
from strata_broker.receives.pulls import Puller
from strata_broker.sends.recalls import Recaller
from strata_broker.sends.transactions import Transactions
from strata_edge.addresses import network_of_peer
from strata_edge.ports import CallInfo
from strata_mq.access import Action, ResourceKind
from strata_mq.requests import (
    Code,
    RequestError,
    check_access_point,
    check_consumer_group,
    check_namespace,
)


class ClientCall(NamedTuple):
    """One call of a client.

    Attributes:
        caller: who the client says it is.
        info: of the edge.
        time_left_s: until the client gives up, or until the broker does.
    """

    caller: Caller
    info: CallInfo
    time_left_s: float


@dataclass(frozen=True, slots=True)
class WaitingMessages:
    """Operations on messages that are stored and not yet delivered.

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
        sessions: Sessions,
        lite: LiteSubscriptions,
    ) -> None:
        self._view = provisioner.view
        self._provisioner = provisioner
        self._routes = routes
        self._leases = leases
        self._transactions = waiting.transactions
        self._recaller = waiting.recaller
        self._puller = puller
        self._sessions = sessions
        self._lite = lite

    async def query_route(self, call: ClientCall, request: service_pb2.QueryRouteRequest) -> bytes:
        """Answer with the queues of a topic: encoded once for all who ask."""
        check_access_point(addresses_of(request.endpoints))
        topic = await self._provisioner.topic_for_use(
            *call.caller.name_of(request.topic), use_of(call.caller, "QueryRoute")
        )
        return self._routes.route(topic)

    async def query_assignment(
        self, call: ClientCall, request: service_pb2.QueryAssignmentRequest
    ) -> Message:
        """Answer with the assignment of a push consumer."""
        check_access_point(addresses_of(request.endpoints))
        topic = await self._provisioner.topic_for_use(
            *call.caller.name_of(request.topic), use_of(call.caller, "QueryAssignment")
        )
        group = self._view.consumer_group(*call.caller.name_of(request.group))
        if group is None:
            check_consumer_group(request.group.name)
        fifo = group is not None and group.fifo
        return service_pb2.QueryAssignmentResponse(
            assignments=self._routes.assignments(topic, fifo=fifo)
        )

    async def heartbeat(self, call: ClientCall, request: service_pb2.HeartbeatRequest) -> Message:
        """Note that a client lives."""
        if request.client_type not in definition_pb2.ClientType.values():
            raise RequestError(Code.UNRECOGNIZED_CLIENT_TYPE)
        if request.group.name:
            check_consumer_group(request.group.name)
            check_namespace(request.group.resource_namespace)
        user = principal_of(call.info).user
        client = self._sessions.heard(call.caller.client_id, call.info.peer, user)
        client.client_type = request.client_type or client.client_type
        if request.group.name:
            client.consumer_group = call.caller.name_of(request.group)
        return service_pb2.HeartbeatResponse()

    async def notify_client_termination(
        self, call: ClientCall, request: service_pb2.NotifyClientTerminationRequest
    ) -> Message:
        """Forget a client; its auto-renewed leases are released."""
        if request.group.name:
            check_consumer_group(request.group.name)
        self._check_owner(call.caller.client_id, call.info)
        self._sessions.terminated(call.caller.client_id)
        return service_pb2.NotifyClientTerminationResponse()

    async def change_invisible_duration(
        self, call: ClientCall, request: service_pb2.ChangeInvisibleDurationRequest
    ) -> Message:
        """Change when a message is visible again."""
        changed = await self._leases.change_invisible(call.caller, request, call.time_left_s)
        return service_pb2.ChangeInvisibleDurationResponse(receipt_handle=changed)

    async def forward_message_to_dead_letter_queue(
        self, call: ClientCall, request: service_pb2.ForwardMessageToDeadLetterQueueRequest
    ) -> Message:
        """Give a message up."""
        await self._leases.forward_to_dead_letter(call.caller, request, call.time_left_s)
        return service_pb2.ForwardMessageToDeadLetterQueueResponse()

    async def end_transaction(
        self, call: ClientCall, request: service_pb2.EndTransactionRequest
    ) -> Message:
        """Commit or roll back a half message."""
        await self._transactions.end(call.caller, request, call.time_left_s)
        return service_pb2.EndTransactionResponse()

    async def recall_message(
        self, call: ClientCall, request: service_pb2.RecallMessageRequest
    ) -> Message:
        """Take back a message that nobody got."""
        recalled = await self._recaller.recall(call.caller, request, call.time_left_s)
        return service_pb2.RecallMessageResponse(message_id=recalled)

    async def get_offset(self, call: ClientCall, request: service_pb2.GetOffsetRequest) -> Message:
        """Answer with the offset that a consumer group stored."""
        offset = await self._puller.get_offset(call.caller, request)
        return service_pb2.GetOffsetResponse(offset=offset)

    async def update_offset(
        self, call: ClientCall, request: service_pb2.UpdateOffsetRequest
    ) -> Message:
        """Store the offset of a consumer group."""
        await self._puller.update_offset(call.caller, request)
        return service_pb2.UpdateOffsetResponse()

    async def query_offset(
        self, call: ClientCall, request: service_pb2.QueryOffsetRequest
    ) -> Message:
        """Answer with an offset of a queue by policy."""
        offset = await self._puller.query_offset(call.caller, request)
        return service_pb2.QueryOffsetResponse(offset=offset)

    async def sync_lite_subscription(
        self, call: ClientCall, request: service_pb2.SyncLiteSubscriptionRequest
    ) -> Message:
        """Take in which lite topics a client wants."""
        await self._lite.sync(call.caller, request)
        return service_pb2.SyncLiteSubscriptionResponse()

    def _check_owner(self, client_id: str, info: CallInfo) -> None:
        """Check that a caller may speak for a client: it is its own, or of its consumer group.

        Raises:
            AccessRefused: FORBIDDEN.
        """
        principal, client = principal_of(info), self._sessions.find(client_id)
        if principal is ANYBODY or client is None:
            return
        if client.user:
            owns = client.user == principal.user
        else:
            owns = client.counted_at == network_of_peer(info.peer)
        group = client.consumer_group
        if not owns and (group is None or not principal.may(ResourceKind.GROUP, group, Action.SUB)):
            raise not_owned(client_id)
