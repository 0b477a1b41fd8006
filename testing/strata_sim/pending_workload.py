"""All clients of pending work of one run, from their topics to the last verdict."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import Any

from strata_sim.chance import source
from strata_sim.client import LOST, Refused
from strata_sim.cluster import SimCluster
from strata_sim.pending_work import KINDS, LETTERS, Worker

_FAILURES = (Refused, *LOST)
_CREATE_S = 20.0
_RETRY_S = 0.2


class PendingWorkload:
    """A worker for each kind.

    Args:
        cluster: where they work.
    """

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._workers = [
            Worker(
                kind,
                cluster.client(),
                cluster.client(),
                chance=source(cluster.seed, f"pending {kind.topic}"),
            )
            for kind in KINDS
        ]
        self._tasks: list[asyncio.Task[None]] = []

    async def create(self) -> None:
        """Create topics and consumer groups.

        Raises:
            TimeoutError: the cluster does not serve.
        """
        async with asyncio.timeout(_CREATE_S):
            for worker in self._workers:
                while True:
                    try:
                        await worker.create()
                        break
                    except _FAILURES:
                        await asyncio.sleep(_RETRY_S)

    def start(self) -> None:
        """Let all begin."""
        for worker in self._workers:
            self._spawn(worker.produce())
            self._spawn(worker.consume())

    async def drain(self, timeout_s: float) -> list[str]:
        """Wait until everything became what it must; return what did not, and what is wrong."""
        for worker in self._workers:
            worker.stop_sending()
        deadline_s = self._cluster.now_s + timeout_s
        letters: Counter[str] = Counter()
        missing: list[str] = []
        while self._cluster.now_s < deadline_s:
            await asyncio.sleep(_RETRY_S)
            if any(not worker.idle for worker in self._workers):
                continue
            try:
                letters, missing = await self._letters.dead_letters()
            except _FAILURES:
                continue
            if not missing and not any(worker.waiting() for worker in self._workers):
                break
        wrong = [violation for worker in self._workers for violation in worker.violations()]
        wrong += [f"stuck: a call of {w.kind.topic}" for w in self._workers if not w.idle]
        wrong += [f"dead letter missing: {message_id}" for message_id in missing]
        wrong += [
            f"dead letter doubled: {message_id}" for message_id, n in letters.items() if n > 1
        ]
        return wrong

    async def stop(self) -> None:
        """End all clients."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def counts(self) -> dict[str, int]:
        """Return how much was done of what."""
        return dict(sum((worker.done for worker in self._workers), Counter()))

    @property
    def _letters(self) -> Worker:
        [worker] = [worker for worker in self._workers if worker.kind is LETTERS]
        return worker

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))
