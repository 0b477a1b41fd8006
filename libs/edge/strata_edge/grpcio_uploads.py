"""Limits for requests on their way in: a request that never ends holds memory.

grpcio collects a request before the edge sees a byte of it. The edge therefore bounds how many
requests are unfinished for long, per address and in total, and for how long. Earlier requests may
finish; the request above the limit is refused. This module does not know their sizes.
"""

from __future__ import annotations

import asyncio
from collections import Counter as Tally
from dataclasses import dataclass

from strata_edge.addresses import network_of_peer
from strata_edge.grpcio_context import Context, peer_of
from strata_edge.shares import Shares


@dataclass(slots=True, eq=False)
class _Upload:
    context: Context
    task: asyncio.Task[object]
    began_s: float
    expelled: str = ""


class Uploads:
    """Reads requests and ends those that take too long.

    Args:
        slow_s: what is not here after so long is a slow upload.
        max_s: what is not here after so long is given up.
        shares: slow uploads at once; a connection's share is its address's.
    """

    def __init__(self, slow_s: float, max_s: float, shares: Shares) -> None:
        self._slow_s = slow_s
        self._max_s = max_s
        self._shares = shares
        # In the order of their beginning.
        self._pending: dict[_Upload, None] = {}
        self._sweeping = False

    async def read(self, context: Context) -> bytes | None:
        """Return the next request of a call; None: there is none, or its client has gone.

        Raises:
            TooSlowError: there are too many uploads like this one.
        """
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        upload = _Upload(context, task, loop.time())
        self._pending[upload] = None
        if not self._sweeping:
            self._sweeping = True
            loop.call_later(self._slow_s, self._sweep)
        try:
            request = await context.read()
        except asyncio.CancelledError:
            if upload.expelled and task.uncancel() == 0:
                raise TooSlowError(upload.expelled) from None
            raise
        finally:
            del self._pending[upload]
        return request if isinstance(request, bytes) else None

    def _sweep(self) -> None:
        """Look at those that have been here for long, the oldest first."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        of_address: Tally[str] = Tally()
        for slow, upload in enumerate(self._pending, 1):
            age_s = now_s - upload.began_s
            if age_s < self._slow_s:
                break
            address = network_of_peer(peer_of(upload.context))
            of_address[address] += 1
            if age_s >= self._max_s:
                self._expel(upload, f"the request did not arrive within {self._max_s:g} s")
            elif slow > self._shares.total or of_address[address] > self._shares.per_address:
                self._expel(upload, "too many unfinished requests")
        self._sweeping = bool(self._pending)
        if self._sweeping:
            loop.call_later(self._slow_s, self._sweep)

    def _expel(self, upload: _Upload, reason: str) -> None:
        if not upload.expelled:
            upload.expelled = reason
            upload.task.cancel()


class TooSlowError(Exception):
    """An upload that was ended; the message says why."""
