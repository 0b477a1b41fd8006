"""Limits and intervals of the autoscaler."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AutoscalerOptions:
    """How often the cluster is read, and what holds while it cannot be read.

    Attributes:
        read_interval_ms: pause between two readings of one trigger.
        rate_window_ms: time over which a rate is measured.
        keep_last_ms: age up to which the last value is served when the cluster cannot be read.
        first_value_timeout_ms: time that a call waits for the first value of a trigger.
        forget_after_ms: time without a call after which a trigger is forgotten.
        max_triggers: triggers at once; more are refused.
        max_concurrent_reads: readings of the cluster at once; more wait.
        max_topics: topics that are read for the messages per second of the whole cluster.
        max_streams: push triggers that are connected at once; more are refused.
        forecast_window_ms: length of the windows of a forecast's history.
        history_windows: windows that a forecast remembers; a daily pattern needs 27 hours.
        max_forecast_ratio: most that a forecast may be, as a multiple of the highest rate known.
    """

    read_interval_ms: int = 5_000
    rate_window_ms: int = 30_000
    keep_last_ms: int = 300_000
    first_value_timeout_ms: int = 8_000
    forget_after_ms: int = 3_600_000
    max_triggers: int = 500
    max_concurrent_reads: int = 4
    max_topics: int = 200
    max_streams: int = 500
    forecast_window_ms: int = 60_000
    history_windows: int = 2_880
    max_forecast_ratio: float = 1.5
