"""Trains the learned forecaster on all queues by Spark ML and writes its versioned JSON table.

    spark-submit train_model.py --windows DIR --out FILE [--version N]

Samples of every queue are drawn by plain Python, the trees are grown by `GBTRegressor`, and what is
kept of them are thresholds and values (`strata_placement.forecast.trees`): whoever evaluates the
table needs no Spark. The last fifth of the history is not trained on; errors are told of it. The
file is replaced whole, or stays as it was.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.regression import GBTRegressionModel, GBTRegressor
from pyspark.sql import DataFrame

from strata_placement.forecast.learned import FEATURES, LearnedModel, SampleOptions
from strata_placement.forecast.trees import LEAF, BoostedTrees, Tree
from strata_placement.jobs.application import Job
from strata_placement.jobs.queue_loads import QueueLoads, read_loads
from strata_placement.jobs.series_rows import (
    SAMPLE_SCHEMA,
    QueueWindow,
    errors_of,
    sample_columns,
    series_of,
)
from strata_placement.outlook import COARSE_MS
from strata_placement.series import DAY_MS

_TEST_SHARE = 0.2
_TREES, _DEPTH, _LEARNING_RATE, _SEED = 40, 3, 0.2, 1


def samples_of(loads: QueueLoads, samples: SampleOptions) -> DataFrame:
    """Return samples of all queues, to train on and to test with."""
    bounds = loads.bounds

    def of_queue(windows: pd.DataFrame) -> pd.DataFrame:
        rows = map(QueueWindow._make, zip(windows["start_ms"], windows["load"], strict=True))
        series = series_of(windows["name"].iloc[0], rows, bounds)
        return pd.DataFrame(sample_columns(series, samples, _TEST_SHARE))

    return loads.table.groupBy("name").applyInPandas(of_queue, SAMPLE_SCHEMA)


def trees_of(model: GBTRegressionModel) -> BoostedTrees:
    """Return what Spark ML grew as a table."""
    weights = model.treeWeights
    grown = [tree._call_java("rootNode") for tree in model.trees]
    trees = tuple(_tree_of(root, weight) for root, weight in zip(grown, weights, strict=True))
    return BoostedTrees(FEATURES, 0.0, trees)


def main(arguments: Sequence[str]) -> None:
    """Sample, train, test, write."""
    job = Job("train_model", __doc__ or "")
    job.parser.add_argument("--windows", required=True, help="table of land_metrics")
    job.parser.add_argument("--out", required=True, type=Path, help="file to write")
    job.parser.add_argument("--version", type=int, default=int(time.time()))
    job.parser.add_argument("--samples", type=int, default=2_000, help="of each queue")
    given = job.parser.parse_args(arguments)
    spark = job.session()
    loads = read_loads(spark, given.windows)
    job.say(loads.about())
    vectors = VectorAssembler(inputCols=list(FEATURES), outputCol="features")
    samples = vectors.transform(samples_of(loads, SampleOptions(given.samples))).cache()
    training = samples.where("not is_test")
    count = training.count()
    job.say(f"training on {count} samples")
    grower = GBTRegressor(
        labelCol="y", maxIter=_TREES, maxDepth=_DEPTH, stepSize=_LEARNING_RATE, seed=_SEED
    )
    fitted = grower.fit(training)
    tested = fitted.transform(samples.where("is_test")).select("prediction", "y")
    errors = errors_of(row.asDict() for row in tested.toLocalIterator())
    step_ms = max(COARSE_MS, loads.bounds.step_ms)
    model = LearnedModel(given.version, DAY_MS // step_ms, step_ms, trees_of(fitted))
    unfinished = given.out.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(model.to_json()) + "\n", encoding="utf-8")
    unfinished.replace(given.out)
    figures = {"version": given.version, "samples": count, "out": str(given.out)}
    job.end(
        given,
        figures,
        [{"mean_absolute_error_of": name, "ratio": errors[name]} for name in ("model", "level")],
        "ratio",
    )
    spark.stop()


def _tree_of(root: Any, weight: float) -> Tree:
    """Return a tree as columns; Spark goes right above a threshold, as the table does.

    Args:
        root: Spark's own node, in the JVM.
        weight: of the tree in the sum.
    """
    feature: list[int] = []
    threshold: list[float] = []
    left: list[int] = []
    right: list[int] = []
    value: list[float] = []

    def add(node: Any) -> int:
        at = len(feature)
        is_leaf = node.subtreeDepth() == 0
        feature.append(LEAF if is_leaf else node.split().featureIndex())
        threshold.append(0.0 if is_leaf else node.split().threshold())
        value.append(node.prediction() * weight if is_leaf else 0.0)
        left.append(0)
        right.append(0)
        if not is_leaf:
            left[at], right[at] = add(node.leftChild()), add(node.rightChild())
        return at

    add(root)
    return Tree(tuple(feature), tuple(threshold), tuple(left), tuple(right), tuple(value))


if __name__ == "__main__":
    main(sys.argv[1:])
