"""Long lists, piece by piece, so that other work goes on between the pieces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

Row = TypeVar("Row")

SLICE = 500
"""Rows that are handled without a pause by default."""


async def slices(rows: Sequence[Row], size: int = SLICE) -> AsyncIterator[Sequence[Row]]:
    """Yield the rows in order, at most `size` at a time, with a turn of the event loop between."""
    for begin in range(0, len(rows), size):
        if begin:
            await asyncio.sleep(0)
        yield rows[begin : begin + size]
