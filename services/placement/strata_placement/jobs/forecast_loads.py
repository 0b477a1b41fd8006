"""Forecasts the load of every queue, each by itself, as many at a time as Spark has cores.

    spark-submit forecast_loads.py --windows DIR --out DIR [--forecaster auto] [--model FILE]

`--windows` is the table of `land_metrics`. The result is Parquet, written anew by each run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from pyspark.sql import DataFrame

from strata_placement.forecast.learned import LearnedModel
from strata_placement.jobs.application import Job
from strata_placement.jobs.queue_loads import QueueLoads, read_loads
from strata_placement.jobs.series_rows import (
    FORECAST_SCHEMA,
    QueueWindow,
    forecast_rows,
    series_of,
)
from strata_placement.outlook import AUTO

_SHOWN = 20


def forecasts_of(loads: QueueLoads, forecaster: str, model: LearnedModel | None) -> DataFrame:
    """Return a DataFrame of forecasts, several steps per queue."""
    bounds = loads.bounds

    def of_queue(windows: pd.DataFrame) -> pd.DataFrame:
        rows = map(QueueWindow._make, zip(windows["start_ms"], windows["load"], strict=True))
        series = series_of(windows["name"].iloc[0], rows, bounds)
        return pd.DataFrame(forecast_rows(series, forecaster, model))

    return loads.table.groupBy("name").applyInPandas(of_queue, FORECAST_SCHEMA)


def main(arguments: Sequence[str]) -> None:
    """Read, forecast, write."""
    job = Job("forecast_loads", __doc__ or "")
    job.parser.add_argument("--windows", required=True, help="table of land_metrics")
    job.parser.add_argument("--out", required=True, help="folder to write; it is replaced")
    job.parser.add_argument("--forecaster", default=AUTO)
    job.parser.add_argument("--model", type=Path, help="file of train_model")
    given = job.parser.parse_args(arguments)
    model = None
    if given.model is not None:
        model = LearnedModel.from_json(json.loads(given.model.read_text(encoding="utf-8")))
    spark = job.session()
    loads = read_loads(spark, given.windows)
    job.say(loads.about())
    job.say("forecasting")
    forecasts_of(loads, given.forecaster, model).write.mode("overwrite").parquet(given.out)
    written = spark.read.parquet(given.out)
    nearest = written.where("step = 1").orderBy("expected", ascending=False)
    figures = {"queues": written.select("queue").distinct().count(), "out": given.out}
    job.end(given, figures, [row.asDict() for row in nearest.limit(_SHOWN).collect()], "expected")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
