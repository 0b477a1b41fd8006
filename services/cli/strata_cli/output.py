"""Results on standard output: JSON for programs, tables for people; both from the same dict.

Tables are as wide as the terminal at most; with `-o wide` each row is one line.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from strata_cli.options import Common
from strata_cli.readable import label, readable

Result = Mapping[str, Any]

_UNKNOWN_WIDTH = 80
_WIDE = 1 << 30


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
        width = _WIDE if common.output == "wide" else _terminal_width()
        _show_table(result[rows], columns, empty=f"no {rows.replace('_', ' ')}", width=width)


def _show_values(values: Result) -> None:
    width = max((len(label(key)) for key in values), default=0)
    for key, value in values.items():
        print(f"{label(key):<{width}}  {readable(key, value)}")


def _terminal_width() -> int:
    """Return the columns of the terminal, or of COLUMNS; what is no terminal has 80."""
    return shutil.get_terminal_size((_UNKNOWN_WIDTH, 24)).columns


def _show_table(rows: Sequence[Result], columns: Sequence[str], *, empty: str, width: int) -> None:
    """Print rows; what does not fit into the width goes on in the column's next line."""
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
        justify: Literal["left", "right"] = "right" if number else "left"
        # Fold, not ellipsis: the names of topics and clients must be whole.
        table.add_column(label(name).replace("_", " "), justify=justify, overflow="fold")
    for row in rows:
        # Text, not str: a message body with [brackets] is no markup.
        table.add_row(*(Text(readable(name, row.get(name))) for name in names))
    Console(width=width).print(table)
