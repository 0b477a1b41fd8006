"""Metrics of the nameserver."""

from __future__ import annotations

from strata_runtime.metrics import MetricSpec

METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(
        "strata_metadata_disk_full",
        "gauge",
        "1",
        "Whether the nameserver's disk is so full that it takes no changes.",
    ),
    MetricSpec(
        "strata_metadata_disk_free", "gauge", "bytes", "Free room on the nameserver's disk."
    ),
    MetricSpec("strata_metadata_revision", "gauge", "1", "Revision of the applied metadata."),
    MetricSpec("strata_metadata_rows", "gauge", "1", "Rows that exist, by kind.", ("kind",)),
    MetricSpec(
        "strata_metadata_rows_maximum", "gauge", "1", "Rows that may exist, by kind.", ("kind",)
    ),
    MetricSpec(
        "strata_metadata_changes_in_flight", "gauge", "1", "Changes proposed and not applied yet."
    ),
    MetricSpec("strata_metadata_changes_total", "counter", "1", "Changes applied."),
    MetricSpec(
        "strata_metadata_refused_total", "counter", "1", "Calls refused, by outcome.", ("outcome",)
    ),
    MetricSpec(
        "strata_metadata_nodes", "gauge", "1", "Nodes by kind and state.", ("kind", "state")
    ),
    MetricSpec(
        "strata_metadata_transitions_total",
        "counter",
        "1",
        "Changes of nodes' states, by the new one.",
        ("state",),
    ),
    MetricSpec(
        "strata_metadata_moves_total",
        "counter",
        "1",
        "Changes that placement chose: of replicas, of leaders, of slots, new raft groups.",
        ("kind",),
    ),
    MetricSpec(
        "strata_metadata_plan_steps_total",
        "counter",
        "1",
        "Changes of state of steps of placement plans.",
    ),
    MetricSpec(
        "strata_metadata_busiest_node_ratio",
        "gauge",
        "1",
        "Load of the busiest storage node / mean; 0: no load to speak of.",
    ),
    MetricSpec("strata_metadata_slow_nodes", "gauge", "1", "Storage nodes that append slowly."),
    MetricSpec(
        "strata_metadata_moves_in_flight", "gauge", "1", "Raft groups whose replicas change now."
    ),
    MetricSpec(
        "strata_metadata_moves_maximum", "gauge", "1", "Raft groups that may change at once."
    ),
    MetricSpec(
        "strata_metadata_slot_moves_in_flight", "gauge", "1", "Raft groups that give up slots now."
    ),
    MetricSpec(
        "strata_metadata_slot_moves_maximum",
        "gauge",
        "1",
        "Raft groups that may give up slots at once.",
    ),
)
