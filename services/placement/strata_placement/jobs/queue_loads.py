"""Loads of queues from the table that `land_metrics` writes, for the jobs that look at them."""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from strata_placement.jobs.series_rows import Bounds
from strata_placement.series import PlacementError

# Key of a window: a batch that was published twice counts once, and a queue that moved has two
# leaders in one window.
_WINDOW = ["node_id", "start_ms", "namespace", "topic", "queue"]


class QueueLoads(NamedTuple):
    """Bytes per second of queues.

    Attributes:
        table: `name` (namespace/topic/queue), `start_ms`, `load`.
        bounds: of all windows.
    """

    table: DataFrame
    bounds: Bounds


def read_loads(spark: SparkSession, path: str) -> QueueLoads:
    """Return what is stored and handed out, queue by queue and window by window.

    Raises:
        PlacementError: there is no window of a queue.
    """
    windows = spark.read.parquet(path).where("kind = 'queue'").dropDuplicates(_WINDOW)
    found = windows.agg(f.min("start_ms"), f.max("start_ms"), f.min("length_ms")).first()
    if found is None or found[0] is None:
        raise PlacementError(f"{path} has no metric window of any queue")
    table = windows.selectExpr(
        "concat(namespace, '/', topic, '/', CAST(queue AS STRING)) AS name",
        "start_ms",
        "(bytes_in + bytes_out) * 1000D / length_ms AS load",
    )
    return QueueLoads(table, Bounds(*found))
