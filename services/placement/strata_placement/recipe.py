"""The recipe that turns a trace of a whole cluster into loads of queues; stated in full here.

Public traces have one mean per window for all machines; queues differ. So, by seed:

1. Each column of the trace becomes a shape: 0 at its 5th percentile, 1 at its 95th, cut off at -0.2
   and 2.5.
2. Each of `tenants` tenants draws a column, a lag of 0 to `max_lag_windows` (its users live in
   another time zone, or its work follows that of others) and a depth of 0.5 to 0.9; its activity in
   window t is `1 - depth + depth * shape[t - lag]`.
3. Each queue draws a tenant and a weight by Zipf's law (exponent `skew`, in random order).
4. Each queue has a noise of its own: the exponential of an AR(1) process (0.9 per window, standard
   deviation `noise`).
5. Each queue has bursts that nobody can foresee: `bursts_per_day` of them on average, 2 to 4 times
   the load for 15 to 60 minutes.
6. All is scaled so that the mean over queues and windows adds up to `total_bytes_per_s`.

Lags only look back, so no window holds anything of the trace's future; the series begins
`max_lag_windows` into the trace. A tenant may repeat at a later window, up to `max_lag_windows` on,
the activity that another tenant shows at t: a split in time must leave out that many windows (see
`backtest.split`).
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from strata_placement.series import DAY_MS, LoadSeries, PlacementError, load_series, quantile
from strata_placement.traces import Trace

_LOWEST, _HIGHEST = -0.2, 2.5
_NOISE_MEMORY = 0.9


@dataclass(frozen=True, slots=True)
class RecipeOptions:
    """Numbers of the recipe, see the module docstring."""

    seed: int = 1
    queues: int = 200
    tenants: int = 12
    max_lag_windows: int = 144
    skew: float = 0.9
    noise: float = 0.10
    bursts_per_day: float = 0.15
    total_bytes_per_s: float = 600e6


def queue_loads(trace: Trace, options: RecipeOptions) -> LoadSeries:
    """Return the loads of queues, named q0000, q0001, ...; the same for the same seed.

    Raises:
        PlacementError: the trace is not longer than the largest lag.
    """
    windows = trace.windows - options.max_lag_windows
    if windows <= 0:
        raise PlacementError(f"trace {trace.name} is shorter than max_lag_windows")
    random = Random(options.seed)  # noqa: S311 (a load to repeat, guards nothing)
    shapes = [_shape(column) for column in trace.columns.values()]
    activities = [_activity(random, shapes, windows, options) for _ in range(options.tenants)]
    weights = [1.0 / (rank + 1) ** options.skew for rank in range(options.queues)]
    random.shuffle(weights)
    per_day = DAY_MS / trace.step_ms
    columns = [
        _queue(random, weight, random.choice(activities), options.bursts_per_day / per_day, options)
        for weight in weights
    ]
    scale = options.total_bytes_per_s * windows / sum(map(sum, columns))
    return load_series(
        options.max_lag_windows * trace.step_ms,
        trace.step_ms,
        (
            (f"q{number:04d}", [value * scale for value in column])
            for number, column in enumerate(columns)
        ),
    )


def _shape(column: Sequence[float]) -> Sequence[float]:
    low, high = quantile(column, 0.05), quantile(column, 0.95)
    width = (high - low) or 1.0
    return array("d", (min(max((value - low) / width, _LOWEST), _HIGHEST) for value in column))


def _activity(
    random: Random, shapes: Sequence[Sequence[float]], windows: int, options: RecipeOptions
) -> Sequence[float]:
    shape = random.choice(shapes)
    lag = random.randint(0, options.max_lag_windows)
    depth = random.uniform(0.5, 0.9)
    first = options.max_lag_windows - lag
    return array("d", (1 - depth + depth * value for value in shape[first : first + windows]))


def _queue(
    random: Random,
    weight: float,
    activity: Sequence[float],
    burst_chance: float,
    options: RecipeOptions,
) -> Sequence[float]:
    noise, burst, burst_left = 0.0, 1.0, 0
    fresh = options.noise * math.sqrt(1 - _NOISE_MEMORY**2)
    values = array("d")
    for level in activity:
        noise = _NOISE_MEMORY * noise + random.gauss(0.0, fresh)
        if burst_left:
            burst_left -= 1
        elif random.random() < burst_chance:
            burst, burst_left = random.uniform(2.0, 4.0), random.randint(3, 12)
        else:
            burst = 1.0
        values.append(weight * level * math.exp(noise) * burst)
    return values
