"""Options that every command takes, and values with a unit: durations, times, pairs."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from strata_cli.errors import UsageError

DEFAULT_ENDPOINT = "127.0.0.1:8081"

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
# As long as the longest retention; gRPC takes a time limit beyond 292 years for one that is over.
_MAX_DURATION_MS = 100 * 365 * _UNITS_MS["d"]
_MAX_QUOTED = 60
_MAX_TIME_MS = (1 << 63) - 1

CONNECTION = Group("Connection", sort_key=1)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """Options of every command; commands without a server ignore the connection options."""

    output: Annotated[
        Literal["text", "table", "wide", "name", "json", "yaml"],
        Parameter(name=["--output", "-o"]),
    ] = "text"
    """Form of the result; text (or table) fits the terminal, wide has one line per row, name has
    only the names of the rows."""
    verbose: Annotated[bool, Parameter(name=["--verbose", "-v"], negative="")] = False
    """Tell on standard error which calls are made, and how long each takes."""
    profile: Annotated[str, Parameter(env_var="STRATA_PROFILE", group=CONNECTION)] = ""
    """Profile with defaults of the options below, of ~/.config/strata/profiles.toml."""
    endpoint: Annotated[str, Parameter(env_var="STRATA_ENDPOINT", group=CONNECTION)] = ""
    """HOST:PORT of any broker; default: 127.0.0.1:8081."""
    namespace: Annotated[str, Parameter(group=CONNECTION)] = ""
    """Namespace of topics and consumer groups."""
    tls: Annotated[bool, Parameter(negative="", group=CONNECTION)] = False
    """Connect with TLS."""
    ca: Annotated[str, Parameter(group=CONNECTION)] = ""
    """File with the certificates to trust (PEM); implies --tls."""
    access_key: Annotated[str, Parameter(env_var="STRATA_ACCESS_KEY", group=CONNECTION)] = ""
    """Access key to sign requests with."""
    secret_key: Annotated[
        str, Parameter(env_var="STRATA_SECRET_KEY", show_default=False, group=CONNECTION)
    ] = field(default="", repr=False)
    """Secret key to sign requests with; other users of this machine can see it."""
    secret_key_file: Annotated[str, Parameter(group=CONNECTION)] = ""
    """File that holds the secret key."""
    session_token: Annotated[
        str, Parameter(env_var="STRATA_SESSION_TOKEN", show_default=False, group=CONNECTION)
    ] = field(default="", repr=False)
    """Session token of temporary keys; other users of this machine can see it."""
    timeout: Annotated[str, Parameter(group=CONNECTION)] = "10s"
    """Time limit of one call to the server."""

    def __post_init__(self) -> None:
        """Fill in what neither the command line nor the environment says.

        Raises:
            CliError: there is no such profile, or it cannot be used.
        """
        if self.profile:
            from strata_cli.profiles import load_profile

            for name, value in load_profile(self.profile).defaults(self.access_key).items():
                if not getattr(self, name):
                    object.__setattr__(self, name, value)
        if not self.endpoint:
            object.__setattr__(self, "endpoint", DEFAULT_ENDPOINT)

    @property
    def for_programs(self) -> bool:
        """Whether the result is a document with the promised keys, not a text for people."""
        return self.output in ("json", "yaml")


COMMON = Common()

Unused = Annotated[Common, Parameter(name="*", show=False)]
"""The same options where there is no server to call: they are taken, and not shown."""


def milliseconds(text: str) -> int:
    """Return a duration such as 72h, 30m, 1d or 500ms in milliseconds.

    Raises:
        CliError: the text is no duration.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not a duration; write 500ms, 10s, 30m, 72h or 1d")
    value_ms = float(match[1]) * _UNITS_MS[match[2]]
    if value_ms > _MAX_DURATION_MS:
        raise UsageError(f"{_short(text)} is too long; give at most 36500d")
    return round(value_ms)


def seconds(text: str) -> float:
    """Return a duration in seconds; a plain number is seconds already.

    Raises:
        CliError: the text is no duration.
    """
    plain = text.strip()
    is_number = plain.isascii() and plain.isdigit()
    return milliseconds(f"{plain}s" if is_number else text) / 1_000


def time_ms(text: str) -> int:
    """Return a point in time in milliseconds since 1970.

    Args:
        text: ISO 8601 (2026-11-21T12:30:00Z; without a zone it is local time), or milliseconds
            since 1970.

    Raises:
        CliError: the text is no time.
    """
    try:
        if text.isascii() and text.isdigit():
            value_ms = int(text)
        else:
            # A time near the first or the last year has no counterpart in another zone.
            value_ms = round(datetime.fromisoformat(text).astimezone().timestamp() * 1_000)
    except (ValueError, OverflowError):
        value_ms = -1
    if not 0 <= value_ms <= _MAX_TIME_MS:
        raise UsageError(
            f"{_short(text)} is not a time since 1970; write earliest, latest, "
            "2026-11-21T12:30:00Z or milliseconds"
        )
    return value_ms


def pairs(texts: list[str] | None) -> dict[str, str]:
    """Return `KEY=VALUE` texts as a dict.

    Raises:
        CliError: a text has no `=` or no key.
    """
    result = {}
    for text in texts or []:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(f"{text!r} is not KEY=VALUE")
        result[key] = value
    return result


def numbers(text: str) -> list[float]:
    """Return comma-separated numbers.

    Raises:
        CliError: one of them is no number.
    """
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = [math.nan]
    if not all(map(math.isfinite, found)):
        raise UsageError(f"{text!r} is not a list of numbers like 1000,5000,10000")
    return found


def _short(text: str) -> str:
    """Return a text as it is quoted in an error."""
    return repr(text) if len(text) <= _MAX_QUOTED else f"{text[:_MAX_QUOTED]!r}..."


def process_count_of(option: str, value: str | None) -> int | Literal["auto"] | None:
    """Return a number of processes as the configuration takes it; None: it is not given.

    Raises:
        UsageError: it is neither a number nor auto.
    """
    if value is None:
        return None
    if value == "auto":
        return "auto"
    if not value.isascii() or not value.isdigit():
        raise UsageError(f"{option} {value}: write a number or auto")
    return int(value)
