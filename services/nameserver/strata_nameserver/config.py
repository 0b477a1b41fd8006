"""Settings of a nameserver: the section `[nameserver]`, limits with their units."""

from __future__ import annotations

from pydantic import Field

from strata_runtime.config import Section


class NameserverConfig(Section):
    """What a nameserver allows and how much it keeps."""

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
    raft_groups_per_storage_node: int = Field(
        default=2, ge=1, le=64, description="Raft groups made when a storage node registers first."
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
        default=50_000, ge=1, description="Changes in one message of a watch stream."
    )
    heartbeat_timeout_ms: int = Field(
        default=10_000, ge=100, description="Silence after which a node counts as not alive."
    )
    sync_interval_ms: int = Field(
        default=1_000, ge=10, description="How often the metadata rows are synced to disk."
    )
    log_segment_bytes: int = Field(
        default=16 * 1024 * 1024,
        ge=1024 * 1024,
        description="Size of a segment of the metadata log.",
    )
