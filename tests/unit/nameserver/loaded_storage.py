"""Storage nodes that bear what their queues bring: moving a queue moves its load. And plans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strata.meta.v1 import meta_pb2
from strata_state.metadata_keys import MetadataRowKind, kind_range
from tests.unit.nameserver.storage_nodes import CONFIG, NODES, Storage, storage

if TYPE_CHECKING:
    from tests.unit.nameserver.conftest import MakeNameserver, Nameserver

MIB = 1024 * 1024
GIB = 1024 * MIB
PLANNED = CONFIG.model_copy(
    update={
        "load_window_ms": 1_000,
        "plan_settle_ms": 5_000,
        "plan_step_timeout_ms": 20_000,
        "placement_interval_ms": 500,
        "max_plans": 3,
        "max_plan_steps": 4,
    }
)


class Loaded(Storage):
    """Storage nodes whose leaders carry out moves of queues and bear the queues' loads.

    Attributes:
        queue_bytes_per_s: load of each queue of the topic.
        moves_queues, changes_leaders, changes_members: whether wishes are carried out.
        disk_used_bytes: on the disk of every node.
    """

    def __init__(self, nameserver: Nameserver, topic: meta_pb2.Topic) -> None:
        super().__init__(nameserver, NODES)
        self.topic = topic
        self.queue_bytes_per_s = [0] * topic.queue_count
        self.moves_queues = True
        self.changes_leaders = True
        self.changes_members = True
        self.disk_used_bytes = 0
        self.led_by: dict[int, str] = {}
        self._places = [""] * topic.queue_count

    def load_of(self, node_id: str) -> meta_pb2.StorageLoad:
        per_s = zip(self._places, self.queue_bytes_per_s, strict=True)
        return meta_pb2.StorageLoad(
            led_bytes=sum(load for at, load in per_s if at == node_id) // 10,
            disk_free_bytes=1024 * GIB - self.disk_used_bytes,
            disk_total_bytes=1024 * GIB,
        )

    def leader_of(self, row: meta_pb2.RaftGroup) -> str:
        if self.changes_leaders or row.raft_group not in self.led_by:
            self.led_by[row.raft_group] = super().leader_of(row)
        return self.led_by[row.raft_group]

    def membership_of(self, row: meta_pb2.RaftGroup) -> meta_pb2.Membership:
        return super().membership_of(row) if self.changes_members else row.membership

    def override(self, queue: int) -> meta_pb2.QueueOverride | None:
        overrides = kind_range(MetadataRowKind.QUEUE_OVERRIDE)
        rows = map(meta_pb2.QueueOverride.FromString, self.nameserver.machine.rows(*overrides))
        mine = (row for row in rows if row.topic_id == self.topic.topic_id)
        return next((row for row in mine if row.queue == queue), None)

    def raft_group_of(self, queue: int) -> int:
        override = self.override(queue)
        if override is not None:
            return override.epochs[-1].raft_group
        owners = self.nameserver.machine.speculative.topology.slot_owners
        return owners[(self.topic.slot_base + queue) % 4_096]

    def node_of(self, queue: int) -> str:
        return self.leader_of(self.row(self.raft_group_of(queue)))

    def queue_on(self, node_id: str) -> int:
        return next(q for q in range(self.topic.queue_count) if self.node_of(q) == node_id)

    async def run(self, duration_ms: int) -> None:
        for _ in range(0, duration_ms, 500):
            await super().run(500)
            await self._move_queues()
            self._places = [self.node_of(queue) for queue in range(self.topic.queue_count)]

    async def _move_queues(self) -> None:
        for queue in range(self.topic.queue_count) if self.moves_queues else ():
            override = self.override(queue)
            if override is None or not override.moving_to:
                continue
            newest = override.epochs[-1]
            opened = meta_pb2.Epoch(epoch=newest.epoch + 1, raft_group=override.moving_to)
            await self.nameserver.metadata.queue_moved(
                meta_pb2.ReportQueueMovedRequest(
                    topic_id=self.topic.topic_id, queue=queue, opened=opened
                )
            )


def queue_step(cluster: Loaded, queue: int, to_raft_group: int) -> meta_pb2.PlacementStep:
    move = meta_pb2.MoveQueueStep(
        topic="t",
        queue=queue,
        from_raft_group=cluster.raft_group_of(queue),
        to_raft_group=to_raft_group,
    )
    return meta_pb2.PlacementStep(move_queue=move, reason="test")


def moved_replica(
    raft_group: int, from_node: str, to_node: str, cost_bytes: int = 0
) -> meta_pb2.PlacementStep:
    step = meta_pb2.MoveReplicaStep(
        raft_group=raft_group, from_node_id=from_node, to_node_id=to_node
    )
    return meta_pb2.PlacementStep(move_replica=step, cost_bytes=cost_bytes)


async def propose(cluster: Loaded, *steps: meta_pb2.PlacementStep) -> meta_pb2.PlacementPlan:
    plan = meta_pb2.PlacementPlan(planner="test", steps=steps)
    return await cluster.nameserver.metadata.placement.propose(plan)


async def apply(cluster: Loaded, plan: meta_pb2.PlacementPlan) -> None:
    await cluster.nameserver.metadata.placement.apply(plan.plan_id, stop=False)


def shown(cluster: Loaded, plan: meta_pb2.PlacementPlan) -> meta_pb2.PlacementPlan:
    plans = cluster.nameserver.metadata.placement.plans()
    return next(row for row in plans if row.plan_id == plan.plan_id)


def states(plan: meta_pb2.PlacementPlan) -> list[str]:
    return [
        meta_pb2.StepState.Name(step.state).removeprefix("STEP_STATE_").lower()
        for step in plan.steps
    ]


async def three_loaded(make_nameserver: MakeNameserver, groups_per_node: int = 1) -> Loaded:
    """Three storage nodes, each leading so many raft groups, and a topic of twelve queues."""
    update = {"raft_groups_per_storage_node": groups_per_node}
    nameserver = make_nameserver(PLANNED.model_copy(update=update))
    nameserver.machine.on_leader(1)
    for node_id in NODES:
        await nameserver.metadata.register_node(storage(node_id))
    topic = await nameserver.metadata.create_topic(meta_pb2.Topic(name="t", queue_count=12))
    cluster = Loaded(nameserver, topic)
    await cluster.run(3_000)
    return cluster


async def with_spare_node(cluster: Loaded) -> int:
    """Let node d join; return a raft group that has no replica there."""
    await cluster.nameserver.metadata.register_node(storage("d"))
    cluster.alive.add("d")
    await cluster.run(15_000)
    return next(number for number in cluster.rows() if "d" not in hosts(cluster, number))


def hosts(cluster: Loaded, raft_group: int, *, learners: bool = False) -> list[str]:
    replicas = cluster.row(raft_group).replicas
    return sorted(replica.node_id for replica in replicas if replica.learner == learners)
