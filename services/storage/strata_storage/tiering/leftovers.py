"""Removes what broken uploads left in the stores: multipart uploads and temporary files.

They are never read, but cost room until somebody removes them. Every node looks when it starts and
then now and then; what is younger than a day may be an upload of another node.
"""

from __future__ import annotations

import asyncio

from strata_runtime.logs import get_logger
from strata_storage.tiering.parts import TieringParts
from strata_tier.objects import DEFAULT_SPACE
from strata_tier.store import StoreError


async def sweep_leftovers(parts: TieringParts) -> None:
    """Remove leftovers until cancelled; a store that fails is asked again the next time."""
    while True:
        before_ms = parts.work.clock.wall_ms() - parts.work.options.leftovers_age_ms
        # Folders of the default store have none of their own.
        for space in (DEFAULT_SPACE, *sorted(parts.topics.spaces.named)):
            await _sweep(parts, space, before_ms)
        await asyncio.sleep(parts.work.options.leftovers_interval_s)


async def _sweep(parts: TieringParts, space: str, before_ms: int) -> None:
    logger, store = get_logger("tier"), parts.place.stores.of(space)
    try:
        removed = await store.remove_leftovers(before_ms)
    except StoreError as error:
        parts.work.instruments.failures.add(1, {"work": "leftovers"})
        # The first thing that is asked of a store after a start.
        logger.warning("the object store cannot be used", store=store.name, reason=str(error))
        return
    if removed:
        parts.work.instruments.objects.add(removed, {"result": "leftover"})
        logger.info("leftovers were removed", store=store.name, count=removed)
