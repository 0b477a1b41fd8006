"""MetaService: protos in, domain calls, protos out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Literal, Protocol

from strata.meta.v1 import meta_pb2
from strata_angelia.cluster_id import ClusterId
from strata_angelia.ports import FORBIDDEN, OVERLOADED, UNAVAILABLE, AngeliaError, CallContext
from strata_metadata.errors import MetaRefused
from strata_metadata.identity import KnownNode
from strata_metadata.servicer import snapshot_response
from strata_nameserver.drafts.topic_batches import Batch
from strata_nameserver.leading.calls import once
from strata_nameserver.leading.metadata import Metadata
from strata_runtime.roles import PeerRole

_NOT_FORMED = "the nameservers have not found each other yet"

_KIND_OF = {
    PeerRole.NAMESERVER: meta_pb2.NODE_KIND_NAMESERVER,
    PeerRole.STORAGE: meta_pb2.NODE_KIND_STORAGE,
    PeerRole.BROKER: meta_pb2.NODE_KIND_BROKER,
}

Leader = tuple[str, str]
"""Node id and endpoint; empty: not known."""


class MetaServicer:
    """Serves `strata.meta.v1.MetaService` over Angelia.

    A change that somebody wants is made once, however often its call comes (`calls.once`). Reports
    of nodes tell what is so: the same report again changes nothing.

    Args:
        cluster: that this nameserver belongs to.
        look_up_node: what the rows know of a node; MetaRefused: not all of them are here.
        answers: how a refusal is said.
    """

    def __init__(
        self,
        cluster: ClusterId,
        look_up_node: Callable[[str], KnownNode],
        answers: MetaAnswers,
    ) -> None:
        self.answers = answers
        self._cluster = cluster
        self._look_up_node = look_up_node
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
        return await once(
            request,
            self.metadata.create_topic(request.topic),
            lambda topic: meta_pb2.CreateTopicResponse(topic=topic),
        )

    async def create_topics(
        self, request: meta_pb2.CreateTopicsRequest, context: CallContext
    ) -> meta_pb2.CreateTopicsResponse:
        """Make topics by one raft entry."""
        return await once(
            request, self.metadata.create_topics(request.topics), _answer_to_create_topics
        )

    async def update_topic(
        self, request: meta_pb2.UpdateTopicRequest, context: CallContext
    ) -> meta_pb2.UpdateTopicResponse:
        """Change a topic."""
        return await once(
            request,
            self.metadata.update_topic(request.topic, request.update_mask),
            lambda topic: meta_pb2.UpdateTopicResponse(topic=topic),
        )

    async def delete_topic(
        self, request: meta_pb2.DeleteTopicRequest, context: CallContext
    ) -> meta_pb2.DeleteTopicResponse:
        """Delete a topic's row; brokers drop its data and confirm that."""
        return await once(
            request,
            self.metadata.delete_topic(request.namespace, request.name),
            lambda _: meta_pb2.DeleteTopicResponse(),
        )

    async def create_consumer_group(
        self, request: meta_pb2.CreateConsumerGroupRequest, context: CallContext
    ) -> meta_pb2.CreateConsumerGroupResponse:
        """Make a consumer group with its dead-letter topic."""
        return await once(
            request,
            self.metadata.create_consumer_group(request.consumer_group),
            lambda consumer_group: meta_pb2.CreateConsumerGroupResponse(
                consumer_group=consumer_group
            ),
        )

    async def update_consumer_group(
        self, request: meta_pb2.UpdateConsumerGroupRequest, context: CallContext
    ) -> meta_pb2.UpdateConsumerGroupResponse:
        """Change a consumer group."""
        return await once(
            request,
            self.metadata.update_consumer_group(request.consumer_group, request.update_mask),
            lambda consumer_group: meta_pb2.UpdateConsumerGroupResponse(
                consumer_group=consumer_group
            ),
        )

    async def delete_consumer_group(
        self, request: meta_pb2.DeleteConsumerGroupRequest, context: CallContext
    ) -> meta_pb2.DeleteConsumerGroupResponse:
        """Delete a consumer group with its dead-letter topic."""
        return await once(
            request,
            self.metadata.delete_consumer_group(request.namespace, request.name),
            lambda _: meta_pb2.DeleteConsumerGroupResponse(),
        )

    async def get_identity(
        self, request: meta_pb2.GetIdentityRequest, context: CallContext
    ) -> meta_pb2.GetIdentityResponse:
        """Tell which cluster this is, and whether it knows who asks.

        Refused while rows are missing here: nothing may be done to a node's replicas on the word of
        one that does not know it for that reason (rule 32).
        """
        if not self._cluster.value:
            raise AngeliaError(UNAVAILABLE, _NOT_FORMED)
        node = self._look_up_node(request.node_id)
        return meta_pb2.GetIdentityResponse(
            cluster_id=self._cluster.value, knows_node=node.is_known, replicas=node.replicas
        )

    async def register_node(
        self, request: meta_pb2.RegisterNodeRequest, context: CallContext
    ) -> meta_pb2.RegisterNodeResponse:
        """Take a node in; it is told its cluster."""
        _check_kind(request.node.kind, context)
        self._check_cluster(request.cluster_id)
        response = meta_pb2.RegisterNodeResponse()
        try:
            response.replicas.extend(await self.metadata.register_node(request.node))
        except MetaRefused as refusal:
            # A node that is refused learns its cluster all the same.
            self.answers.refuse(response, refusal)
        response.cluster_id = self._cluster.value
        return response

    async def drain_node(
        self, request: meta_pb2.DrainNodeRequest, context: CallContext
    ) -> meta_pb2.DrainNodeResponse:
        """Take a node out of service, or back into it."""
        return await once(
            request,
            self.metadata.drain_node(request.node_id, draining=request.draining),
            lambda node: meta_pb2.DrainNodeResponse(node=node),
        )

    async def remove_node(
        self, request: meta_pb2.RemoveNodeRequest, context: CallContext
    ) -> meta_pb2.RemoveNodeResponse:
        """Forget a node."""
        return await once(
            request,
            self.metadata.remove_node(
                request.node_id, force=request.force, boot_id=request.boot_id
            ),
            lambda _: meta_pb2.RemoveNodeResponse(),
        )

    async def change_replicas(
        self, request: meta_pb2.ChangeReplicasRequest, context: CallContext
    ) -> meta_pb2.ChangeReplicasResponse:
        """Change where the replicas of a raft group belong."""
        return await once(
            request,
            self.metadata.change_replicas(request),
            lambda raft_group: meta_pb2.ChangeReplicasResponse(raft_group=raft_group),
        )

    async def prefer_leader(
        self, request: meta_pb2.PreferLeaderRequest, context: CallContext
    ) -> meta_pb2.PreferLeaderResponse:
        """Name the node that should lead a raft group."""
        return await once(
            request,
            self.metadata.prefer_leader(request.raft_group, request.node_id),
            lambda raft_group: meta_pb2.PreferLeaderResponse(raft_group=raft_group),
        )

    async def move_queue(
        self, request: meta_pb2.MoveQueueRequest, context: CallContext
    ) -> meta_pb2.MoveQueueResponse:
        """Wish a queue into another raft group."""
        return await once(
            request,
            self.metadata.move_queue(request),
            lambda queue_override: meta_pb2.MoveQueueResponse(queue_override=queue_override),
        )

    async def report_queue_moved(
        self, request: meta_pb2.ReportQueueMovedRequest, context: CallContext
    ) -> meta_pb2.ReportQueueMovedResponse:
        """Write down that a queue's next epoch is open."""
        queue_override = await self.metadata.queue_moved(request)
        return meta_pb2.ReportQueueMovedResponse(queue_override=queue_override)

    async def report_queue_drained(
        self, request: meta_pb2.ReportQueueDrainedRequest, context: CallContext
    ) -> meta_pb2.ReportQueueDrainedResponse:
        """Forget a queue's epochs of which nothing is kept."""
        queue_override = await self.metadata.queue_drained(request)
        return meta_pb2.ReportQueueDrainedResponse(queue_override=queue_override)

    async def explain_queue(
        self, request: meta_pb2.ExplainQueueRequest, context: CallContext
    ) -> meta_pb2.ExplainQueueResponse:
        """Tell why a queue is where it is."""
        reasons = await self.metadata.explain_queue(request.namespace, request.topic, request.queue)
        return meta_pb2.ExplainQueueResponse(reasons=reasons)

    async def set_quota(
        self, request: meta_pb2.SetQuotaRequest, context: CallContext
    ) -> meta_pb2.SetQuotaResponse:
        """Set limits of a namespace or of a topic."""
        return await once(
            request,
            self.metadata.set_quota(request.quota, request.update_mask),
            lambda quota: meta_pb2.SetQuotaResponse(quota=quota),
        )

    async def create_user(
        self, request: meta_pb2.CreateUserRequest, context: CallContext
    ) -> meta_pb2.CreateUserResponse:
        """Make a user."""
        return await once(
            request,
            self.metadata.access.create_user(request.user),
            lambda user: meta_pb2.CreateUserResponse(user=user),
        )

    async def update_user(
        self, request: meta_pb2.UpdateUserRequest, context: CallContext
    ) -> meta_pb2.UpdateUserResponse:
        """Change a user, or give it a new secret key."""
        return await once(
            request,
            self.metadata.access.update_user(request),
            lambda user: meta_pb2.UpdateUserResponse(user=user),
        )

    async def delete_user(
        self, request: meta_pb2.DeleteUserRequest, context: CallContext
    ) -> meta_pb2.DeleteUserResponse:
        """Delete a user with its policies."""
        return await once(
            request,
            self.metadata.access.delete_user(request.name),
            lambda revision: meta_pb2.DeleteUserResponse(revision=revision),
        )

    async def create_policy(
        self, request: meta_pb2.CreatePolicyRequest, context: CallContext
    ) -> meta_pb2.CreatePolicyResponse:
        """Make a policy."""
        return await once(
            request,
            self.metadata.access.create_policy(request.policy),
            lambda policy: meta_pb2.CreatePolicyResponse(policy=policy),
        )

    async def delete_policy(
        self, request: meta_pb2.DeletePolicyRequest, context: CallContext
    ) -> meta_pb2.DeletePolicyResponse:
        """Delete a policy."""
        return await once(
            request,
            self.metadata.access.delete_policy(request.policy_id),
            lambda revision: meta_pb2.DeletePolicyResponse(revision=revision),
        )

    async def rotate_cluster_key(
        self, request: meta_pb2.RotateClusterKeyRequest, context: CallContext
    ) -> meta_pb2.RotateClusterKeyResponse:
        """Make a new cluster key."""
        return await once(
            request,
            self.metadata.access.rotate_cluster_key(request.newest_key_id),
            lambda key: meta_pb2.RotateClusterKeyResponse(key_id=key.key_id, revision=key.revision),
        )

    async def heartbeat(
        self, request: meta_pb2.HeartbeatRequest, context: CallContext
    ) -> meta_pb2.HeartbeatResponse:
        """Note that a node is alive."""
        self._check_cluster(request.cluster_id)
        kind = self.metadata.kind_of(request.node_id)
        if kind is not None:
            _check_kind(kind, context)
        want_full = self.metadata.heartbeat(request)
        should_register = self.metadata.should_register(request)
        return meta_pb2.HeartbeatResponse(want_full=want_full, want_registration=should_register)

    async def confirm_dropped(
        self, request: meta_pb2.ConfirmDroppedRequest, context: CallContext
    ) -> meta_pb2.ConfirmDroppedResponse:
        """Mark a tombstone done."""
        await self.metadata.confirm_dropped(request.kind, request.id)
        return meta_pb2.ConfirmDroppedResponse()

    async def confirm_rehashed(
        self, request: meta_pb2.ConfirmRehashedRequest, context: CallContext
    ) -> meta_pb2.ConfirmRehashedResponse:
        """Forget a topic's old queue count."""
        topic = await self.metadata.confirm_rehashed(request)
        return meta_pb2.ConfirmRehashedResponse(topic=topic)

    async def move_slots(
        self, request: meta_pb2.MoveSlotsRequest, context: CallContext
    ) -> meta_pb2.MoveSlotsResponse:
        """Begin to move slots to another raft group."""
        return await once(
            request,
            self.metadata.move_slots(request),
            lambda moving: meta_pb2.MoveSlotsResponse(moves=moving.moves, left=moving.left),
        )

    async def report_slots_revoked(
        self, request: meta_pb2.ReportSlotsRevokedRequest, context: CallContext
    ) -> meta_pb2.ReportSlotsRevokedResponse:
        """Record that slots were given up."""
        await self.metadata.slots_revoked(request)
        return meta_pb2.ReportSlotsRevokedResponse()

    async def report_slots_granted(
        self, request: meta_pb2.ReportSlotsGrantedRequest, context: CallContext
    ) -> meta_pb2.ReportSlotsGrantedResponse:
        """Record that slots were taken."""
        await self.metadata.slots_granted(request)
        return meta_pb2.ReportSlotsGrantedResponse()

    async def propose_plan(
        self, request: meta_pb2.ProposePlanRequest, context: CallContext
    ) -> meta_pb2.ProposePlanResponse:
        """Keep a placement plan."""
        return await once(
            request,
            self.metadata.placement.propose(request.plan),
            lambda plan: meta_pb2.ProposePlanResponse(plan=plan),
        )

    async def apply_plan(
        self, request: meta_pb2.ApplyPlanRequest, context: CallContext
    ) -> meta_pb2.ApplyPlanResponse:
        """Let a placement plan run, or end it."""
        return await once(
            request,
            self.metadata.placement.apply(request.plan_id, stop=request.stop),
            lambda plan: meta_pb2.ApplyPlanResponse(plan=plan),
        )

    async def get_placement(
        self, request: meta_pb2.GetPlacementRequest, context: CallContext
    ) -> meta_pb2.GetPlacementResponse:
        """Show plans and loads; the leader alone knows the loads."""
        return self.metadata.show_placement()

    async def set_placement_model(
        self, request: meta_pb2.SetPlacementModelRequest, context: CallContext
    ) -> meta_pb2.SetPlacementModelResponse:
        """Take a model of loads into use."""
        return await once(
            request,
            self.metadata.placement.set_model(request.model),
            lambda model: meta_pb2.SetPlacementModelResponse(model=model),
        )

    async def get_snapshot(
        self, request: meta_pb2.GetSnapshotRequest, context: CallContext
    ) -> meta_pb2.GetSnapshotResponse:
        """Return all rows; a follower's may be a moment old."""
        revision, rows = await self.metadata.snapshot()
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

    def _check_cluster(self, cluster_id: str) -> None:
        """Refuse a caller of another cluster; one without a cluster is new."""
        if not self._cluster.agrees(cluster_id):
            own = self._cluster.value
            raise MetaRefused(
                meta_pb2.META_OUTCOME_WRONG_CLUSTER,
                f"this nameserver belongs to cluster {own}, the node to cluster {cluster_id}",
            )


class MetaResponse(Protocol):
    """A response of MetaService."""

    @property
    def status(self) -> meta_pb2.MetaStatus:
        """Whether the call was carried out."""

    def HasField(self, field_name: Literal["status"], /) -> bool:
        """Whether the status was said."""


class MetaAnswers:
    """`strata_angelia.serving.Answers`: every response has a `status`.

    Args:
        leader: who leads, for callers that must go there.
    """

    refusal = MetaRefused

    def __init__(self, leader: Callable[[], Leader]) -> None:
        self._leader = leader

    def refuse(self, response: MetaResponse, refusal: MetaRefused) -> None:
        """Say why nothing was done, and where to go."""
        status = response.status
        status.outcome, status.reason = refusal.outcome, refusal.reason
        if refusal.outcome == meta_pb2.META_OUTCOME_NOT_LEADER:
            status.leader_node_id, status.leader_endpoint = self._leader()

    def complete(self, response: MetaResponse) -> None:
        """Say that all is well, unless the response says how it went."""
        if not response.HasField("status"):
            response.status.outcome = meta_pb2.META_OUTCOME_OK


def _answer_to_create_topics(made: tuple[Batch, int]) -> meta_pb2.CreateTopicsResponse:
    batch, revision = made
    return meta_pb2.CreateTopicsResponse(
        revision=revision,
        created=batch.created,
        existing=batch.existing,
        failures=batch.failures,
    )


def _check_kind(kind: meta_pb2.NodeKind.ValueType, context: CallContext) -> None:
    """Refuse a caller that speaks for a node of another kind than its certificate says.

    Raises:
        AngeliaError: FORBIDDEN.
    """
    if context.role is not None and _KIND_OF.get(context.role) != kind:
        name = meta_pb2.NodeKind.Name(kind).removeprefix("NODE_KIND_").lower()
        raise AngeliaError(FORBIDDEN, f"a {context.role} cannot speak for a {name} node")
