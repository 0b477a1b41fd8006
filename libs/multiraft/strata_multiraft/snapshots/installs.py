"""The receiving side of snapshots: fetch one, replace log and rows with it, continue after it.

The order makes a crash harmless at any point. From `begin_install` on, the machine's mark says that
the rows are void. Only then is the log truncated, by an entry of index 0. Rows and entries are
written; `finish_install` makes the rows valid and removes the mark. A replica that starts with the
mark truncates the log (again), then deletes the rows, then the mark: it is an empty replica with
its old term and vote.

Earlier acknowledgements still bind the replica (rule 8): the truncating entry keeps the *floor*,
the last entry that other replicas may count on it to have. Until its log reaches the floor again it
does not campaign and votes only for candidates that have that entry; so it is a slow replica, not a
forgetful one.

While rows are replaced, nothing is applied and no append is accepted or acknowledged; heartbeats
continue.

Rows that cannot be written raise LogFull, as a log without room does. An install of which parts are
missing is given up then. The end of an install, good or bad, is repeated until it succeeds: each
step of it may be done again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from strata_multiraft.base.errors import LogFull, SnapshotBroken, SnapshotRefused
from strata_multiraft.base.options import MultiRaftOptions
from strata_multiraft.base.ports import (
    NodeOf,
    SnapshotFetcher,
    SnapshotStore,
)
from strata_multiraft.base.snapshots import (
    SnapshotEnd,
    SnapshotEntries,
    SnapshotFetch,
    SnapshotRows,
    SnapshotStart,
)
from strata_multiraft.replica.replica import Replica
from strata_multiraft.replica.stored_log import LogEnds
from strata_multiraft.replica.writes import as_frame, void_frame
from strata_raft import Entry, InstallSnapshot, SnapshotInstalled, SnapshotMetadata
from strata_runtime.blocking import RunBlocking
from strata_runtime.logs import get_logger
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import Tasks
from strata_seglog.frames import Frame


class InstallOwner(Protocol):
    """The part of the driver that an install uses."""

    def write_control(self, frames: Sequence[Frame]) -> asyncio.Future[int]:
        """Write frames with the next group commit, after all that was produced before."""

    def entries_ready(self, replica: Replica) -> None:
        """See to it that committed entries are applied, which was held up."""

    def reopen_empty(self, replica: Replica) -> None:
        """Replace the raft core by that of an empty replica; what is durable of it binds it."""


class Installs:
    """Runs installs, as many at once as the options allow; a refused install is offered again.

    Args:
        owner: the driver.
        fetcher: gets the parts; None: snapshots are not installed here.
        node_of: node id of a replica id.
        run_reads: a thread for rows.
        options: limits.
        metrics: where installs show.
        tasks: owns the installs' tasks.
    """

    def __init__(
        self,
        owner: InstallOwner,
        fetcher: SnapshotFetcher | None,
        node_of: NodeOf,
        *,
        run_reads: RunBlocking,
        options: MultiRaftOptions,
        metrics: Metrics,
        tasks: Tasks,
    ) -> None:
        self._owner = owner
        self._fetcher = fetcher
        self._node_of = node_of
        self._run_reads = run_reads
        self._options = options
        self._tasks = tasks
        self._logger = get_logger("multiraft")
        self._running: dict[int, asyncio.Task[None]] = {}
        self._installed_total = metrics.counter("strata_raft_snapshots_installed_total")
        self._failed_total = metrics.counter("strata_raft_snapshots_failed_total")
        self._bytes_total = metrics.counter("strata_raft_snapshot_received_bytes_total")
        metrics.gauge("strata_raft_snapshot_installs", lambda: len(self._running))

    def begin(self, replica: Replica, offer: InstallSnapshot) -> None:
        """Fetch what a leader offered, unless that goes on already or too many do.

        The leader repeats its offer, so nothing is remembered.
        """
        if (
            replica.snapshots is None
            or self._fetcher is None
            or replica.raft_group in self._running
            or len(self._running) >= self._options.max_snapshot_installs
        ):
            return
        install = _Install(
            replica, replica.snapshots, offer, owner=self._owner, run_reads=self._run_reads
        )
        self._spawn(replica, self._run(install, self._fetcher))

    def reset(self, replica: Replica) -> None:
        """Void what an interrupted install left behind; found at start."""
        replica.installing = replica.is_resetting = True
        self._spawn(replica, self._reset(replica))

    async def cancel(self, replica: Replica) -> None:
        """End the replica's install, wherever it is."""
        task = self._running.get(replica.raft_group)
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
            # Rows that it gave to the thread are written all the same: before the caller goes on.
            await self._run_reads(lambda: None)

    def _spawn(self, replica: Replica, work: Awaitable[None]) -> None:
        raft_group = replica.raft_group

        async def run() -> None:
            try:
                await work
            finally:
                self._running.pop(raft_group, None)

        self._running[raft_group] = self._tasks.spawn(f"install-{raft_group}", run())

    async def _run(self, install: _Install, fetcher: SnapshotFetcher) -> None:
        replica = install.replica
        failures = 0
        while failures < self._options.snapshot_attempts:
            received_bytes = install.received_bytes
            node_id = self._node_of(install.source_replica_id)
            if node_id is None:
                break
            try:
                await install.fetch(fetcher, node_id)
            except SnapshotBroken:
                failures = failures + 1 if install.received_bytes == received_bytes else 1
                await asyncio.sleep(self._options.snapshot_retry_ms / 1000 * failures)
                continue
            except SnapshotRefused:
                pass
            except LogFull as error:
                self._tell("snapshot was not installed", replica, error)
            break
        if install.is_fetched:
            await self._until_room(replica, install.finish)
            self._installed_total.add(1)
            self._bytes_total.add(install.received_bytes)
        elif install.has_begun:
            self._failed_total.add(1)
            # Before the log is truncated; it is missing if the disk had no room for it.
            await self._until_room(replica, install.mark)
            await self._reset(replica)
        else:
            replica.installing = False
            self._owner.entries_ready(replica)

    async def _reset(self, replica: Replica) -> None:
        """Make the replica an empty one: log first, then the rows and their mark."""
        store = replica.snapshots
        assert store is not None
        replica.installing = replica.is_resetting = True

        async def empty_log() -> None:
            await self._owner.write_control(
                [void_frame(replica.replica_id, replica.raft_group, replica.floor)]
            )

        async def drop_rows() -> None:
            await self._run_reads(store.abandon_install)
            store.installed()

        await self._until_room(replica, empty_log)
        await self._until_room(replica, drop_rows)
        replica.installing = replica.is_resetting = False
        self._owner.reopen_empty(replica)

    async def _until_room(self, replica: Replica, work: Callable[[], Awaitable[None]]) -> None:
        """Do what must be done before anything else, again and again while the disk refuses it."""
        while True:
            try:
                return await work()
            except LogFull as error:
                self._tell("snapshot waits for room", replica, error)
            await asyncio.sleep(self._options.disk_full_retry_ms / 1000)

    def _tell(self, what: str, replica: Replica, error: LogFull) -> None:
        self._logger.warning(what, raft_group=replica.raft_group, reason=str(error))


class _Install:
    """One snapshot on its way in: where it is, over as many calls as it takes."""

    def __init__(
        self,
        replica: Replica,
        store: SnapshotStore,
        offer: InstallSnapshot,
        *,
        owner: InstallOwner,
        run_reads: RunBlocking,
    ) -> None:
        self.replica = replica
        self.source_replica_id = offer.leader_id
        self.is_fetched = False
        self.received_bytes = 0
        self._store = store
        self._offer = offer
        self._owner = owner
        self._run_reads = run_reads
        self._snapshot: SnapshotMetadata | None = None
        self._is_marked = False
        self._rows_after = b""
        self._entries_from = 0
        # The last run of entries without a hole, and the term of its end.
        self._run_first = 0
        self._last: Entry | None = None

    @property
    def has_begun(self) -> bool:
        """Whether the replica's own rows and entries are void."""
        return self._snapshot is not None

    async def fetch(self, fetcher: SnapshotFetcher, node_id: str) -> None:
        """Make one call and write what it brings; begun anew it goes on where it was.

        Returns with `is_fetched` unset if the snapshot is not needed any more.

        Raises:
            SnapshotBroken, SnapshotRefused, LogFull: it did not come to its end.
        """
        rows = entries = 0
        async with contextlib.aclosing(fetcher.fetch(node_id, self._request())) as parts:
            async for part in parts:
                match part:
                    case SnapshotStart():
                        if not await self._start(part):
                            return
                    case SnapshotRows():
                        await self._rows(part)
                        rows += len(part.keys)
                    case SnapshotEntries():
                        await self._entries(part)
                        entries += len(part.entries)
                    case SnapshotEnd():
                        if (part.row_count, part.entry_count) != (rows, entries):
                            raise SnapshotBroken("parts are missing")
                        self._begun()
                        self.is_fetched = True
                        return
        raise SnapshotBroken("it ended early")

    def _request(self) -> SnapshotFetch:
        wanted = self._snapshot or self._offer.snapshot
        return SnapshotFetch(
            self.replica.raft_group,
            self.source_replica_id,
            self.replica.replica_id,
            wanted.index,
            wanted.term,
            self._rows_after,
            self._entries_from,
        )

    async def _start(self, start: SnapshotStart) -> bool:
        """Void rows and entries; False: the replica has moved on and needs no snapshot."""
        if self._snapshot is not None:
            if start.metadata() != self._snapshot:
                raise SnapshotRefused("another snapshot than the one that began")
            return True
        replica, snapshot = self.replica, start.metadata()
        replica.installing = True
        # No write to the log may be under way when the log is judged and truncated.
        await self._owner.write_control([])
        if not replica.node.needs_snapshot(snapshot):
            return False
        self._snapshot = snapshot
        replica.floor = max(replica.floor, (snapshot.term, snapshot.index))
        await self.mark()
        await self._owner.write_control(
            [void_frame(replica.replica_id, replica.raft_group, replica.floor)]
        )
        return True

    async def mark(self) -> None:
        """Mark the rows as void, durably, unless they are; they go.

        Raises:
            LogFull: to be called again.
        """
        snapshot = self._begun()
        if not self._is_marked:
            await self._run_reads(lambda: self._store.begin_install(snapshot))
            self._is_marked = True

    async def _rows(self, part: SnapshotRows) -> None:
        self._begun()
        part.check()
        await self._run_reads(lambda: self._store.install_rows(part))
        self._rows_after = part.keys[-1]
        self.received_bytes += part.size_bytes()

    async def _entries(self, part: SnapshotEntries) -> None:
        self._begun()
        part.check()
        replica = self.replica
        for entry in part.entries:
            if self._last is None or entry.index != self._last.index + 1:
                self._run_first = entry.index
            self._last = entry
        frames = [as_frame(replica.replica_id, replica.raft_group, e) for e in part.entries]
        await self._owner.write_control(frames)
        self._entries_from = part.entries[-1].index + 1
        self.received_bytes += part.size_bytes()

    async def finish(self) -> None:
        """Let the rows hold and the raft core go on after them.

        Raises:
            LogFull: to be called again.
        """
        snapshot, replica = self._begun(), self.replica
        await self._run_reads(lambda: self._store.finish_install(snapshot))
        self._store.installed()
        ends = LogEnds(snapshot.index + 1, snapshot.index, snapshot.term, snapshot.term)
        if self._last is not None and self._last.index == snapshot.index:
            ends = LogEnds(self._run_first, snapshot.index, snapshot.term, None)
        replica.stored.restored(ends)
        replica.rows_replaced()
        replica.installing = False
        leader_id = replica.node.leader_id or self.source_replica_id
        replica.step(SnapshotInstalled(snapshot, leader_id))

    def _begun(self) -> SnapshotMetadata:
        if self._snapshot is None:
            raise SnapshotBroken("data came before the start")
        return self._snapshot
