"""Settings of a nameserver: the section `[nameserver]`, limits with their units."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

from pydantic import Field, model_validator

from strata_metadata.options import WatchOptions
from strata_nameserver.policies.detector import DetectorOptions
from strata_nameserver.policies.replicas import PlacementRules
from strata_nameserver.policies.slots import SlotRules
from strata_nameserver.policies.slowness import SlownessOptions
from strata_runtime.config import Section
from strata_runtime.failslow import FailSlowOptions


class NameserverConfig(Section):
    """What a nameserver allows and how much it keeps."""

    renamed_keys: ClassVar[Mapping[str, str]] = {
        "model_max_error": "max_model_error",
    }

    max_topics: int = Field(
        default=1_000_000, ge=1, description="Topics that may exist, dead-letter topics included."
    )
    max_consumer_groups: int = Field(
        default=1_000_000, ge=1, description="Consumer groups that may exist."
    )
    max_queues_per_topic: int = Field(
        default=1_024, ge=1, le=4_096, description="Queues of one topic."
    )
    max_attributes_bytes: int = Field(
        default=16_384, ge=0, description="Names and values of one topic's attributes together."
    )
    max_tombstones: int = Field(
        default=10_000,
        ge=2,
        description="Deleted topics and consumer groups remembered; those whose data is gone make "
        "room for new ones, without one a deletion is refused.",
    )
    max_nodes: int = Field(default=1_000, ge=1, description="Nodes that may be registered.")
    max_changes_in_flight: int = Field(
        default=1_024, ge=1, description="Changes proposed and not committed yet."
    )
    max_watchers: int = Field(default=1_000, ge=1, description="Watch streams open at once.")
    default_queue_count: int = Field(
        default=8, ge=1, description="Queues of a topic that names no count."
    )
    default_retention_ms: int = Field(
        default=72 * 3_600_000, ge=1_000, description="Retention of a topic that names none."
    )
    max_queue_overrides: int = Field(
        default=100_000,
        ge=1,
        description="Queues that are not where their slot is; slots stop moving there.",
    )
    max_quotas: int = Field(
        default=10_000, ge=0, description="Namespaces and topics with limits of their own."
    )
    replication_factor: int = Field(default=3, ge=1, le=7, description="Voters of a raft group.")
    initial_storage_nodes: int = Field(
        default=0,
        ge=0,
        description="Raft groups are made once so many storage nodes are registered; "
        "0: replication_factor.",
    )
    raft_groups_per_storage_node: int = Field(
        default=2,
        ge=1,
        le=64,
        description="Raft groups per storage node; nodes that join later bring as many more, "
        "once there are as many nodes as replicas.",
    )
    watch_recent_changes: int = Field(
        default=2_048, ge=1, description="Changes kept in memory for watchers that follow closely."
    )
    watch_kept_revisions: int = Field(
        default=10_000,
        ge=1,
        description="Revisions a watcher may be behind before it gets a snapshot.",
    )
    watch_response_changes: int = Field(
        default=5_000, ge=1, description="Changes in one message of a watch stream."
    )
    watch_keepalive_ms: int = Field(
        default=500, ge=10, description="A watch stream with nothing to tell says so this often."
    )
    failure_detection: bool = Field(
        default=True,
        description="Judge nodes by their heartbeats. Off where all nodes are one process.",
    )
    suspect_after_ms: int = Field(
        default=750, ge=50, description="Silence after which a node is SUSPECT."
    )
    down_after_ms: int = Field(
        default=1_200,
        ge=100,
        description="Silence after which a node is DOWN and leaves every route; a storage node "
        "only if most storage nodes do not hear it either.",
    )
    judge_interval_ms: int = Field(
        default=100, ge=10, description="How often the leader looks who is silent."
    )
    placement_interval_ms: int = Field(
        default=1_000, ge=10, description="How often replicas and leaders are placed anew, at most."
    )
    max_moves_in_flight: int = Field(
        default=2, ge=1, description="Raft groups whose replicas change at the same time."
    )
    balance_slots: bool = Field(
        default=True,
        description="Keep the numbers of slots of all raft groups even. Off where operators place "
        "slots by hand.",
    )
    max_slot_moves_in_flight: int = Field(
        default=2, ge=1, description="Raft groups that give up slots at the same time."
    )
    slots_per_move: int = Field(
        default=64, ge=1, le=4_096, description="Slots that go to another raft group at once."
    )
    replica_repair_delay_ms: int = Field(
        default=600_000,
        ge=0,
        description="A replica on a node that is DOWN for so long is rebuilt elsewhere.",
    )
    broker_forget_delay_ms: int = Field(
        default=3_600_000, ge=0, description="A broker that is DOWN for so long is forgotten."
    )
    leader_balance_delay_ms: int = Field(
        default=5_000,
        ge=0,
        description="Leaders are not moved to a node before it is UP, with a clock like those of "
        "the others, for so long; nor does a new node bring raft groups before.",
    )
    slow_node_factor: float = Field(
        default=5.0,
        gt=1,
        description="A storage node is slow, and loses its leaderships, when its appends take so "
        "many times longer than those of the others.",
    )
    slow_node_floor_ms: float = Field(
        default=50.0, gt=0, description="No storage node is slow below this mean append latency."
    )
    slow_node_after_ms: int = Field(
        default=10_000, ge=0, description="How long a node must be slow to count as slow."
    )
    fail_slow_detection: bool = Field(
        default=True,
        description="Also call a storage node slow whose appends, syncs or answers to other nodes "
        "take longer than its peers need at its load, and than it needed itself; learned from ten "
        "minutes on.",
    )
    fail_slow_floor_ms: float = Field(
        default=10.0, gt=0, description="Nothing faster is slow by that rule."
    )
    avoid_busy_nodes: bool = Field(
        default=True,
        description="New queues go elsewhere than to the third of the storage nodes with the "
        "highest load.",
    )
    busy_node_floor_bytes_per_s: int = Field(
        default=256 * 1024, ge=1, description="No storage node counts as busy below this load."
    )
    load_window_ms: int = Field(
        default=30_000,
        ge=100,
        description="Loads of storage nodes are means in which what was measured this long ago "
        "counts a third.",
    )
    max_model_error: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="A model of loads is not used when it puts more than this share of the load on "
        "other nodes than is measured.",
    )
    refuse_changes_free_bytes: int = Field(
        default=64 * 1024 * 1024,
        ge=0,
        description="Free disk below which no change of the metadata is taken; another nameserver "
        "leads if it has more.",
    )
    ballast_bytes: int = Field(
        default=64 * 1024 * 1024,
        ge=0,
        description="File given back when the disk is all but full, so that what is decided finds "
        "room; 0: none. A standalone node has that of its storage.",
    )
    max_plans: int = Field(default=32, ge=1, le=1_000, description="Placement plans kept.")
    max_plan_steps: int = Field(default=200, ge=1, description="Steps of a placement plan.")
    plan_step_timeout_ms: int = Field(
        default=120_000, ge=100, description="A step of a plan that takes longer ends the plan."
    )
    plan_settle_ms: int = Field(
        default=30_000,
        ge=0,
        description="How long after a step of a plan its outcome is measured; it is undone only if "
        "it is worse for as long again.",
    )
    plan_worse_by: float = Field(
        default=0.1,
        gt=0,
        description="A step after which the busiest storage node is further above the mean by this "
        "share is undone, and the plan ends.",
    )
    peer_interval_ms: int = Field(
        default=1_000, ge=10, description="How often nameservers ask each other who they are."
    )
    log_kept_entries: int = Field(
        default=20_000,
        ge=1,
        description="Applied entries kept in the metadata log for nameservers that lag behind; "
        "one further behind gets a snapshot.",
    )
    sync_interval_ms: int = Field(
        default=1_000, ge=10, description="How often the metadata rows are synced to disk."
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
            recent_changes=self.watch_recent_changes,
            response_changes=self.watch_response_changes,
            max_watchers=self.max_watchers,
            keepalive_ms=self.watch_keepalive_ms,
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
        return SlotRules(self.max_slot_moves_in_flight, self.slots_per_move)

    def placement_rules(self) -> PlacementRules:
        """Return the numbers that placement goes by."""
        return PlacementRules(
            replication_factor=self.replication_factor,
            max_moves_in_flight=self.max_moves_in_flight,
            repair_delay_ms=self.replica_repair_delay_ms,
            leader_balance_delay_ms=self.leader_balance_delay_ms,
        )
