"""Writes a table as `land_metrics` does, of days that never were; plain Python, no session.

Three queues whose load goes up and down once a day, in windows of five minutes; five storage nodes
in windows of ten seconds, of which the last one becomes slow. One more node has a clock that is a
thousand years ahead, and wrote a window without length.
"""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from strata_placement.jobs import window_rows

DAYS, STEP_MS = 4, 300_000
NODE_WINDOWS, SLOW_FROM, NODE_STEP_MS = 400, 350, 10_000
_TYPES = {"string": pa.string(), "bigint": pa.int64(), "double": pa.float64()}


def queue_rows() -> list[dict[str, Any]]:
    """Return the windows of queues."""
    rows = []
    for window in range(DAYS * 86_400_000 // STEP_MS):
        for queue in range(3):
            wave = 1 + 0.5 * math.sin(2 * math.pi * window * STEP_MS / 86_400_000 + queue)
            load = int(1_000_000 * (queue + 1) * wave * random.uniform(0.95, 1.05))
            place: dict[str, Any] = {
                "namespace": "",
                "topic": "waves",
                "queue": queue,
                "node_id": "storage-0",
            }
            times = {"start_ms": window * STEP_MS, "length_ms": STEP_MS}
            rows.append({**place, **times, "bytes_in": load, "bytes_out": 0})
    wrong: dict[str, Any] = rows[-1] | {"node_id": "storage-9"}
    rows += [wrong | {"start_ms": 1_000 * 365 * 86_400_000}, wrong | {"length_ms": 0}]
    return rows


def node_rows() -> list[dict[str, Any]]:
    """Return the windows of nodes."""
    rows = []
    for window in range(NODE_WINDOWS):
        for number in range(5):
            slow = 8.0 if number == 4 and window >= SLOW_FROM else 1.0
            times: dict[str, Any] = {"start_ms": window * NODE_STEP_MS, "length_ms": NODE_STEP_MS}
            latency_ms = 3.0 * slow * random.uniform(0.9, 1.1)
            loads = {"bytes_in": int(1e6 * random.uniform(5, 15)), "bytes_out": 0}
            measured = {"append_p95_ms": latency_ms, "sync_p95_ms": latency_ms}
            node = {"node_id": f"storage-{number}", "node_kind": "storage"}
            rows.append({**node, **times, **loads, **measured})
    rows.append({**rows[-1], "node_id": "storage-9", "length_ms": 0})
    return rows


def write(path: Path, kind: str, rows: list[dict[str, Any]]) -> None:
    """Write one file of a kind; its hour does not matter here."""
    folder = path / f"kind={kind}" / "hour=1970-01-01T00"
    folder.mkdir(parents=True)
    fields = [
        (name, _TYPES[type_])
        for name, type_ in window_rows.COLUMN_TYPES.items()
        if name not in window_rows.PARTITIONS
    ]
    columns = {name: [row.get(name) for row in rows] for name, _ in fields}
    pyarrow.parquet.write_table(pa.table(columns, pa.schema(fields)), folder / "rows.parquet")


if __name__ == "__main__":
    random.seed(int(sys.argv[2]))
    write(Path(sys.argv[1]), "queue", queue_rows())
    write(Path(sys.argv[1]), "node", node_rows())
