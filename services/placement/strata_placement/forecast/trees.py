"""Gradient-boosted regression trees over few columns, in plain Python, kept as a JSON table.

Training sorts each feature into at most `bins` bins once and grows every tree level by level from
sums per bin, so its cost is (trees x depth x rows x features), whatever the values. The table holds
thresholds and leaf values only: evaluating it needs comparisons and additions, which any program
can do that reads JSON. Spark ML's `GBTRegressor` trains tables of the same format.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strata_placement.series import PlacementError, quantile

Columns = Sequence[Sequence[float]]

LEAF = -1


@dataclass(frozen=True, slots=True)
class TreeOptions:
    """Numbers of the training.

    Attributes:
        trees: how many.
        depth: comparisons on the way to a leaf.
        learning_rate: share of each tree's correction that counts.
        bins: thresholds tried per feature.
        min_leaf_rows: rows that each side of a split must have.
    """

    trees: int = 40
    depth: int = 3
    learning_rate: float = 0.2
    bins: int = 16
    min_leaf_rows: int = 40


@dataclass(frozen=True, slots=True)
class Tree:
    """One tree as columns by node; node 0 is the root.

    Attributes:
        feature: compared at a node; `LEAF`: the node is a leaf.
        threshold: a value above it goes right.
        left, right: nodes to go on with.
        value: of a leaf.
    """

    feature: tuple[int, ...]
    threshold: tuple[float, ...]
    left: tuple[int, ...]
    right: tuple[int, ...]
    value: tuple[float, ...]

    def evaluate(self, row: Sequence[float]) -> float:
        """Return the leaf's value for a row of features."""
        at = 0
        while (feature := self.feature[at]) != LEAF:
            at = self.right[at] if row[feature] > self.threshold[at] else self.left[at]
        return self.value[at]


@dataclass(frozen=True, slots=True)
class BoostedTrees:
    """A sum of trees.

    Attributes:
        features: names, in the order of a row.
        base: what is added to the trees.
        trees: with the learning rate in their leaves already.
    """

    features: tuple[str, ...]
    base: float
    trees: tuple[Tree, ...]

    def evaluate(self, row: Sequence[float]) -> float:
        """Return the expected target for a row of features."""
        return self.base + sum(tree.evaluate(row) for tree in self.trees)

    def to_json(self) -> dict[str, Any]:
        """Return the table."""
        return {
            "features": list(self.features),
            "base": self.base,
            "trees": [
                {
                    "feature": list(tree.feature),
                    "threshold": [round(value, 9) for value in tree.threshold],
                    "left": list(tree.left),
                    "right": list(tree.right),
                    "value": [round(value, 9) for value in tree.value],
                }
                for tree in self.trees
            ],
        }

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> BoostedTrees:
        """Return what a table holds.

        Raises:
            PlacementError: it is no such table, or a node of it leads nowhere.
        """
        try:
            features = tuple(map(str, table["features"]))
            trees = tuple(_tree_of(tree, len(features)) for tree in table["trees"])
            return cls(features, float(table["base"]), trees)
        except (KeyError, TypeError, ValueError) as error:
            raise PlacementError(f"not a table of trees: {error}") from None


def train(
    features: Sequence[str], columns: Columns, target: Sequence[float], options: TreeOptions
) -> BoostedTrees:
    """Fit trees to a target, by least squares.

    Args:
        features: names of the columns.
        columns: values per feature, all as long as the target.
        target: the value to predict.
        options: see there.

    Raises:
        PlacementError: there are fewer rows than a split needs.
    """
    if len(target) < 2 * options.min_leaf_rows:
        raise PlacementError(f"{len(target)} rows are too few to train on")
    edges = [_edges(column, options.bins) for column in columns]
    binned = [
        [bisect_left(edge, value) for value in column]
        for edge, column in zip(edges, columns, strict=True)
    ]
    base = sum(target) / len(target)
    residuals = [value - base for value in target]
    trees = []
    for _ in range(options.trees):
        grower = _Grower(binned, edges, residuals, options=options)
        trees.append(grower.grow())
        residuals = [left - grower.fitted[row] for row, left in enumerate(residuals)]
    return BoostedTrees(tuple(features), base, tuple(trees))


def _tree_of(tree: Mapping[str, Any], features: int) -> Tree:
    feature = tuple(map(int, tree["feature"]))
    left, right = tuple(map(int, tree["left"])), tuple(map(int, tree["right"]))
    threshold, value = tuple(map(float, tree["threshold"])), tuple(map(float, tree["value"]))
    if not len(feature) == len(left) == len(right) == len(threshold) == len(value) > 0:
        raise ValueError("columns of a tree differ in length")
    for at, number in enumerate(feature):
        # Children stand behind their parent, so no path is endless.
        inner = 0 <= number < features and at < min(left[at], right[at])
        if number != LEAF and not (inner and max(left[at], right[at]) < len(feature)):
            raise ValueError(f"node {at} of a tree leads nowhere")
    return Tree(feature, threshold, left, right, value)


def _edges(column: Sequence[float], bins: int) -> list[float]:
    ordered = sorted(column)
    return sorted({quantile(ordered, at / bins) for at in range(1, bins)})


class _Grower:
    """Grows one tree over binned columns."""

    def __init__(
        self,
        binned: Sequence[Sequence[int]],
        edges: Sequence[Sequence[float]],
        residuals: Sequence[float],
        *,
        options: TreeOptions,
    ) -> None:
        self._binned, self._edges = binned, edges
        self._residuals, self._options = residuals, options
        self._feature: list[int] = []
        self._threshold: list[float] = []
        self._left: list[int] = []
        self._right: list[int] = []
        self._value: list[float] = []
        self.fitted = [0.0] * len(residuals)

    def grow(self) -> Tree:
        """Return the tree; `fitted` has what it says of each row."""
        self._node(range(len(self._residuals)), self._options.depth)
        return Tree(
            tuple(self._feature),
            tuple(self._threshold),
            tuple(self._left),
            tuple(self._right),
            tuple(self._value),
        )

    def _node(self, rows: Sequence[int], depth: int) -> int:
        at = len(self._feature)
        for column, empty in (
            (self._feature, LEAF),
            (self._left, 0),
            (self._right, 0),
        ):
            column.append(empty)
        self._threshold.append(0.0)
        self._value.append(0.0)
        split = self._best_split(rows) if depth else None
        if split is None:
            mean = sum(self._residuals[row] for row in rows) / max(1, len(rows))
            self._value[at] = value = mean * self._options.learning_rate
            for row in rows:
                self.fitted[row] = value
            return at
        feature, limit = split
        bins = self._binned[feature]
        self._feature[at] = feature
        self._threshold[at] = self._edges[feature][limit]
        self._left[at] = self._node([row for row in rows if bins[row] <= limit], depth - 1)
        self._right[at] = self._node([row for row in rows if bins[row] > limit], depth - 1)
        return at

    def _best_split(self, rows: Sequence[int]) -> tuple[int, int] | None:
        """Return (feature, last bin of the left side) that lowers the squares most."""
        residuals, least = self._residuals, self._options.min_leaf_rows
        total = sum(residuals[row] for row in rows)
        best_gain, best = total * total / max(1, len(rows)) * (1 + 1e-9), None
        for feature, bins in enumerate(self._binned):
            count = len(self._edges[feature]) + 1
            sums, counts = [0.0] * count, [0] * count
            for row in rows:
                bin_ = bins[row]
                sums[bin_] += residuals[row]
                counts[bin_] += 1
            left_sum, left_count = 0.0, 0
            for limit in range(count - 1):
                left_sum += sums[limit]
                left_count += counts[limit]
                right_count = len(rows) - left_count
                if left_count < least or right_count < least:
                    continue
                gain = left_sum**2 / left_count + (total - left_sum) ** 2 / right_count
                if gain > best_gain:
                    best_gain, best = gain, (feature, limit)
        return best
