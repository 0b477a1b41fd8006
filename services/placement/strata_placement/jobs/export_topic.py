"""Exports a topic to Parquet, whole or what came since the last run, by queue.

    spark-submit export_topic.py --endpoint HOST:PORT --topic NAME --path DIR
    spark-submit export_topic.py --tier URL --topic NAME --path DIR

One stream with a checkpoint beside the data: each message is exported once, whatever is killed in
between. With `--tier` no broker is asked and no storage node is disturbed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from strata_placement.jobs.application import Job


def main(arguments: Sequence[str]) -> None:
    """Export what there is and has not been exported yet."""
    job = Job("export_topic", __doc__ or "").with_source()
    job.parser.add_argument("--topic", required=True)
    job.parser.add_argument("--path", required=True, help="folder of the table")
    given = job.parser.parse_args(arguments)
    spark = job.session()
    query = (
        job.messages(spark, given, given.topic)
        .writeStream.format("parquet")
        .partitionBy("queue")
        .option("path", given.path)
        .option("checkpointLocation", f"{given.path}/_checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    messages = job.follow(query)
    rows = []
    if messages:
        by_queue = spark.read.parquet(given.path).groupBy("queue").count().orderBy("queue")
        rows = [row.asDict() for row in by_queue.collect()]
    job.end(given, {"topic": given.topic, "new_messages": messages}, rows, "count")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
