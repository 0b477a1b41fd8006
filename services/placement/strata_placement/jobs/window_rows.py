"""Metric windows as rows of one wide table: what `land_metrics` writes and other jobs read.

The table has the columns of all kinds of window; a row has nulls in those that its kind lacks. It
is partitioned by kind and by the hour in which the window began. Plain Python over columns.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from strata_placement.timely import Flaw, LeftOut, is_possible
from strata_runtime.windows import COLUMNS, WindowFormatError, decode

_TYPES = {"int": "bigint", "float": "double", "text": "string"}
_OWN = {
    "kind": "string",
    "hour": "string",
    "node_id": "string",
    "start_ms": "bigint",
    "length_ms": "bigint",
}
_MEASURED = {column.name: _TYPES[column.type] for columns in COLUMNS.values() for column in columns}

PARTITIONS = ("kind", "hour")
COLUMN_TYPES = _OWN | _MEASURED
SCHEMA = ", ".join(f"`{name}` {type_}" for name, type_ in COLUMN_TYPES.items())
"""As Spark's DDL."""


def rows_of(bodies: Iterable[bytes], left_out: LeftOut) -> dict[str, list[Any]]:
    """Return the windows in the bodies of messages, column by column, in the order of `SCHEMA`.

    A body that is no batch of windows, or one of a later version, gives no row; nor does a batch
    whose time has no date or whose length cannot be: it would fail the job, and again each time
    that the job goes on from its checkpoint.

    Args:
        bodies: of messages.
        left_out: counts what gives no row.
    """
    table: dict[str, list[Any]] = {name: [] for name in COLUMN_TYPES}
    for body in bodies:
        try:
            batch = decode(body)
        except WindowFormatError:
            left_out.add(Flaw.UNREADABLE)
            continue
        if not is_possible(batch):
            left_out.add(Flaw.IMPOSSIBLE, batch.node_id)
            continue
        count = len(batch)
        table["kind"] += [batch.kind.name.lower()] * count
        table["hour"] += [hour_of(batch.start_ms)] * count
        table["node_id"] += [batch.node_id] * count
        table["start_ms"] += [batch.start_ms] * count
        table["length_ms"] += [batch.length_ms] * count
        for name in _MEASURED:
            table[name] += batch.columns.get(name) or [None] * count
    return table


def hour_of(time_ms: int) -> str:
    """Return the hour (UTC) of a time, as the name of a folder."""
    return datetime.fromtimestamp(time_ms / 1_000, UTC).strftime("%Y-%m-%dT%H")
