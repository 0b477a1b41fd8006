"""Flushes of one node's rows: what only memory has is settled first (rules 5 and 6).

Rows that a snapshot is being written over are neither settled nor called persisted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from strata_runtime.clock import Clock
from strata_runtime.logs import get_logger
from strata_seglog.log import CommitLog
from strata_state.flush import Flusher, FlushOptions, FlushPolicy
from strata_state.ports import StateError
from strata_storage.base.errors import Refused
from strata_storage.group.engine import GroupEngine
from strata_storage.upkeep.instruments import Instruments


class RowFlushes:
    """See the module docstring.

    Args:
        log: the node's CommitLog.
        flusher: flushes the store and keeps what is persisted.
        options: when flushes are due.
        clock: for ages.
        instruments: how long flushes took.
        engines: gives the engines of the raft groups that are hosted now.
    """

    def __init__(
        self,
        log: CommitLog,
        flusher: Flusher,
        options: FlushOptions,
        *,
        clock: Clock,
        instruments: Instruments,
        engines: Callable[[], Sequence[GroupEngine]],
    ) -> None:
        self._log = log
        self._flusher = flusher
        self._policy = FlushPolicy(options, log.end_position)
        self._clock = clock
        self._instruments = instruments
        self._engines = engines
        self._logger = get_logger("storage")

    def is_due(self) -> bool:
        """Whether to flush now."""
        # The log does not grow while it is replayed, but a crash would begin that again.
        has_rows = any(
            engine.machine.persisted_index() < engine.machine.applied_index()
            for engine in self._whole()
        )
        now_s = self._clock.monotonic_s()
        return self._policy.due(self._log.end_position, now_s, has_rows=has_rows)

    def unflushed_bytes(self) -> int:
        """Return how much log a restart would replay now."""
        return self._policy.unflushed_bytes(self._log.end_position)

    async def flush(self) -> bool:
        """Flush the rows; note what is persisted. False: the store could not, the log keeps all."""
        position, began_s = self._log.end_position, self._clock.monotonic_s()
        try:
            self.settle()
            applied = {each.raft_group: each.machine.applied_index() for each in self._whole()}
            await self._flusher.flush(applied)
        except (StateError, Refused) as error:
            self._logger.warning("rows are not flushed", reason=str(error))
            return False
        self._policy.flushed(position)
        self._instruments.flush_ms.record((self._clock.monotonic_s() - began_s) * 1_000)
        return True

    def settle(self) -> None:
        """Bring into the store what only memory has.

        Raises:
            StateError: the store failed.
        """
        for engine in self._whole():
            engine.machine.settle()

    def _whole(self) -> Sequence[GroupEngine]:
        return [engine for engine in self._engines() if engine.whole_rows() is not None]
