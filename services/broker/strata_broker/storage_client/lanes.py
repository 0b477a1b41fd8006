"""One loop per storage node: one call is under way there while further requests accumulate.

There is no timer (rule 19, one Append per node): an idle broker adds no delay, a busy one batches
by itself. A call can be given up when the node is known not to lead its raft groups any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from strata_broker.storage_client.attempts import Attempt, Attempts
from strata_runtime.tasks import Tasks

LEAST_TRY_S = 0.001
"""A call gets at least so much time: a deadline may pass while the call is being made."""

Exchange = Callable[[str], Awaitable[bool]]
"""Sends waiting requests to a node and handles the answer; False: nothing waited."""


class NodeLanes:
    """Runs `exchange` for a node as long as it has something to send."""

    def __init__(self, name: str, tasks: Tasks, exchange: Exchange) -> None:
        self._name = name
        self._tasks = tasks
        self._exchange = exchange
        self._wakes: dict[str, asyncio.Event] = {}
        # Nodes whose loops end as soon as nothing waits.
        self._leaving: set[str] = set()
        self._attempts = Attempts()

    def wake(self, node_id: str) -> None:
        """Start the loop of a node if requests wait for it."""
        wake = self._wakes.get(node_id)
        if wake is None:
            wake = self._wakes[node_id] = asyncio.Event()
            self._tasks.spawn(f"{self._name} {node_id}", self._run(node_id, wake))
        wake.set()

    def forget(self, node_id: str) -> None:
        """The node is no member any more: its loop ends once requests that wait are handled.

        A later request for the node starts another loop.
        """
        wake = self._wakes.get(node_id)
        if wake is not None:
            self._leaving.add(node_id)
            wake.set()

    def attempt(self, node_id: str) -> Attempt:
        """Return what surrounds the call at a node; it raises TimeoutError when given up."""
        return self._attempts.of(node_id)

    def give_up(self, node_id: str) -> None:
        """End the call that is under way at the node, if there is one."""
        self._attempts.give_up(node_id)

    async def _run(self, node_id: str, wake: asyncio.Event) -> None:
        while True:
            await wake.wait()
            wake.clear()
            while await self._exchange(node_id):
                pass
            # Invariant: a node has one loop at most. A request that came meanwhile has set `wake`.
            if node_id in self._leaving and not wake.is_set():
                self._leaving.discard(node_id)
                del self._wakes[node_id]
                return
