"""Operators' requests about nodes, raft groups and the places of queues.

Role: the work behind the cluster's half of `strata.admin.v1`. It joins the metadata with the
reports of storage nodes, forwards changes to the nameserver and waits until this broker shows
them. It does not decide placement: changes are wishes in the metadata, and the leaders of raft
groups carry them out. Failures are `RequestError`, `MetaRefused` or `AngeliaError`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_angelia.ports import AngeliaError
from strata_broker.base import errors
from strata_broker.base.metadata_config import MetadataSection
from strata_broker.clients.provision import topic_not_found
from strata_broker.metadata.metadata import MetadataView
from strata_broker.storage_client.cluster_watch import ClusterWatch
from strata_broker.storage_client.leaders import LeaderMap
from strata_broker.storage_client.storage_client import StorageClient
from strata_metadata.client import MetadataClient
from strata_metadata.cluster_health import LEADERLESS, SERVING, ClusterPicture
from strata_mq.requests import Code, RequestError
from strata_mq.slots import slot_of, slot_runs

UNREACHABLE = "UNREACHABLE"
"""State of a replica whose node does not answer."""


class ClusterOperations:
    """See the module docstring."""

    def __init__(
        self,
        view: MetadataView,
        metadata: MetadataClient,
        storage: StorageClient,
        *,
        leaders: LeaderMap,
        config: MetadataSection,
        watch: ClusterWatch,
    ) -> None:
        self._watch = watch
        self._view = view
        self._metadata = metadata
        self._storage = storage
        self._leaders = leaders
        self._timeout_s = config.call_timeout_ms / 1000
        self._status_timeout_s = config.try_timeout_ms / 1000

    # Nodes

    def nodes(self) -> list[meta_pb2.Node]:
        """Return all nodes by id."""
        return self._view.nodes()

    def listed_counts(self) -> tuple[int, int]:
        """Return how many topics and consumer groups there are; nothing is listed for that."""
        return self._view.listed_counts()

    def replica_counts(self) -> Counter[str]:
        """Return how many replicas each node has, those included that are leaving it."""
        return Counter(
            replica.node_id
            for row in self._view.raft_groups()
            for replica in (*row.replicas, *row.leaving)
        )

    def picture(self) -> ClusterPicture:
        """Return the present health of nodes and raft groups."""
        return self._watch.check()

    def health(self, broker_node_id: str) -> admin_pb2.GetHealthResponse:
        """Return whether the cluster is healthy, and the reasons if it is not."""
        return self._watch.shown(broker_node_id)

    async def drain_node(self, node_id: str, *, draining: bool) -> meta_pb2.Node:
        """Take a node out of service while traffic flows, or back into it."""
        response = await self._metadata.call(
            "DrainNode",
            meta_pb2.DrainNodeRequest(node_id=node_id, draining=draining),
            meta_pb2.DrainNodeResponse,
        )
        await self._view.wait_for_revision(response.node.revision, self._timeout_s)
        return response.node

    async def remove_node(self, node_id: str, *, force: bool) -> None:
        """Forget a node; `force`: also one that still holds replicas."""
        await self._metadata.call(
            "RemoveNode",
            meta_pb2.RemoveNodeRequest(node_id=node_id, force=force),
            meta_pb2.RemoveNodeResponse,
        )

    # Raft groups

    async def raft_groups(self) -> list[admin_pb2.GroupHealth]:
        """Return the state of every raft group, by number."""
        statuses = await self._statuses(
            [node.node_id for node in self._view.nodes(meta_pb2.NODE_KIND_STORAGE)]
        )
        picture = self.picture()
        return [_health(row, statuses, picture) for row in self._view.raft_groups()]

    async def raft_group(self, raft_group: int) -> admin_pb2.GetRaftGroupResponse:
        """Return a raft group with all its replicas.

        Raises:
            RequestError: there is no such raft group.
        """
        row = self._row(raft_group)
        nodes = {replica.node_id for replica in (*row.replicas, *row.leaving)}
        statuses = await self._statuses(sorted(nodes))
        return admin_pb2.GetRaftGroupResponse(
            health=_health(row, statuses, self.picture()),
            row=row,
            replicas=_replicas(row, statuses),
        )

    async def change_replicas(self, request: admin_pb2.ChangeReplicasRequest) -> meta_pb2.RaftGroup:
        """Set where the replicas of a raft group should be; its leader carries it out."""
        response = await self._metadata.call(
            "ChangeReplicas",
            meta_pb2.ChangeReplicasRequest(
                raft_group=request.raft_group,
                add_node_ids=request.add_node_ids,
                remove_node_ids=request.remove_node_ids,
                learners=request.learners,
            ),
            meta_pb2.ChangeReplicasResponse,
        )
        await self._view.wait_for_revision(response.raft_group.revision, self._timeout_s)
        return response.raft_group

    async def transfer_leader(self, raft_group: int, to_node_id: str) -> str:
        """Transfer a raft group's leadership to a node; return the new leader.

        If a node is named, the wish is kept, so that the balance of leaders does not undo it.
        Otherwise the leader chooses the fittest replica.

        Raises:
            RequestError: no such raft group, no voter of it on that node, or no node took over in
                time.
        """
        self._row(raft_group)
        before = self._leaders.leader_of(raft_group)
        target = self._voter(raft_group, to_node_id) if to_node_id else 0
        if to_node_id:
            await self._metadata.call(
                "PreferLeader",
                meta_pb2.PreferLeaderRequest(raft_group=raft_group, node_id=to_node_id),
                meta_pb2.PreferLeaderResponse,
            )
            if before == to_node_id:
                return before
        try:
            await self._storage.call(
                raft_group,
                "TransferLeadership",
                storage_pb2.TransferLeadershipRequest(
                    raft_group=raft_group, target_replica_id=target
                ),
                storage_pb2.TransferLeadershipResponse,
                timeout_s=self._timeout_s,
            )
        except RequestError as refused:
            # The wish in the metadata may have been faster than this call.
            if self._leaders.leader_of(raft_group) in ("", before):
                if refused.code is Code.INTERNAL_SERVER_ERROR:
                    raise RequestError(Code.PRECONDITION_FAILED, refused.text) from refused
                raise
        leader = await self._leaders.wait_for_other(raft_group, before, self._timeout_s)
        if not leader:
            raise errors.timed_out(self._leaders.explain(raft_group))
        return leader

    # Queues

    async def queue(self, namespace: str, name: str, queue: int) -> admin_pb2.GetQueueResponse:
        """Return where a queue is, where it was, and why.

        Raises:
            RequestError: no such topic or queue.
        """
        topic = self._view.topic(namespace, name)
        if topic is None:
            raise topic_not_found(name)
        if queue >= topic.queue_count:
            raise _not_found(f"topic {name} has {topic.queue_count} queues, from 0")
        override = self._view.overrides(topic).get(queue)
        slot_owner = self._view.slot_owner(topic, queue)
        owner = self._view.owner(topic, queue)
        home = next((home for home in self._view.homes(topic) if queue in home.queues), None)
        return admin_pb2.GetQueueResponse(
            slot=slot_of(topic.slot_base, queue),
            slot_raft_group=slot_owner,
            raft_group=owner,
            leader_node_id=self._leaders.leader_of(owner),
            broker_name=home.broker_name if home is not None else "",
            epochs=(
                override.epochs
                if override is not None
                else (meta_pb2.Epoch(raft_group=slot_owner),)
            ),
            reasons=await self._reasons(namespace, name, queue),
        )

    async def _reasons(self, namespace: str, topic: str, queue: int) -> Sequence[str]:
        """Return the reasons for a queue's place; the place is known without a nameserver."""
        try:
            explained = await self._metadata.call(
                "ExplainQueue",
                meta_pb2.ExplainQueueRequest(namespace=namespace, topic=topic, queue=queue),
                meta_pb2.ExplainQueueResponse,
            )
        except AngeliaError as failure:
            return (f"no nameserver gives a reason: {failure.reason}",)
        return explained.reasons

    async def move_queue(self, request: admin_pb2.MoveQueueRequest) -> meta_pb2.QueueOverride:
        """Begin to move a queue to another raft group (rule 18)."""
        response = await self._metadata.call(
            "MoveQueue",
            meta_pb2.MoveQueueRequest(
                namespace=request.namespace,
                topic=request.topic,
                queue=request.queue,
                to_raft_group=request.to_raft_group,
            ),
            meta_pb2.MoveQueueResponse,
        )
        await self._view.wait_for_revision(response.queue_override.revision, self._timeout_s)
        return response.queue_override

    # Slots

    def slots(self) -> admin_pb2.ListSlotsResponse:
        """Return which raft group owns which slots, and which slots are moving."""
        return admin_pb2.ListSlotsResponse(
            ranges=(
                meta_pb2.SlotRange(first_slot=first, slot_count=count, raft_group=raft_group)
                for first, count, raft_group in slot_runs(self._view.slots())
            ),
            moves=self._view.slot_moves(),
        )

    async def move_slots(self, request: admin_pb2.MoveSlotsRequest) -> admin_pb2.MoveSlotsResponse:
        """Begin to move a run of slots to another raft group (rule 17)."""
        response = await self._metadata.call(
            "MoveSlots",
            meta_pb2.MoveSlotsRequest(
                first_slot=request.first_slot,
                slot_count=request.slot_count,
                to_raft_group=request.to_raft_group,
            ),
            meta_pb2.MoveSlotsResponse,
        )
        for move in response.moves:
            await self._view.wait_for_revision(move.revision, self._timeout_s)
        return admin_pb2.MoveSlotsResponse(moves=response.moves, left=response.left)

    def _voter(self, raft_group: int, node_id: str) -> int:
        """Return the replica id of a raft group's voter on a node."""
        for replica in self._row(raft_group).replicas:
            if replica.node_id == node_id and not replica.learner:
                return replica.replica_id
        raise _not_found(f"raft group {raft_group} has no voter on node {node_id}")

    def _row(self, raft_group: int) -> meta_pb2.RaftGroup:
        row = self._view.raft_group(raft_group)
        if row is None:
            raise _not_found(f"no raft group {raft_group}")
        return row

    async def _statuses(self, node_ids: Sequence[str]) -> dict[str, _Replicas]:
        """Ask nodes for their replicas; nodes that do not answer are left out.

        There are as many calls as nodes, because a silent node must not delay the others.
        """
        statuses = await asyncio.gather(
            *(self._storage.node_status(node_id, self._status_timeout_s) for node_id in node_ids)
        )
        return {
            node_id: {replica.raft_group: replica for replica in status.replicas}
            for node_id, status in zip(node_ids, statuses, strict=True)
            if status is not None
        }


_Replicas = dict[int, storage_pb2.ReplicaStatus]
"""A node's report of its replicas, by raft group."""


def _health(
    row: meta_pb2.RaftGroup, statuses: dict[str, _Replicas], picture: ClusterPicture
) -> admin_pb2.GroupHealth:
    """Return a raft group's state, from its leader or its most advanced replica."""
    health = admin_pb2.GroupHealth(raft_group=row.raft_group, broker_name=row.broker_name)
    condition = picture.groups.get(row.raft_group)
    if condition is not None:
        health.replicas_live, health.replicas_wanted = condition.live, condition.wanted
    seen = [
        (replica.leader, replica.term, replica.applied_index, node_id)
        for node_id, replicas in statuses.items()
        if (replica := replicas.get(row.raft_group)) is not None
    ]
    if not seen:
        health.state = LEADERLESS
        health.reason = "no storage node answers for it"
        health.replicas_live = 0
        return health
    # If two replicas claim to lead, the one with the higher term is right.
    leads, _, _, node_id = max(seen)
    replica = statuses[node_id][row.raft_group]
    health.leader_node_id = node_id if leads else ""
    health.term = replica.term
    health.commit_index = replica.commit_index
    health.applied_index = replica.applied_index
    if condition is not None and condition.state != SERVING:
        health.state, health.reason = condition.state, condition.reason
    elif leads:
        health.state, health.reason = _state(replica), replica.reason
    else:
        # It was led when the cluster was looked at last; an election may be under way.
        health.state, health.reason = LEADERLESS, replica.reason or "it has no leader"
    return health


def _replicas(
    row: meta_pb2.RaftGroup, statuses: dict[str, _Replicas]
) -> list[admin_pb2.ReplicaHealth]:
    leader = next(
        (
            replicas[row.raft_group]
            for replicas in statuses.values()
            if row.raft_group in replicas and replicas[row.raft_group].leader
        ),
        None,
    )
    progress = {one.replica_id: one for one in leader.progress} if leader is not None else {}
    listed = []
    for wanted in (*row.replicas, *row.leaving):
        health = admin_pb2.ReplicaHealth(
            replica_id=wanted.replica_id, node_id=wanted.node_id, role=_role(row, wanted)
        )
        replica = statuses.get(wanted.node_id, {}).get(row.raft_group)
        if replica is None or replica.replica_id != wanted.replica_id:
            health.state = UNREACHABLE.lower()
        else:
            health.state = _state(replica).lower()
            health.leader = replica.leader
            health.last_index = replica.last_index
            health.applied_index = replica.applied_index
            health.reason = replica.reason
        if wanted.replica_id in progress:
            health.match_index = progress[wanted.replica_id].match_index
        elif health.leader:
            health.match_index = health.last_index
        listed.append(health)
    return listed


def _role(row: meta_pb2.RaftGroup, replica: meta_pb2.Replica) -> str:
    """Return a replica's role in the configuration, or its future or former role."""
    if replica in row.leaving:
        return "leaving"
    membership = row.membership
    if not membership.configuration_index:
        # The raft group still has the configuration it began with.
        return "learner" if replica.learner else "voter"
    # Until the old voters are removed, both count: the raft group needs both majorities.
    is_final = not membership.outgoing or replica.replica_id in membership.outgoing
    if replica.replica_id in membership.voters and is_final:
        return "voter"
    if replica.replica_id in membership.learners and replica.learner:
        return "learner"
    return "joining"


def _not_found(text: str) -> RequestError:
    return RequestError(Code.NOT_FOUND, text)


def _state(replica: storage_pb2.ReplicaStatus) -> str:
    return storage_pb2.ReplicaState.Name(replica.state).removeprefix("REPLICA_STATE_")
