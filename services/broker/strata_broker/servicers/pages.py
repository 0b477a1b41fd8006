"""Lists in pages, so that people and programs do not get a million rows at once."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import TypeVar

from strata_broker.metadata.metadata import Name

Row = TypeVar("Row")

_DEFAULT_PAGE = 1_000
_MAX_PAGE = 10_000


def page(
    rows: Iterable[tuple[Name, Row]], page_size: int, page_token: str
) -> tuple[list[Row], str]:
    """Return a page of rows by name, and the token of the next ("" at the end).

    A token is `namespace/name` of the last row given; neither part can hold a slash.
    """
    size = min(page_size or _DEFAULT_PAGE, _MAX_PAGE)
    if page_token:
        namespace, _, name = page_token.partition("/")
        rows = (row for row in rows if row[0] > (namespace, name))
    given = heapq.nsmallest(size + 1, rows, key=lambda row: row[0])
    token = "/".join(given[size - 1][0]) if len(given) > size else ""
    return [row for _, row in given[:size]], token
