"""Flushing of replicated state: when it becomes durable, and up to which entry (rules 5 and 6).

`FlushPolicy` decides, `Flusher` performs. The store has no write-ahead log: rows survive a crash
from the last completed flush on, so `persisted_index` of a raft group is the applied index that
was written before a flush began and is moved only after that flush completed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from strata_state.ports import StateStore

RunBlocking = Callable[[Callable[[], None]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class FlushOptions:
    """Rule 5: flush by amount of log that a restart would replay, or by age.

    Attributes:
        max_unflushed_log_bytes: log written since the last flush.
        max_age_s: age of the oldest row that is not flushed.
    """

    max_unflushed_log_bytes: int = 512 * 1024 * 1024
    max_age_s: float = 60.0


class FlushPolicy:
    """Decides when to flush, from log positions and monotonic time given by the caller."""

    __slots__ = ("_flushed_position", "_oldest_s", "_options")

    def __init__(self, options: FlushOptions, log_position: int) -> None:
        self._options = options
        self._flushed_position = log_position
        self._oldest_s: float | None = None

    def unflushed_bytes(self, log_position: int) -> int:
        """Return how much log a restart would replay now."""
        return log_position - self._flushed_position

    def due(self, log_position: int, now_s: float, *, has_rows: bool = False) -> bool:
        """Whether to flush now. Nothing written since the last flush: never.

        Args:
            log_position: where the log ends.
            now_s: monotonic time.
            has_rows: there are rows that a restart would have to write again although the log has
                not grown: it is being replayed.
        """
        if log_position == self._flushed_position and not has_rows:
            return False
        if self._oldest_s is None:
            self._oldest_s = now_s
        return (
            self.unflushed_bytes(log_position) >= self._options.max_unflushed_log_bytes
            or now_s - self._oldest_s >= self._options.max_age_s
        )

    def flushed(self, log_position: int) -> None:
        """Take in that a flush completed which began when the log ended at `log_position`."""
        self._flushed_position = log_position
        self._oldest_s = None


class Flusher:
    """Flushes a store in a thread and keeps what is persisted per raft group.

    Args:
        store: the store of all raft groups of a node.
        run_blocking: runs a blocking call beside the event loop and waits for it.
    """

    __slots__ = ("_openings", "_persisted", "_run_blocking", "_store")

    def __init__(self, store: StateStore, run_blocking: RunBlocking) -> None:
        self._store = store
        self._run_blocking = run_blocking
        self._persisted: dict[int, int] = {}
        # Raft group -> how often it was opened: what a flush covers are rows of one opening.
        self._openings: dict[int, int] = {}

    def opened(self, raft_group: int, applied_index: int) -> None:
        """Take in what a store that was just opened holds: all of it is persisted.

        Also what a snapshot put there: a flush under way says nothing of it.
        """
        self._persisted[raft_group] = applied_index
        self._openings[raft_group] = self._openings.get(raft_group, 0) + 1

    def persisted_index(self, raft_group: int) -> int:
        """Return the applied index that survives a crash; 0: none."""
        return self._persisted.get(raft_group, 0)

    async def flush(self, applied: Mapping[int, int]) -> None:
        """Flush, then raise `persisted_index` to what `applied` said before the flush began.

        Raises:
            StateError: the flush failed; `persisted_index` stays.
        """
        before, openings = dict(applied), dict(self._openings)
        await self._run_blocking(self._store.flush)
        for raft_group, index in before.items():
            is_same = self._openings.get(raft_group) == openings.get(raft_group)
            if is_same and index > self._persisted.get(raft_group, 0):
                self._persisted[raft_group] = index
