"""Configuration of `strata autoscaler`."""

from __future__ import annotations

from pydantic import Field

from strata_placement.autoscaling.options import AutoscalerOptions
from strata_runtime.config import Section

# Defaults are written once, where they are used.
_OPTIONS = AutoscalerOptions()


class AutoscalerSection(Section):
    """The external scaler of KEDA."""

    port: int = Field(default=9878, ge=0, le=65_535, description="Port for KEDA (gRPC, plaintext).")
    read_interval_ms: int = Field(
        default=_OPTIONS.read_interval_ms,
        ge=100,
        description="Pause between two readings of the cluster for one trigger.",
    )
    rate_window_ms: int = Field(
        default=_OPTIONS.rate_window_ms,
        ge=1_000,
        description="Time over which messages per second are measured.",
    )
    keep_last_ms: int = Field(
        default=_OPTIONS.keep_last_ms,
        ge=0,
        description="Age up to which the last value of a trigger is served while the cluster "
        "cannot be read; then KEDA gets an error, and its own fallback counts.",
    )
    first_value_timeout_ms: int = Field(
        default=_OPTIONS.first_value_timeout_ms,
        ge=1,
        description="Time that a call waits for the first value of a trigger.",
    )
    forget_after_ms: int = Field(
        default=_OPTIONS.forget_after_ms,
        ge=1_000,
        description="Time without a call after which a trigger is no longer read.",
    )
    max_triggers: int = Field(
        default=_OPTIONS.max_triggers,
        ge=1,
        description="Most triggers; further ones are refused with RESOURCE_EXHAUSTED.",
    )
    max_concurrent_reads: int = Field(
        default=_OPTIONS.max_concurrent_reads,
        ge=1,
        description="Most concurrent readings of the cluster; further ones wait.",
    )
    max_topics: int = Field(
        default=_OPTIONS.max_topics,
        ge=1,
        description="Most topics that are read for the messages per second of the whole cluster; "
        "with more topics such a trigger gets an error.",
    )
    max_streams: int = Field(
        default=_OPTIONS.max_streams,
        ge=1,
        description="Most push triggers that are connected; further ones get RESOURCE_EXHAUSTED.",
    )
    forecast_window_ms: int = Field(
        default=_OPTIONS.forecast_window_ms,
        ge=1_000,
        description="Length of the windows from which a forecast is made.",
    )
    history_windows: int = Field(
        default=_OPTIONS.history_windows,
        ge=1,
        description="Windows that a forecast remembers; a daily pattern needs 27 hours.",
    )
    max_forecast_ratio: float = Field(
        default=_OPTIONS.max_forecast_ratio,
        ge=1.0,
        description="Most that a forecast may be, in units of the highest rate of its history.",
    )

    def options(self) -> AutoscalerOptions:
        """Return the keys that are options of the autoscaler."""
        return AutoscalerOptions(**self.model_dump(exclude={"port"}))
