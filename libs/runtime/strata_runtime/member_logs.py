"""Logs of the members of one process: each member writes to its own place, or to the process's.

A member's tasks inherit its context, and with it the place of its lines. So code that logs knows
nothing of members. Lines outside of any member are those of the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TextIO

import structlog

TakeLine = Callable[[bytes], None]
"""Takes a line of a log, with its end; it does not wait."""

_TAKE_LINE: ContextVar[TakeLine | None] = ContextVar("strata_member_log", default=None)


class MemberStream:
    """A stream for `logs.configure` that gives each line to the member that writes it.

    Args:
        process: where lines of no member go, and those of members without a place of their own.
    """

    def __init__(self, process: TextIO) -> None:
        self._process = process

    def write(self, text: str) -> int:
        """Write a line."""
        take_line = _TAKE_LINE.get()
        if take_line is None:
            return self._process.write(text)
        take_line(text.encode(errors="replace"))
        return len(text)

    def flush(self) -> None:
        """Write out what the process's stream holds back."""
        self._process.flush()

    def isatty(self) -> bool:
        """Whether people look at the process's log."""
        return self._process.isatty()


@contextmanager
def member_logs(member: str, take_line: TakeLine | None) -> Iterator[None]:
    """Give every line inside, and those of tasks that begin inside, to a member.

    Args:
        member: its name, in each line.
        take_line: its own place; None: its lines are in the process's log.
    """
    token = _TAKE_LINE.set(take_line)
    try:
        with structlog.contextvars.bound_contextvars(member=member):
            yield
    finally:
        _TAKE_LINE.reset(token)
