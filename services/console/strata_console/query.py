"""Parameters of a read as typed values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strata_cli.errors import UsageError

MAX_TEXT = 4_096


@dataclass(frozen=True, slots=True)
class Query:
    """The parameters of one request.

    Attributes:
        values: as they came.
        max_page: most rows of a page.
    """

    values: Mapping[str, str]
    max_page: int

    def text(self, name: str) -> str:
        """Return a text; empty: it is not given.

        Raises:
            UsageError: it is longer than any name.
        """
        value = self.values.get(name, "")
        if len(value) > MAX_TEXT:
            raise UsageError(f"{name} has {len(value):,} characters; it may have {MAX_TEXT:,}")
        return value

    def name(self, name: str) -> str:
        """Return a name that a command takes by its position.

        Raises:
            UsageError: it is missing, or it looks like an option.
        """
        return positional(name, self.text(name))

    def number(self, name: str, default: int, most: int = (1 << 63) - 1) -> int:
        """Return a whole number from 0 on.

        Raises:
            UsageError: it is none, or too large.
        """
        value = self.text(name)
        if not value:
            return default
        if not (value.isascii() and value.isdigit()) or int(value) > most:
            raise UsageError(f"{name} {value}: give a number from 0 to {most:,}")
        return int(value)

    def flag(self, name: str) -> bool:
        """Return whether a flag is set."""
        return self.text(name) in ("1", "true")

    @property
    def page_size(self) -> int:
        """Rows of the wanted page."""
        return max(1, self.number("size", 50, self.max_page))

    @property
    def namespace(self) -> tuple[str, ...]:
        """The option of the command for the wanted namespace, if it is not the default one."""
        namespace = self.text("namespace")
        return (f"--namespace={namespace}",) if namespace else ()


def positional(name: str, value: str) -> str:
    """Return a value that a command takes by its position.

    Raises:
        UsageError: it is missing, or the command would take it for an option.
    """
    if not value:
        raise UsageError(f"{name} is missing")
    if value.startswith("-"):
        raise UsageError(f"{name} {value}: it must not begin with -")
    return value
