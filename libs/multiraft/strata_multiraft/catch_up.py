"""Reads entries from the disk for followers that are behind, beside the writer and the apply.

One range of one append request at a time, with a budget per node, so that a follower that comes
back does not starve the foreground. What was trimmed meanwhile is not an error: the follower gets
a snapshot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from strata_multiraft.options import MultiRaftOptions
from strata_multiraft.pace import Pace
from strata_multiraft.ports import Log, RunBlocking
from strata_multiraft.replica import Replica
from strata_multiraft.stored_log import Wanted
from strata_multiraft.writes import as_entry
from strata_raft import Entry
from strata_runtime.clock import Clock
from strata_runtime.metrics import Metrics
from strata_seglog.errors import LogError


class CatchUp:
    """Serves the wants of `StoredLog`s; `run` is its task.

    Args:
        log: the node's CommitLog.
        run_reads: a thread for reads.
        clock: for the budget.
        options: the budget.
        metrics: where the bytes show.
        fetched: steps a replica whose entries are in memory now.
    """

    def __init__(
        self,
        log: Log,
        run_reads: RunBlocking,
        clock: Clock,
        options: MultiRaftOptions,
        metrics: Metrics,
        fetched: Callable[[Replica], None],
    ) -> None:
        self._log = log
        self._run_reads = run_reads
        self._pace = Pace(clock, options.catch_up_bytes_per_second)
        self._fetched = fetched
        self._waiting: dict[int, Replica] = {}
        self._work = asyncio.Event()
        self._bytes_total = metrics.counter("strata_raft_catch_up_bytes_total")

    def wanted(self, replica: Replica) -> None:
        """Read soon what this replica's followers lack."""
        self._waiting[replica.raft_group] = replica
        self._work.set()

    async def run(self) -> None:
        """Read for ever, the raft groups in turn."""
        while True:
            await self._work.wait()
            self._work.clear()
            waiting, self._waiting = self._waiting, {}
            for replica in waiting.values():
                await self._serve(replica)

    async def _serve(self, replica: Replica) -> None:
        entries: list[Entry] = []
        for wanted in replica.stored.take_wanted():
            found = await self._read(replica, wanted)
            await self._pace.spend(sum(entry.size_bytes() for entry in found))
            entries += found
        if replica.read_only:
            return
        if entries:
            self._bytes_total.add(sum(entry.size_bytes() for entry in entries))
        replica.stored.fetched(entries)
        self._fetched(replica)
        replica.stored.forget_fetched()

    async def _read(self, replica: Replica, wanted: Wanted) -> list[Entry]:
        replica_id = replica.replica_id
        try:
            frames = await self._run_reads(
                lambda: list(
                    self._log.entries(replica_id, wanted.first, wanted.last, wanted.max_bytes)
                )
            )
        except LogError as error:
            replica.fail(f"entry {wanted.first} cannot be read: {error}")
            return []
        if not frames:
            found = self._log.replicas().get(replica_id)
            replica.trimmed_to(max(wanted.first + 1, found.first_index if found else 0))
        return [as_entry(frame) for frame in frames]
