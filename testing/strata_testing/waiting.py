"""Wait until something holds, where no event says that it does.

A condition that does not hold in time fails the test, and the error shows the condition as it is
written and what it last gave: no caller has to find words for it.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from pathlib import Path

LIMIT_S = 60.0
"""Seconds that a condition has, unless a test says otherwise."""

_STEP_S = 0.005
_BLOCKING_STEP_S = 0.05
# Work in this process mostly takes some turns of its event loop and no time.
_TURNS = 100


class NeverHeld(AssertionError):
    """A condition that a test waited for did not come in time."""


class NotYet:
    """A false value with the reason why a condition does not hold."""

    def __init__(self, why: object) -> None:
        self._why = why

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return str(self._why)


async def until(
    holds: Callable[[], object],
    limit_s: float = LIMIT_S,
    *,
    step_s: float | None = None,
    tell: Callable[[], object] | None = None,
) -> float:
    """Let other tasks run until something holds; return the seconds it took.

    Args:
        holds: whether it holds; a coroutine function is awaited.
        limit_s: seconds of the event loop's clock.
        step_s: seconds between two looks; without it the first looks are a turn of the event loop
            apart, later ones 5 ms.
        tell: how things stand, for the error.

    Raises:
        NeverHeld: it did not hold in time.
    """
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    last: object = None
    turn = 0
    try:
        async with asyncio.timeout(limit_s) as limit:
            while True:
                last = holds()
                if inspect.isawaitable(last):
                    last = await last
                if last:
                    return loop.time() - started_s
                turn += 1
                pause_s = 0 if turn < _TURNS else _STEP_S
                await asyncio.sleep(pause_s if step_s is None else step_s)
    except TimeoutError:
        if not limit.expired():
            raise
        raise _never_held(holds, limit_s, last, tell) from None


def until_blocking(
    holds: Callable[[], object],
    limit_s: float = LIMIT_S,
    *,
    step_s: float = _BLOCKING_STEP_S,
    tell: Callable[[], object] | None = None,
    forgiven: type[Exception] | tuple[type[Exception], ...] = (),
) -> float:
    """Block until something holds, in another thread or process; return the seconds it took.

    Args:
        holds: whether it holds.
        limit_s: seconds; a condition that is being looked at is not interrupted.
        step_s: seconds between two looks.
        tell: how things stand, for the error.
        forgiven: errors of the condition that mean "not yet".

    Raises:
        NeverHeld: it did not hold in time.
    """
    started_s = time.monotonic()
    while True:
        last: object
        try:
            last = holds()
        except forgiven as error:
            last = NotYet(repr(error))
        took_s = time.monotonic() - started_s
        if last:
            return took_s
        if took_s > limit_s:
            raise _never_held(holds, limit_s, last, tell)
        time.sleep(step_s)


def _never_held(
    holds: Callable[[], object],
    limit_s: float,
    last: object,
    tell: Callable[[], object] | None,
) -> NeverHeld:
    message = f"not within {limit_s:g} s: {_as_written(holds)}; it last gave {last!r}"
    return NeverHeld(f"{message}; {tell()}" if tell else message)


def _as_written(holds: Callable[[], object]) -> str:
    """Return a condition's place and its source on one line; its repr when it has none."""
    try:
        lines, number = inspect.getsourcelines(holds)
        file = inspect.getsourcefile(holds)
    except (OSError, TypeError):
        return repr(holds)
    source = " ".join(line.strip() for line in lines)
    return f"{Path(file or '').name}:{number}: {source}"
