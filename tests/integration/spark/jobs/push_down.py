"""Reads a topic with filters, one after another, and prints how many rows each gave.

The first one comes again at the end, where the session does not push filters down.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession


def main(endpoint: str, topic: str, conditions: str) -> None:
    """Count rows by each condition."""
    spark = SparkSession.builder.appName("push-down").getOrCreate()

    def count(condition: str) -> int:
        table = spark.read.format("strata").option("endpoint", endpoint).load(topic)
        rows: int = table.where(condition).select("offset").count()
        return rows

    wanted = json.loads(conditions)
    counts = [count(condition) for condition in wanted]
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    counts.append(count(wanted[0]))
    print(f"COUNTS {json.dumps(counts)}", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
