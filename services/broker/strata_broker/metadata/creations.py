"""Things that calls make by naming them, each once however many calls need it at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Sequence
from typing import Any

from strata_broker.base.shares import Owner
from strata_broker.metadata.first_uses import FirstUses
from strata_broker.metadata.shown_revisions import ShownRevisions
from strata_mq.requests import RequestError
from strata_runtime.tasks import RequestTasks

Work = Callable[[], Coroutine[Any, Any, RequestError | None]]


class Creations:
    """See the module docstring. Used on the event loop only.

    Args:
        first_uses: limits.
        shown: waits until the other brokers know what was made.
        requests: own the tasks.
    """

    def __init__(
        self, first_uses: FirstUses, shown: ShownRevisions, requests: RequestTasks
    ) -> None:
        self._first_uses = first_uses
        self._shown = shown
        self._requests = requests
        self._under_way: dict[Hashable, asyncio.Task[RequestError | None]] = {}

    async def once(
        self, key: Hashable, name: str, admit: Callable[[], Sequence[Owner]], work: Work
    ) -> None:
        """Make something, or wait for the call that makes it already.

        Args:
            key: what is made.
            name: of the task.
            admit: takes room for it (`FirstUses.begin`); only the call that makes it does so.
            work: makes it, and returns why that failed.

        Raises:
            RequestError: as `admit` and `work` say.
        """
        task = self._under_way.get(key)
        if task is None:
            sharers = admit()
            try:
                task = self._requests.spawn(name, self._made(work))
            except BaseException:
                self._first_uses.end(sharers)
                raise
            self._under_way[key] = task

            def ended(_: object) -> None:
                self._under_way.pop(key, None)
                self._first_uses.end(sharers)

            task.add_done_callback(ended)
        # A waiter that leaves must not end the creation for other waiters.
        failure = await asyncio.shield(task)
        if failure is not None:
            raise failure

    async def _made(self, work: Work) -> RequestError | None:
        failure = await work()
        if failure is None:
            await self._shown.everywhere()
        return failure
