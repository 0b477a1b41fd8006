"""Lists in pages, so that people and programs do not get a million rows at once."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TypeVar

from strata_broker.metadata.metadata import Name
from strata_broker.metadata.name_index import NameIndex

Row = TypeVar("Row")

_DEFAULT_PAGE = 1_000
_MAX_PAGE = 10_000
_LOOKED_AT_PER_TURN = 10_000


def page(
    rows: Iterable[tuple[Name, Row]], page_size: int, page_token: str
) -> tuple[list[Row], str]:
    """Return a page of rows by name, and the token of the next ("" at the end).

    A token is `namespace/name` of the last row given. The second part can hold no slash; the first
    one can, where it is a client's id, which clients choose.
    """
    size = min(page_size or _DEFAULT_PAGE, _MAX_PAGE)
    if page_token:
        after = _name_of(page_token)
        rows = (row for row in rows if row[0] > after)
    given = heapq.nsmallest(size + 1, rows, key=lambda row: row[0])
    token = "/".join(given[size - 1][0]) if len(given) > size else ""
    return [row for _, row in given[:size]], token


async def page_of_names(
    index: Callable[[], NameIndex],
    wanted: Callable[[Name], bool],
    page_size: int,
    page_token: str,
    *,
    namespace: str | None = None,
    prefix: str = "",
) -> tuple[list[Name], str]:
    """Return a page of names in order, and the token of the next one ("" at the end).

    A token is the last name given, as for `page`: it tells nothing of names that are not wanted.
    Other work goes on while many such names are passed over.

    Args:
        index: returns all names.
        wanted: whether a name belongs into the list.
        page_size: most names of the page; 0: the default.
        page_token: of the page before; "": the first page.
        namespace: only names of it; None: of every namespace.
        prefix: only names that begin with it.
    """
    size = min(page_size or _DEFAULT_PAGE, _MAX_PAGE)
    last = _name_of(page_token)
    is_first = namespace is not None and (namespace, prefix) > last
    if namespace is not None and is_first:
        last = (namespace, prefix)
    found: list[Name] = []
    while True:
        names = index().starting_at(last) if is_first else index().after(last)
        is_first, looked_at = False, 0
        for name in islice(names, _LOOKED_AT_PER_TURN):
            looked_at += 1
            last = name
            if namespace is not None and (name[0] != namespace or not name[1].startswith(prefix)):
                return found, ""
            if name[1].startswith(prefix) and wanted(name):
                if len(found) == size:
                    return found, "/".join(found[-1])
                found.append(name)
        if looked_at < _LOOKED_AT_PER_TURN:
            return found, ""
        await asyncio.sleep(0)


def _name_of(token: str) -> Name:
    namespace, _, name = token.rpartition("/")
    return namespace, name
