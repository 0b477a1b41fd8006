"""Changes of the rows of raft groups: made, changed, and updated by their leaders' reports.

`replicas` holds the desired replicas, `membership` the members as the leader reported them,
`leaving` the nodes of members that are to be removed (docs: data-layout.md, section 7). A node
hosts the replicas that `replicas` or `leaving` lists for it; so a replica may be forgotten only
when it is in no configuration any more. Replica ids are counted up and never given twice (rule 8).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from strata.meta.v1 import meta_pb2
from strata_metadata.errors import MetaRefused
from strata_metadata.view import NO_RAFT_GROUP
from strata_mq.slots import slot_runs, striped_slots
from strata_nameserver.base.config import NameserverConfig
from strata_nameserver.base.errors import invalid
from strata_nameserver.policies.facts import GroupFacts, NodeFacts
from strata_nameserver.policies.leaders import PreferLeader
from strata_nameserver.policies.replicas import ChangeReplica, layout_of_new, machine_count
from strata_nameserver.state.draft import Draft
from strata_nameserver.state.topology import Topology

# Most that one change adds later: they fit into a raft entry, and are chosen quickly.
_MAX_NEW_RAFT_GROUPS = 200
# Most that a cluster begins with: even with the longest names they and all slots fit into an entry.
_MAX_FIRST_RAFT_GROUPS = 1_000


def put_initial_raft_groups(draft: Draft, joining: meta_pb2.Node, config: NameserverConfig) -> None:
    """Make the first raft groups, and stripe all slots over them, when enough machines are there.

    A machine is there when all the nodes are that it starts together. At most
    `_MAX_FIRST_RAFT_GROUPS` are made here; `missing_raft_groups` brings the others. Nodes that are
    not up take no part: raft groups of which most replicas are on dead nodes never start.

    Args:
        draft: the change that writes `joining`, or finds it as it is.
        joining: the row of a storage node as it is from this change on.
        config: how many machines are enough, replicas and raft groups.
    """
    topology = draft.topology
    if any(owner != NO_RAFT_GROUP for owner in topology.slot_owners):
        return
    known = topology.nodes_of(meta_pb2.NODE_KIND_STORAGE)
    nodes = [*(node for node in known if node.node_id != joining.node_id), joining]
    usable = _first_nodes(nodes, config)
    if not usable:
        return
    facts = [NodeFacts(node.node_id, node.rack, node.machine) for node in usable]
    count = min(config.raft_groups_per_storage_node * len(usable), _MAX_FIRST_RAFT_GROUPS)
    layout = layout_of_new(facts, count, config.placement_rules())
    raft_groups = _put_all_new(draft, layout)
    for first_slot, slot_count, raft_group in slot_runs(striped_slots(raft_groups)):
        draft.put(
            meta_pb2.SlotRange(first_slot=first_slot, slot_count=slot_count, raft_group=raft_group)
        )


def lacks_first_raft_groups(topology: Topology, config: NameserverConfig) -> bool:
    """Tell whether enough machines are there, and no registration has found that yet.

    The last one to be there may have come by a sign of life only, or the setting is another one.
    """
    if topology.raft_groups:
        return False
    return bool(_first_nodes(topology.nodes_of(meta_pb2.NODE_KIND_STORAGE), config))


def missing_raft_groups(
    nodes: Collection[NodeFacts], groups: Collection[GroupFacts], config: NameserverConfig
) -> list[list[str]]:
    """Return the nodes of each raft group that nodes which joined later bring, first leaders first.

    At most `_MAX_NEW_RAFT_GROUPS`: the next turn finds the others missing.

    They are made with all their replicas or not yet: with two, the loss of either would stop one
    for good, before placement gave it its third. There are never fewer raft groups again: those of
    a node that leaves go to others as a whole.
    """
    rules = config.placement_rules()
    steady = [
        node
        for node in nodes
        if node.can_take
        and node.state_ms >= rules.leader_balance_delay_ms
        and node.is_steady(rules)
    ]
    count = config.raft_groups_per_storage_node * len(steady) - len(groups)
    if not groups or count <= 0 or machine_count(steady) < rules.replication_factor:
        return []
    return layout_of_new(steady, min(count, _MAX_NEW_RAFT_GROUPS), rules, groups)


def put_more_raft_groups(draft: Draft, layout: Sequence[Sequence[str]]) -> None:
    """Make raft groups; they own no slot until slots are moved to them (rule 17)."""
    _put_all_new(draft, layout)


def take_reports(draft: Draft, reports: Iterable[meta_pb2.LedGroup]) -> None:
    """Write down the configurations that leaders reported, and forget replicas that have left."""
    for report in reports:
        row = draft.topology.raft_groups.get(report.raft_group)
        if row is None or not is_news(report, row):
            continue
        changed = _copy(row)
        if is_newer(report.membership, row.membership):
            changed.membership.CopyFrom(report.membership)
        if is_fulfilled(report, row):
            members = member_ids(changed)
            staying = [replica for replica in changed.leaving if replica.replica_id in members]
            del changed.leaving[:]
            changed.leaving.extend(staying)
        draft.put(changed)


def is_news(report: meta_pb2.LedGroup, row: meta_pb2.RaftGroup) -> bool:
    """Tell whether a report changes a row: another configuration, or replicas that have left."""
    if is_newer(report.membership, row.membership):
        return True
    members = set(report.membership.voters) | set(report.membership.learners)
    return is_fulfilled(report, row) and any(
        replica.replica_id not in members for replica in row.leaving
    )


def is_fulfilled(report: meta_pb2.LedGroup, row: meta_pb2.RaftGroup) -> bool:
    """Tell whether the leader has seen the row as it is and has nothing left to do for it.

    Only then is a replica that the row let go in no configuration for good: before, a change that
    makes it a voter may be under way.
    """
    return 0 < row.revision <= report.settled_revision


def is_newer(report: meta_pb2.Membership, known: meta_pb2.Membership) -> bool:
    """Tell whether a report replaces what is known: only by a rising index."""
    return report.configuration_index > known.configuration_index


def member_ids(row: meta_pb2.RaftGroup) -> set[int]:
    """Return the replica ids that take part in a raft group, as its leader reported."""
    membership = row.membership
    return {*membership.voters, *membership.learners, *membership.outgoing}


def change_replicas(
    draft: Draft,
    raft_group: int,
    add_node_ids: Sequence[str],
    remove_node_ids: Sequence[str],
    *,
    learners: bool,
) -> meta_pb2.RaftGroup:
    """Change where the replicas of a raft group belong, as an operator wants it.

    Raises:
        MetaRefused: NOT_FOUND: no such raft group or node; INVALID: nothing to do, a node or its
            machine has a replica already, a node has none or is draining, or no voter would be
            left; CONFLICT: an earlier change is still being carried out.
    """
    row = _stored(draft, raft_group)
    if not add_node_ids and not remove_node_ids:
        raise invalid("name nodes to add or to remove")
    if not is_settled(row):
        raise MetaRefused(
            meta_pb2.META_OUTCOME_CONFLICT,
            f"raft group {raft_group} is still carrying out an earlier change: try again later",
        )
    changed = _copy(row)
    for node_id in remove_node_ids:
        _remove(changed, node_id)
    for node_id in add_node_ids:
        _check_target(draft, changed, node_id)
        _add(draft, changed, node_id, learner=learners)
    if all(replica.learner for replica in changed.replicas):
        raise invalid(f"raft group {raft_group} would have no voter")
    draft.put(changed)
    return changed


def prefer_leader(draft: Draft, raft_group: int, node_id: str) -> meta_pb2.RaftGroup:
    """Name the node that should lead a raft group; empty: any may.

    Raises:
        MetaRefused: NOT_FOUND; INVALID: the node has no voter of the raft group, or is draining.
    """
    row = _stored(draft, raft_group)
    voters = [replica.node_id for replica in row.replicas if not replica.learner]
    if node_id and node_id not in voters:
        raise invalid(f"node {node_id} has no voter of raft group {raft_group}")
    _check_stays(draft, node_id)
    changed = _copy(row)
    if changed.preferred_leader_node_id != node_id:
        changed.preferred_leader_node_id = node_id
        draft.put(changed)
    return changed


def carry_out(draft: Draft, steps: Sequence[ChangeReplica], wishes: Sequence[PreferLeader]) -> None:
    """Write down what placement chose, all in one change."""
    changed: dict[int, meta_pb2.RaftGroup] = {}
    for step in steps:
        row = changed[step.raft_group] = _copy(_stored(draft, step.raft_group))
        for replica in row.replicas:
            if replica.replica_id == step.remove_replica_id:
                _remove(row, replica.node_id)
                break
        if step.add_node_id:
            _add(draft, row, step.add_node_id, learner=step.is_learner)
    for wish in wishes:
        number = wish.raft_group
        row = changed[number] = changed.get(number) or _copy(_stored(draft, number))
        row.preferred_leader_node_id = wish.node_id
    for _, row in sorted(changed.items()):
        draft.put(row)


def is_settled(row: meta_pb2.RaftGroup) -> bool:
    """Tell whether the reported configuration is the desired one."""
    membership = row.membership
    return (
        not row.leaving
        and not membership.outgoing
        and {r.replica_id for r in row.replicas if not r.learner} == set(membership.voters)
        and {r.replica_id for r in row.replicas if r.learner} == set(membership.learners)
    )


def _first_nodes(nodes: Iterable[meta_pb2.Node], config: NameserverConfig) -> list[meta_pb2.Node]:
    """Return the nodes that the first raft groups may be on; none: they are not enough yet."""
    usable = [node for node in nodes if node.state == meta_pb2.NODE_STATE_UP and not node.draining]
    wanted = config.initial_storage_nodes or config.replication_factor
    return usable if _complete_machines(usable) >= wanted else []


def _complete_machines(nodes: Sequence[meta_pb2.Node]) -> int:
    """Return how many machines have all the nodes that they start together."""
    wanted = {_machine(node): node.machine_nodes for node in nodes}
    there = Counter(map(_machine, nodes))
    return sum(there[machine] >= count for machine, count in wanted.items())


def _machine(node: meta_pb2.Node) -> str:
    return NodeFacts(node.node_id, machine=node.machine).place


def _put_all_new(draft: Draft, layout: Sequence[Sequence[str]]) -> range:
    """Make raft groups on these nodes; return their numbers."""
    first = draft.counters.next_raft_group
    raft_groups = range(first, first + len(layout))
    draft.counters.next_raft_group += len(layout)
    for raft_group, node_ids in zip(raft_groups, layout, strict=True):
        _put_new(draft, raft_group, node_ids)
    return raft_groups


def _put_new(draft: Draft, raft_group: int, node_ids: Sequence[str]) -> None:
    first = draft.counters.next_replica_id
    draft.counters.next_replica_id += len(node_ids)
    replica_ids = range(first, first + len(node_ids))
    draft.put(
        meta_pb2.RaftGroup(
            raft_group=raft_group,
            replicas=[
                meta_pb2.Replica(replica_id=replica_id, node_id=node_id)
                for replica_id, node_id in zip(replica_ids, node_ids, strict=True)
            ],
            broker_name=f"strata-{raft_group}",
            initial_replica_ids=replica_ids,
            membership=meta_pb2.Membership(voters=replica_ids),
            preferred_leader_node_id=node_ids[0] if len(node_ids) > 1 else "",
        )
    )


def _add(draft: Draft, row: meta_pb2.RaftGroup, node_id: str, *, learner: bool) -> None:
    row.replicas.add(replica_id=draft.counters.next_replica_id, node_id=node_id, learner=learner)
    draft.counters.next_replica_id += 1


def _remove(row: meta_pb2.RaftGroup, node_id: str) -> None:
    """Take a node's replica off the desired ones; its node is kept until it takes no part.

    Whether it does is not told by the row: its leader may be about to make it a voter.
    """
    found = next((replica for replica in row.replicas if replica.node_id == node_id), None)
    if found is None:
        raise invalid(f"node {node_id} has no replica of raft group {row.raft_group}")
    replica = meta_pb2.Replica()
    replica.CopyFrom(found)
    row.replicas.remove(found)
    row.leaving.append(replica)


def _check_target(draft: Draft, row: meta_pb2.RaftGroup, node_id: str) -> None:
    node = draft.topology.nodes.get(node_id)
    if node is None or node.kind != meta_pb2.NODE_KIND_STORAGE:
        raise MetaRefused(meta_pb2.META_OUTCOME_NOT_FOUND, f"storage node {node_id} does not exist")
    if any(replica.node_id == node_id for replica in (*row.replicas, *row.leaving)):
        raise invalid(f"node {node_id} has a replica of raft group {row.raft_group} already")
    for replica in row.replicas if node.machine else ():
        other = draft.topology.nodes.get(replica.node_id)
        if other is not None and other.machine == node.machine:
            raise invalid(
                f"node {node_id} is on machine {node.machine}, where node {other.node_id} has a "
                f"replica of raft group {row.raft_group}: name a node of another machine"
            )
    _check_stays(draft, node_id)


def _check_stays(draft: Draft, node_id: str) -> None:
    """Give nothing to a node that drains: placement would take it away again at once.

    A plan may be older than the wish to drain, so it is looked at when a step begins.
    """
    node = draft.topology.nodes.get(node_id)
    if node is not None and node.draining:
        raise invalid(f"node {node_id} is draining; strata node drain --undo ends that")


def _stored(draft: Draft, raft_group: int) -> meta_pb2.RaftGroup:
    row = draft.topology.raft_groups.get(raft_group)
    if row is None:
        raise MetaRefused(
            meta_pb2.META_OUTCOME_NOT_FOUND, f"raft group {raft_group} does not exist"
        )
    return row


def _copy(row: meta_pb2.RaftGroup) -> meta_pb2.RaftGroup:
    copy = meta_pb2.RaftGroup()
    copy.CopyFrom(row)
    return copy
