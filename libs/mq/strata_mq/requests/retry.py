"""Retry policies: the pauses between deliveries and their number. Values only."""

from __future__ import annotations

from dataclasses import dataclass

_SECOND_MS = 1000
_MINUTE_MS = 60 * _SECOND_MS
_HOUR_MS = 60 * _MINUTE_MS


@dataclass(frozen=True, slots=True)
class ExponentialBackoff:
    """`initial_ms`, then each time `multiplier` as long, at most `max_ms`."""

    initial_ms: int
    max_ms: int
    multiplier: float

    def __post_init__(self) -> None:
        """Refuse values that make no schedule."""
        if self.initial_ms < 0 or self.max_ms < self.initial_ms or self.multiplier < 1:
            raise ValueError(f"not a backoff: {self}")

    def delay_ms(self, attempt: int) -> int:
        """Return the pause after the attempt with this number, counted from 1."""
        delay_ms = float(self.initial_ms)
        for _ in range(attempt - 1):
            delay_ms *= self.multiplier
            # Also ends the loop early for an attempt number out of any proportion.
            if delay_ms >= self.max_ms or self.multiplier == 1:
                break
        return min(int(delay_ms), self.max_ms)


@dataclass(frozen=True, slots=True)
class CustomizedBackoff:
    """One pause per attempt; the last one repeats."""

    next_ms: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse values that make no schedule."""
        if not self.next_ms or min(self.next_ms) < 0:
            raise ValueError(f"not a backoff: {self}")

    def delay_ms(self, attempt: int) -> int:
        """Return the pause after the attempt with this number, counted from 1."""
        return self.next_ms[min(max(attempt, 1), len(self.next_ms)) - 1]


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a message is delivered in all, and the pauses between."""

    max_attempts: int
    backoff: ExponentialBackoff | CustomizedBackoff

    def __post_init__(self) -> None:
        """Refuse a policy that never delivers."""
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts must be at least 1, not {self.max_attempts}")

    def delay_ms(self, attempt: int) -> int:
        """Return the pause after the attempt with this number, counted from 1."""
        return self.backoff.delay_ms(attempt)


DEFAULT_CONSUMER_POLICY = RetryPolicy(
    max_attempts=17,
    backoff=CustomizedBackoff(
        (
            *(seconds * _SECOND_MS for seconds in (1, 5, 10, 30)),
            *(minutes * _MINUTE_MS for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)),
            *(hours * _HOUR_MS for hours in (1, 2)),
        )
    ),
)
"""Policy of a consumer group that was made without one."""

DEFAULT_PRODUCER_POLICY = RetryPolicy(
    max_attempts=3, backoff=ExponentialBackoff(initial_ms=10, max_ms=1000, multiplier=2.0)
)
"""Policy that producers get in their settings."""
