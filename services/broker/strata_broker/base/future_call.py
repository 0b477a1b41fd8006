"""A hot call whose answer is a future: for calls that come by no edge."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from strata_edge.ports import CallError


class FutureCall:
    """The answer of a `strata_edge.ports.HotCall`; a call adds what it asks, and for how long.

    Attributes:
        answer: the serialised responses; CallError if the call fails.
    """

    def __init__(self) -> None:
        self.answer: asyncio.Future[Sequence[bytes]] = asyncio.get_running_loop().create_future()

    def done(self) -> bool:
        """See `HotCall`."""
        return self.answer.done()

    def on_gone(self, callback: Callable[[], None]) -> None:
        """See `HotCall`; the call is carried out whether somebody waits or not."""

    def complete(
        self, responses: Sequence[bytes], on_not_taken: Callable[[], None] | None = None
    ) -> None:
        """See `HotCall`."""
        if not self.answer.done():
            self.answer.set_result(responses)
        elif on_not_taken is not None:
            asyncio.get_running_loop().call_soon(on_not_taken)

    def fail(self, status: str, reason: str) -> None:
        """See `HotCall`."""
        if not self.answer.done():
            self.answer.set_exception(CallError(status, reason))
