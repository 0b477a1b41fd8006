"""The cost of the multi-raft driver per turn, without the log, as one JSON object.

Run: `python bench/micro_multiraft.py [FOLDER]`. One raft group with one voter over the real
CommitLog below FOLDER (default: the system's temporary one); each turn proposes one small entry and
waits for it. `driver_us` is the process's CPU per turn without the calls into the log, which run in
place here, so that no thread disturbs the figure; `wall_us` is the same turn with the writer's
thread, fdatasync included.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from strata_multiraft import LogThreads, MultiRaft, MultiRaftOptions, ReplicaSpec, WriterThread
from strata_raft import Configuration, Entry
from strata_runtime.blocking import RunBlocking
from strata_runtime.clock import SystemClock
from strata_runtime.metrics import Metrics
from strata_seglog.log import CommitLog, LogOptions
from strata_seglog.real_disk import RealDisk

Result = TypeVar("Result")

TURNS = 3000
ROUNDS = 5
PAYLOAD = (bytes(32), bytes(100))


class CountingMachine:
    """A state machine that does nothing but count."""

    def __init__(self) -> None:
        """See `StateMachine`."""
        self.index = 0

    def applied_index(self) -> int:
        """See `StateMachine`."""
        return self.index

    def applied_term(self) -> int:
        """See `StateMachine`; always the first one here."""
        return min(self.index, 1)

    def configuration(self) -> tuple[int, Configuration] | None:
        """See `StateMachine`; it never changes here."""
        return None

    def persisted_index(self) -> int:
        """See `StateMachine`."""
        return self.index

    def apply(self, entries: Sequence[Entry]) -> None:
        """See `StateMachine`."""
        self.index = entries[-1].index

    def on_leader(self, term: int) -> None:
        """See `StateMachine`."""

    def on_follower(self, term: int, leader_replica_id: int) -> None:
        """See `StateMachine`."""


class InPlace:
    """Runs log calls at once and adds up their CPU time."""

    def __init__(self) -> None:
        self.cpu_s = 0.0

    async def __call__(self, work: Callable[[], Result], /) -> Result:
        """See `RunBlocking`."""
        started_s = time.process_time()
        try:
            return work()
        finally:
            self.cpu_s += time.process_time() - started_s


async def turns(folder: Path, run_blocking: RunBlocking, groups: int, count: int) -> float:
    """Do `count` turns with one proposal per raft group each; return the process's CPU seconds."""
    log = CommitLog.open(RealDisk(folder), LogOptions(segment_bytes=64 << 20), report=print)
    multiraft = MultiRaft(
        log,
        SystemClock(),
        MultiRaftOptions(max_write_bytes=16 << 20),
        metrics=Metrics.disabled(),
        threads=LogThreads(run_blocking),
        on_fatal=lambda task, error: print(task, repr(error), file=sys.stderr),
    )
    replicas = [
        multiraft.add_replica(ReplicaSpec(g, g, frozenset({g})), CountingMachine())
        for g in range(1, groups + 1)
    ]
    await multiraft.start()
    for replica in replicas:
        await replica.read_barrier()
    started_s = time.process_time()
    for _ in range(count):
        futures = [replica.propose(PAYLOAD) for replica in replicas]
        for future in futures:
            await future
    cpu_s = time.process_time() - started_s
    await multiraft.stop()
    log.close()
    return cpu_s


def measure(folder: Path, groups: int, count: int) -> dict[str, float]:
    """Return the best of several rounds in microseconds per turn."""
    driver_us, wall_us = [], []
    for number in range(ROUNDS):
        in_place = InPlace()
        cpu_s = asyncio.run(turns(folder / f"a{groups}-{number}", in_place, groups, count))
        driver_us.append((cpu_s - in_place.cpu_s) / count * 1e6)
        thread = WriterThread()
        started_s = time.perf_counter()
        asyncio.run(turns(folder / f"b{groups}-{number}", thread, groups, count // 4))
        wall_us.append((time.perf_counter() - started_s) / (count // 4) * 1e6)
        thread.close()
    return {"driver_us": round(min(driver_us), 1), "wall_us": round(min(wall_us), 1)}


def main() -> None:
    """Measure one raft group and sixteen."""
    sys.setswitchinterval(0.0001)
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as name:
        folder = Path(name)
        result = {
            "turns": TURNS,
            "payload_bytes": sum(map(len, PAYLOAD)),
            "one_raft_group": measure(folder, 1, TURNS),
            "sixteen_raft_groups": measure(folder, 16, TURNS // 8),
        }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
