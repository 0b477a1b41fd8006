"""Values on the command line: durations, times, pairs."""

from __future__ import annotations

import pytest

from strata_cli.errors import CliError
from strata_cli.options import milliseconds, numbers, pairs, time_ms


@pytest.mark.parametrize(
    ("text", "value"),
    [("72h", 259_200_000), ("30m", 1_800_000), ("1d", 86_400_000), ("500ms", 500), ("1.5s", 1_500)],
)
def test_durations(text: str, value: int) -> None:
    """A number with its unit becomes milliseconds."""
    assert milliseconds(text) == value


@pytest.mark.parametrize("text", ["", "10", "h", "-1s", "1 w", "1h30m"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    """Without a unit, or with an unknown one, the text names what is allowed."""
    with pytest.raises(CliError, match="500ms, 10s, 30m, 72h or 1d"):
        milliseconds(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1970-01-01T00:00:01Z", 1_000),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1763728200123", 1_763_728_200_123),
    ],
)
def test_times(text: str, value: int) -> None:
    """ISO 8601 with a zone, and milliseconds since 1970, are points in time."""
    assert time_ms(text) == value


def test_what_is_no_time_is_refused() -> None:
    """The text names what `--to` takes."""
    with pytest.raises(CliError, match="earliest, latest"):
        time_ms("yesterday")


def test_pairs_and_numbers() -> None:
    """A value may hold `=`; a pair without a key and a list of words are refused."""
    assert pairs(["a=b=c", "d="]) == {"a": "b=c", "d": ""}
    assert numbers("1000,60000,2.5") == [1000, 60000, 2.5]
    with pytest.raises(CliError, match="KEY=VALUE"):
        pairs(["=x"])
    with pytest.raises(CliError, match="list of numbers"):
        numbers("1,x")
