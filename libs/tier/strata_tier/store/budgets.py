"""Budgets: amounts per second that are paid after use.

A payment of any size passes at once when there is no debt, and the next payment waits until the
debt has run off. So a body larger than a second's budget need not be cut, and the average holds. A
budget only decides how long to wait; the caller waits.
"""

from __future__ import annotations

from strata_runtime.clock import Clock


class Budget:
    """One amount per second.

    Args:
        per_s: what may be spent in a second; None: everything at once.
        clock: gives the time; only its monotonic part is used.
        burst_s: how many seconds' worth that were not used may be spent later.
    """

    __slots__ = ("_burst_s", "_clock", "_paid_until_s", "per_s")

    def __init__(self, per_s: float | None, clock: Clock, burst_s: float = 1.0) -> None:
        self._clock = clock
        self._burst_s = burst_s
        self._paid_until_s = clock.monotonic_s() - burst_s
        self.per_s: float | None = None
        self.set_rate(per_s)

    def set_rate(self, per_s: float | None) -> None:
        """Change what may be spent in a second; debts stay as they are, in seconds.

        Raises:
            ValueError: the amount is not positive.
        """
        if per_s is not None and per_s <= 0:
            raise ValueError(f"a budget must be positive, got {per_s}")
        self.per_s = per_s

    def spend(self, amount: float) -> float:
        """Note that `amount` is spent; return how many seconds to wait before spending it."""
        if self.per_s is None or not amount:
            return 0.0
        now_s = self._clock.monotonic_s()
        begin_s = max(self._paid_until_s, now_s - self._burst_s)
        self._paid_until_s = begin_s + amount / self.per_s
        return max(0.0, begin_s - now_s)
