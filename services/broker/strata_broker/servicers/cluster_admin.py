"""The cluster's half of `strata.admin.v1.AdminService`: nodes, raft groups, queues, slots."""

from __future__ import annotations

from collections import Counter

from strata.admin.v1 import admin_pb2
from strata_broker.operators.cluster import ClusterOperations


class ClusterAdminServicer:
    """See the module docstring; it translates and decides nothing."""

    def __init__(self, operations: ClusterOperations, version: str, node_id: str) -> None:
        self._operations = operations
        self._version = version
        self._node_id = node_id

    async def get_cluster(self, _: admin_pb2.GetClusterRequest) -> admin_pb2.GetClusterResponse:
        """Show nodes, raft groups and their state."""
        raft_groups = await self._operations.raft_groups()
        nodes, picture = self._operations.nodes(), self._operations.picture()
        conditions = (picture.nodes.get(node.node_id) for node in nodes)
        replicas = self._operations.replica_counts()
        topics, consumer_groups = self._operations.listed_counts()
        leaders = Counter(group.leader_node_id for group in raft_groups)
        return admin_pb2.GetClusterResponse(
            nodes=nodes,
            raft_groups=raft_groups,
            version=self._version,
            conditions=[
                admin_pb2.NodeCondition(
                    node_id=one.node_id,
                    state=one.state,
                    reason=one.reason,
                    replicas=replicas[one.node_id],
                    leaders=leaders[one.node_id],
                )
                for one in conditions
                if one is not None
            ],
            metadata_age_ms=int(picture.metadata_age_s * 1_000),
            metadata_is_stale=picture.is_stale,
            topic_count=topics,
            consumer_group_count=consumer_groups,
        )

    async def get_health(self, _: admin_pb2.GetHealthRequest) -> admin_pb2.GetHealthResponse:
        """Show whether the cluster is healthy, and the reasons if it is not."""
        return self._operations.health(self._node_id)

    async def get_raft_group(
        self, request: admin_pb2.GetRaftGroupRequest
    ) -> admin_pb2.GetRaftGroupResponse:
        """Show a raft group and its replicas."""
        return await self._operations.raft_group(request.raft_group)

    async def drain_node(self, request: admin_pb2.DrainNodeRequest) -> admin_pb2.DrainNodeResponse:
        """Take a node out of service, or back into it."""
        node = await self._operations.drain_node(request.node_id, draining=request.draining)
        return admin_pb2.DrainNodeResponse(node=node)

    async def remove_node(
        self, request: admin_pb2.RemoveNodeRequest
    ) -> admin_pb2.RemoveNodeResponse:
        """Forget a node."""
        await self._operations.remove_node(request.node_id, force=request.force)
        return admin_pb2.RemoveNodeResponse()

    async def change_replicas(
        self, request: admin_pb2.ChangeReplicasRequest
    ) -> admin_pb2.ChangeReplicasResponse:
        """Set where a raft group's replicas should be."""
        raft_group = await self._operations.change_replicas(request)
        return admin_pb2.ChangeReplicasResponse(raft_group=raft_group)

    async def transfer_leader(
        self, request: admin_pb2.TransferLeaderRequest
    ) -> admin_pb2.TransferLeaderResponse:
        """Transfer leadership."""
        leader = await self._operations.transfer_leader(request.raft_group, request.to_node_id)
        return admin_pb2.TransferLeaderResponse(leader_node_id=leader)

    async def get_queue(self, request: admin_pb2.GetQueueRequest) -> admin_pb2.GetQueueResponse:
        """Show where a queue is, and why."""
        return await self._operations.queue(request.namespace, request.topic, request.queue)

    async def move_queue(self, request: admin_pb2.MoveQueueRequest) -> admin_pb2.MoveQueueResponse:
        """Begin to move a queue."""
        override = await self._operations.move_queue(request)
        return admin_pb2.MoveQueueResponse(queue_override=override)

    async def list_slots(self, _: admin_pb2.ListSlotsRequest) -> admin_pb2.ListSlotsResponse:
        """Show which raft group owns which slots."""
        return self._operations.slots()

    async def move_slots(self, request: admin_pb2.MoveSlotsRequest) -> admin_pb2.MoveSlotsResponse:
        """Begin to move slots."""
        return await self._operations.move_slots(request)
