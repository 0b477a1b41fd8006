"""The sending side of snapshots: it opens the rows once and sends them and the entries in parts.

A snapshot stays open for a while after an interrupted call, so that the next call can continue with
the same rows. Data is read in threads and sent within a budget per node.

Waiting for a target takes a timer, no task, and one task closes all readers, in turn. It starts
before the first snapshot opens, so letting go of a snapshot never fails for want of a task.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

from strata_multiraft.base.errors import SnapshotRefused
from strata_multiraft.base.options import MultiRaftOptions
from strata_multiraft.base.pace import Pace
from strata_multiraft.base.ports import Log, SnapshotReader
from strata_multiraft.base.snapshots import (
    SnapshotEnd,
    SnapshotEntries,
    SnapshotFetch,
    SnapshotPart,
    SnapshotRows,
    SnapshotStart,
)
from strata_multiraft.replica.replica import Replica
from strata_multiraft.replica.writes import as_entry
from strata_raft import Compacted, SnapshotMetadata, SnapshotSent
from strata_runtime.blocking import RunBlocking, run_to_end
from strata_runtime.clock import Clock
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import Tasks
from strata_seglog.errors import LogError


@dataclass(slots=True, eq=False)
class _Open:
    """A snapshot that is being sent, or waits for its target to call again."""

    reader: SnapshotReader
    start: SnapshotStart
    # Runs of entries that travel: first and last index, ascending.
    runs: list[tuple[int, int]]
    in_use: bool = False
    # Ends the wait for the target's next call.
    expiry: asyncio.TimerHandle | None = None
    is_complete: bool = False

    def keep(self) -> None:
        """Let it not expire any more."""
        if self.expiry is not None:
            self.expiry.cancel()
            self.expiry = None


Key = tuple[int, int]


class SnapshotSource:
    """Snapshots of the raft groups of one node.

    Args:
        log: where entries are read.
        replicas: hosted replicas by raft group.
        run_reads: a thread for rows and entries.
        clock: for the budget.
        options: limits.
        metrics: where what is sent shows.
        tasks: owns the task that closes readers.
        sent: steps what became of a snapshot.
    """

    def __init__(
        self,
        log: Log,
        replicas: Mapping[int, Replica],
        run_reads: RunBlocking,
        *,
        clock: Clock,
        options: MultiRaftOptions,
        metrics: Metrics,
        tasks: Tasks,
        sent: Callable[[Replica, SnapshotSent], None],
    ) -> None:
        self._log = log
        self._replicas = replicas
        self._run_reads = run_reads
        self._pace = Pace(clock, options.snapshot_bytes_per_second)
        self._options = options
        self._tasks = tasks
        self._sent = sent
        # By raft group and target replica id.
        self._open: dict[Key, _Open] = {}
        # Readers that nobody reads any more, at most twice `max_snapshots_open`.
        self._closing: deque[SnapshotReader] = deque()
        self._work = asyncio.Event()
        self._closer: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._bytes_total = metrics.counter("strata_raft_snapshot_sent_bytes_total")
        metrics.gauge("strata_raft_snapshots_open", lambda: len(self._open))

    def offer(self, replica: Replica) -> SnapshotMetadata | None:
        """Return what a follower of this replica may be pointed to: the rows as they are now."""
        index = replica.applied_index
        configuration = replica.applied_configuration()
        if replica.snapshots is None or not index or not configuration.voters:
            return None
        try:
            return SnapshotMetadata(index, replica.stored.term(index), configuration)
        except Compacted:
            return SnapshotMetadata(index, replica.machine.applied_term(), configuration)

    async def parts(self, fetch: SnapshotFetch) -> AsyncGenerator[SnapshotPart, None]:
        """Yield the parts of a snapshot, or of what a cut call has left of it.

        Raises:
            SnapshotRefused: the replica is not here or behind, too many snapshots are open or
                being closed, or the one that began is closed or was trimmed.
        """
        key = (fetch.raft_group, fetch.target_replica_id)
        replica = self._replica(fetch)
        opened = self._find(key, fetch, replica)
        opened.in_use = True
        opened.keep()
        rows = entries = 0
        try:
            yield opened.start
            if not fetch.entries_from:
                async for part in self._rows(opened, fetch.rows_after):
                    rows += len(part.keys)
                    yield part
            async for batch in self._entries(replica, opened, fetch.entries_from):
                entries += len(batch.entries)
                yield batch
            yield SnapshotEnd(rows, entries)
            opened.is_complete = True
        finally:
            opened.in_use = False
            self._release(key, replica, opened)

    def _replica(self, fetch: SnapshotFetch) -> Replica:
        replica = None if self._is_stopping else self._replicas.get(fetch.raft_group)
        if replica is None or replica.replica_id != fetch.source_replica_id:
            raise SnapshotRefused(f"replica {fetch.source_replica_id} is not here")
        if replica.snapshots is None or replica.installing or replica.read_only:
            raise SnapshotRefused(f"replica {fetch.source_replica_id} gives no snapshots now")
        if replica.applied_index < fetch.index:
            raise SnapshotRefused(f"replica {fetch.source_replica_id} has not applied so much")
        return replica

    def _find(self, key: Key, fetch: SnapshotFetch, replica: Replica) -> _Open:
        opened = self._open.get(key)
        if opened is not None and opened.in_use:
            raise SnapshotRefused("an earlier call is still under way")
        if fetch.is_repeated():
            if opened is None or opened.start.index != fetch.index:
                raise SnapshotRefused("the snapshot that began is closed")
            return opened
        if opened is not None:
            self._close(key, opened)
        if len(self._open) >= self._options.max_snapshots_open:
            raise SnapshotRefused(
                f"max_snapshots_open ({self._options.max_snapshots_open}) is reached"
            )
        if len(self._open) + len(self._closing) >= 2 * self._options.max_snapshots_open:
            raise SnapshotRefused("earlier snapshots are still being closed")
        if self._closer is None:
            self._closer = self._tasks.spawn("snapshot-close", self._close_readers())
        opened = self._open[key] = self._open_now(replica)
        return opened

    def _open_now(self, replica: Replica) -> _Open:
        offer = self.offer(replica)
        if offer is None or replica.snapshots is None:
            raise SnapshotRefused("nothing is applied yet")
        low = max(1, replica.snapshots.low_index())
        runs = [
            (max(first, low), min(last, offer.index))
            for first, last in self._log.runs(replica.replica_id)
            if last >= low and first <= offer.index
        ]
        first_entry = runs[0][0] if runs else offer.index + 1
        start = SnapshotStart(offer.index, offer.term, offer.configuration, first_entry)
        return _Open(replica.snapshots.open_snapshot(), start, runs)

    async def _rows(self, opened: _Open, after: bytes) -> AsyncGenerator[SnapshotRows, None]:
        max_bytes = self._options.snapshot_part_bytes
        while True:
            self._check_giving()  # `close` closes the reader of a call that is held up
            rows = await self._run_reads(partial(opened.reader.read, after, max_bytes))
            if not rows.keys:
                return
            await self._spend(rows.size_bytes())
            yield rows.sealed()
            after = rows.keys[-1]

    async def _entries(
        self, replica: Replica, opened: _Open, begin: int
    ) -> AsyncGenerator[SnapshotEntries, None]:
        for first, last in opened.runs:
            index = max(first, begin)
            while index <= last:
                batch = await self._read_entries(replica.replica_id, index, last)
                await self._spend(batch.size_bytes())
                yield batch
                index = batch.entries[-1].index + 1

    async def _read_entries(self, replica_id: int, first: int, last: int) -> SnapshotEntries:
        max_bytes = self._options.snapshot_part_bytes
        try:
            frames = await self._run_reads(
                lambda: list(self._log.entries(replica_id, first, last, max_bytes))
            )
        except LogError as error:
            raise SnapshotRefused(f"entry {first} cannot be read: {error}") from error
        if not frames:
            raise SnapshotRefused(f"entry {first} was trimmed meanwhile")
        return SnapshotEntries(tuple(map(as_entry, frames))).sealed()

    async def _spend(self, size_bytes: int) -> None:
        await self._pace.spend(size_bytes)
        self._check_giving()
        self._bytes_total.add(size_bytes)

    def _check_giving(self) -> None:
        if self._is_stopping:
            raise SnapshotRefused("the node stops")

    def _release(self, key: Key, replica: Replica, opened: _Open) -> None:
        """End a call: what is complete goes, what was cut waits for its target."""
        if self._is_stopping:
            return  # `close` lets go of all
        if opened.is_complete:
            self._close(key, opened)
            self._sent(replica, SnapshotSent(key[1], delivered=True))
            return
        opened.expiry = asyncio.get_running_loop().call_later(
            self._options.snapshot_idle_ms / 1000, self._expire, key, replica, opened
        )

    def _expire(self, key: Key, replica: Replica, opened: _Open) -> None:
        self._close(key, opened)
        self._sent(replica, SnapshotSent(key[1], delivered=False))

    def _close(self, key: Key, opened: _Open) -> None:
        """Forget a snapshot; its reader is closed soon."""
        opened.keep()
        del self._open[key]
        self._closing.append(opened.reader)
        self._work.set()

    async def _close_readers(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            while self._closing:
                # A stop waits for its end, for `close` does not know of this one.
                await run_to_end(self._closing.popleft().close, run=self._run_reads)

    def stop(self) -> None:
        """Give nothing any more; calls under way end with SnapshotRefused."""
        self._is_stopping = True
        for opened in self._open.values():
            opened.keep()

    async def close(self) -> None:
        """Let go of all rows, when nothing is given any more; one failure keeps none open."""
        for key, opened in list(self._open.items()):
            self._close(key, opened)
        async with AsyncExitStack() as stack:
            while self._closing:
                stack.push_async_callback(
                    run_to_end, self._closing.pop().close, run=self._run_reads
                )
