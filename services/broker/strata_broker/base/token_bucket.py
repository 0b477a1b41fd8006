"""A limit on a rate: tokens arrive at the rate, up to a burst. Values only.

While there is one token, a caller may take more than there are; the next caller waits for the
debt. So a request larger than the burst passes, smaller requests cannot starve it, and the rate
holds over time.
"""

from __future__ import annotations


class TokenBucket:
    """Tokens of one limit; it starts full.

    Attributes:
        rate_per_s: tokens that come per second.
        burst: tokens that an idle bucket gathers, at least 1.
    """

    __slots__ = ("_filled_s", "_tokens", "burst", "rate_per_s")

    def __init__(self, rate_per_s: float, burst_s: float, now_s: float) -> None:
        self.rate_per_s = rate_per_s
        self.burst = max(1.0, rate_per_s * burst_s)
        self._tokens = self.burst
        self._filled_s = now_s

    def in_credit(self, now_s: float) -> bool:
        """Whether something may be taken now."""
        self._fill(now_s)
        return self._tokens >= 1

    def credit_in_s(self, now_s: float) -> float:
        """Return in how many seconds something may be taken, 0: now."""
        self._fill(now_s)
        return max(0.0, (1.0 - self._tokens) / self.rate_per_s)

    def take(self, amount: int) -> None:
        """Take tokens, including tokens that have not arrived yet."""
        self._tokens -= amount

    def used(self, now_s: float) -> float:
        """Return how much of the burst is used up; more than 1: there is a debt."""
        self._fill(now_s)
        return 1.0 - self._tokens / self.burst

    def change_rate(self, rate_per_s: float, burst_s: float, now_s: float) -> None:
        """Change the rate from now on; the used share stays."""
        used = self.used(now_s)
        self.rate_per_s = rate_per_s
        self.burst = max(1.0, rate_per_s * burst_s)
        self._tokens = self.burst * (1.0 - used)

    def _fill(self, now_s: float) -> None:
        if now_s > self._filled_s:
            self._tokens = min(
                self.burst, self._tokens + (now_s - self._filled_s) * self.rate_per_s
            )
            self._filled_s = now_s
