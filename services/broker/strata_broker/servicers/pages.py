"""Lists in pages, so that people and programs do not get a million rows at once."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TypeVar

from strata_broker.metadata.metadata import Name
from strata_broker.metadata.name_index import NameIndex

Row = TypeVar("Row")

_DEFAULT_PAGE = 1_000
_MAX_PAGE = 10_000
_MAX_LOOKED_AT = 20_000


def page(
    rows: Iterable[tuple[Name, Row]], page_size: int, page_token: str
) -> tuple[list[Row], str]:
    """Return a page of rows by name, and the token of the next ("" at the end).

    A token is `namespace/name` of the last row given; neither part can hold a slash.
    """
    size = min(page_size or _DEFAULT_PAGE, _MAX_PAGE)
    if page_token:
        after = _name_of(page_token)
        rows = (row for row in rows if row[0] > after)
    given = heapq.nsmallest(size + 1, rows, key=lambda row: row[0])
    token = "/".join(given[size - 1][0]) if len(given) > size else ""
    return [row for _, row in given[:size]], token


def page_of_names(
    index: NameIndex,
    wanted: Callable[[Name], bool],
    page_size: int,
    page_token: str,
    *,
    namespace: str | None = None,
    prefix: str = "",
) -> tuple[list[Name], str]:
    """Return a page of names in order, and the token of the next one ("" at the end).

    The cost is that of a page: it looks at a bounded number of names, so a page may be short, or
    empty, although more pages follow.

    Args:
        index: all names.
        wanted: whether a name belongs into the list.
        page_size: most names of the page; 0: the default.
        page_token: of the page before; "": the first page.
        namespace: only names of it; None: of every namespace.
        prefix: only names that begin with it.
    """
    size = min(page_size or _DEFAULT_PAGE, _MAX_PAGE)
    after = _name_of(page_token)
    if namespace is not None:
        start = max(after, (namespace, prefix))
        is_first = start != after
    else:
        start, is_first = after, False
    names = index.starting_at(start) if is_first else index.after(start)
    found: list[Name] = []
    last = after
    for name in islice(names, _MAX_LOOKED_AT):
        if namespace is not None and (name[0] != namespace or not name[1].startswith(prefix)):
            return found, ""
        if name[1].startswith(prefix) and wanted(name):
            if len(found) == size:
                return found, "/".join(last)
            found.append(name)
        last = name
    return found, "/".join(last) if next(names, None) is not None else ""


def _name_of(token: str) -> Name:
    namespace, _, name = token.partition("/")
    return namespace, name
