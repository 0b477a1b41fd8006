"""Errors that every process reports in the same way: one line for the operator, an exit status."""

from __future__ import annotations

import os


class StrataError(Exception):
    """An operating error with a message for the operator; never a programmer's mistake."""

    exit_status = 1


class ConfigError(StrataError):
    """A configuration that cannot be used; the message names key and source."""

    exit_status = 2


class FatalError(StrataError):
    """A component failed in a way that it cannot go on from; the process ends."""

    exit_status = 3


def one_line(error: BaseException) -> str:
    """The error as one line without line breaks: `Kind: message`, for our own the message.

    An error of the operating system about a file begins with the file.
    """
    message = " ".join(str(error).split())
    if isinstance(error, StrataError):
        return message
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
