"""The application of `spark_rows.py`: reads a topic three times and prints the best rate."""

from __future__ import annotations

import json
import sys
import time

from pyspark.sql import SparkSession


def main(source: str, messages: str) -> None:
    """Read bodies and places, as most jobs do."""
    spark = SparkSession.builder.appName("rows").getOrCreate()
    options = json.loads(source) | {"messagesPerPartition": str(max(1, int(messages) // 8))}
    rates = []
    for _ in range(3):
        began_s = time.perf_counter()
        table = spark.read.format("strata").options(**options)
        table = table.schema("queue int, offset bigint, body binary").load()
        rows, size_bytes = table.selectExpr("count(*)", "sum(length(body))").first()
        assert (rows, size_bytes) == (int(messages), int(messages) * 1_000), (rows, size_bytes)
        rates.append(rows / (time.perf_counter() - began_s))
    print(f"ROWS_PER_S {max(rates):.0f}")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
