"""Dashboards of storage nodes, the tier, nameservers and placement."""

from __future__ import annotations

from scripts.dashboards.model import (
    Board,
    Figure,
    Graph,
    Section,
    Series,
    highest,
    quantile,
    quantiles,
    rate,
    total,
)

_NODE = 'node_id=~"$node_id"'


def _by_node(title: str, description: str, unit: str, query: str) -> Graph:
    return Graph(title, description, unit, (Series(query, "{{node_id}}"),))


STORAGE = Board(
    "stratamq-storage",
    "Storage and raft",
    "Logs, disks, replication and rows of storage nodes.",
    (
        Section(
            "Appends",
            (
                Graph(
                    "Time of an append",
                    "From a call's arrival at the leader to its answer.",
                    "ms",
                    quantiles("strata_storage_append_ms", matchers=_NODE),
                ),
                Graph(
                    "Sync (p99)",
                    "Write and fdatasync in the writer's thread.",
                    "ms",
                    (
                        Series(
                            quantile(0.99, "strata_raft_sync_thread_ms", "node_id", _NODE),
                            "{{node_id}}",
                        ),
                    ),
                ),
                Graph(
                    "Frame to a peer (p99)",
                    "From sending a frame to the peer's answer.",
                    "ms",
                    (Series(quantile(0.99, "strata_peer_frame_ms", "peer", _NODE), "to {{peer}}"),),
                ),
                _by_node(
                    "Syncs",
                    "Group commits.",
                    "ops",
                    rate("strata_raft_syncs_total", "node_id", _NODE),
                ),
                _by_node(
                    "Log written",
                    "Bytes made durable.",
                    "Bps",
                    rate("strata_log_written_bytes_total", "node_id", _NODE),
                ),
                Graph(
                    "Refusals",
                    "Refused parts of requests by outcome.",
                    "ops",
                    (
                        Series(
                            rate("strata_storage_refused_total", "outcome", _NODE), "{{outcome}}"
                        ),
                    ),
                ),
            ),
        ),
        Section(
            "Raft",
            (
                Graph(
                    "Replicas",
                    "Replicas by role.",
                    "short",
                    (Series(total("strata_raft_groups", "role", _NODE), "{{role}}"),),
                ),
                _by_node(
                    "Elections won",
                    "Campaigns won.",
                    "ops",
                    rate("strata_raft_elections_total", "node_id", _NODE),
                ),
                _by_node(
                    "Apply lag",
                    "Committed entries that are not rows yet.",
                    "short",
                    total("strata_raft_apply_lag", "node_id", _NODE),
                ),
                Graph(
                    "Queues to peers",
                    "Raft messages that wait to be sent, by class.",
                    "bytes",
                    (Series(total("strata_peer_queued_bytes", "class", _NODE), "{{class}}"),),
                ),
                Graph(
                    "Dropped messages",
                    "A full queue drops; progress falls back to probing.",
                    "ops",
                    (
                        Series(
                            rate("strata_raft_messages_dropped_total", "class", _NODE), "{{class}}"
                        ),
                    ),
                ),
                Graph(
                    "Snapshots",
                    "Bytes of snapshots sent and received, and of catch-up.",
                    "Bps",
                    (
                        Series(rate("strata_raft_snapshot_sent_bytes_total", "", _NODE), "sent"),
                        Series(
                            rate("strata_raft_snapshot_received_bytes_total", "", _NODE), "received"
                        ),
                        Series(rate("strata_raft_catch_up_bytes_total", "", _NODE), "catch-up"),
                    ),
                ),
            ),
        ),
        Section(
            "Disk",
            (
                _by_node(
                    "Disk mark",
                    "0 normal, 1 refuses appends, 2 refuses all but acks, 3 stop.",
                    "short",
                    highest("strata_storage_disk_mark", "node_id", _NODE),
                ),
                _by_node(
                    "Free room",
                    "On the log's disk.",
                    "bytes",
                    total("strata_storage_disk_free", "node_id", _NODE),
                ),
                _by_node(
                    "Log",
                    "Bytes of frames on the disk.",
                    "bytes",
                    total("strata_log_used_bytes", "node_id", _NODE),
                ),
                _by_node(
                    "Relocated",
                    "Live entries copied so that segments could go.",
                    "Bps",
                    rate("strata_storage_relocated_bytes_total", "node_id", _NODE),
                ),
                _by_node(
                    "Unflushed log",
                    "Bytes of the log that a restart would replay.",
                    "bytes",
                    total("strata_storage_unflushed_log", "node_id", _NODE),
                ),
                _by_node(
                    "Damaged bytes",
                    "Reads that found damage; nothing of it is served.",
                    "ops",
                    rate("strata_storage_corrupt_total", "node_id", _NODE),
                ),
            ),
        ),
        Section(
            "Messages",
            (
                _by_node(
                    "Popped",
                    "Messages handed out.",
                    "ops",
                    rate("strata_storage_popped_total", "node_id", _NODE),
                ),
                _by_node(
                    "Acked",
                    "Messages acked.",
                    "ops",
                    rate("strata_storage_acked_total", "node_id", _NODE),
                ),
                Graph(
                    "Waiting",
                    "Delayed and half messages.",
                    "short",
                    (Series(total("strata_storage_pending", "kind", _NODE), "{{kind}}"),),
                ),
            ),
        ),
    ),
    ("node_id",),
)

TIER = Board(
    "stratamq-tier",
    "Tier",
    "Messages in the object store: uploads, reads, requests.",
    (
        Section(
            "Uploads",
            (
                Figure(
                    "Oldest message that waits",
                    "For its upload.",
                    "ms",
                    highest("strata_storage_tier_lag_ms"),
                    600_000,
                    3_600_000,
                ),
                Figure(
                    "Waiting bytes",
                    "Messages that wait for their upload.",
                    "bytes",
                    total("strata_storage_tier_backlog"),
                ),
                _by_node(
                    "Uploaded",
                    "Bytes of committed objects.",
                    "Bps",
                    rate("strata_storage_tier_uploaded_bytes_total", "node_id"),
                ),
                Graph(
                    "Time of an upload",
                    "Time of one object.",
                    "ms",
                    quantiles("strata_storage_tier_upload_ms"),
                ),
                Graph(
                    "Failures",
                    "Work that failed and is repeated.",
                    "ops",
                    (Series(rate("strata_storage_tier_failures_total", "work"), "{{work}}"),),
                ),
            ),
        ),
        Section(
            "Reads",
            (
                _by_node(
                    "Served",
                    "Bytes of messages served from the tier.",
                    "Bps",
                    rate("strata_storage_tier_read_bytes_total", "node_id"),
                ),
                Graph(
                    "Blocks",
                    "Cached, joined, read, pieces.",
                    "ops",
                    (Series(rate("strata_tier_read_blocks_total", "how"), "{{how}}"),),
                ),
                Graph(
                    "Damaged",
                    "Reads whose bytes did not match their checksum.",
                    "ops",
                    (Series(rate("strata_tier_read_damaged_total"), "damaged"),),
                ),
            ),
        ),
        Section(
            "Object store",
            (
                Graph(
                    "Requests",
                    "By operation; clouds bill these.",
                    "ops",
                    (
                        Series(
                            rate("strata_tier_store_requests_total", "operation"), "{{operation}}"
                        ),
                    ),
                ),
                Graph(
                    "Time of a request (p99)",
                    "By operation.",
                    "ms",
                    (
                        Series(
                            quantile(0.99, "strata_tier_store_request_ms", "operation"),
                            "{{operation}}",
                        ),
                    ),
                ),
                Graph(
                    "Outcomes",
                    "Requests by outcome.",
                    "ops",
                    (Series(rate("strata_tier_store_requests_total", "outcome"), "{{outcome}}"),),
                ),
            ),
        ),
    ),
)

NAMESERVER = Board(
    "stratamq-nameserver",
    "Nameserver",
    "Metadata: changes, rows, watchers, disks.",
    (
        Section(
            "Metadata",
            (
                Graph(
                    "Changes",
                    "Changes applied.",
                    "ops",
                    (Series(rate("strata_metadata_changes_total", "node_id"), "{{node_id}}"),),
                ),
                Graph(
                    "Rows",
                    "By kind.",
                    "short",
                    (Series(highest("strata_metadata_rows", "kind"), "{{kind}}"),),
                ),
                Graph(
                    "Refused",
                    "Calls refused, by outcome.",
                    "ops",
                    (Series(rate("strata_metadata_refused_total", "outcome"), "{{outcome}}"),),
                ),
                Graph(
                    "Age of the metadata",
                    "Since a nameserver with a majority confirmed it.",
                    "ms",
                    (Series(highest("strata_metadata_age_ms", "node_id"), "{{node_id}}"),),
                ),
                Graph(
                    "Snapshots of watchers",
                    "Watch streams that needed a snapshot.",
                    "ops",
                    (Series(rate("strata_metadata_watch_snapshots_total"), "snapshots"),),
                ),
                _by_node(
                    "Free room",
                    "On the nameserver's disk.",
                    "bytes",
                    total("strata_metadata_disk_free", "node_id"),
                ),
            ),
        ),
    ),
)

PLACEMENT = Board(
    "stratamq-placement",
    "Placement",
    "Moves of replicas, leaders, queues and slots, and how even the load is.",
    (
        Section(
            "Balance",
            (
                Figure(
                    "Busiest node / mean",
                    "1 is even.",
                    "short",
                    highest("strata_metadata_busiest_node_ratio"),
                    1.5,
                    3,
                ),
                Figure(
                    "Slow nodes",
                    "Storage nodes that append slowly.",
                    "short",
                    highest("strata_metadata_slow_nodes"),
                    1,
                    2,
                ),
                Graph(
                    "Moves",
                    "Changes that placement chose, by kind.",
                    "ops",
                    (Series(rate("strata_metadata_moves_total", "kind"), "{{kind}}"),),
                ),
                Graph(
                    "Moves under way",
                    "Moves of replicas and of slots.",
                    "short",
                    (
                        Series(highest("strata_metadata_moves_in_flight"), "replicas"),
                        Series(highest("strata_metadata_slot_moves_in_flight"), "slots"),
                        Series(total("strata_storage_queue_moves"), "queues"),
                    ),
                ),
                _by_node(
                    "Served bytes",
                    "Bytes of messages that a node gave to brokers.",
                    "Bps",
                    rate("strata_storage_served_bytes_total", "node_id"),
                ),
            ),
        ),
    ),
)
