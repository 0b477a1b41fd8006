"""The table that the nameserver evaluates: expected load per raft group by time of day.

The nameserver only looks numbers up (its reader and the format are described in
docs/placement.md); everything that needs history or arithmetic happens here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from strata_placement.series import DAY_MS, LoadSeries, PlacementError, quantile

FORMAT = 1
SLOT_MS = 3_600_000

_TYPICAL = 0.75


def load_table(series: LoadSeries, raft_group_of: Mapping[str, int]) -> str:
    """Return the JSON table.

    A slot's load is the 75th percentile of the raft group's loads at that hour; an hour of the day
    that history does not cover has that of all windows.

    Args:
        series: loads of queues.
        raft_group_of: where each queue is now; others are left out.

    Raises:
        PlacementError: none of the queues is known.
    """
    sums: dict[int, list[float]] = {}
    for name, column in zip(series.names, series.columns, strict=True):
        raft_group = raft_group_of.get(name)
        if raft_group is None:
            continue
        line = sums.setdefault(raft_group, [0.0] * series.windows)
        for window, load in enumerate(column):
            line[window] += load
    if not sums:
        raise PlacementError("none of the queues that were measured exists any more")
    loads = {str(number): _by_hour(series, line) for number, line in sorted(sums.items())}
    return json.dumps({"format": FORMAT, "slot_ms": SLOT_MS, "raft_groups": loads})


def _by_hour(series: LoadSeries, line: list[float]) -> list[float]:
    hours: list[list[float]] = [[] for _ in range(DAY_MS // SLOT_MS)]
    for window, load in enumerate(line):
        at_ms = series.start_ms + window * series.step_ms
        hours[at_ms % DAY_MS // SLOT_MS].append(load)
    typical = quantile(line, _TYPICAL)
    return [round(quantile(hour, _TYPICAL) if hour else typical, 1) for hour in hours]
