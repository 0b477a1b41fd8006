"""Passes committed entries to state machines, after the replies of that turn are sent.

All raft groups of a node take turns, a bounded slice each (rule 39): a raft group that replays
gigabytes delays no other. Entries that are no longer in memory are read back from the log, in a
thread, while other raft groups take their turns. A failure stops only its own raft group (rule 11);
a failed disk read is retried (rule 40).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from strata_multiraft.base.options import MultiRaftOptions
from strata_multiraft.base.ports import Log
from strata_multiraft.replica.read_failures import ReadFailures
from strata_multiraft.replica.replica import Replica
from strata_multiraft.replica.writes import as_entry
from strata_raft import Entry
from strata_runtime.blocking import RunBlocking
from strata_runtime.clock import Clock, SystemClock
from strata_runtime.metrics import Metrics
from strata_seglog.errors import LogError, ReadFailed

# Slices that were read back and not applied yet: each has up to `max_apply_bytes`.
_READ_AHEAD_SLICES = 8


class Applier:
    """Applies for all raft groups of a node; `run` and `run_read_backs` are its tasks.

    Args:
        log: where entries are read back.
        run_reads: a thread for that.
        options: how much is applied at once.
        clock: measures turns.
        metrics: where failed reads show.
    """

    def __init__(
        self,
        log: Log,
        run_reads: RunBlocking,
        options: MultiRaftOptions,
        *,
        clock: Clock | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._log = log
        self._run_reads = run_reads
        self._options = options
        self._clock = clock or SystemClock()
        self._failures = ReadFailures(options, metrics or Metrics.disabled())
        self._ready: dict[int, Replica] = {}
        self._work = asyncio.Event()
        # Raft group -> replica whose next entries are to be read back; each once.
        self._unread: dict[int, Replica] = {}
        self._wanted = asyncio.Event()
        # By raft group: slices that were read and wait for their turn.
        self._read: dict[int, Sequence[Entry]] = {}
        self._taken = asyncio.Event()
        # By raft group: bytes of the next slice where the last one took too long.
        self._slice_bytes: dict[int, int] = {}

    def ready(self, replica: Replica) -> None:
        """Apply soon: after the callbacks of futures that were just resolved."""
        self._ready[replica.raft_group] = replica
        self._work.set()

    async def run(self) -> None:
        """Apply forever: round after round, one slice of each replica."""
        turn_s = self._options.max_apply_ms / 1000
        while True:
            await self._work.wait()
            self._work.clear()
            ready, self._ready = self._ready, {}
            began_s = self._clock.monotonic_s()
            for replica in ready.values():
                self._apply_slice(replica)
                if self._clock.monotonic_s() - began_s >= turn_s:
                    await asyncio.sleep(0)
                    began_s = self._clock.monotonic_s()
            if self._ready:
                # After a short round too: what else runs on the event loop has its turn.
                await asyncio.sleep(0)

    def _apply_slice(self, replica: Replica) -> None:
        """Apply up to the limits of a slice; the rest waits for the next round."""
        replica.announce_leadership()
        raft_group = replica.raft_group
        if not replica.has_ready():
            # Removed, or stopped, since its entries were read: others need the place.
            if self._read.pop(raft_group, None):
                self._taken.set()
            return
        max_bytes = self._slice_bytes.pop(raft_group, self._options.max_apply_bytes)
        entries = self._next_entries(replica, max_bytes)
        if not entries:
            return  # They are being read; `ready` is called when they are there.
        began_s = self._clock.monotonic_s()
        replica.apply(entries)
        if replica.has_ready():
            took_ms = (self._clock.monotonic_s() - began_s) * 1000
            if took_ms > self._options.max_apply_ms:
                size_bytes = sum([entry.size_bytes() for entry in entries])
                next_bytes = int(size_bytes * self._options.max_apply_ms / took_ms)
                self._slice_bytes[raft_group] = max(1, next_bytes)
            self.ready(replica)

    def _next_entries(self, replica: Replica, max_bytes: int) -> Sequence[Entry]:
        """Return the next entries that are in memory; none: they are fetched."""
        raft_group = replica.raft_group
        entries = self._read.pop(raft_group, ())
        if entries:
            self._taken.set()
            if entries[0].index == replica.applied_index + 1:
                return entries
            # A snapshot replaced the rows while these were read.
        if replica.missing_range() is None:
            return replica.take_ready(max_bytes)
        self._unread[raft_group] = replica
        self._wanted.set()
        return ()

    async def run_read_backs(self) -> None:
        """Read back forever, a slice at a time, the raft groups in turn."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            unread, self._unread = self._unread, {}
            for replica in unread.values():
                while len(self._read) >= _READ_AHEAD_SLICES:
                    self._taken.clear()
                    await self._taken.wait()
                await self._read_back(replica)

    async def _read_back(self, replica: Replica) -> None:
        """Read entries from the log; a frame that is damaged or missing stops apply (rule 11)."""
        missing = replica.missing_range()
        if missing is None or not replica.has_ready():
            self.ready(replica)
            return
        first, last = missing
        replica_id, max_bytes = replica.replica_id, self._options.max_apply_bytes
        try:
            frames = await self._run_reads(
                lambda: list(self._log.entries(replica_id, first, last, max_bytes))
            )
        except ReadFailed as error:
            again = partial(self.ready, replica)
            self._failures.retry("apply", replica.raft_group, error, again)
            return
        except LogError as error:
            replica.fail(f"entry {first} cannot be read: {error}")
            return
        if not replica.has_ready():
            return
        if not frames or frames[0].index != first:
            if replica.applied_index + 1 == first:
                replica.fail(f"entry {first} is missing from the log")
                return
        else:
            self._read[replica.raft_group] = [as_entry(frame) for frame in frames]
        self.ready(replica)
