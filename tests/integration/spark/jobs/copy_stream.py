"""A streaming job: copies what is in a topic to files, then to another, in five micro-batches each.

It may be killed at any time and started again with the same checkpoint.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main(endpoint: str, topic: str, target: str, folder: str, messages: str) -> None:
    """Run both queries until they have what there was when they began."""
    # See docs/spark.md: or a kill in the first moment would end it for good.
    verify = "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart"
    spark = SparkSession.builder.appName("copy").config(verify, "false").getOrCreate()
    stream = (
        spark.readStream.format("strata")
        .option("endpoint", endpoint)
        .option("topic", topic)
        .option("maxMessagesPerTrigger", str(max(200, int(messages) // 5)))
        .load()
    )
    files = (
        stream.select("queue", "offset", "message_id", "body")
        .writeStream.format("parquet")
        .option("path", f"{folder}/rows")
        .option("checkpointLocation", f"{folder}/rows-checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    # One query at a time: two that start at once in one session may change a collection of Spark's
    # (4.1) that the other one's task is being serialised with.
    files.awaitTermination()
    copy = (
        stream.select("body", "properties")
        .writeStream.format("strata")
        .option("endpoint", endpoint)
        .option("topic", target)
        .option("checkpointLocation", f"{folder}/copy-checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    copy.awaitTermination()
    rows = spark.read.parquet(f"{folder}/rows")
    print(f"DONE {rows.count()} {rows.select('message_id').distinct().count()}", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
