"""Failures as HTTP answers: one table from the command's kinds of error to status codes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from strata_cli.client import CallFailed
from strata_cli.errors import CliError, error_of_value

STATUS = {"usage": 400, "not_found": 404, "refused": 409, "unreachable": 503, "failed": 502}

_BY_GRPC = {
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.INVALID_ARGUMENT: 400,
}


class ConsoleError(CliError):
    """A request that the console itself refuses.

    Attributes:
        status: HTTP status of the answer.
    """

    def __init__(self, message: str, status: int, code: str = "refused") -> None:
        super().__init__(message, code)
        self.status = status


def status_of(error: CliError) -> int:
    """Return the HTTP status of a failure."""
    if isinstance(error, ConsoleError):
        return error.status
    if isinstance(error, CallFailed) and error.status in _BY_GRPC:
        return _BY_GRPC[error.status]
    return STATUS[error.code]


@contextmanager
def held_by_requests() -> Iterator[None]:
    """Take a number that no request can hold for a wrong value.

    Raises:
        UsageError: there is one.
    """
    try:
        yield
    except ValueError as error:
        wrong = error_of_value(error)
        if wrong is None:
            raise
        raise wrong from None
