"""Closing that no failure cuts short: every part of a thing that ends is closed.

A process that ends gives everything back by ending. A member of a container, or a node in a test,
is opened again in the same process: a lock, a port or a thread that one failed step left behind
would keep it out for good.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Awaitable, Callable

from strata_runtime.errors import one_line

Step = Callable[[], Awaitable[object] | None]


async def close_all(owner: str, *steps: Step) -> None:
    """Take every step, in order; a step that fails and a cancellation hold none back.

    Args:
        owner: whose parts they are.
        steps: each closes one part, at once or when its result is awaited.

    Raises:
        CancelledError: the caller was cancelled; all steps were taken.
        BaseException: what the first step that failed raised; all steps were taken, and the
            other failures are its notes.
    """
    failures: list[BaseException] = []
    for step in steps:
        try:
            closing = step()
            if closing is not None:
                await closing
        except BaseException as error:  # noqa: BLE001 - raised after the last step
            failures.append(error)
    if not failures:
        return
    cancelled = [each for each in failures if isinstance(each, CancelledError)]
    raised = (cancelled or failures)[0]
    for failure in failures:
        if failure is not raised:
            raised.add_note(f"another part of {owner} did not close: {one_line(failure)}")
    raise raised
