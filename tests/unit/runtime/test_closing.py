"""Closing takes every step, whatever becomes of the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from strata_runtime.closing import close_all


def step(
    taken: list[str], name: str, failure: BaseException | None = None
) -> Callable[[], Awaitable[None]]:
    """Return a step that notes its name, and then fails or not."""

    async def run() -> None:
        taken.append(name)
        if failure is not None:
            raise failure

    return run


async def test_a_failed_step_holds_back_no_other() -> None:
    """All steps are taken in order; the first failure is raised, the others are its notes."""
    taken: list[str] = []
    with pytest.raises(OSError, match="first") as raised:
        await close_all(
            "node",
            step(taken, "a"),
            step(taken, "b", OSError("first")),
            step(taken, "c", ValueError("second")),
            step(taken, "d"),
        )
    assert taken == ["a", "b", "c", "d"]
    assert raised.value.__notes__ == ["another part of node did not close: ValueError: second"]


async def test_a_cancelled_closing_goes_to_its_end() -> None:
    """A cancelled closing takes the steps that are left, and tells that it was cancelled."""
    taken: list[str] = []
    waits = asyncio.Event()

    async def stuck() -> None:
        waits.set()
        await asyncio.Event().wait()

    async def closing() -> None:
        await close_all("node", step(taken, "a", OSError("full")), stuck, step(taken, "z"))

    async with asyncio.TaskGroup() as group:
        task = group.create_task(closing())
        await waits.wait()
        task.cancel()
    assert task.cancelled()
    assert taken == ["a", "z"]
