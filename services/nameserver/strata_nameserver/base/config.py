"""Settings of a nameserver: the section `[nameserver]`, limits with their units."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

from pydantic import Field, model_validator

from strata_metadata.options import WatchOptions
from strata_nameserver.policies.detector import DetectorOptions
from strata_nameserver.policies.facts import PlacementRules
from strata_nameserver.policies.slots import SlotRules
from strata_nameserver.policies.slowness import SlownessOptions
from strata_runtime.config import Section
from strata_runtime.failslow import FailSlowOptions

# Defaults are written once, where they are used.
_PLACEMENT, _SLOTS, _WATCH = PlacementRules(), SlotRules(), WatchOptions()


class NameserverConfig(Section):
    """Limits of a nameserver, and how much it keeps."""

    renamed_keys: ClassVar[Mapping[str, str]] = {
        "log_kept_entries": "max_kept_log_entries",
        "model_max_error": "max_model_error",
        "slots_per_move": "max_slots_per_move",
        "watch_kept_revisions": "max_kept_revisions",
        "watch_recent_changes": "max_recent_changes",
        "watch_response_changes": "max_watch_response_changes",
    }

    max_topics: int = Field(
        default=2_500_000,
        ge=1,
        description="Most topics. Dead-letter topics count; each consumer group has one.",
    )
    max_batch_topics: int = Field(
        default=1_000,
        ge=1,
        le=10_000,
        description="Most topics in one CreateTopics call; a larger call is refused.",
    )
    max_batch_bytes: int = Field(
        default=1024 * 1024,
        ge=65_536,
        le=4 * 1024 * 1024,
        description="Largest sum of the rows that one CreateTopics call makes; a larger call is "
        "refused.",
    )
    max_consumer_groups: int = Field(default=1_000_000, ge=1, description="Most consumer groups.")
    max_queues_per_topic: int = Field(
        default=1_024, ge=1, le=4_096, description="Most queues of one topic."
    )
    max_attributes_bytes: int = Field(
        default=16_384,
        ge=0,
        description="Largest sum of names and values of one topic's attributes.",
    )
    max_tombstones: int = Field(
        default=10_000,
        ge=2,
        description="Most deleted topics and consumer groups that are remembered. Those "
        "whose data is deleted make room for new ones; with none of these a "
        "deletion is refused.",
    )
    max_nodes: int = Field(default=1_000, ge=1, description="Most registered nodes.")
    max_changes_in_flight: int = Field(
        default=1_024, ge=1, description="Most changes that are proposed and not committed yet."
    )
    max_watchers: int = Field(
        default=_WATCH.max_watchers, ge=1, description="Most open watch streams."
    )
    default_queue_count: int = Field(
        default=8, ge=1, description="Queues of a topic that is created without a number of queues."
    )
    default_retention_ms: int = Field(
        default=72 * 3_600_000,
        ge=1_000,
        description="Retention of a topic that is created without one.",
    )
    max_queue_overrides: int = Field(
        default=100_000,
        ge=1,
        description="Most queues that are in another raft group than their slot; at this "
        "number slots stop moving.",
    )
    max_quotas: int = Field(
        default=10_000, ge=0, description="Most namespaces and topics with limits of their own."
    )
    replication_factor: int = Field(
        default=_PLACEMENT.replication_factor, ge=1, le=7, description="Voters of a raft group."
    )
    max_users: int = Field(default=10_000, ge=1, description="Most users.")
    max_policies: int = Field(default=20_000, ge=0, description="Most policies of all users.")
    max_policies_per_user: int = Field(default=100, ge=0, description="Most policies of one user.")
    initial_storage_nodes: int = Field(
        default=0,
        ge=0,
        description="Number of machines with registered storage nodes at which raft groups are "
        "created; a storage node without `storage.shards` is a machine of its own. 0: "
        "`replication_factor`.",
    )
    raft_groups_per_storage_node: int = Field(
        default=2,
        ge=1,
        le=64,
        description="Raft groups per storage node. A node that joins later brings as many "
        "more, once there are as many nodes as replicas.",
    )
    max_recent_changes: int = Field(
        default=_WATCH.recent_changes,
        ge=1,
        description="Most changes kept in memory for watchers.",
    )
    max_kept_revisions: int = Field(
        default=10_000,
        ge=1,
        description="Most revisions that a watcher may be behind; then it gets a snapshot.",
    )
    max_watch_response_changes: int = Field(
        default=5_000,
        ge=1,
        description="Most changes in one message of a watch stream.",
    )
    max_snapshot_rows: int = Field(
        default=_WATCH.snapshot_rows,
        ge=1,
        description="Most rows in one answer to GetSnapshot; more are in the stream.",
    )
    watch_keepalive_ms: int = Field(
        default=_WATCH.keepalive_ms,
        ge=10,
        description="Time after which a watch stream without changes sends an empty message.",
    )
    failure_detection: bool = Field(
        default=True,
        description="Judge nodes by their heartbeats. Off in a standalone node.",
    )
    suspect_after_ms: int = Field(
        default=750, ge=50, description="Time without heartbeats after which a node is SUSPECT."
    )
    down_after_ms: int = Field(
        default=1_200,
        ge=100,
        description="Time without heartbeats after which a node is DOWN and leaves every "
        "route. A storage node is DOWN only if most storage nodes that share raft "
        "groups with it do not hear it either.",
    )
    judge_interval_ms: int = Field(
        default=100, ge=10, description="Time between two checks for silent nodes."
    )
    placement_interval_ms: int = Field(
        default=1_000,
        ge=10,
        description="Shortest time between two placements of replicas and leaders.",
    )
    max_moves_in_flight: int = Field(
        default=_PLACEMENT.max_moves_in_flight,
        ge=1,
        description="Most raft groups whose replicas change at the same time.",
    )
    balance_slots: bool = Field(
        default=True,
        description="Keep the numbers of slots of all raft groups equal. Turn it off to "
        "place slots by hand.",
    )
    max_slot_moves_in_flight: int = Field(
        default=_SLOTS.max_moves_in_flight,
        ge=1,
        description="Most raft groups that give up slots at the same time.",
    )
    max_slots_per_move: int = Field(
        default=_SLOTS.max_slots_per_move,
        ge=1,
        le=4_096,
        description="Most slots that move to another raft group in one step.",
    )
    replica_repair_delay_ms: int = Field(
        default=_PLACEMENT.repair_delay_ms,
        ge=0,
        description="Time that a node is DOWN until its replicas are rebuilt on other nodes. "
        "Times DOWN add up until a process of the node was UP for so long without a break. "
        "After a rebuild the node gets replicas again once it was.",
    )
    broker_forget_delay_ms: int = Field(
        default=3_600_000, ge=0, description="Time that a broker is DOWN until it is forgotten."
    )
    leader_balance_delay_ms: int = Field(
        default=_PLACEMENT.leader_balance_delay_ms,
        ge=0,
        description="Time that a node must be UP, with a clock like those of the others, "
        "before leaderships move to it and before it brings raft groups.",
    )
    slow_node_factor: float = Field(
        default=5.0,
        gt=1,
        description="A storage node is slow, and loses its leaderships, when its appends "
        "take this many times longer than those of the others.",
    )
    slow_node_floor_ms: float = Field(
        default=50.0, gt=0, description="Mean append latency below which no storage node is slow."
    )
    slow_node_after_ms: int = Field(
        default=10_000, ge=0, description="Time that a node must be slow until it counts as slow."
    )
    fail_slow_detection: bool = Field(
        default=True,
        description="Also treat a storage node as slow if its appends, syncs or answers to "
        "other nodes take longer than those of its peers at the same load, and "
        "longer than its own did. It learns for ten minutes first.",
    )
    fail_slow_floor_ms: float = Field(
        default=10.0,
        gt=0,
        description="Latency below which no storage node is slow by `fail_slow_detection`.",
    )
    avoid_busy_nodes: bool = Field(
        default=True,
        description="Create no new queues on the third of the storage nodes that has the "
        "highest load.",
    )
    busy_node_floor_bytes_per_s: int = Field(
        default=256 * 1024, ge=1, description="Load below which no storage node counts as busy."
    )
    load_window_ms: int = Field(
        default=30_000,
        ge=100,
        description="Decay time of the mean loads of storage nodes: a measurement of this "
        "age counts a third.",
    )
    max_model_error: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="Largest error of a model of loads, as a share of the load; a model with "
        "a larger error is not used.",
    )
    refuse_changes_free_bytes: int = Field(
        default=64 * 1024 * 1024,
        ge=0,
        description="Free disk below which metadata changes are refused; another "
        "nameserver leads if it has more.",
    )
    ballast_bytes: int = Field(
        default=64 * 1024 * 1024,
        ge=0,
        description="Size of a file that is deleted when the disk is almost full, so that "
        "decided changes have room; 0: none. In a standalone node "
        "`storage.ballast_bytes` is this file.",
    )
    max_plans: int = Field(
        default=32, ge=1, le=1_000, description="Most placement plans that are kept."
    )
    max_plan_steps: int = Field(default=200, ge=1, description="Most steps of a placement plan.")
    max_plan_age_ms: int = Field(
        default=24 * 3_600_000,
        ge=1_000,
        description="Age at which a plan that was proposed is no longer applied: the loads that "
        "it was made for have changed.",
    )
    plan_step_timeout_ms: int = Field(
        default=120_000,
        ge=100,
        description="Longest time of a step of a plan that copies nothing; a longer step ends the "
        "plan. A step that copies a replica has the time that `min_plan_copy_bytes_per_s` "
        "gives besides.",
    )
    min_plan_copy_bytes_per_s: int = Field(
        default=4 * 1024 * 1024,
        ge=1,
        description="Slowest copy of a replica that a step of a plan waits for.",
    )
    plan_settle_ms: int = Field(
        default=30_000,
        ge=0,
        description="Time after a step of a plan until its outcome is measured. A step is "
        "undone only if the outcome is still worse after the same time again.",
    )
    plan_worse_by: float = Field(
        default=0.1,
        gt=0,
        description="Share by which a storage node that a step of a plan gave load to may be "
        "busier, relative to the mean, than the busiest one was before the step; when it is "
        "busier, the step is undone and the plan ends.",
    )
    peer_interval_ms: int = Field(
        default=1_000,
        ge=10,
        description="Time between two calls in which nameservers ask "
        "each other for their identity.",
    )
    max_kept_log_entries: int = Field(
        default=20_000,
        ge=1,
        description="Most applied entries kept in the metadata log for nameservers that lag; a "
        "nameserver that is further behind gets a snapshot.",
    )
    sync_interval_ms: int = Field(
        default=1_000, ge=10, description="Time between two syncs of the metadata rows to disk."
    )
    log_segment_bytes: int = Field(
        default=16 * 1024 * 1024,
        ge=1024 * 1024,
        description="Size of a segment of the metadata log.",
    )

    @model_validator(mode="after")
    def _suspect_comes_before_down(self) -> Self:
        if self.suspect_after_ms >= self.down_after_ms:
            raise ValueError("suspect_after_ms must be below down_after_ms")
        return self

    def watch_options(self) -> WatchOptions:
        """Return the limits of watch streams."""
        return WatchOptions(
            recent_changes=self.max_recent_changes,
            response_changes=self.max_watch_response_changes,
            max_watchers=self.max_watchers,
            keepalive_ms=self.watch_keepalive_ms,
            snapshot_rows=self.max_snapshot_rows,
        )

    def alone(self) -> Self:
        """Return these settings for a process that is the whole cluster.

        Its storage node keeps room on the same disk, with a ballast of its own.
        """
        changes = {
            "replication_factor": 1,
            "initial_storage_nodes": 1,
            "failure_detection": False,
            "ballast_bytes": 0,
        }
        return self.model_copy(update=changes)

    def detector_options(self) -> DetectorOptions:
        """Return the times of the failure detector."""
        return DetectorOptions(
            suspect_after_s=self.suspect_after_ms / 1_000,
            down_after_s=self.down_after_ms / 1_000,
        )

    def slowness_options(self) -> SlownessOptions:
        """Return when a storage node is slow."""
        return SlownessOptions(
            factor=self.slow_node_factor,
            floor_ms=self.slow_node_floor_ms,
            after_s=self.slow_node_after_ms / 1_000,
            learned=(
                FailSlowOptions(floor_ms=self.fail_slow_floor_ms)
                if self.fail_slow_detection
                else None
            ),
        )

    def slot_rules(self) -> SlotRules:
        """Return the numbers that the placement of slots goes by."""
        return SlotRules(self.max_slot_moves_in_flight, self.max_slots_per_move)

    def placement_rules(self) -> PlacementRules:
        """Return the numbers that placement goes by."""
        return PlacementRules(
            replication_factor=self.replication_factor,
            max_moves_in_flight=self.max_moves_in_flight,
            repair_delay_ms=self.replica_repair_delay_ms,
            leader_balance_delay_ms=self.leader_balance_delay_ms,
        )
