"""An object store that is slow, fails, or does what it is asked and does not say so.

It is the memory adapter of `strata_tier`, so the port's contract holds between the faults: an
object is there whole or not at all, and whoever is not answered asks again.
"""

from __future__ import annotations

import asyncio
import random

from strata_tier.store import StoreOperation, StoreUnavailableError


class BadStore:
    """Faults that requests meet; a `strata_tier.store.drivers.memory.Trouble`.

    Args:
        name: of the store.
        chance: decides.
        slow_s: requests take up to so long.
        refused_share: of requests that do nothing.
        unanswered_share: of those that are done all the same.
    """

    def __init__(
        self,
        name: str,
        chance: random.Random,
        slow_s: float,
        *,
        refused_share: float,
        unanswered_share: float,
    ) -> None:
        self._name = name
        self._chance = chance
        self._slow_s = slow_s
        self._refused_share = refused_share
        self._unanswered_share = unanswered_share

    async def before(self, operation: StoreOperation, key: str) -> None:
        """Take a while; maybe refuse."""
        await asyncio.sleep(self._chance.uniform(0, self._slow_s))
        if self._chance.random() < self._refused_share:
            raise StoreUnavailableError(self._name, key, "503")

    async def after(self, operation: StoreOperation, key: str) -> None:
        """Maybe lose the answer."""
        if self._chance.random() < self._unanswered_share:
            raise StoreUnavailableError(self._name, key, "the connection was reset")
