"""Errors of commands, and the exit code of each kind."""

from __future__ import annotations

import re

from strata_runtime.errors import StrataError

# protobuf's words for a number that a field of a request cannot hold.
_UNFIT = re.compile(r"Value out of range: (-?[0-9]+)")

EXIT_STATUS = {"failed": 1, "usage": 2, "not_found": 3, "refused": 4, "unreachable": 5}
"""Exit code of each kind of error; a contract (docs/cli.md)."""


class CliError(StrataError):
    """A command failed; the message is the one line that is shown.

    Attributes:
        code: kind of the error, a key of `EXIT_STATUS`.
    """

    def __init__(self, message: str, code: str = "failed") -> None:
        super().__init__(message)
        self.code = code


class UsageError(CliError):
    """A wrong command line."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "usage")


def error_of_value(error: ValueError) -> UsageError | None:
    """Return the error of a number that no request can hold; None: it is about something else."""
    unfit = _UNFIT.fullmatch(str(error))
    return UsageError(f"{unfit[1]} is out of range") if unfit else None
