"""`until` looks often, gives up in time and says what it waited for."""

from __future__ import annotations

import asyncio

import pytest

from strata_testing import NeverHeld, NotYet, until, until_blocking


class SpentError(Exception):
    pass


async def test_it_goes_on_as_soon_as_it_holds() -> None:
    """Changes by other tasks in their turns are seen; nothing is looked at again."""
    looks: list[int] = []

    def third() -> bool:
        looks.append(len(looks))
        return len(looks) == 3

    assert await until(third) < 60
    assert looks == [0, 1, 2]


async def test_what_it_asks_may_be_awaited() -> None:
    """The answer of a coroutine decides, not the coroutine itself."""
    answers = iter([False, 0, "yes"])

    async def ask() -> object:
        await asyncio.sleep(0)
        return next(answers)

    await until(ask)
    assert list(answers) == []


async def test_the_error_shows_the_condition_and_what_it_gave() -> None:
    """Source, place, last value, and how things stand."""
    rows: list[int] = []
    with pytest.raises(NeverHeld) as failed:
        await until(lambda: rows or NotYet(f"{len(rows)} rows"), 0.01, tell=lambda: "no leader")
    text = str(failed.value)
    assert text.startswith("not within 0.01 s: test_waiting.py:")
    assert 'await until(lambda: rows or NotYet(f"{len(rows)} rows"), 0.01' in text
    assert text.endswith("it last gave 0 rows; no leader")


async def test_a_condition_that_hangs_is_given_up_too() -> None:
    """The limit counts for the look itself."""
    with pytest.raises(NeverHeld, match=r"asyncio\.Event"):
        await until(lambda: asyncio.Event().wait(), 0.01)


async def test_a_timeout_of_the_condition_itself_is_not_taken_for_the_limit() -> None:
    """It is an error like any other."""

    async def asks() -> object:
        raise TimeoutError("the node says nothing")

    with pytest.raises(TimeoutError, match="the node says nothing"):
        await until(asks)


def test_an_error_that_is_forgiven_means_not_yet() -> None:
    """The last of them is in the message."""
    fails = iter([SpentError("first"), None])

    def holds() -> bool:
        if error := next(fails):
            raise error
        return True

    until_blocking(holds, step_s=0, forgiven=SpentError)

    def never() -> bool:
        raise SpentError("it stays away")

    with pytest.raises(NeverHeld, match=r"def never.*it last gave SpentError\('it stays away'\)"):
        until_blocking(never, 0.01, step_s=0, forgiven=SpentError)


def test_other_errors_end_the_waiting() -> None:
    """A mistake in a condition is not waited out."""

    def broken() -> bool:
        raise SpentError("a mistake")

    with pytest.raises(SpentError, match="a mistake"):
        until_blocking(broken)
