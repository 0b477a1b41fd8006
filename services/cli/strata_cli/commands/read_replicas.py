"""Read replicas of a topic: adds and removes learners of the raft groups that hold its queues.

A topic has no read replicas of its own: they serve all topics in those raft groups. `next_change`
chooses a change and `set_read_replicas` carries it out. It waits for a raft group that is still
carrying out an earlier change.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import NamedTuple

import grpc

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_cli.client import AdminClient, CallFailed
from strata_cli.errors import CliError

_POLL_S = 0.2
_STILL_CHANGING = grpc.StatusCode.FAILED_PRECONDITION
"""How ChangeReplicas refuses a change while an earlier one is under way; nothing else has it."""


class LearnerChange(NamedTuple):
    """Learners to add and to remove.

    Attributes:
        add: nodes that get a learner.
        remove: nodes that lose their learner.
    """

    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()


def next_change(
    row: meta_pb2.RaftGroup,
    count: int,
    loads: Mapping[str, float],
    *,
    fit: Collection[str],
    machines: Mapping[str, str],
) -> LearnerChange:
    """Return the change that gives a raft group `count` read replicas.

    Args:
        row: the raft group.
        count: how many it should have.
        loads: of nodes, in bytes per second: the least loaded node gets a replica, the most
            loaded one loses it.
        fit: nodes that may get a replica.
        machines: of nodes; one that is not there is a machine of its own. A machine that has a
            replica gets no other.

    Raises:
        CliError: there are too few nodes on other machines.
    """
    readers = [replica.node_id for replica in row.replicas if replica.learner]
    if len(readers) >= count:
        by_load = sorted(readers, key=lambda node: (loads.get(node, 0.0), node))
        return LearnerChange(remove=tuple(by_load[count:]))
    taken = {replica.node_id for replica in (*row.replicas, *row.leaving)}
    places = {machines.get(node) or node for node in taken}
    free: list[str] = []
    for node in sorted(set(fit) - taken, key=lambda node: (loads.get(node, 0.0), node)):
        place = machines.get(node) or node
        if place not in places:
            places.add(place)
            free.append(node)
    missing = count - len(readers)
    if len(free) < missing:
        raise CliError(
            f"raft group {row.raft_group} has {len(taken)} replicas, and {len(free)} storage nodes "
            f"on other machines could take one; {missing} more are asked for: add storage nodes"
        )
    return LearnerChange(add=tuple(free[:missing]))


def set_read_replicas(client: AdminClient, namespace: str, topic: str, count: int) -> None:
    """Give every raft group that holds queues of a topic `count` read replicas.

    Raises:
        CliError: there are too few nodes, or a raft group accepts no change in time.
    """
    request = admin_pb2.GetTopicRequest(namespace=namespace, name=topic)
    queues = client.call(client.admin.GetTopic, request).queues
    cluster = client.call(client.admin.GetCluster, admin_pb2.GetClusterRequest())
    shown = client.call(client.admin.GetPlacement, admin_pb2.GetPlacementRequest())
    slow = {load.node_id for load in shown.loads if load.is_slow}
    fit = [
        node.node_id
        for node in cluster.nodes
        if node.kind == meta_pb2.NODE_KIND_STORAGE
        and node.state == meta_pb2.NODE_STATE_UP
        and not node.draining
        and node.node_id not in slow
    ]
    loads = {load.node_id: load.bytes_per_s for load in shown.loads}
    machines = {node.node_id: node.machine for node in cluster.nodes if node.machine}
    for number in sorted({queue.raft_group for queue in queues}):
        wanted = admin_pb2.GetRaftGroupRequest(raft_group=number)
        row = client.call(client.admin.GetRaftGroup, wanted).row
        change = next_change(row, count, loads, fit=fit, machines=machines)
        if change.add:
            _change(client, number, change.add, adds=True)
        if change.remove:
            _change(client, number, change.remove, adds=False)


def _change(client: AdminClient, raft_group: int, node_ids: tuple[str, ...], *, adds: bool) -> None:
    request = admin_pb2.ChangeReplicasRequest(
        raft_group=raft_group,
        add_node_ids=node_ids if adds else (),
        remove_node_ids=() if adds else node_ids,
        learners=adds,
    )
    ends_s = time.monotonic() + client.timeout_s
    while True:
        try:
            client.call(client.admin.ChangeReplicas, request)
        except CallFailed as error:
            if error.status is not _STILL_CHANGING or time.monotonic() >= ends_s:
                raise
            time.sleep(_POLL_S)
        else:
            return
