"""Parts of an upload, sent to the store while the next parts are being made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from strata_runtime.tasks import first_failure
from strata_tier.store.drivers.bodies import Part

SendPart = Callable[[int, int, Part], Coroutine[Any, Any, None]]
"""Sends one part: its number from 0, where in the object it begins, and the part."""


async def send_parts(parts: AsyncIterator[Part], send: SendPart, at_once: int) -> int:
    """Send parts; return how many bytes they are.

    When one fails the others are cancelled, and its error is raised.

    Args:
        parts: are asked for one by one.
        send: what sends one.
        at_once: how many are sent side by side; with 1 they arrive in order. One more is held.
    """
    room = asyncio.Semaphore(at_once)
    number = position = 0
    try:
        async with asyncio.TaskGroup() as group:
            async for part in parts:
                await room.acquire()
                sending = group.create_task(send(number, position, part))
                sending.add_done_callback(lambda _: room.release())
                number, position = number + 1, position + part.size_bytes
    except BaseExceptionGroup as group_of_errors:
        raise first_failure(group_of_errors) from None
    return position
