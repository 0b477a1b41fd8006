"""Results on standard output: JSON or YAML for programs, tables for people; from the same dict.

Tables are as wide as the terminal at most; with `-o wide` each row is one line.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

from strata_cli.errors import UsageError
from strata_cli.options import Common
from strata_cli.readable import label, printable, readable

Result = Mapping[str, Any]

_SHOWN: ContextVar[list[Result] | None] = ContextVar("shown", default=None)

_UNKNOWN_WIDTH = 80
_WIDE = 1 << 30
_NAMES = (
    "name",
    "node",
    "client_id",
    "message_id",
    "transaction_id",
    "policy_id",
    "replica_id",
    "group",
    "consumer_group",
    "queue",
    "raft_group",
    "topic",
)
"""Keys that name what a row is about; the first one that the row has."""


def show(result: Result, common: Common, *, rows: str = "", columns: Sequence[str] = ()) -> None:
    """Print a result.

    Args:
        result: what `-o json` prints, keys in snake_case.
        common: which of the two forms is wanted.
        rows: key of the list that makes the table of the readable form; "": none.
        columns: keys of the table's columns; empty: those of the first row.
    """
    taken = _SHOWN.get()
    if taken is not None:
        taken.append(result)
        return
    if common.for_programs:
        write_document(result, common)
        return
    if common.output == "name":
        for row in result[rows] if rows else (result,):
            print(printable(name_of(row)))
        return
    values = {
        key: value for key, value in result.items() if key != rows and (value or key != "next_page")
    }
    _show_values(values)
    if rows:
        width = _WIDE if common.output == "wide" else _terminal_width()
        _show_table(result[rows], columns, empty=f"no {rows.replace('_', ' ')}", width=width)


def name_of(row: Result) -> str:
    """Return the name of a row: that of the object which it is about."""
    found = next((key for key in _NAMES if row.get(key) not in (None, "")), "")
    return str(row[found] if found else next(iter(row.values()), ""))


class MessagePrinter:
    """Prints messages one by one: as documents, by a template, or as lines for people.

    Args:
        common: the form of the result.
        template: for `templates.Format`; None: there is none.

    Raises:
        UsageError: the template is wrong, or the output is for programs and needs none.
    """

    def __init__(self, common: Common, template: str | None) -> None:
        from strata_cli.templates import Format

        self._common = common
        self._format: Format | None = None
        if template is not None:
            if common.for_programs:
                raise UsageError(f"--format is for people; leave out -o {common.output}")
            self._format = Format(template, is_for_terminal=sys.stdout.isatty())

    def print(self, view: Result) -> None:
        """Print a message at once."""
        from strata_cli.templates import line_of

        if self._format is not None:
            sys.stdout.flush()
            sys.stdout.buffer.write(self._format.of(dict(view)))
            sys.stdout.buffer.flush()
        elif self._common.for_programs:
            write_document(view, self._common)
        else:
            print(line_of(dict(view)))
        sys.stdout.flush()


def write_document(result: Result, common: Common) -> None:
    """Print a result for programs: JSON on one line, or a YAML document that begins with ---."""
    if common.output == "yaml":
        import yaml

        text = yaml.safe_dump(
            dict(result), sort_keys=False, allow_unicode=True, explicit_start=True
        )
        sys.stdout.write(text)
    else:
        sys.stdout.write(_json(result) + "\n")


def _json(result: Result) -> str:
    """Return a result as JSON, which has no number for infinity and for what is no number: null."""
    try:
        return json.dumps(result, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(result), ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


@contextmanager
def captured() -> Iterator[list[Result]]:
    """Yield a list that takes the results that are shown in this context, instead of the screen."""
    shown: list[Result] = []
    token = _SHOWN.set(shown)
    try:
        yield shown
    finally:
        _SHOWN.reset(token)


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
