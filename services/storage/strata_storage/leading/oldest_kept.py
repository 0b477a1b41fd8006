"""How old the oldest messages are that a raft group keeps; retention sees them anyway."""

from __future__ import annotations


class OldestKept:
    """Store times of the oldest messages that a raft group keeps, as of the last turn.

    Attributes:
        local_ms: of those in the log; None: it has none.
        tiered_ms: of those in the tier; None: it has none.
    """

    __slots__ = ("local_ms", "tiered_ms")

    def __init__(self) -> None:
        self.local_ms: int | None = None
        self.tiered_ms: int | None = None

    def take_over(self, other: OldestKept) -> None:
        """Become what another one says."""
        self.local_ms, self.tiered_ms = other.local_ms, other.tiered_ms

    def see_local(self, time_ms: int) -> None:
        """Take in the oldest message of a queue in the log."""
        self.local_ms = time_ms if self.local_ms is None else min(self.local_ms, time_ms)

    def see_tiered(self, time_ms: int) -> None:
        """Take in the oldest message of a queue in the tier."""
        self.tiered_ms = time_ms if self.tiered_ms is None else min(self.tiered_ms, time_ms)
