"""Finds storage nodes that were slow, window by window, in what `land_metrics` landed.

    spark-submit find_slow.py --windows DIR

The detector is the one that the nameserver runs live; here it goes over the past, which tells what
it would have said and when.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession

from strata_placement.jobs.application import Job
from strata_placement.jobs.queue_loads import POSSIBLE
from strata_runtime.failslow import FailSlowDetector, FailSlowOptions, NodeWindow


def node_windows(spark: SparkSession, path: str) -> DataFrame:
    """Return the windows of storage nodes, in order."""
    nodes = spark.read.parquet(path).where("kind = 'node' and node_kind = 'storage'")
    nodes = nodes.where(POSSIBLE)
    return (
        nodes.dropDuplicates(["node_id", "start_ms"])
        .selectExpr(
            "node_id",
            "start_ms",
            "(bytes_in + bytes_out) * 1000D / length_ms AS load_bytes_per_s",
            "append_p95_ms AS append_ms",
            "sync_p95_ms AS sync_ms",
        )
        .orderBy("start_ms", "node_id")
    )


def alarms_of(windows: Iterable[NodeWindow]) -> Iterator[dict[str, Any]]:
    """Give every time at which a node is found slow that was not before."""
    detector = FailSlowDetector(FailSlowOptions())
    known: set[str] = set()
    for start_ms, together in groupby(windows, attrgetter("start_ms")):
        slow = detector.observe(list(together))
        for node in slow:
            if node.node_id not in known:
                yield {
                    "node_id": node.node_id,
                    "found_ms": start_ms,
                    "since_ms": node.since_ms,
                    "signal": node.signal,
                    "times_expected": node.times_expected,
                }
        known = {node.node_id for node in slow}


def main(arguments: Sequence[str]) -> None:
    """Read, look, tell."""
    job = Job("find_slow", __doc__ or "")
    job.parser.add_argument("--windows", required=True, help="table of land_metrics")
    given = job.parser.parse_args(arguments)
    spark = job.session()
    job.say(f"looking at {given.windows}")
    rows: Iterable[Row] = node_windows(spark, given.windows).toLocalIterator()
    alarms = list(alarms_of(NodeWindow(*row) for row in rows))
    job.end(given, {"alarms": len(alarms)}, alarms, "times_expected")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
