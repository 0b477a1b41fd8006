"""Requests of this broker that a client has not answered yet."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import contextmanager

from strata_remoting import RemotingCommand


class AskedRequests:
    """Requests of one connection by their number (opaque). The caller limits how many there are."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[RemotingCommand]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @contextmanager
    def asking(self) -> Iterator[tuple[int, asyncio.Future[RemotingCommand]]]:
        """Give the number of a new request, and a future of its answer."""
        opaque = next(self._numbers)
        answer = self._waiting[opaque] = asyncio.get_running_loop().create_future()
        try:
            yield opaque, answer
        finally:
            del self._waiting[opaque]
            # One that was never awaited is not complained of.
            if answer.done() and not answer.cancelled():
                answer.exception()

    def answered(self, answer: RemotingCommand) -> None:
        """Take an answer; one that nobody waits for is ignored."""
        waiting = self._waiting.get(answer.opaque)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def end(self) -> None:
        """Let all requests fail: the connection has ended."""
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(ConnectionResetError("the client is gone"))
