"""Commands that destroy something ask on a terminal, or only show their effect (`--dry-run`).

A script is never asked, because it has no terminal to answer at.
"""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from strata_cli.errors import CliError

Yes = Annotated[
    bool, Parameter(name=["--yes", "-y"], negative="", help="Do not ask; only a terminal is asked.")
]
DryRun = Annotated[
    bool, Parameter(name="--dry-run", negative="", help="Only show what would be done.")
]


def confirm(what: str, *, yes: bool) -> None:
    """Ask on a terminal whether to go on.

    Args:
        what: what is about to happen, as a sentence without its end.
        yes: it was said already.

    Raises:
        CliError: the answer is not yes.
    """
    if yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    print(f"{what}. Go on? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CliError("nothing was changed")
