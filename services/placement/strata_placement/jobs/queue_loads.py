"""Loads of queues from the table that `land_metrics` writes, for the jobs that look at them."""

from __future__ import annotations

import time
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from strata_placement.jobs.series_rows import Bounds
from strata_placement.series import PlacementError
from strata_placement.timely import MAX_LENGTH_MS

# Key of a window: a batch that was published twice counts once, and a queue that moved has two
# leaders in one window.
_WINDOW = ["node_id", "start_ms", "namespace", "topic", "queue"]

POSSIBLE = f"length_ms BETWEEN 1 AND {MAX_LENGTH_MS}"
"""Whether a window has a length that can be, as Spark's SQL; a table of an earlier version may have
others."""


class QueueLoads(NamedTuple):
    """Bytes per second of queues.

    Attributes:
        table: `name` (namespace/topic/queue), `start_ms`, `load`.
        bounds: of all windows.
        left_out: windows of queues that do not count: their length cannot be, they begin after now,
            or long before all others.
    """

    table: DataFrame
    bounds: Bounds
    left_out: int

    def about(self) -> str:
        """Return one line that says which windows count."""
        return f"{self.bounds.windows} windows; {self.left_out} rows of other times do not count"


def read_loads(spark: SparkSession, path: str) -> QueueLoads:
    """Return what is stored and handed out, queue by queue and window by window.

    One node whose clock is wrong would stretch the time of all queues by windows without load: what
    begins after now does not count, nor what lies more than `MAX_WINDOWS` before the newest.

    Raises:
        PlacementError: there is no window of a queue.
    """
    windows = spark.read.parquet(path).where("kind = 'queue'").dropDuplicates(_WINDOW)
    timely = f"{POSSIBLE} AND start_ms <= {int(time.time() * 1_000)}"
    ends = (
        f.expr(f"{function}(CASE WHEN {timely} THEN {column} END)")
        for function, column in (("min", "start_ms"), ("max", "start_ms"), ("min", "length_ms"))
    )
    found = windows.agg(*ends, f.expr("count(*)")).first()
    if found is None or found[0] is None:
        raise PlacementError(f"{path} has no metric window of any queue up to now")
    *numbers, rows = found
    bounds = Bounds(*numbers).newest()
    counted = windows.where(f"{timely} AND start_ms >= {bounds.first_ms}")
    table = counted.selectExpr(
        "concat(namespace, '/', topic, '/', CAST(queue AS STRING)) AS name",
        "start_ms",
        "(bytes_in + bytes_out) * 1000D / length_ms AS load",
    )
    return QueueLoads(table, bounds, rows - counted.count())
