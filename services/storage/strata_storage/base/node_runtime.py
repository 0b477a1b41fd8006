"""The means of a storage node's work: its limits, time, counters and background tasks."""

from __future__ import annotations

from dataclasses import dataclass

from strata_runtime.clock import Clock
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import Tasks
from strata_storage.base.config import StorageOptions


@dataclass(frozen=True, slots=True)
class NodeRuntime:
    """See the module docstring.

    Attributes:
        options: limits and intervals.
        clock: time as the raft groups have it.
        metrics: where everything is counted.
        tasks: owner of the background work.
    """

    options: StorageOptions
    clock: Clock
    metrics: Metrics
    tasks: Tasks
