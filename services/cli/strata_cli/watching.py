"""Results that are shown again and again until Ctrl-C (`--watch`).

A terminal shows the newest round only; anything else gets one round after the other.
"""

from __future__ import annotations

import io
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Annotated

from cyclopts import Parameter

from strata_cli.errors import CliError, UsageError
from strata_cli.options import Common, seconds

Watch = Annotated[bool, Parameter(name="--watch", negative="", help="Show it until Ctrl-C.")]
Interval = Annotated[
    str, Parameter(name="--interval", help="Time between two looks, at least 200ms.")
]

INTERVAL = "2s"
"""Default of --interval."""

_MIN_INTERVAL_S = 0.2
_CLEAR = "\x1b[H\x1b[2J\x1b[3J"


def interval_s_of(text: str) -> float:
    """Return the value of --interval in seconds.

    Raises:
        UsageError: it is no duration, or too short.
    """
    interval_s = seconds(text)
    if interval_s < _MIN_INTERVAL_S:
        raise UsageError(f"--interval {text}: give at least 200ms")
    return interval_s


def look(draw: Callable[[], None], common: Common, *, watch: bool, interval: str) -> None:
    """Show something once, or again and again.

    A broker that cannot be reached in a later round is reported in place of the result.

    Args:
        draw: asks for the result and prints it.
        common: the form of the result.
        watch: whether to go on.
        interval: time between two rounds, as it was typed.

    Raises:
        CliError: the first round failed, or a later one was refused.
    """
    interval_s = interval_s_of(interval)
    if not watch:
        draw()
        return
    shown = False
    while True:
        text = _round(draw, is_first=not shown)
        if common.for_programs:
            sys.stdout.write(text)
        elif sys.stdout.isatty():
            moment = time.strftime("%H:%M:%S")
            sys.stdout.write(_CLEAR + _fitted(f"every {interval}, {moment}; Ctrl-C ends\n\n{text}"))
        else:
            sys.stdout.write(("\n" if shown else "") + text)
        sys.stdout.flush()
        shown = True
        time.sleep(interval_s)


def _round(draw: Callable[[], None], *, is_first: bool) -> str:
    written = io.StringIO()
    try:
        with redirect_stdout(written):
            draw()
    except CliError as error:
        if is_first or error.code != "unreachable":
            raise
        print(f"strata: {error}", file=sys.stderr)
    return written.getvalue()


def _fitted(text: str) -> str:
    """Return a text whose first lines fill the terminal; the last line counts the lines left."""
    height = shutil.get_terminal_size((80, 24)).lines
    lines = text.rstrip("\n").split("\n")
    if len(lines) < height:
        return text
    left = len(lines) - height + 2
    return "\n".join([*lines[: height - 2], f"... {left} more lines"]) + "\n"
