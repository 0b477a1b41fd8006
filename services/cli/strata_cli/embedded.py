"""Run one command line inside another program and take its result as a value.

The console does everything this way, so that the command line it shows for an act is the one that
it runs. The caller hands over the connection, with the keys of a user; no argument has them.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from cyclopts import CycloptsError

from strata_cli.client import AdminClient, held
from strata_cli.errors import UsageError
from strata_cli.main import app, one_line_of
from strata_cli.output import captured
from strata_cli.views import View

_PARSING = threading.Lock()


def run_line(client: AdminClient, arguments: Sequence[str]) -> View:
    """Run a command over an open connection; return what `-o json` prints.

    Args:
        client: the connection; it stays open.
        arguments: of `strata`, without options of the connection. They are trusted: a command may
            read and write files.

    Raises:
        CliError: the command failed, or the command line is wrong.
    """
    # A profile that the environment of this process names is not the user's.
    connection = (
        *(f"--endpoint={client.endpoint}", f"--timeout={round(client.timeout_s * 1_000)}ms"),
        *("--profile=", "--output=json"),
    )
    try:
        # Commands are loaded when they are first used.
        with _PARSING:
            command, bound, _ = app.parse_args(
                [*arguments, *connection],
                exit_on_error=False,
                print_error=False,
            )
    except CycloptsError as error:
        raise UsageError(one_line_of(error)) from None
    with held(client), captured() as shown:
        command(*bound.args, **bound.kwargs)
    return dict(shown[-1]) if shown else {}
