"""Why a queue is where it is, one line per step of the decision, for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from strata.meta.v1 import meta_pb2
from strata_mq.slots import SLOT_COUNT, slot_of
from strata_nameserver.state.topology import Topology

ReasonsOf = Callable[[int], Sequence[str]]
"""Gives why a raft group was changed lately."""


def explain_queue(
    topic: meta_pb2.Topic,
    queue: int,
    override: meta_pb2.QueueOverride | None,
    topology: Topology,
    leader_of: Callable[[int], str],
    reasons_of: ReasonsOf,
) -> list[str]:
    """Return the reasons, from the queue's slot to the nodes of its raft group."""
    if topic.type == meta_pb2.TOPIC_TYPE_DEAD_LETTER:
        raft_group = queue
        lines = [f"a dead-letter queue has the number of its raft group, {queue}"]
    else:
        slot = slot_of(topic.slot_base, queue)
        raft_group = topology.slot_owners[slot]
        lines = [
            f"slot {slot} = ({topic.slot_base} + {queue}) mod {SLOT_COUNT} is owned by raft group "
            f"{raft_group}; slots are spread evenly over the raft groups"
        ]
        move = topology.slot_moves.get(raft_group)
        if move is not None and slot in move.slots:
            lines.append(f"the slot is moving to raft group {move.to_raft_group}")
    if override is not None:
        first = override.epochs[0]
        if not first.epoch and first.raft_group != raft_group:
            lines.append(f"it stayed behind when its slot left raft group {first.raft_group}")
        lines += [
            f"epoch {epoch.epoch} from offset {epoch.start_offset} is in raft group "
            f"{epoch.raft_group}"
            for epoch in override.epochs
        ]
        raft_group = override.epochs[-1].raft_group
        if override.moving_to:
            lines.append(f"it is moving to raft group {override.moving_to}")
    lines += _explain_raft_group(raft_group, topology, leader_of(raft_group))
    return [*lines, *reasons_of(raft_group)]


def _explain_raft_group(raft_group: int, topology: Topology, leader: str) -> list[str]:
    row = topology.raft_groups.get(raft_group)
    if row is None:
        return [f"raft group {raft_group} does not exist"]
    lines = []
    for replica in row.replicas:
        node = topology.nodes.get(replica.node_id)
        if node is None:
            lines.append(f"a replica was on {replica.node_id}, which was removed")
            continue
        details = [meta_pb2.NodeState.Name(node.state).removeprefix("NODE_STATE_").lower()]
        details += [f"rack {node.rack}"] if node.rack else []
        details += [f"machine {node.machine}"] if node.machine else []
        details += ["draining"] if node.draining else []
        details += ["learner"] if replica.learner else []
        details += ["leader"] if leader == node.node_id else []
        lines.append(
            f"raft group {raft_group} has a replica on {node.node_id} ({', '.join(details)})"
        )
    if row.preferred_leader_node_id:
        lines.append(
            f"{row.preferred_leader_node_id} should lead it: nodes lead equally many raft groups"
        )
    return lines
