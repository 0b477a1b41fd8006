"""Errors of commands, and the exit code of each kind."""

from __future__ import annotations

from strata_runtime.errors import StrataError

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
