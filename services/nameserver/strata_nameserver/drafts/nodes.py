"""Changes of nodes: registered, drained, removed, judged; one draft each.

The row of a node is found by its node id, which lives in its data folder (rule 8): a node with an
emptied folder is a new node. The first raft groups are made in the draft by which a storage node
completes the initial set, with all slots striped over them (rule 19): it registers, for the first
time or again, or is taken back into service.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from strata.meta.v1 import meta_pb2
from strata_metadata.errors import MetaRefused
from strata_nameserver.base.config import NameserverConfig
from strata_nameserver.base.errors import invalid
from strata_nameserver.drafts.raft_groups import put_initial_raft_groups
from strata_nameserver.policies.detector import Transition
from strata_nameserver.state.draft import Draft
from strata_runtime.addresses import host_and_port

_NODE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_MAX_ENDPOINTS = 8
_MAX_ENDPOINT_BYTES = 255
_IN_PROCESS = "inproc:"
_KINDS = (
    meta_pb2.NODE_KIND_NAMESERVER,
    meta_pb2.NODE_KIND_STORAGE,
    meta_pb2.NODE_KIND_BROKER,
)


def register_node(
    draft: Draft, wanted: meta_pb2.Node, config: NameserverConfig, *, is_heard: bool = False
) -> None:
    """Write the node's row; make the first raft groups when enough storage nodes are there.

    A node that is known, tells nothing new and completes nothing leaves the draft empty. Draining
    outlives a restart of the node; its state is UP.

    Args:
        draft: the change.
        wanted: the node as it says it is.
        config: limits.
        is_heard: the process in the row is alive. One that started earlier does not replace it: its
            request comes late, or two processes share a node id.

    Raises:
        MetaRefused: INVALID or LIMIT_REACHED; CONFLICT: a later process is heard, or the process
            was removed.
    """
    _check(wanted)
    node = meta_pb2.Node(
        node_id=wanted.node_id,
        kind=wanted.kind,
        endpoints=wanted.endpoints,
        advertised_endpoint=wanted.advertised_endpoint,
        remoting_endpoint=wanted.remoting_endpoint,
        boot_id=wanted.boot_id,
        rack=wanted.rack,
        machine=wanted.machine,
        machine_nodes=wanted.machine_nodes,
        metadata_replica_id=wanted.metadata_replica_id,
        row_format=wanted.row_format,
        version=wanted.version,
        started_at_ms=wanted.started_at_ms,
        state=meta_pb2.NODE_STATE_UP,
        registered_at_ms=draft.now_ms,
        state_since_ms=draft.now_ms,
    )
    known = draft.topology.nodes.get(wanted.node_id)
    if known is None:
        _check_new(draft, node, config)
        draft.counters.node_count += 1
        draft.put(node)
        _complete(draft, node, config)
        return
    if known.kind != node.kind:
        raise invalid(
            f"node {node.node_id} is registered as {meta_pb2.NodeKind.Name(known.kind)}, "
            f"not {meta_pb2.NodeKind.Name(node.kind)}"
        )
    if is_heard and known.boot_id != node.boot_id and _is_later(known, node):
        raise MetaRefused(
            meta_pb2.META_OUTCOME_CONFLICT,
            f"another process is heard that registered as node {node.node_id} and started later: "
            "if both run, they share a data folder or a copy of one, and one must be stopped",
        )
    node.registered_at_ms = known.registered_at_ms
    node.draining = known.draining
    node.down_ms = known.down_ms
    if known.state == node.state:
        node.state_since_ms = known.state_since_ms
    node.revision = known.revision
    if node != known:
        draft.put(node)
    _complete(draft, node, config)


def change_states(draft: Draft, transitions: Sequence[Transition]) -> None:
    """Write the states that the failure detector found, all in one change."""
    for transition in transitions:
        known = draft.topology.nodes.get(transition.node_id)
        if known is None or known.state == transition.state:
            continue
        node = _copy(known)
        node.state = transition.state
        node.state_since_ms = draft.now_ms
        draft.put(node)


def keep_down_times(draft: Draft, down_ms: Mapping[str, int]) -> None:
    """Write how long nodes were DOWN since they were last steadily UP, all in one change."""
    for node_id, value_ms in down_ms.items():
        known = draft.topology.nodes.get(node_id)
        if known is None or known.down_ms == value_ms:
            continue
        node = _copy(known)
        node.down_ms = value_ms
        draft.put(node)


def forget_brokers(draft: Draft, delay_ms: int) -> None:
    """Remove brokers that are DOWN for so long: one that is replaced never says goodbye."""
    for node in draft.topology.nodes_of(meta_pb2.NODE_KIND_BROKER):
        down_ms = draft.now_ms - node.state_since_ms
        if node.state == meta_pb2.NODE_STATE_DOWN and down_ms >= delay_ms:
            draft.counters.node_count -= 1
            draft.delete(_may_return(node))


def drain_node(
    draft: Draft, node_id: str, config: NameserverConfig, *, draining: bool
) -> meta_pb2.Node:
    """Take a node out of service, or back into it; then it may complete the initial set.

    Raises:
        MetaRefused: NOT_FOUND; INVALID for a nameserver, which is not drained; CONFLICT for a node
            that runs when no other one could take over.
    """
    known = _stored_node(draft, node_id)
    if known.kind == meta_pb2.NODE_KIND_NAMESERVER:
        raise invalid(f"node {node_id} is a nameserver: stop it, or remove it")
    if draining and not known.draining:
        _check_others(draft, known)
    node = _copy(known)
    if node.draining != draining:
        node.draining = draining
        draft.put(node)
        _complete(draft, node, config)
    return node


def remove_node(draft: Draft, node_id: str, *, force: bool, boot_id: int = 0) -> meta_pb2.Node:
    """Forget a node.

    Args:
        draft: the change.
        node_id: of the node.
        force: remove it whatever it holds.
        boot_id: of the process that leaves, which does not register again; 0: an operator's wish.

    Raises:
        MetaRefused: NOT_FOUND, also for a process that another one has replaced; CONFLICT, if
            `force` is not set, while a storage node has replicas, and for the only storage node or
            broker that runs.
    """
    node = _stored_node(draft, node_id)
    if boot_id not in (0, node.boot_id):
        raise MetaRefused(
            meta_pb2.META_OUTCOME_NOT_FOUND, f"another process of node {node_id} is registered"
        )
    if not force:
        _check_others(draft, node)
    replicas = draft.topology.replicas_on(node_id)
    if replicas and not force:
        raise MetaRefused(
            meta_pb2.META_OUTCOME_CONFLICT,
            f"node {node_id} has replicas of {len(replicas)} raft groups "
            f"({', '.join(map(str, replicas[:8]))}): drain it first, dead or alive; or --force "
            "if its data is lost for good",
        )
    draft.counters.node_count -= 1
    if node.kind == meta_pb2.NODE_KIND_STORAGE or boot_id:
        draft.delete(node)
    else:
        draft.delete(_may_return(node))
    return node


def _may_return(node: meta_pb2.Node) -> meta_pb2.Node:
    """Return a row for a deletion after which the same process may register (`RemovedNodes`)."""
    row = _copy(node)
    row.boot_id = 0
    return row


def _check_new(draft: Draft, node: meta_pb2.Node, config: NameserverConfig) -> None:
    """Let a node in that has no row.

    Raises:
        MetaRefused: CONFLICT or LIMIT_REACHED.
    """
    if node in draft.removed_nodes:
        raise MetaRefused(
            meta_pb2.META_OUTCOME_CONFLICT,
            f"this process of node {node.node_id} was removed: start it again to join",
        )
    if draft.counters.node_count >= config.max_nodes:
        raise MetaRefused(
            meta_pb2.META_OUTCOME_LIMIT_REACHED,
            f"there are {config.max_nodes} nodes already (nameserver.max_nodes)",
        )


def _is_later(known: meta_pb2.Node, wanted: meta_pb2.Node) -> bool:
    """Tell whether a process of a node started after another one of it, as far as they say.

    Between two that do not say, one and the same counts as the later one each time: else they would
    replace each other without end.
    """
    if bool(known.started_at_ms) != bool(wanted.started_at_ms):
        return False
    return (known.started_at_ms, known.boot_id) > (wanted.started_at_ms, wanted.boot_id)


def _complete(draft: Draft, node: meta_pb2.Node, config: NameserverConfig) -> None:
    """Make the first raft groups if a node, as it is from now on, completes the initial set."""
    if node.kind == meta_pb2.NODE_KIND_STORAGE:
        put_initial_raft_groups(draft, node, config)


def _check_others(draft: Draft, leaving: meta_pb2.Node) -> None:
    """Let a node go that runs if another one of its kind runs, too.

    Raises:
        MetaRefused: CONFLICT.
    """
    if leaving.kind == meta_pb2.NODE_KIND_NAMESERVER or leaving.state != meta_pb2.NODE_STATE_UP:
        return
    stays = any(
        node.kind == leaving.kind
        and node.node_id != leaving.node_id
        and node.state == meta_pb2.NODE_STATE_UP
        and not node.draining
        for node in draft.topology.nodes.values()
    )
    if not stays:
        kind = "broker" if leaving.kind == meta_pb2.NODE_KIND_BROKER else "storage node"
        raise MetaRefused(
            meta_pb2.META_OUTCOME_CONFLICT,
            f"node {leaving.node_id} is the only {kind} that runs: start another one first",
        )


def _stored_node(draft: Draft, node_id: str) -> meta_pb2.Node:
    node = draft.topology.nodes.get(node_id)
    if node is None:
        raise MetaRefused(meta_pb2.META_OUTCOME_NOT_FOUND, f"node {node_id} does not exist")
    return node


def _copy(node: meta_pb2.Node) -> meta_pb2.Node:
    copy = meta_pb2.Node()
    copy.CopyFrom(node)
    return copy


def _check(node: meta_pb2.Node) -> None:
    if not _NODE_ID.fullmatch(node.node_id):
        raise invalid("node_id must be 1 to 64 of A-Z a-z 0-9 . _ -")
    if node.kind not in _KINDS:
        raise invalid(f"node {node.node_id}: kind is missing")
    texts = [
        *node.endpoints,
        node.advertised_endpoint,
        node.remoting_endpoint,
        node.rack,
        node.machine,
        node.version,
    ]
    if len(node.endpoints) > _MAX_ENDPOINTS or any(
        len(text.encode()) > _MAX_ENDPOINT_BYTES for text in texts
    ):
        raise invalid(
            f"node {node.node_id}: at most {_MAX_ENDPOINTS} endpoints, and no text above "
            f"{_MAX_ENDPOINT_BYTES} bytes"
        )
    if node.kind == meta_pb2.NODE_KIND_BROKER and ":" not in node.advertised_endpoint:
        raise invalid(f"broker {node.node_id}: advertised_endpoint must be host:port")
    _check_endpoints(node)


def _check_endpoints(node: meta_pb2.Node) -> None:
    """Refuse an endpoint that is no address: every other node would try to connect to it.

    Raises:
        MetaRefused: INVALID.
    """
    inside = [endpoint for endpoint in node.endpoints if not endpoint.startswith(_IN_PROCESS)]
    # Clients connect to these: they are addresses, or there is none.
    outside = filter(None, (node.advertised_endpoint, node.remoting_endpoint))
    for endpoint in (*inside, *outside):
        try:
            host_and_port(endpoint)
        except ValueError as error:
            raise invalid(f"node {node.node_id}: endpoint {error}") from None
