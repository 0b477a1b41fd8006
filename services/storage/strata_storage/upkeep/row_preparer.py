"""Brings the rows of a replica to the start of its log, before the replica is opened.

Damaged data is named, not raised: the replica is read-only for it, its node starts, and its other
raft groups serve (rules 7 and 8). A read that goes on failing is raised: it is no damage, and the
caller tries again later (rule 40).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from strata_mq.commands import CommandError
from strata_mq.layout import BatchError
from strata_runtime.logs import get_logger
from strata_seglog.errors import LogError, ReadFailed
from strata_seglog.log import CommitLog
from strata_state.ports import StateError, StateStore
from strata_storage.base.errors import ApplyError
from strata_storage.base.hosted import HostedGroup
from strata_storage.group.engine import GroupEngine
from strata_storage.upkeep.checkpoint import CheckpointError
from strata_storage.upkeep.group_snapshots import claim_rows
from strata_storage.upkeep.instruments import Instruments
from strata_storage.upkeep.rebuild import RebuildError, apply_readable, rebuild_if_needed, redo

Result = TypeVar("Result")

# Few: the thread has other work, and the caller goes on trying.
_READ_ATTEMPTS = 4
_READ_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class Prepared:
    """State of a replica's rows before it is opened.

    Attributes:
        is_installing: a snapshot was being written over them.
        damage: what log or rows lack; empty: nothing.
        lacks_tiered: what they lack is in the tier.
    """

    is_installing: bool = False
    damage: str = ""
    lacks_tiered: bool = False


class RowPreparer:
    """Prepares the rows of one node's replicas.

    Args:
        store: all rows.
        log: the node's CommitLog.
        instruments: counters.
        pause: waits between two attempts to read, in the calling thread.
    """

    def __init__(
        self,
        store: StateStore,
        log: CommitLog,
        instruments: Instruments,
        *,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store = store
        self._log = log
        self._instruments = instruments
        self._pause = pause
        self._logger = get_logger("storage")

    def prepare(self, group: HostedGroup) -> Prepared:
        """Rebuild the rows of a replica if they must be. Blocks.

        Raises:
            ReadFailed: the disk has not read the log for a while; it may be called again.
            StateError: the row store failed; likewise.
        """
        if claim_rows(self._store, group.raft_group, group.replica_id):
            return Prepared(is_installing=True)
        problem, lacks_tiered = self._rebuild(group)
        damage = problem or self.damage(group.replica_id)
        return Prepared(damage=damage, lacks_tiered=lacks_tiered)

    def damage(self, replica_id: int) -> str:
        """Return what the log knows to be damaged of a replica; empty: nothing."""
        found = self._log.replica(replica_id)
        return "" if found is None else found.damaged

    def apply_readable(self, engine: GroupEngine) -> None:
        """Show what a damaged replica without other voters still has, up to the damage."""
        try:
            apply_readable(engine.machine, self._log, engine.replica_id)
        except (ApplyError, StateError, CommandError, BatchError) as error:
            self._logger.warning("apply stopped", raft_group=engine.raft_group, reason=str(error))

    def redo(self, engine: GroupEngine) -> str:
        """Apply again what plugins keep in memory and the store lacks; return what is missing.

        Raises:
            ReadFailed: the disk has not read the log for a while; another engine may try again.
        """
        machine = engine.machine
        applied_index = machine.applied_index()
        try:
            self._patiently(engine.raft_group, lambda: redo(machine, self._log, engine.replica_id))
        except ReadFailed:
            raise
        except (LogError, RebuildError) as error:
            settled_index = machine.plugins.settled_index(applied_index)
            return f"entries {settled_index + 1} to {applied_index} cannot be read again: {error}"
        return ""

    def _patiently(self, raft_group: int, read: Callable[[], Result]) -> Result:
        """Read again for a while what the disk fails to read: that is not damage (rule 40).

        Raises:
            ReadFailed: it has failed for a second or two; the other raft groups should start.
        """
        for _ in range(_READ_ATTEMPTS - 1):
            try:
                return read()
            except ReadFailed as error:
                self._logger.warning(
                    "the log was not read, it is tried again",
                    raft_group=raft_group,
                    reason=str(error),
                )
                self._pause(_READ_PAUSE_S)
        return read()

    def _rebuild(self, group: HostedGroup) -> tuple[str, bool]:
        """Rebuild rows if they must be.

        Returns:
            What is missing afterwards, empty: nothing; whether the tier is to be asked for more.

        Raises:
            ReadFailed: the disk has not read the log for a while.
        """
        try:
            rebuilt = self._patiently(
                group.raft_group,
                lambda: rebuild_if_needed(
                    self._store, self._log, group.raft_group, group.replica_id
                ),
            )
        except ReadFailed:
            raise
        except (LogError, CheckpointError, RebuildError) as error:
            return f"rows cannot be rebuilt: {error}", False
        if rebuilt is None:
            return "", False
        self._logger.warning("rows were rebuilt", raft_group=group.raft_group)
        self._instruments.corrupt.add(len(rebuilt.unreadable))
        return rebuilt.problem, rebuilt.lacks_tiered
