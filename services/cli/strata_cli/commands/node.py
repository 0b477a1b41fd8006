"""The commands of `strata node`; `common` is described by its type."""

# ruff: noqa: D417

from __future__ import annotations

import time
from typing import Annotated

from cyclopts import App, Parameter

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_cli.client import AdminClient, connect
from strata_cli.cluster_views import node_view, node_views, replica_view
from strata_cli.confirming import DryRun, Yes, confirm
from strata_cli.errors import CliError, UsageError
from strata_cli.options import COMMON, Common, seconds
from strata_cli.output import show
from strata_cli.progress import progress
from strata_cli.views import View
from strata_cli.watching import INTERVAL, Interval, Watch, look

NodeName = Annotated[str, Parameter(help="Id of the node, or one of its endpoints.")]

_POLL_S = 0.5
_COLUMNS = ("node", "role", "state", "draining", "endpoints", "machine", "rack")

app = App(name="node", help="Nodes: nameservers, storage nodes, brokers.")


def node_id_of(client: AdminClient, name: str) -> str:
    """Return the id of the node that has an id or an endpoint.

    Raises:
        CliError: no node has it, or more than one has it.
    """
    return _find(client, name)[0].node_id


@app.command(name=["list", "ls"])
def list_(*, watch: Watch = False, interval: Interval = INTERVAL, common: Common = COMMON) -> None:
    """List the nodes with their states, replicas, load and disks.

    For instance: strata node list -o json
    """
    with connect(common) as client:

        def draw() -> None:
            cluster = client.call(client.admin.GetCluster, admin_pb2.GetClusterRequest())
            placement = client.call(client.admin.GetPlacement, admin_pb2.GetPlacementRequest())
            nodes = node_views(cluster, placement)
            show({"nodes": nodes}, common, rows="nodes", columns=_listed(nodes, common))

        look(draw, common, watch=watch, interval=interval)


def _listed(nodes: list[View], common: Common) -> tuple[str, ...]:
    """Return the columns of the list; a terminal gets none that says nothing of any node."""
    facts = (
        *("version", "uptime_ms"),
        *("slow", "replicas", "leaders", "bytes_per_s", "disk_free_bytes"),
    )
    columns = (*_COLUMNS[:4], *facts, *_COLUMNS[4:])
    if common.output == "wide":
        return columns
    return tuple(
        column
        for column in columns
        if column in ("node", "role", "state", "endpoints")
        or (column != "bytes_per_s" and any(node[column] for node in nodes))
    )


@app.command(name="show")
def show_(name: NodeName, /, *, common: Common = COMMON) -> None:
    """Show a node; for a storage node also its replicas.

    For instance: strata node show storage-0a1b2c3d4e5f -o json
    """
    with connect(common) as client:
        node, cluster = _find(client, name)
        replicas = []
        if node.kind == meta_pb2.NODE_KIND_STORAGE:
            replicas = _replicas_on(client, node.node_id, cluster)
    columns = ("raft_group", "replica_id", "role", "leader", "state", "last_index", "reason")
    condition = next((each for each in cluster.conditions if each.node_id == node.node_id), None)
    view = node_view(node, condition) | {"replicas": replicas}
    show(view, common, rows="replicas", columns=columns)


@app.command
def drain(
    name: Annotated[str, Parameter(help="Id of the node, one of its endpoints, or a machine.")],
    /,
    *,
    undo: Annotated[bool, Parameter(negative="")] = False,
    wait: str = "",
    common: Common = COMMON,
) -> None:
    """Take a node out of service while traffic flows: leaders, replicas and routes move away.

    The name of a machine drains all its nodes. Without --wait the command returns when the drain
    is recorded; `strata node show` shows its progress.

    For instance: strata node drain storage-0a1b2c3d4e5f --wait 10m

    Args:
        undo: Return the node to service.
        wait: Return when no replica is left on the node, at most after this time.
    """
    wait_s = seconds(wait) if wait else 0.0
    if wait and undo:
        raise UsageError("give --wait or --undo, not both")
    with connect(common) as client:
        on_machine = _on_machine(client, name)
        drained = []
        for node_id in on_machine or [node_id_of(client, name)]:
            request = admin_pb2.DrainNodeRequest(node_id=node_id, draining=not undo)
            drained.append(node_view(client.call(client.admin.DrainNode, request).node))
        if wait:
            _until_empty(client, {each["node"] for each in drained}, wait_s)
    if on_machine:
        show({"nodes": drained}, common, rows="nodes", columns=_COLUMNS)
    else:
        show(drained[0], common)


@app.command
def remove(
    name: NodeName,
    /,
    *,
    force: Annotated[bool, Parameter(negative="")] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    common: Common = COMMON,
) -> None:
    """Remove a stopped node that holds no replicas.

    A broker that still runs registers again; a storage node stays removed until its next start.
    Drain a node that has replicas, also a dead one; if its data is lost for good, use --force.

    For instance: strata node remove storage-0a1b2c3d4e5f

    Args:
        force: The node is lost for good: give up its replicas and rebuild them from the others.
    """
    with connect(common) as client:
        node, cluster = _find(client, name)
        node_id = node.node_id
        if dry_run:
            held = [each["raft_group"] for each in _replicas_on(client, node_id, cluster)]
            show({"would_remove": node_id, "raft_groups": held}, common)
            return
        confirm(f"Node {node_id} is removed from the cluster", yes=yes)
        request = admin_pb2.RemoveNodeRequest(node_id=node_id, force=force)
        client.call(client.admin.RemoveNode, request)
    show({"removed": node_id}, common)


def _until_empty(client: AdminClient, node_ids: set[str], limit_s: float) -> None:
    """Wait until nodes hold no replicas.

    Raises:
        CliError: some are left after the time limit; the drain goes on.
    """
    deadline_s, most = time.monotonic() + limit_s, 0
    with progress("drain") as shown:
        while True:
            cluster = client.call(client.admin.GetCluster, admin_pb2.GetClusterRequest())
            held = sum(len(_replicas_on(client, each, cluster)) for each in node_ids)
            most = max(most, held)
            shown.set(most - held, most, "replicas")
            if not held:
                return
            if time.monotonic() >= deadline_s:
                raise CliError(
                    f"{held} replicas are still on {', '.join(sorted(node_ids))}; the drain goes on"
                )
            time.sleep(_POLL_S)


def _replicas_on(
    client: AdminClient, node_id: str, cluster: admin_pb2.GetClusterResponse
) -> list[View]:
    """Return the replicas on a node with their raft groups."""
    found = []
    for health in cluster.raft_groups:
        request = admin_pb2.GetRaftGroupRequest(raft_group=health.raft_group)
        group = client.call(client.admin.GetRaftGroup, request)
        found += [
            {"raft_group": health.raft_group, **replica_view(replica)}
            for replica in group.replicas
            if replica.node_id == node_id
        ]
    return found


def _on_machine(client: AdminClient, machine: str) -> list[str]:
    """Return the ids of the nodes of a machine; none: there is no machine of that name."""
    cluster = client.call(client.admin.GetCluster, admin_pb2.GetClusterRequest())
    return sorted(node.node_id for node in cluster.nodes if machine and node.machine == machine)


def _find(client: AdminClient, name: str) -> tuple[meta_pb2.Node, admin_pb2.GetClusterResponse]:
    cluster = client.call(client.admin.GetCluster, admin_pb2.GetClusterRequest())
    found = [node for node in cluster.nodes if node.node_id == name or name in node.endpoints]
    if not found:
        known = ", ".join(
            " at ".join([node.node_id, *node.endpoints[:1]]) for node in cluster.nodes
        )
        raise CliError(f"node {name} does not exist; the nodes are {known}", "not_found")
    if len(found) > 1:
        # An emptied data folder makes a new node with an old endpoint; both may be listed.
        ids = ", ".join(node.node_id for node in found)
        raise CliError(f"{name} is the endpoint of several nodes: {ids}")
    return found[0], cluster
