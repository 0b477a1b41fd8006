"""Reads entries from the disk for followers that lag, beside the writer and apply.

Each follower gets one range of one append request per turn, within a budget per node, so that a
returning follower starves neither the foreground nor other raft groups (rule 39). Entries trimmed
meanwhile are not an error: the follower gets a snapshot. A range that the disk fails to read is
skipped and read again later (rule 40). Another leader may replace entries while they are read: a
replica that leads no more neither sends them nor takes missing ones for trimmed (rule 38).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from strata_multiraft.base.options import MultiRaftOptions
from strata_multiraft.base.pace import Pace
from strata_multiraft.base.ports import Log
from strata_multiraft.replica.read_failures import ReadFailures
from strata_multiraft.replica.replica import Replica
from strata_multiraft.replica.stored_log import StoredLog, WantedEntries
from strata_multiraft.replica.writes import as_entry
from strata_raft import Entry, Role
from strata_runtime.blocking import RunBlocking
from strata_runtime.clock import Clock
from strata_runtime.metrics import Metrics
from strata_seglog.errors import LogError, ReadFailed


class CatchUp:
    """Serves the wants of `StoredLog`s; `run` is its task.

    Args:
        log: the node's CommitLog.
        run_reads: a thread for reads.
        clock: for the budget.
        options: the budget.
        metrics: where the bytes and failed reads show.
        fetched: steps a replica whose entries are in memory now.
    """

    def __init__(
        self,
        log: Log,
        run_reads: RunBlocking,
        clock: Clock,
        *,
        options: MultiRaftOptions,
        metrics: Metrics,
        fetched: Callable[[Replica], None],
    ) -> None:
        self._log = log
        self._run_reads = run_reads
        self._pace = Pace(clock, options.catch_up_bytes_per_second)
        self._fetched = fetched
        self._failures = ReadFailures(options, metrics)
        self._waiting: dict[int, Replica] = {}
        self._work = asyncio.Event()
        self._bytes_total = metrics.counter("strata_raft_catch_up_bytes_total")

    def wanted(self, replica: Replica) -> None:
        """Read soon what this replica's followers lack."""
        self._waiting[replica.raft_group] = replica
        self._work.set()

    async def run(self) -> None:
        """Read forever, the raft groups in turn."""
        while True:
            await self._work.wait()
            self._work.clear()
            waiting, self._waiting = self._waiting, {}
            for replica in waiting.values():
                await self._serve(replica)

    async def _serve(self, replica: Replica) -> None:
        stored, term = replica.stored, replica.term
        entries: list[Entry] = []
        done: list[int] = []
        for wanted in stored.take_wanted():
            try:
                found = await self._read(replica, stored, term, wanted)
            except ReadFailed as error:
                again = partial(self._deliver, replica, stored, [wanted.first], [])
                self._failures.retry("catch-up", replica.raft_group, error, again)
                continue
            done.append(wanted.first)
            await self._pace.spend(sum(entry.size_bytes() for entry in found))
            entries += found
        if not _still_leads(replica, stored, term):
            entries = []
        if entries:
            self._bytes_total.add(sum(entry.size_bytes() for entry in entries))
        if done:
            self._deliver(replica, stored, done, entries)

    def _deliver(
        self, replica: Replica, stored: StoredLog, done: Sequence[int], entries: Sequence[Entry]
    ) -> None:
        """Hold entries for one step; without them the step may ask anew."""
        if replica.read_only or replica.is_resetting or replica.stored is not stored:
            return
        stored.fetched(done, entries)
        self._fetched(replica)
        stored.forget_fetched()

    async def _read(
        self, replica: Replica, stored: StoredLog, term: int, wanted: WantedEntries
    ) -> list[Entry]:
        """Return a range's entries; none: they were trimmed or replaced, or a frame is damaged.

        Raises:
            ReadFailed: the disk could not read, or the log has not got what it should have.
        """
        replica_id = replica.replica_id
        try:
            frames = await self._run_reads(
                lambda: list(
                    self._log.entries(replica_id, wanted.first, wanted.last, wanted.max_bytes)
                )
            )
        except ReadFailed:
            raise
        except LogError as error:
            replica.fail(f"entry {wanted.first} cannot be read: {error}")
            return []
        if not frames and _still_leads(replica, stored, term):
            found = self._log.replica(replica_id)
            first_index = (found.first_index if found else 0) or stored.last_index() + 1
            if first_index <= wanted.first:
                raise ReadFailed(f"entry {wanted.first} is not found in a log from {first_index}")
            replica.trimmed_to(first_index)
        return [as_entry(frame) for frame in frames]


def _still_leads(replica: Replica, stored: StoredLog, term: int) -> bool:
    """Tell whether nobody else may have cut the log since this term's leader asked for entries."""
    return (
        replica.role is Role.LEADER
        and replica.term == term
        and replica.stored is stored
        and not replica.is_resetting
    )
