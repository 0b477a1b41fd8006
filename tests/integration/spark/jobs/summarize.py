"""A batch job as users write them: reads a topic and prints what is in it as one JSON line."""

from __future__ import annotations

import json
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f


def main(endpoint: str, topic: str) -> None:
    """Read the topic whole, then with filters, then by a time."""
    spark = SparkSession.builder.appName("summarize").getOrCreate()

    def read(**options: object) -> DataFrame:
        given = {"endpoint": endpoint, "topic": topic} | options
        return spark.read.format("strata").options(**given).load()

    table = read(messagesPerPartition=1500)
    by_queue = {
        str(row["queue"]): [row["count"], row["first"], row["last"]]
        for row in table.groupBy("queue")
        .agg(
            f.count("*").alias("count"),
            f.min("offset").alias("first"),
            f.max("offset").alias("last"),
        )
        .collect()
    }
    row = table.agg(
        f.countDistinct("message_id").alias("ids"),
        f.sum(f.crc32("body")).alias("checksum"),
        f.countDistinct("topic").alias("topics"),
    ).first()
    tagged = table.where("tag = 'even' and queue in (0, 1)")
    first = table.where("queue = 0 and offset = 0").first()
    middle = table.agg(f.expr("percentile(unix_millis(store_time), 0.5)")).first()[0]
    before = read(endMs=int(middle)).count()
    after = read(beginMs=int(middle)).count()
    stages = spark.sparkContext.statusTracker()
    result = {
        "tasks": max(stage.numTasks for stage in map(stages.getStageInfo, range(20)) if stage),
        "by_queue": by_queue,
        "ids": row["ids"],
        "checksum": row["checksum"],
        "topics": row["topics"],
        "tagged": tagged.count(),
        "scanned_by_tag": read(tag="even").count(),
        "before_and_after": before + after,
        "before": before,
        "first": {
            "keys": first["keys"],
            "properties": first["properties"],
            "headers": sorted(first["headers"]),
            "body": bytes(first["body"]).decode(),
            "message_type": first["message_type"],
        },
    }
    print("RESULT " + json.dumps(result))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
