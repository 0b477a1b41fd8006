"""The commands of `strata completion`; `shell` and `common` are described by their types."""

# ruff: noqa: D417

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from strata_cli.errors import CliError, UsageError
from strata_cli.options import COMMON, Common, Unused
from strata_cli.output import show

Shell = Literal["bash", "zsh", "fish"]
ShellName = Annotated[Shell | None, Parameter(help="bash, zsh or fish; default: this shell.")]

app = App(name="completion", help="Completion of commands and options in the shell.")


@app.command
def install(
    shell: ShellName = None,
    /,
    *,
    file: Path | None = None,
    startup: bool = True,
    common: Unused = COMMON,
) -> None:
    """Install the completion for the user; a new shell completes commands and options.

    For instance: strata completion install bash

    Args:
        file: Write the script to this file instead of the place where the shell looks for it.
        startup: Add a line to the shell's startup file where the shell needs one.
    """
    from strata_cli.main import app as tree

    name = shell or _this_shell()
    path = tree.install_completion(shell=name, output=file, add_to_startup=startup)
    show({"shell": name, "file": str(path)}, common)


@app.command(name="show")
def show_(shell: ShellName = None, /, *, common: Common = COMMON) -> None:
    """Print the completion script.

    For instance: strata completion show zsh
    """
    from strata_cli.main import app as tree

    name = shell or _this_shell()
    script = tree.generate_completion(prog_name="strata", shell=name)
    if common.for_programs:
        show({"shell": name, "script": script}, common)
    else:
        sys.stdout.write(script)


def _this_shell() -> Shell:
    """Return the shell that this command was typed in.

    Raises:
        UsageError: it is none that can be completed.
    """
    from cyclopts.completion.detect import ShellDetectionError, detect_shell

    try:
        found = detect_shell()
    except ShellDetectionError:
        raise UsageError("the shell is not known: name bash, zsh or fish") from None
    for known in ("bash", "zsh", "fish"):
        if found == known:
            return known
    raise CliError(f"there is no completion for {found}; name bash, zsh or fish")
