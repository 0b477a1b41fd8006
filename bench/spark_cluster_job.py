"""The application of `spark_cluster.py`: reads numbers and prints their sums."""

from __future__ import annotations

import json
import sys
import time

from pyspark.sql import SparkSession
from pyspark.sql import functions as f


def main(source: str) -> None:
    """Read the topic once."""
    spark = SparkSession.builder.appName("numbers").getOrCreate()
    began_s = time.perf_counter()
    table = spark.read.format("strata").options(**json.loads(source))
    rows = table.schema("queue int, offset bigint, message_id string, body binary").load()
    of_queue = (
        rows.withColumn("number", f.expr("cast(string(body) as bigint)"))
        .groupBy("queue")
        .agg(
            f.count("*").alias("messages"),
            f.sum("number").alias("sum"),
            f.sum(f.expr("int(length(body) = 100)")).alias("of_right_length"),
            f.expr("max(offset) - min(offset) + 1").alias("offsets"),
        )
    )
    totals = of_queue.agg(
        *(f.sum(name) for name in ("messages", "sum", "of_right_length", "offsets"))
    ).first()
    took_s = time.perf_counter() - began_s
    # Read once more: who counts distinct values sorts them, which is not the source's time.
    numbers = rows.select(f.expr("cast(string(body) as bigint) as number"), "message_id")
    distinct = numbers.select("number").distinct().count()
    ids = numbers.select(f.xxhash64("message_id")).distinct().count()
    read = {
        "messages": totals[0],
        "distinct": distinct,
        "sum": int(totals[1]),
        "ids": ids,
        "of_right_length": totals[2],
        "offsets_without_holes": totals[3],
    }
    print(f"READ {json.dumps(read | {'took_s': took_s, 'tasks': rows.rdd.getNumPartitions()})}")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
