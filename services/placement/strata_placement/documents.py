"""Plans as the nameserver keeps them: this package's types to rows and back."""

from __future__ import annotations

from strata.meta.v1 import meta_pb2
from strata_placement.plan import (
    Action,
    AddReadReplica,
    Balance,
    MoveQueue,
    MoveReplica,
    Plan,
    RemoveReadReplica,
    ScaleBrokers,
    Step,
    TransferLeader,
)
from strata_placement.series import PlacementError
from strata_placement.windows import QueueName


def plan_row(plan: Plan) -> meta_pb2.PlacementPlan:
    """Return the row that proposes a plan; id and states are the nameserver's to set.

    Raises:
        PlacementError: a step names no queue.
    """
    return meta_pb2.PlacementPlan(
        made_at_ms=plan.made_at_ms,
        planner=plan.planner,
        forecast=plan.forecast,
        horizon_ms=plan.horizon_ms,
        before=_balance_row(plan.before),
        after=_balance_row(plan.after),
        steps=map(_step_row, plan.steps),
        notes=plan.notes,
    )


def plan_of(row: meta_pb2.PlacementPlan) -> Plan:
    """Return the plan that a row holds, as it was made.

    Raises:
        PlacementError: a step has no action that is known here.
    """
    return Plan(
        row.made_at_ms,
        row.planner,
        row.forecast,
        row.horizon_ms,
        _balance_of(row.before),
        _balance_of(row.after),
        tuple(
            Step(
                action_of(step),
                step.reason,
                step.cost_bytes,
                _balance_of(step.before),
                _balance_of(step.after),
            )
            for step in row.steps
        ),
        tuple(row.notes),
    )


def action_of(step: meta_pb2.PlacementStep) -> Action:
    """Return what a step of a row does.

    Raises:
        PlacementError: it has no action that is known here.
    """
    match step.WhichOneof("action"):
        case "transfer_leader":
            leader = step.transfer_leader
            return TransferLeader(leader.raft_group, leader.from_node_id, leader.to_node_id)
        case "move_replica":
            replica = step.move_replica
            return MoveReplica(replica.raft_group, replica.from_node_id, replica.to_node_id)
        case "move_queue":
            move = step.move_queue
            name = QueueName(move.namespace, move.topic, move.queue)
            return MoveQueue(str(name), move.from_raft_group, move.to_raft_group)
        case "add_read_replica":
            return AddReadReplica(
                step.add_read_replica.raft_group, step.add_read_replica.to_node_id
            )
        case "remove_read_replica":
            removed = step.remove_read_replica
            return RemoveReadReplica(removed.raft_group, removed.from_node_id)
        case "scale_brokers":
            return ScaleBrokers(step.scale_brokers.from_count, step.scale_brokers.to_count)
        case unknown:
            raise PlacementError(f"a step with the action {unknown}")


def _step_row(step: Step) -> meta_pb2.PlacementStep:
    row = meta_pb2.PlacementStep(
        reason=step.reason,
        cost_bytes=step.cost_bytes,
        before=_balance_row(step.before),
        after=_balance_row(step.after),
    )
    match step.action:
        case TransferLeader(raft_group, from_node, to_node):
            row.transfer_leader.raft_group = raft_group
            row.transfer_leader.from_node_id = from_node
            row.transfer_leader.to_node_id = to_node
        case MoveReplica(raft_group, from_node, to_node):
            row.move_replica.raft_group = raft_group
            row.move_replica.from_node_id = from_node
            row.move_replica.to_node_id = to_node
        case MoveQueue(queue, from_raft_group, to_raft_group):
            name = QueueName.parse(queue)
            row.move_queue.namespace, row.move_queue.topic = name.namespace, name.topic
            row.move_queue.queue = name.queue
            row.move_queue.from_raft_group = from_raft_group
            row.move_queue.to_raft_group = to_raft_group
        case AddReadReplica(raft_group, to_node):
            row.add_read_replica.raft_group = raft_group
            row.add_read_replica.to_node_id = to_node
        case RemoveReadReplica(raft_group, from_node):
            row.remove_read_replica.raft_group = raft_group
            row.remove_read_replica.from_node_id = from_node
        case ScaleBrokers(from_count, to_count):
            row.scale_brokers.from_count, row.scale_brokers.to_count = from_count, to_count
    return row


def _balance_row(balance: Balance) -> meta_pb2.PlacementBalance:
    return meta_pb2.PlacementBalance(max_over_mean=balance.max_over_mean, peak=balance.peak)


def _balance_of(row: meta_pb2.PlacementBalance) -> Balance:
    return Balance(row.max_over_mean, row.peak)
