"""Limits of blocks, in tasks that were cancelled before and went on."""

from __future__ import annotations

import asyncio

import pytest

from strata_runtime.tasks import cancels_of_caller, first_failure
from strata_runtime.timeouts import Timeout


async def fail_at_the_end() -> None:
    """Leave a task group whose child fails while the group waits for it."""

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("of a child")

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
    except BaseExceptionGroup as failures:
        assert str(first_failure(failures)) == "of a child"


async def test_a_limit_ends_its_block_whatever_was_cancelled_before() -> None:
    """A task group leaves a cancel behind; a limit after it still is a timeout."""
    await fail_at_the_end()
    asyncio.current_task().cancel()  # type: ignore[union-attr]
    with pytest.raises(asyncio.CancelledError):
        await asyncio.sleep(0)
    left = cancels_of_caller()
    assert left
    with pytest.raises(TimeoutError):
        async with Timeout(0.01) as limit:
            await asyncio.Event().wait()
    assert limit.expired()
    assert cancels_of_caller() == left


@pytest.mark.parametrize("is_cancelled_before", [False, True])
async def test_who_is_cancelled_within_a_limit_stays_so(*, is_cancelled_before: bool) -> None:
    """Also when the limit is over in the same turn of the event loop."""

    async def wait() -> None:
        if is_cancelled_before:
            await fail_at_the_end()
        async with Timeout(None) as limit:
            entered.set_result(limit)
            await asyncio.Event().wait()

    entered: asyncio.Future[Timeout] = asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(wait())
    limit = await entered
    limit.reschedule(asyncio.get_running_loop().time())
    assert limit.when() is not None
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()


async def test_a_block_that_ends_in_time_keeps_its_result_and_error() -> None:
    async with Timeout(60.0) as limit:
        pass
    assert not limit.expired()
    with pytest.raises(ValueError, match="of the block"):
        async with Timeout(60.0):
            raise ValueError("of the block")


def test_the_first_failure_of_groups_within_groups() -> None:
    inner = ExceptionGroup("inner", [KeyError("first"), ValueError("second")])
    group = BaseExceptionGroup("outer", [inner, OSError("third")])
    assert repr(first_failure(group)) == "KeyError('first')"
