"""Results on standard output: JSON for programs, tables for people; both from the same dict."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from strata_cli.options import Common
from strata_cli.readable import label, readable

Result = Mapping[str, Any]


def show(result: Result, common: Common, *, rows: str = "", columns: Sequence[str] = ()) -> None:
    """Print a result.

    Args:
        result: what `-o json` prints, keys in snake_case.
        common: which of the two forms is wanted.
        rows: key of the list that makes the table of the readable form; "": none.
        columns: keys of the table's columns; empty: those of the first row.
    """
    if common.output == "json":
        sys.stdout.write(json.dumps(result, ensure_ascii=False) + "\n")
        return
    values = {
        key: value for key, value in result.items() if key != rows and (value or key != "next_page")
    }
    _show_values(values)
    if rows:
        _show_table(result[rows], columns, empty=f"no {rows.replace('_', ' ')}")


def _show_values(values: Result) -> None:
    width = max((len(label(key)) for key in values), default=0)
    for key, value in values.items():
        print(f"{label(key):<{width}}  {readable(key, value)}")


def _show_table(rows: Sequence[Result], columns: Sequence[str], *, empty: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if not rows:
        print(empty)
        return
    table = Table(box=None, pad_edge=False)
    names = columns or tuple(rows[0])
    for name in names:
        number = isinstance(rows[0].get(name), int) and not isinstance(rows[0].get(name), bool)
        table.add_column(label(name).replace("_", " "), justify="right" if number else "left")
    for row in rows:
        # Text, not str: a message body with [brackets] is no markup.
        table.add_row(*(Text(readable(name, row.get(name))) for name in names))
    # A pipe has no width: nothing may be cut there.
    console = Console(width=None if sys.stdout.isatty() else 1_000)
    console.print(table)
