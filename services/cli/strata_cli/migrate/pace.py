"""Keeps a copy below a rate of messages and of bytes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from strata_broker.base.token_bucket import TokenBucket
from strata_runtime.clock import Clock

_BURST_S = 1.0
# A rounded shorter wait might not be over at its end.
_LEAST_WAIT_S = 0.001


class CopyPace:
    """See the module docstring.

    A batch that is larger than the rate of a second passes, and the next one waits longer.

    Args:
        messages_per_s: most messages per second; 0: no limit.
        bytes_per_s: most bytes of bodies per second; 0: no limit.
        clock: monotonic time.
        sleep: waits for seconds.
    """

    def __init__(
        self,
        messages_per_s: float,
        bytes_per_s: float,
        *,
        clock: Clock,
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        now_s = clock.monotonic_s()
        self._messages = TokenBucket(messages_per_s, _BURST_S, now_s) if messages_per_s else None
        self._bytes = TokenBucket(bytes_per_s, _BURST_S, now_s) if bytes_per_s else None
        self._clock = clock
        self._sleep = sleep

    @property
    def most_messages(self) -> int:
        """Messages that one batch should have at most, so that the rate is even."""
        return int(self._messages.burst) if self._messages else 1 << 30

    async def spend(self, messages: int, size_bytes: int) -> None:
        """Wait until a batch may be sent, and count it."""
        wanted = ((self._messages, messages), (self._bytes, size_bytes))
        while True:
            now_s = self._clock.monotonic_s()
            wait_s = max((each.credit_in_s(now_s) for each, _ in wanted if each), default=0.0)
            if wait_s <= 0:
                break
            await self._sleep(max(wait_s, _LEAST_WAIT_S))
        for each, amount in wanted:
            if each:
                each.take(amount)
