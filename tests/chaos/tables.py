"""Clients of key-value tables: what was acknowledged stays, and every history has an order."""

from __future__ import annotations

import asyncio
import random

from strata_kv.aio import AsyncKvClient
from tests.chaos.cluster import ChaosCluster
from tests.e2e.kv_load import Historians, Promises, running

TABLES = {"on-disk": "rocksdb", "in-memory": "memory"}
ROUND_S = 20.0
PAUSE_S = 0.1


class Tables:
    """Writers, swappers and historians of two tables.

    Args:
        endpoint: of the brokers.
        chance: what historians do.
    """

    def __init__(self, endpoint: str, chance: random.Random) -> None:
        self._endpoint = endpoint
        self._promises = Promises(pause_s=PAUSE_S)
        self._historians = Historians(chance, pause_s=PAUSE_S)

    def create(self, cluster: ChaosCluster) -> None:
        """Create the tables."""
        for name, engine in TABLES.items():
            cluster.strata("kv", "create", name, "--engine", engine)

    async def run(self, stop: asyncio.Event) -> None:
        """Work until told to stop; each round has new keys, so that unknown outcomes stay few."""
        number = 0
        while not stop.is_set():
            number += 1
            work = []
            for name in TABLES:
                promised = self._promises.work(name)
                work += [*promised[:2], *promised[-2:]]
                work += self._historians.work(name, number)[:3]
            async with running(self._endpoint, work):
                try:
                    await asyncio.wait_for(stop.wait(), ROUND_S)
                except TimeoutError:
                    continue

    async def violations(self) -> list[str]:
        """Return what must not be; the cluster is whole again."""
        async with AsyncKvClient(self._endpoint) as client:
            broken = await self._promises.broken(client)
        return broken + await asyncio.to_thread(self._historians.judge)

    def count(self) -> int:
        """Return how many operations were answered."""
        return self._historians.count() + sum(self._promises.acknowledged.values())
