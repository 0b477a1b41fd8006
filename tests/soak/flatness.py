"""Whether a figure that was sampled for long stays as it is."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

WARM_UP_SHARE = 1 / 3
"""Share of the run: caches fill, first segments are trimmed, connections open."""


class Sample(NamedTuple):
    """One value of a figure; `at_s` counts from the begin of the run."""

    at_s: float
    value: float


@dataclass(frozen=True)
class Allowed:
    """Allowed growth of a figure from the middle third of a run to its last third.

    Attributes:
        amount: in the figure's unit.
        share: of the value in the middle third.
        per_message: for each message that is stored in between.
    """

    amount: float
    share: float = 0.0
    per_message: float = 0.0


@dataclass(frozen=True)
class Course:
    """How a figure went.

    Attributes:
        first: median of the first third, in which it may grow.
        middle: of the second third.
        last: of the last third.
        most: greatest value of all.
        allowed: greatest growth from the middle to the last third that counts as flat.
    """

    first: float
    middle: float
    last: float
    most: float
    allowed: float

    @property
    def is_flat(self) -> bool:
        """Whether it did not grow."""
        return self.last - self.middle <= self.allowed


def course_of(
    samples: Sequence[Sample], allowed: Allowed, lasted_s: float, messages: int = 0
) -> Course:
    """Judge the samples of one figure.

    Args:
        samples: at least one in each third.
        allowed: growth.
        lasted_s: length of the run.
        messages: stored in one third of it.

    Raises:
        ValueError: a third has no sample.
    """
    thirds: list[list[float]] = [[], [], []]
    for at_s, value in samples:
        thirds[min(2, int(at_s / (lasted_s * WARM_UP_SHARE)))].append(value)
    if not all(thirds):
        raise ValueError("each third of the run needs a sample")
    first, middle, last = (statistics.median(third) for third in thirds)
    growth = max(allowed.amount, allowed.share * middle) + allowed.per_message * messages
    return Course(first, middle, last, max(map(max, thirds)), growth)
