"""`strata cluster`, `raft-group`, `replica` and `leader`; `common` is described by its type."""

# ruff: noqa: D417

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from strata.admin.v1 import admin_pb2
from strata_cli.client import connect
from strata_cli.cluster_views import (
    cluster_nodes,
    health_view,
    placement_view,
    raft_group_view,
)
from strata_cli.commands.node import node_id_of
from strata_cli.confirming import DryRun, Yes, confirm
from strata_cli.options import COMMON, Common, seconds
from strata_cli.output import show
from strata_cli.watching import INTERVAL, Interval, Watch, look

RaftGroup = Annotated[int, Parameter(help="Number of the raft group.")]

cluster = App(name="cluster", help="The whole cluster.")
raft_group = App(name="raft-group", help="Raft groups.")
replica = App(name="replica", help="Replicas of raft groups.")
leader = App(name="leader", help="Leaders of raft groups.")

_GROUP_COLUMNS = (
    "raft_group",
    "broker_name",
    "leader",
    "term",
    "commit_index",
    "state",
    "replicas",
    "reason",
)


@cluster.command(name="show")
def show_cluster(
    *, watch: Watch = False, interval: Interval = INTERVAL, common: Common = COMMON
) -> None:
    """Show nodes and raft groups.

    For instance: strata cluster show -o json
    """
    with connect(common) as client:

        def draw() -> None:
            request = admin_pb2.GetClusterRequest()
            _show_cluster(client.call(client.admin.GetCluster, request), common)

        look(draw, common, watch=watch, interval=interval)


def _show_cluster(response: admin_pb2.GetClusterResponse, common: Common) -> None:
    nodes = cluster_nodes(response)
    age = {
        "metadata_age_ms": response.metadata_age_ms,
        "metadata_stale": response.metadata_is_stale,
    }
    if common.for_programs:
        groups = [health_view(health) for health in response.raft_groups]
        show(
            {"version": response.version, "nodes": nodes, "raft_groups": groups, **age},
            common,
        )
        return
    result: dict[str, object] = {"version": response.version, "nodes": nodes}
    if response.metadata_is_stale:
        result["metadata"] = f"{response.metadata_age_ms // 1_000} s old: no nameserver answers"
    columns = ("node", "role", "state", "draining", "endpoints", "machine", "rack", "reason")
    show(result, common, rows="nodes", columns=columns)
    print()
    _show_groups(response, common)


@cluster.command(name="health")
def cluster_health(
    *,
    wait: str = "",
    watch: Annotated[bool, Parameter(negative="")] = False,
    common: Common = COMMON,
) -> int:
    """Show the health of the cluster; exit code 0: healthy, 1: degraded, 2: down.

    For instance: strata cluster health --wait 60 -o json

    Args:
        wait: Ask again until the cluster is healthy, for at most this time (60, 60s or 5m).
        watch: Ask again until Ctrl-C and print every change.
    """
    from strata_cli.cluster_health import run

    return run(common, wait_s=seconds(wait) if wait else 0.0, watches=watch)


@cluster.command
def rotate_key(*, common: Common = COMMON) -> None:
    """Make a new key that brokers sign handles and session tokens with.

    The key before it stays valid; what was signed with an older key is refused from now on.

    For instance: strata cluster rotate-key
    """
    with connect(common) as client:
        request = admin_pb2.RotateClusterKeyRequest()
        response = client.call(client.admin.RotateClusterKey, request)
    show({"key_id": response.key_id}, common)


@raft_group.command(name="list")
def list_raft_groups(*, common: Common = COMMON) -> None:
    """List raft groups with their leaders.

    For instance: strata raft-group list -o json
    """
    with connect(common) as client:
        response = client.call(client.admin.GetCluster, admin_pb2.GetClusterRequest())
    _show_groups(response, common)


@raft_group.command(name="show")
def show_raft_group(number: RaftGroup, /, *, common: Common = COMMON) -> None:
    """Show a raft group and each of its replicas.

    For instance: strata raft-group show 1 -o json
    """
    request = admin_pb2.GetRaftGroupRequest(raft_group=number)
    with connect(common) as client:
        response = client.call(client.admin.GetRaftGroup, request)
    show(raft_group_view(response), common, rows="replicas")


def _show_groups(response: admin_pb2.GetClusterResponse, common: Common) -> None:
    groups = [health_view(health) for health in response.raft_groups]
    if not common.for_programs:
        groups = [
            {**group, "replicas": f"{group['replicas_live']} of {group['replicas_wanted']}"}
            for group in groups
        ]
    show({"raft_groups": groups}, common, rows="raft_groups", columns=_GROUP_COLUMNS)


@replica.command(name="add")
def add_replica(
    number: RaftGroup,
    /,
    *,
    node: str,
    learner: Annotated[bool, Parameter(negative="")] = False,
    common: Common = COMMON,
) -> None:
    """Add a replica to a raft group; the replica catches up before it votes.

    For instance: strata replica add 1 --node storage-0a1b2c3d4e5f

    Args:
        node: Storage node that gets the replica: its id or one of its endpoints.
        learner: The replica serves reads and never votes.
    """
    with connect(common) as client:
        request = admin_pb2.ChangeReplicasRequest(
            raft_group=number, add_node_ids=[node_id_of(client, node)], learners=learner
        )
        response = client.call(client.admin.ChangeReplicas, request)
    show(placement_view(response.raft_group), common, rows="replicas")


@replica.command(name="remove")
def remove_replica(
    number: RaftGroup,
    /,
    *,
    node: str,
    yes: Yes = False,
    dry_run: DryRun = False,
    common: Common = COMMON,
) -> None:
    """Remove a replica from a raft group.

    For instance: strata replica remove 1 --node storage-0a1b2c3d4e5f

    Args:
        node: Storage node whose replica is removed: its id or one of its endpoints.
    """
    with connect(common) as client:
        node_id = node_id_of(client, node)
        if dry_run:
            wanted = admin_pb2.GetRaftGroupRequest(raft_group=number)
            group = client.call(client.admin.GetRaftGroup, wanted)
            stay = [each.node_id for each in group.replicas if each.node_id != node_id]
            there = len(stay) < len(group.replicas)
            result = {"raft_group": number, "would_remove": node_id if there else "", "stay": stay}
            show(result, common)
            return
        confirm(f"The replica of raft group {number} on {node_id} is removed", yes=yes)
        request = admin_pb2.ChangeReplicasRequest(raft_group=number, remove_node_ids=[node_id])
        response = client.call(client.admin.ChangeReplicas, request)
    show(placement_view(response.raft_group), common, rows="replicas")


@leader.command
def transfer(number: RaftGroup, /, *, to: str = "", common: Common = COMMON) -> None:
    """Transfer the leadership of a raft group.

    For instance: strata leader transfer 1 --to storage-0a1b2c3d4e5f

    Args:
        to: Storage node that should lead: its id or one of its endpoints; default: any other node.
    """
    with connect(common) as client:
        request = admin_pb2.TransferLeaderRequest(
            raft_group=number, to_node_id=node_id_of(client, to) if to else ""
        )
        response = client.call(client.admin.TransferLeader, request)
    show({"raft_group": number, "leader": response.leader_node_id}, common)
