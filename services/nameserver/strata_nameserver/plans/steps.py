"""Wishes of the steps of a plan: begun, undone, looked after.

A step names where the planner found things. It is begun only while they still are there, and it is
done when they are where it wants them. Until it is judged, others (an operator, the rules of
`policies`) may have wished for something else: then it is overtaken, and nobody waits for it, nor
undoes what is not its doing any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from strata.meta.v1 import meta_pb2
from strata_mq.slots import slot_of
from strata_nameserver.base.config import NameserverConfig
from strata_nameserver.drafts import raft_groups
from strata_nameserver.drafts.queue_moves import move_queue, stored_override
from strata_nameserver.drafts.topics import stored_topic
from strata_nameserver.state.draft import Draft
from strata_state.metadata_keys import topic_key

Leaders = Mapping[int, str]
"""Node that leads each raft group; empty: not known."""


class _Replica(NamedTuple):
    """A replica that a step, or its undoing, wants there or away."""

    raft_group: int
    node_id: str
    is_learner: bool
    is_wanted: bool


def begin(draft: Draft, step: meta_pb2.PlacementStep, config: NameserverConfig) -> None:
    """Write the wish that carries a step out.

    Raises:
        MetaRefused: as an operator's wish would be.
    """
    match step.WhichOneof("action"):
        case "move_queue":
            _move_queue(draft, step.move_queue, step.move_queue.to_raft_group, config)
        case "transfer_leader":
            transfer = step.transfer_leader
            raft_groups.prefer_leader(draft, transfer.raft_group, transfer.to_node_id)
        case _:
            _change_replicas(draft, step, undo=False)


def undo(
    draft: Draft, step: meta_pb2.PlacementStep, leaders: Leaders, config: NameserverConfig
) -> None:
    """Write the wish that takes a step back.

    Raises:
        MetaRefused: as an operator's wish would be.
    """
    match step.WhichOneof("action"):
        case "move_queue":
            _move_queue(draft, step.move_queue, _way_back(draft, step, leaders), config)
        case "transfer_leader":
            transfer = step.transfer_leader
            raft_groups.prefer_leader(draft, transfer.raft_group, transfer.from_node_id)
        case _:
            _change_replicas(draft, step, undo=True)


def why_outdated(draft: Draft, step: meta_pb2.PlacementStep, leaders: Leaders) -> str:
    """Return why a step does not fit the cluster any more; empty: things are where it says.

    Raises:
        MetaRefused: NOT_FOUND: the topic is gone.
    """
    match step.WhichOneof("action"):
        case "move_queue":
            move = step.move_queue
            topic = stored_topic(draft, move.namespace, move.topic)
            if move.queue >= topic.queue_count:
                return f"topic {topic.name} has {topic.queue_count} queues"
            found = _raft_group_of(draft, topic, move.queue)
            if found != move.from_raft_group:
                return f"{_queue_name(move)} is in raft group {found}, not {move.from_raft_group}"
        case "transfer_leader":
            transfer = step.transfer_leader
            leader = leaders.get(transfer.raft_group, "")
            if leader and leader != transfer.from_node_id:
                number = transfer.raft_group
                return f"raft group {number} is led by {leader}, not {transfer.from_node_id}"
        case "move_replica":
            source = step.move_replica
            return _why_missing(draft, source.raft_group, source.from_node_id, is_learner=False)
        case "remove_read_replica":
            reader = step.remove_read_replica
            return _why_missing(draft, reader.raft_group, reader.from_node_id, is_learner=True)
    return ""


def is_done(
    draft: Draft, step: meta_pb2.PlacementStep, leaders: Leaders, *, undo: bool = False
) -> bool:
    """Tell whether what a step, or its undoing, wants is so."""
    match step.WhichOneof("action"):
        case "move_queue":
            override = _override(draft, step.move_queue)
            if override is None or override.moving_to:
                return False
            return (override.epochs[-1].raft_group == step.move_queue.to_raft_group) is not undo
        case "transfer_leader":
            return leaders.get(step.transfer_leader.raft_group) == _wanted_leader(step, undo=undo)
    wish = _wanted_replica(step, undo=undo)
    row = draft.topology.raft_groups.get(wish.raft_group)
    return row is not None and raft_groups.is_settled(row) and _holds(row, wish)


def why_overtaken(draft: Draft, step: meta_pb2.PlacementStep, *, undo: bool = False) -> str:
    """Return why what a step, or its undoing, wants will not come; empty: it may come, or has."""
    match step.WhichOneof("action"):
        case "move_queue":
            move = step.move_queue
            override = _override(draft, move)
            if override is None:
                # The step's wish made a row, which goes only with the topic.
                return f"{_queue_name(move)} was deleted"
            place = override.moving_to or override.epochs[-1].raft_group
            if not undo and place != move.to_raft_group:
                return f"{_queue_name(move)} was sent to raft group {place} meanwhile"
            return ""
        case "transfer_leader":
            number = step.transfer_leader.raft_group
            row = draft.topology.raft_groups.get(number)
            wish = row.preferred_leader_node_id if row is not None else ""
            if wish == _wanted_leader(step, undo=undo):
                return ""
            return f"{wish or 'any node'} should lead raft group {number} by now"
    replica = _wanted_replica(step, undo=undo)
    row = draft.topology.raft_groups.get(replica.raft_group)
    if row is not None and _holds(row, replica):
        return ""
    now = "has no such" if replica.is_wanted else "has a"
    return f"node {replica.node_id} {now} replica of raft group {replica.raft_group} by now"


def copies(step: meta_pb2.PlacementStep, *, undo: bool = False) -> bool:
    """Tell whether a step, or its undoing, copies what a raft group stores."""
    match step.WhichOneof("action"):
        case "move_replica":
            return True
        case "add_read_replica":
            return not undo
        case "remove_read_replica":
            return undo
    return False


def moved_leaderships(step: meta_pb2.PlacementStep) -> frozenset[int]:
    """Return the raft groups whose leader may change because of a step."""
    match step.WhichOneof("action"):
        case "transfer_leader":
            return frozenset((step.transfer_leader.raft_group,))
        case "move_replica":
            return frozenset((step.move_replica.raft_group,))
    return frozenset()


def receivers(draft: Draft, step: meta_pb2.PlacementStep, leaders: Leaders) -> frozenset[str]:
    """Return the nodes that lead or hand out more because of a step."""
    match step.WhichOneof("action"):
        case "move_queue":
            number = step.move_queue.to_raft_group
            nodes = {leaders.get(number, "")}
            row = draft.topology.raft_groups.get(number)
            if row is not None and any(replica.learner for replica in row.replicas):
                # All replicas of a raft group with read replicas hand out what is read.
                nodes |= {replica.node_id for replica in row.replicas}
        case "transfer_leader":
            nodes = {step.transfer_leader.to_node_id}
        case "move_replica":
            moved = step.move_replica
            nodes = {moved.to_node_id, leaders.get(moved.raft_group, "")}
        case "add_read_replica":
            nodes = {step.add_read_replica.to_node_id}
        case _:
            row = draft.topology.raft_groups.get(step.remove_read_replica.raft_group)
            nodes = {replica.node_id for replica in row.replicas} if row is not None else set()
    return frozenset(node for node in nodes if node)


def _move_queue(
    draft: Draft, move: meta_pb2.MoveQueueStep, to_raft_group: int, config: NameserverConfig
) -> None:
    request = meta_pb2.MoveQueueRequest(
        namespace=move.namespace, topic=move.topic, queue=move.queue, to_raft_group=to_raft_group
    )
    move_queue(draft, request, config)


def _change_replicas(draft: Draft, step: meta_pb2.PlacementStep, *, undo: bool) -> None:
    wish = _wanted_replica(step, undo=undo)
    add, remove = ([wish.node_id], []) if wish.is_wanted else ([], [wish.node_id])
    if step.WhichOneof("action") == "move_replica":
        moved = step.move_replica
        remove = [moved.to_node_id if undo else moved.from_node_id]
    learners = wish.is_learner and wish.is_wanted
    raft_groups.change_replicas(draft, wish.raft_group, add, remove, learners=learners)


def _way_back(draft: Draft, step: meta_pb2.PlacementStep, leaders: Leaders) -> int:
    """Return the raft group that a queue goes back to.

    The one it came from takes it only once it is drained there; until then another one that the
    same node leads does as well.
    """
    move = step.move_queue
    override = _override(draft, move)
    draining = {epoch.raft_group for epoch in override.epochs} if override is not None else set()
    home = leaders.get(move.from_raft_group, "")
    others = sorted(number for number, node in leaders.items() if home and node == home)
    for raft_group in (move.from_raft_group, *others):
        if raft_group not in draining:
            return raft_group
    return move.from_raft_group


def _wanted_leader(step: meta_pb2.PlacementStep, *, undo: bool) -> str:
    transfer = step.transfer_leader
    return transfer.from_node_id if undo else transfer.to_node_id


def _wanted_replica(step: meta_pb2.PlacementStep, *, undo: bool) -> _Replica:
    match step.WhichOneof("action"):
        case "move_replica":
            moved = step.move_replica
            node_id = moved.from_node_id if undo else moved.to_node_id
            return _Replica(moved.raft_group, node_id, is_learner=False, is_wanted=True)
        case "add_read_replica":
            added = step.add_read_replica
            return _Replica(added.raft_group, added.to_node_id, True, not undo)
    removed = step.remove_read_replica
    return _Replica(removed.raft_group, removed.from_node_id, True, undo)


def _holds(row: meta_pb2.RaftGroup, wish: _Replica) -> bool:
    found = any(
        replica.node_id == wish.node_id and replica.learner == wish.is_learner
        for replica in row.replicas
    )
    return found == wish.is_wanted


def _why_missing(draft: Draft, raft_group: int, node_id: str, *, is_learner: bool) -> str:
    row = draft.topology.raft_groups.get(raft_group)
    if row is not None and _holds(row, _Replica(raft_group, node_id, is_learner, is_wanted=True)):
        return ""
    kind = "read replica" if is_learner else "voter"
    return f"node {node_id} has no {kind} of raft group {raft_group}"


def _override(draft: Draft, move: meta_pb2.MoveQueueStep) -> meta_pb2.QueueOverride | None:
    value = draft.get(topic_key(move.namespace, move.topic))
    if value is None:
        return None
    return stored_override(draft, meta_pb2.Topic.FromString(value).topic_id, move.queue)


def _raft_group_of(draft: Draft, topic: meta_pb2.Topic, queue: int) -> int:
    override = stored_override(draft, topic.topic_id, queue)
    if override is not None:
        return override.epochs[-1].raft_group
    return draft.topology.slot_owners[slot_of(topic.slot_base, queue)]


def _queue_name(move: meta_pb2.MoveQueueStep) -> str:
    return f"queue {move.queue} of topic {move.topic}"
