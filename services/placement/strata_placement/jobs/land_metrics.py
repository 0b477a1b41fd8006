"""Brings metric windows from `__strata_metrics` to Parquet, by kind and hour.

    spark-submit land_metrics.py --endpoint HOST:PORT --path DIR [--once] [--interval 60s]

One stream with a checkpoint beside the data: every window is written once, also when the job is
killed and started again. Read the result with Spark, which goes by the sink's own list of files;
what a killed job left behind is not in it. Batches that cannot be read, or whose time or length
cannot be, are left out; the logs of the tasks say how many.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame

from strata_placement.jobs import window_rows
from strata_placement.jobs.application import Job
from strata_placement.timely import LeftOut
from strata_runtime.windows import WINDOWS_TOPIC


def windows_of(messages: DataFrame) -> DataFrame:
    """Return the metric windows in messages, one row each."""
    return messages.select("body").mapInArrow(_decoded, window_rows.SCHEMA)


def main(arguments: Sequence[str]) -> None:
    """Run until it is stopped; with `--once` until everything there was is landed."""
    job = Job("land_metrics", __doc__ or "").with_source()
    job.parser.add_argument("--path", required=True, help="folder of the table")
    job.parser.add_argument("--once", action="store_true", help="land what there is, then end")
    job.parser.add_argument("--interval", default="60s", help="time between micro-batches")
    job.parser.add_argument("--files", type=int, default=1, help="files of a micro-batch and hour")
    given = job.parser.parse_args(arguments)
    spark = job.session()
    windows = windows_of(job.messages(spark, given, WINDOWS_TOPIC)).coalesce(given.files)
    writer = (
        windows.writeStream.format("parquet")
        .partitionBy(*window_rows.PARTITIONS)
        .option("path", given.path)
        .option("checkpointLocation", f"{given.path}/_checkpoint")
    )
    trigger = {"availableNow": True} if given.once else {"processingTime": given.interval}
    messages = job.follow(writer.trigger(**trigger).start())
    table = spark.read.parquet(given.path) if messages else None
    counts = table.groupBy("kind").count().collect() if table is not None else []
    job.end(given, {"messages": messages, "path": given.path}, [row.asDict() for row in counts])
    spark.stop()


def _decoded(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    types = {"string": pa.string(), "bigint": pa.int64(), "double": pa.float64()}
    schema = pa.schema([(name, types[type_]) for name, type_ in window_rows.COLUMN_TYPES.items()])
    for batch in batches:
        bodies = (body.as_py() for body in batch.column(0))
        left_out = LeftOut()
        rows = window_rows.rows_of(bodies, left_out)
        if left_out.total:
            # One line for some thousand messages at most, in the log of the task that read them.
            print(f"strata land_metrics: {left_out}", file=sys.stderr, flush=True)
        yield pa.RecordBatch.from_pydict(rows, schema=schema)


if __name__ == "__main__":
    main(sys.argv[1:])
