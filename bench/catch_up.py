"""Measures how fast a follower that fell behind copies its leader's log: MB/s, as JSON.

Run: `python bench/catch_up.py [FOLDER] [ENTRY_BYTES]`. One raft group of two voters and a learner
that joins when the log is long: the leader reads entries that are no longer in memory back from its
CommitLog, the follower writes and syncs them to its own, both over the in-memory transport in one
process, so the figure is that of the driver and the log, without the network.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from strata_multiraft import (
    LogThreads,
    MultiRaft,
    MultiRaftOptions,
    PeerLinks,
    Replica,
    ReplicaSpec,
    WriterThread,
)
from strata_raft import Configuration, Entry
from strata_runtime.clock import SystemClock
from strata_runtime.metrics import Metrics
from strata_seglog.log import CommitLog, LogOptions
from strata_seglog.real_disk import RealDisk
from strata_testing.memory_transport import MemoryNetwork

LOG_BYTES = 256 << 20
MIB = 1 << 20


class CountingMachine:
    """A state machine that does nothing but count."""

    def __init__(self) -> None:
        """Begin at 0."""
        self.index = self.term = 0

    def applied_index(self) -> int:
        """See `StateMachine`."""
        return self.index

    def applied_term(self) -> int:
        """See `StateMachine`."""
        return self.term

    def persisted_index(self) -> int:
        """See `StateMachine`."""
        return self.index

    def configuration(self) -> tuple[int, Configuration] | None:
        """See `StateMachine`; it is not asked again here."""
        return None

    def apply(self, entries: Sequence[Entry]) -> None:
        """See `StateMachine`."""
        self.index, self.term = entries[-1].index, entries[-1].term

    def on_leader(self, term: int) -> None:
        """See `StateMachine`."""

    def on_follower(self, term: int, leader_replica_id: int) -> None:
        """See `StateMachine`."""


class Node:
    """One driver over a real log."""

    def __init__(self, node_id: int, folder: Path, network: MemoryNetwork) -> None:
        """Open the log and host replica `node_id` of raft group 1."""
        options = LogOptions(segment_bytes=64 * MIB, recent_bytes=8 * MIB)
        self.log = CommitLog.open(RealDisk(folder / str(node_id)), options, report=print)
        self.writer, self.reader = WriterThread("writer"), WriterThread("reader")
        self.multiraft = MultiRaft(
            self.log,
            SystemClock(),
            MultiRaftOptions(max_write_bytes=16 * MIB),
            metrics=Metrics.disabled(),
            threads=LogThreads(self.writer, self.reader),
            on_fatal=lambda task, error: print(task, repr(error), file=sys.stderr),
            peers=PeerLinks(network.transport(str(node_id)), str),
        )
        voters = frozenset({1}) if node_id == 1 else frozenset[int]()
        self.replica: Replica = self.multiraft.add_replica(
            ReplicaSpec(1, node_id, voters), CountingMachine()
        )
        network.connect(str(node_id), self.multiraft.receive)

    async def stop(self) -> None:
        """Stop the driver and close the log."""
        await self.multiraft.stop()
        self.writer.close()
        self.reader.close()
        self.log.close()


async def measure(folder: Path, entry_bytes: int) -> dict[str, float]:
    """Fill a log, add a learner, time it."""
    network = MemoryNetwork()
    leader, learner = Node(1, folder, network), Node(2, folder, network)
    await leader.multiraft.start()
    await learner.multiraft.start()
    await leader.replica.read_barrier()
    payload = (bytes(entry_bytes),)
    per_batch = max(1, 8 * MIB // entry_bytes)
    for _ in range(LOG_BYTES // entry_bytes // per_batch):
        futures = [leader.replica.propose(payload) for _ in range(per_batch)]
        for future in futures:
            await future
    last_index = leader.replica.last_index
    started_s, started_cpu_s = time.perf_counter(), time.process_time()
    await leader.replica.change_membership(frozenset({1}), frozenset({2}))
    await learner.replica.applied(last_index)
    elapsed_s = time.perf_counter() - started_s
    cpu_s = time.process_time() - started_cpu_s
    await leader.stop()
    await learner.stop()
    return {
        "mb_per_s": round(LOG_BYTES / 1e6 / elapsed_s, 1),
        "cpu_s_per_gb": round(cpu_s / (LOG_BYTES / 1e9), 2),
    }


def main() -> None:
    """Measure with the given entry size, default 64 KiB and 1 KiB."""
    sys.setswitchinterval(0.0001)
    sizes = [int(size) for size in sys.argv[2:]] or [64 << 10, 1 << 10]
    results = {}
    for size in sizes:
        with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as name:
            results[f"entries_of_{size}_bytes"] = asyncio.run(measure(Path(name), size))
    print(json.dumps({"log_bytes": LOG_BYTES, **results}, indent=2))


if __name__ == "__main__":
    main()
