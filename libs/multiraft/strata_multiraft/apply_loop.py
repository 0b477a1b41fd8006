"""Gives committed entries to state machines, after the replies of that turn are on their way.

What is no longer in memory is read back from the log, in a thread. One raft group's failure stops
that raft group alone (rule 11).
"""

from __future__ import annotations

import asyncio

from strata_multiraft.options import MultiRaftOptions
from strata_multiraft.ports import Log, RunBlocking
from strata_multiraft.replica import Replica
from strata_multiraft.writes import as_entry
from strata_raft import Entry
from strata_seglog.errors import LogError


class Applier:
    """Applies for all raft groups of a node; `run` is its task.

    Args:
        log: where entries are read back.
        run_reads: a thread for that.
        options: how much is applied at once.
    """

    def __init__(self, log: Log, run_reads: RunBlocking, options: MultiRaftOptions) -> None:
        self._log = log
        self._run_reads = run_reads
        self._options = options
        self._ready: dict[int, Replica] = {}
        self._work = asyncio.Event()

    def ready(self, replica: Replica) -> None:
        """Apply soon: after the callbacks of futures that were just resolved."""
        self._ready[replica.raft_group] = replica
        self._work.set()

    async def run(self) -> None:
        """Apply for ever."""
        while True:
            await self._work.wait()
            self._work.clear()
            ready, self._ready = self._ready, {}
            for replica in ready.values():
                await self._apply(replica)

    async def _apply(self, replica: Replica) -> None:
        replica.announce_leadership()
        while replica.has_ready():
            missing = replica.missing_range()
            if missing is None:
                entries = replica.take_ready(self._options.max_apply_bytes)
            else:
                entries = await self._read_back(replica, *missing)
            if not replica.has_ready() or entries[0].index != replica.applied_index + 1:
                return  # it failed, or a snapshot replaced its rows while entries were read
            replica.apply(entries)
            if replica.has_ready():
                await asyncio.sleep(0)

    async def _read_back(self, replica: Replica, first: int, last: int) -> list[Entry]:
        """Read entries from the log; a frame that cannot be served stops apply (rule 11)."""
        replica_id, max_bytes = replica.replica_id, self._options.max_apply_bytes
        try:
            frames = await self._run_reads(
                lambda: list(self._log.entries(replica_id, first, last, max_bytes))
            )
        except LogError as error:
            replica.fail(f"entry {first} cannot be read: {error}")
            return []
        if not replica.has_ready():
            return []
        if not frames or frames[0].index != first:
            replica.fail(f"entry {first} is missing from the log")
            return []
        return [as_entry(frame) for frame in frames]
