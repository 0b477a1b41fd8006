"""How long an Append waits for raft groups that commit slowly."""

from __future__ import annotations

import asyncio

from strata_storage.rows.stragglers import wait_for_most


def futures(count: int) -> list[asyncio.Future[int]]:
    loop = asyncio.get_running_loop()
    return [loop.create_future() for _ in range(count)]


async def test_what_is_done_waits_for_nobody() -> None:
    """Nor does a call without commits."""
    await wait_for_most([], None, 0)
    done = futures(2)
    for future in done:
        future.set_result(1)
    await wait_for_most(done, None, 0)


async def test_one_that_never_commits_does_not_hold_up_the_others() -> None:
    """The wait ends a moment after the first; nothing is cancelled."""
    slow, fast = futures(2)
    asyncio.get_running_loop().call_soon(fast.set_result, 1)
    await wait_for_most([slow, fast], None, 0.001)
    assert fast.done()
    assert not slow.done()


async def test_one_that_commits_soon_after_is_waited_for() -> None:
    """Raft groups of one log commit together, but not in one turn."""
    first, second = futures(2)
    loop = asyncio.get_running_loop()
    loop.call_soon(first.set_result, 1)
    loop.call_later(0.01, second.set_result, 1)
    await wait_for_most([first, second], None, 30)
    assert second.done()


async def test_a_caller_without_patience_is_answered_before_it_goes() -> None:
    """Even if nothing is committed, or what is left is not."""
    none, never = futures(2)
    await wait_for_most([none, never], 0.01, 30)
    asyncio.get_running_loop().call_soon(none.set_result, 1)
    await wait_for_most([none, never], 0.01, 30)
    assert none.done()
    assert not never.done()


async def test_a_failure_is_left_to_who_asks_for_it() -> None:
    """It counts as done."""
    failing, other = futures(2)
    asyncio.get_running_loop().call_soon(failing.set_exception, ValueError())
    other.set_result(1)
    await wait_for_most([failing, other], None, 30)
    assert isinstance(failing.exception(), ValueError)
