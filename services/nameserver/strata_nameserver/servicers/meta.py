"""MetaService: protos in, domain calls, protos out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar

from google.protobuf.message import Message

from strata.meta.v1 import meta_pb2
from strata_angelia.cluster_id import ClusterId
from strata_angelia.ports import OVERLOADED, UNAVAILABLE, AngeliaError, CallContext
from strata_metadata.errors import MetaRefused
from strata_metadata.servicer import snapshot_response
from strata_nameserver.leading.metadata import Metadata

Response = TypeVar("Response", bound=Message)

_NOT_FORMED = "the nameservers have not found each other yet"
_OK = meta_pb2.MetaStatus(outcome=meta_pb2.META_OUTCOME_OK)


Leader = tuple[str, str]
"""Node id and endpoint; empty: not known."""


class MetaServicer:
    """Serves `strata.meta.v1.MetaService` over Angelia.

    Args:
        leader: who leads, for callers that must go there.
        cluster: that this nameserver belongs to.
        knows_node: whether the rows know a node.
    """

    def __init__(
        self,
        leader: Callable[[], Leader],
        cluster: ClusterId,
        knows_node: Callable[[str], bool],
    ) -> None:
        self._leader = leader
        self._cluster = cluster
        self._knows_node = knows_node
        self._served: Metadata | None = None

    def serve(self, metadata: Metadata) -> None:
        """Answer from now on; before, calls fail with UNAVAILABLE."""
        self._served = metadata

    @property
    def metadata(self) -> Metadata:
        """The service behind the RPCs.

        Raises:
            AngeliaError: UNAVAILABLE: the nameservers have not found each other yet.
        """
        if self._served is None:
            raise AngeliaError(UNAVAILABLE, _NOT_FORMED)
        return self._served

    async def create_topic(
        self, request: meta_pb2.CreateTopicRequest, context: CallContext
    ) -> meta_pb2.CreateTopicResponse:
        """Make a topic."""
        call = self.metadata.create_topic(request.topic)
        return await self._answer(meta_pb2.CreateTopicResponse, call, "topic")

    async def update_topic(
        self, request: meta_pb2.UpdateTopicRequest, context: CallContext
    ) -> meta_pb2.UpdateTopicResponse:
        """Change a topic."""
        call = self.metadata.update_topic(request.topic, request.update_mask)
        return await self._answer(meta_pb2.UpdateTopicResponse, call, "topic")

    async def delete_topic(
        self, request: meta_pb2.DeleteTopicRequest, context: CallContext
    ) -> meta_pb2.DeleteTopicResponse:
        """Delete a topic's row; brokers drop its data and confirm that."""
        call = self.metadata.delete_topic(request.namespace, request.name)
        return await self._answer(meta_pb2.DeleteTopicResponse, call, "")

    async def create_consumer_group(
        self, request: meta_pb2.CreateConsumerGroupRequest, context: CallContext
    ) -> meta_pb2.CreateConsumerGroupResponse:
        """Make a consumer group with its dead-letter topic."""
        call = self.metadata.create_consumer_group(request.consumer_group)
        return await self._answer(meta_pb2.CreateConsumerGroupResponse, call, "consumer_group")

    async def update_consumer_group(
        self, request: meta_pb2.UpdateConsumerGroupRequest, context: CallContext
    ) -> meta_pb2.UpdateConsumerGroupResponse:
        """Change a consumer group."""
        call = self.metadata.update_consumer_group(request.consumer_group, request.update_mask)
        return await self._answer(meta_pb2.UpdateConsumerGroupResponse, call, "consumer_group")

    async def delete_consumer_group(
        self, request: meta_pb2.DeleteConsumerGroupRequest, context: CallContext
    ) -> meta_pb2.DeleteConsumerGroupResponse:
        """Delete a consumer group with its dead-letter topic."""
        call = self.metadata.delete_consumer_group(request.namespace, request.name)
        return await self._answer(meta_pb2.DeleteConsumerGroupResponse, call, "")

    async def get_identity(
        self, request: meta_pb2.GetIdentityRequest, context: CallContext
    ) -> meta_pb2.GetIdentityResponse:
        """Tell which cluster this is, and whether it knows who asks."""
        if not self._cluster.value:
            raise AngeliaError(UNAVAILABLE, _NOT_FORMED)
        return meta_pb2.GetIdentityResponse(
            status=_OK,
            cluster_id=self._cluster.value,
            knows_node=self._knows_node(request.node_id),
        )

    async def register_node(
        self, request: meta_pb2.RegisterNodeRequest, context: CallContext
    ) -> meta_pb2.RegisterNodeResponse:
        """Take a node in; it is told its cluster."""
        if refused := self._wrong_cluster(request.cluster_id):
            return meta_pb2.RegisterNodeResponse(status=refused)
        call = self.metadata.register_node(request.node)
        response = await self._answer(meta_pb2.RegisterNodeResponse, call, "replicas")
        response.cluster_id = self._cluster.value
        return response

    async def drain_node(
        self, request: meta_pb2.DrainNodeRequest, context: CallContext
    ) -> meta_pb2.DrainNodeResponse:
        """Take a node out of service, or back into it."""
        call = self.metadata.drain_node(request.node_id, draining=request.draining)
        return await self._answer(meta_pb2.DrainNodeResponse, call, "node")

    async def remove_node(
        self, request: meta_pb2.RemoveNodeRequest, context: CallContext
    ) -> meta_pb2.RemoveNodeResponse:
        """Forget a node."""
        call = self.metadata.remove_node(request.node_id, force=request.force)
        return await self._answer(meta_pb2.RemoveNodeResponse, call, "")

    async def change_replicas(
        self, request: meta_pb2.ChangeReplicasRequest, context: CallContext
    ) -> meta_pb2.ChangeReplicasResponse:
        """Change where the replicas of a raft group shall be."""
        call = self.metadata.change_replicas(request)
        return await self._answer(meta_pb2.ChangeReplicasResponse, call, "raft_group")

    async def prefer_leader(
        self, request: meta_pb2.PreferLeaderRequest, context: CallContext
    ) -> meta_pb2.PreferLeaderResponse:
        """Name the node that shall lead a raft group."""
        call = self.metadata.prefer_leader(request.raft_group, request.node_id)
        return await self._answer(meta_pb2.PreferLeaderResponse, call, "raft_group")

    async def move_queue(
        self, request: meta_pb2.MoveQueueRequest, context: CallContext
    ) -> meta_pb2.MoveQueueResponse:
        """Wish a queue into another raft group."""
        call = self.metadata.move_queue(request)
        return await self._answer(meta_pb2.MoveQueueResponse, call, "queue_override")

    async def report_queue_moved(
        self, request: meta_pb2.ReportQueueMovedRequest, context: CallContext
    ) -> meta_pb2.ReportQueueMovedResponse:
        """Write down that a queue's next epoch is open."""
        call = self.metadata.queue_moved(request)
        return await self._answer(meta_pb2.ReportQueueMovedResponse, call, "queue_override")

    async def report_queue_drained(
        self, request: meta_pb2.ReportQueueDrainedRequest, context: CallContext
    ) -> meta_pb2.ReportQueueDrainedResponse:
        """Forget a queue's epochs of which nothing is kept."""
        call = self.metadata.queue_drained(request)
        return await self._answer(meta_pb2.ReportQueueDrainedResponse, call, "queue_override")

    async def explain_queue(
        self, request: meta_pb2.ExplainQueueRequest, context: CallContext
    ) -> meta_pb2.ExplainQueueResponse:
        """Tell why a queue is where it is."""
        call = self.metadata.explain_queue(request.namespace, request.topic, request.queue)
        return await self._answer(meta_pb2.ExplainQueueResponse, call, "reasons")

    async def set_quota(
        self, request: meta_pb2.SetQuotaRequest, context: CallContext
    ) -> meta_pb2.SetQuotaResponse:
        """Set limits of a namespace or of a topic."""
        call = self.metadata.set_quota(request.quota, request.update_mask)
        return await self._answer(meta_pb2.SetQuotaResponse, call, "quota")

    async def heartbeat(
        self, request: meta_pb2.HeartbeatRequest, context: CallContext
    ) -> meta_pb2.HeartbeatResponse:
        """Note that a node is alive."""
        if refused := self._wrong_cluster(request.cluster_id):
            return meta_pb2.HeartbeatResponse(status=refused)
        try:
            want_full = self.metadata.heartbeat(request)
        except MetaRefused as error:
            return meta_pb2.HeartbeatResponse(status=self._status_of(error))
        return meta_pb2.HeartbeatResponse(status=_OK, want_full=want_full)

    async def confirm_dropped(
        self, request: meta_pb2.ConfirmDroppedRequest, context: CallContext
    ) -> meta_pb2.ConfirmDroppedResponse:
        """Mark a tombstone done."""
        call = self.metadata.confirm_dropped(request.kind, request.id)
        return await self._answer(meta_pb2.ConfirmDroppedResponse, call, "")

    async def confirm_rehashed(
        self, request: meta_pb2.ConfirmRehashedRequest, context: CallContext
    ) -> meta_pb2.ConfirmRehashedResponse:
        """Forget a topic's old queue count."""
        call = self.metadata.confirm_rehashed(request)
        return await self._answer(meta_pb2.ConfirmRehashedResponse, call, "topic")

    async def move_slots(
        self, request: meta_pb2.MoveSlotsRequest, context: CallContext
    ) -> meta_pb2.MoveSlotsResponse:
        """Begin to move slots to another raft group."""
        try:
            moving = await self.metadata.move_slots(request)
        except MetaRefused as error:
            return meta_pb2.MoveSlotsResponse(status=self._status_of(error))
        return meta_pb2.MoveSlotsResponse(status=_OK, moves=moving.moves, left=moving.left)

    async def report_slots_revoked(
        self, request: meta_pb2.ReportSlotsRevokedRequest, context: CallContext
    ) -> meta_pb2.ReportSlotsRevokedResponse:
        """Record that slots were given up."""
        call = self.metadata.slots_revoked(request)
        return await self._answer(meta_pb2.ReportSlotsRevokedResponse, call, "")

    async def report_slots_granted(
        self, request: meta_pb2.ReportSlotsGrantedRequest, context: CallContext
    ) -> meta_pb2.ReportSlotsGrantedResponse:
        """Record that slots were taken."""
        call = self.metadata.slots_granted(request)
        return await self._answer(meta_pb2.ReportSlotsGrantedResponse, call, "")

    async def propose_plan(
        self, request: meta_pb2.ProposePlanRequest, context: CallContext
    ) -> meta_pb2.ProposePlanResponse:
        """Keep a placement plan."""
        call = self.metadata.placement.propose(request.plan)
        return await self._answer(meta_pb2.ProposePlanResponse, call, "plan")

    async def apply_plan(
        self, request: meta_pb2.ApplyPlanRequest, context: CallContext
    ) -> meta_pb2.ApplyPlanResponse:
        """Let a placement plan run, or end it."""
        call = self.metadata.placement.apply(request.plan_id, stop=request.stop)
        return await self._answer(meta_pb2.ApplyPlanResponse, call, "plan")

    async def get_placement(
        self, request: meta_pb2.GetPlacementRequest, context: CallContext
    ) -> meta_pb2.GetPlacementResponse:
        """Show plans and loads; the leader alone knows the loads."""
        try:
            response = self.metadata.show_placement()
        except MetaRefused as error:
            return meta_pb2.GetPlacementResponse(status=self._status_of(error))
        response.status.CopyFrom(_OK)
        return response

    async def set_placement_model(
        self, request: meta_pb2.SetPlacementModelRequest, context: CallContext
    ) -> meta_pb2.SetPlacementModelResponse:
        """Take a model of loads into use."""
        call = self.metadata.placement.set_model(request.model)
        return await self._answer(meta_pb2.SetPlacementModelResponse, call, "model")

    async def get_snapshot(
        self, request: meta_pb2.GetSnapshotRequest, context: CallContext
    ) -> meta_pb2.GetSnapshotResponse:
        """Return all rows; a follower's may be a moment old."""
        try:
            revision, rows = await self.metadata.snapshot()
        except MetaRefused as error:
            return meta_pb2.GetSnapshotResponse(status=self._status_of(error))
        return await snapshot_response(revision, rows)

    async def watch(
        self, request: meta_pb2.WatchRequest, context: CallContext
    ) -> AsyncIterator[meta_pb2.WatchResponse]:
        """Stream changes.

        Raises:
            AngeliaError: OVERLOADED: too many watchers; WRONG_CLUSTER; the response has no status
                of its own.
        """
        self._cluster.check(request.cluster_id, context.peer)
        try:
            watched = self.metadata.watch(request.from_revision, request.from_stamp)
            async with aclosing(watched) as responses:
                async for response in responses:
                    yield response
        except MetaRefused as error:
            raise AngeliaError(OVERLOADED, error.reason) from error

    async def _answer(
        self, response_type: type[Response], call: Awaitable[object], field: str
    ) -> Response:
        """Return the response with the call's result in `field`, or why it was refused."""
        try:
            result = await call
        except MetaRefused as error:
            return response_type(status=self._status_of(error))
        return response_type(status=_OK, **({field: result} if field else {}))

    def _wrong_cluster(self, cluster_id: str) -> meta_pb2.MetaStatus | None:
        """Return the refusal of a caller of another cluster; None: it is of this one, or new."""
        if self._cluster.agrees(cluster_id):
            return None
        return meta_pb2.MetaStatus(
            outcome=meta_pb2.META_OUTCOME_WRONG_CLUSTER,
            reason=f"this nameserver is of cluster {self._cluster.value}, the node of {cluster_id}",
        )

    def _status_of(self, error: MetaRefused) -> meta_pb2.MetaStatus:
        status = meta_pb2.MetaStatus(outcome=error.outcome, reason=error.reason)
        if error.outcome == meta_pb2.META_OUTCOME_NOT_LEADER:
            status.leader_node_id, status.leader_endpoint = self._leader()
        return status
