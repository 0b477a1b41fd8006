"""Metrics of the CommitLog. Label `log`: `LogOptions.name`."""

from __future__ import annotations

from strata_runtime.metrics import MetricSpec

_LOG = ("log",)

METRICS: tuple[MetricSpec, ...] = (
    MetricSpec("strata_log_frames_total", "counter", "1", "Frames made durable.", _LOG),
    MetricSpec(
        "strata_log_written_bytes_total", "counter", "bytes", "Bytes of frames made durable.", _LOG
    ),
    MetricSpec("strata_log_sync_ms", "histogram", "ms", "Time of one fdatasync.", _LOG),
    MetricSpec(
        "strata_log_refused_writes_total",
        "counter",
        "1",
        "Failed writes that were rewound.",
        _LOG,
    ),
    MetricSpec(
        "strata_log_corruptions_total", "counter", "1", "Corrupt frames and footers found.", _LOG
    ),
    MetricSpec(
        "strata_log_scrubbed_bytes_total", "counter", "bytes", "Bytes read by the scrub.", _LOG
    ),
    MetricSpec("strata_log_segments", "gauge", "1", "Segments on the disk.", _LOG),
    MetricSpec("strata_log_used_bytes", "gauge", "bytes", "Bytes of frames on the disk.", _LOG),
    MetricSpec(
        "strata_log_recent_bytes",
        "gauge",
        "bytes",
        "Memory used by the ring of recent entries.",
        _LOG,
    ),
    MetricSpec(
        "strata_log_recent_limit_bytes",
        "gauge",
        "bytes",
        "Most bytes of the ring of recent entries.",
        _LOG,
    ),
    MetricSpec(
        "strata_log_footer_cache_bytes", "gauge", "bytes", "Bytes of footers in memory.", _LOG
    ),
    MetricSpec(
        "strata_log_footer_cache_limit_bytes",
        "gauge",
        "bytes",
        "Most bytes of footers in memory.",
        _LOG,
    ),
)
