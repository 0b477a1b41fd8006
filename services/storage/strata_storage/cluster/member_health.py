"""How a storage node of a cluster does, for probes and for its log: what it sees of the others.

It looks at the raft groups that it hosts, through the rows that it has: who leads them, whom it
does not hear, how old the rows are. A node that has started counts as caught up once the leaders
of its raft groups have said so: a replica cannot know by itself what it lacks. A replica that the
metadata wants here and that is not hosted lacks everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple, Protocol

from strata.storage.v1 import storage_pb2 as pb
from strata_angelia.ports import AngeliaError
from strata_metadata import ClusterView
from strata_metadata.channels import Channels
from strata_metadata.cluster_health import Facts
from strata_metadata.follower import MetadataFollower
from strata_metadata.health_watch import HealthWatch
from strata_multiraft import Replica
from strata_runtime.clock import Clock
from strata_runtime.health import Health, Problem, Severity
from strata_runtime.metrics import Metrics
from strata_storage.base.directory import Directory
from strata_storage.base.disk_guard import DiskMark
from strata_storage.cluster.node_health import HeardNodes, NodeHealth
from strata_storage.cluster.unhosted import MissingReplica

_STATUS = "/strata.storage.v1.StorageService/GetStatus"
_ASK_S = 0.5
_ASK_TIMEOUT_S = 1.0


class HostingState(Protocol):
    """The part of the storage node that is needed."""

    def replicas(self) -> Mapping[int, Replica]:
        """Return the hosted replicas by raft group."""


class OtherNodes(NamedTuple):
    """The other storage nodes: where their replicas are, how to call them, which are heard."""

    directory: Directory
    channels: Channels
    heard_nodes: HeardNodes


class MemberHealth:
    """See the module docstring.

    Args:
        node_id: of this node.
        node: what it hosts.
        own: what it says of itself.
        view: of the metadata.
        others: the other storage nodes.
        metadata: says how old the rows are, and why.
        clock: time.
        metrics: where the picture shows.
    """

    def __init__(
        self,
        node_id: str,
        node: HostingState,
        own: NodeHealth,
        *,
        view: ClusterView,
        others: OtherNodes,
        metadata: MetadataFollower,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._node_id = node_id
        self._node = node
        self._own = own
        self._view = view
        self._directory, self._channels, self._heard_nodes = others
        self._metadata = metadata
        # Raft group -> what its leader had committed when it was asked last; once the replica
        # here has that, it goes. None: not asked yet.
        self._behind: dict[int, int | None] = dict.fromkeys(node.replicas())
        self.watch = HealthWatch("storage", self._facts, clock, metrics=metrics)

    async def catch_up(self) -> None:
        """Ask leaders until each has said once that the replica here has caught up."""
        while True:
            await asyncio.sleep(_ASK_S)
            await self._ask_leaders()

    def health(self) -> Health:
        """Return how the node does: it serves while a raft group can be used here.

        A node without any replica serves and has caught up, unless the metadata wants one here.
        """
        missing = self._own.missing()
        groups = self.watch.picture.groups.values()
        mark = self._own.said.disk_mark
        serves = mark < DiskMark.REFUSE_ALL_BUT_ACKS and (
            any(group.leader for group in groups) if groups else not missing
        )
        loading = [
            number
            for number, replica in self._node.replicas().items()
            if number in self._behind or replica.installing
        ]
        problems = self.watch.picture.problems + tuple(
            Problem("raft_group", str(number), "CATCHING_UP", Severity.NOTE, "the replica here")
            for number in loading
            if f"{number}" not in {each.name for each in self.watch.picture.problems}
        )
        problems += tuple(_not_hosted(number, each) for number, each in sorted(missing.items()))
        return Health(serves, not loading and not missing, problems)

    def _facts(self) -> tuple[Hashable, Callable[[], Facts]]:
        replicas = self._node.replicas()
        unheard = tuple(self._heard_nodes()[1])
        leaders = {
            number: self._directory.node_of(replica.leader_replica_id) or ""
            for number, replica in replicas.items()
        }
        age_s, trouble = self._metadata.age_s(), self._metadata.trouble
        version = (
            self._view.version,
            self._own.version,
            unheard,
            tuple(leaders.items()),
            self.watch.is_stale(age_s),
            trouble,
        )

        def get() -> Facts:
            rows = (self._view.raft_group(number) for number in replicas)
            return Facts(
                self._view.nodes(),
                [row for row in rows if row is not None],
                leaders,
                {self._node_id: self._own.said},
                frozenset(unheard),
                age_s,
                trouble,
            )

        return version, get

    async def _ask_leaders(self) -> None:
        hosted = self._node.replicas()
        by_node: dict[str, list[int]] = {}
        for number in list(self._behind):
            replica = hosted.get(number)
            if replica is None or replica.read_only or replica.is_ready_leader():
                del self._behind[number]
                continue
            leader = self._directory.node_of(replica.leader_replica_id)
            if leader is not None and leader != self._node_id:
                by_node.setdefault(leader, []).append(number)
        for node_id, numbers in by_node.items():
            for status in await self._statuses(node_id):
                if status.raft_group in numbers and status.leader:
                    self._take(status)

    async def _statuses(self, node_id: str) -> Sequence[pb.ReplicaStatus]:
        endpoint = self._directory.endpoint_of(node_id)
        if endpoint is None:
            return ()
        try:
            response = await self._channels.get(endpoint).call(
                _STATUS, pb.GetStatusRequest(), pb.GetStatusResponse, timeout_s=_ASK_TIMEOUT_S
            )
        except AngeliaError:
            return ()
        return response.replicas

    def _take(self, leader: pb.ReplicaStatus) -> None:
        replica = self._node.replicas().get(leader.raft_group)
        if replica is None:
            return
        wanted = self._behind.get(leader.raft_group)
        if wanted is not None and replica.applied_index >= wanted:
            self._behind.pop(leader.raft_group)
        elif leader.raft_group in self._behind and wanted is None:
            self._behind[leader.raft_group] = leader.commit_index


def _not_hosted(raft_group: int, missing: MissingReplica) -> Problem:
    """Return the problem that a wanted replica is; before its first try it is on its way."""
    severity = Severity.DEGRADED if missing.reason else Severity.NOTE
    return Problem("raft_group", str(raft_group), "NOT_HOSTED", severity, missing.text())
