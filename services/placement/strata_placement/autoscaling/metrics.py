"""Metrics of the autoscaler."""

from __future__ import annotations

from strata_runtime.metrics import MetricSpec

METRICS: tuple[MetricSpec, ...] = (
    MetricSpec("strata_autoscaler_triggers", "gauge", "1", "Triggers that KEDA asks for."),
    MetricSpec("strata_autoscaler_streams", "gauge", "1", "Push triggers that are connected."),
    MetricSpec(
        "strata_autoscaler_value",
        "gauge",
        "1",
        "Last value of a trigger, in the unit of its metric.",
        ("scaled_object", "metric"),
    ),
    MetricSpec(
        "strata_autoscaler_value_age_ms",
        "gauge",
        "ms",
        "Age of the last value of a trigger; it grows while the cluster cannot be read.",
        ("scaled_object", "metric"),
    ),
    MetricSpec(
        "strata_autoscaler_readings_total",
        "counter",
        "1",
        "Readings of the cluster: read, or failed.",
        ("metric", "result"),
    ),
    MetricSpec(
        "strata_autoscaler_answers_total",
        "counter",
        "1",
        "Answers to KEDA: fresh, kept (the cluster could not be read, the last value was served) "
        "or refused (there was no value, or it was too old).",
        ("metric", "result"),
    ),
)
