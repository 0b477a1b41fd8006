"""Jobs over messages and metrics, each one Spark application.

    spark-submit services/placement/strata_placement/jobs/land_metrics.py --endpoint HOST:PORT ...

`land_metrics` brings metric windows to Parquet; `forecast_loads`, `train_model` and `find_slow`
work on what it landed; `export_topic` copies a topic to Parquet; `scrub_tier` checks what is in the
tier, `compact_tier` puts small objects together, `sweep_tier` deletes what nobody needs. Each is a
few functions over DataFrames; what they do to rows is plain Python (`window_rows`, `series_rows`,
`scrub_rows`, `compact_rows`, `sweep_rows`), so it is tested, and runs, without a JVM. Each says on
stderr what it does, prints one JSON object and writes a page (`--report`). Killed and run again,
none does harm: streams go on from their checkpoint, what is written whole is written anew, and what
is in the tier changes by the word of a raft group's leader only.
"""
