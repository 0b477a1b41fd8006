"""Nodes whose writer runs in place or when a test says so; no threads, no disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest

from strata_multiraft import (
    LogThreads,
    MultiRaft,
    MultiRaftOptions,
    PeerLinks,
    Replica,
    ReplicaSpec,
)
from strata_multiraft.base.ports import SnapshotFetcher, Transport
from strata_raft import Configuration, Entry, EntryKind
from strata_raft.membership import decode_configuration
from strata_runtime.clock import SystemClock
from strata_runtime.metrics import Metrics
from strata_sim.memory_commit_log import MemoryCommitLog
from strata_testing.leaping_loop import LeapingLoop

Result = TypeVar("Result")


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """No wait for room on a disk ends before all else is done, and none takes real time."""
    # Real threads, which the loop would not wait for.
    is_threaded = item.path.name == "test_writer.py"
    return {"real": asyncio.SelectorEventLoop} if is_threaded else {"leaping": LeapingLoop}


class RecordingMachine:
    """Keeps applied payloads and what it was told about leadership."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.told: list[tuple[str, int]] = []
        self.fails_at = 0

    def applied_index(self) -> int:
        return self.entries[-1].index if self.entries else 0

    def applied_term(self) -> int:
        return self.entries[-1].term if self.entries else 0

    def persisted_index(self) -> int:
        return self.applied_index()

    def configuration(self) -> tuple[int, Configuration] | None:
        for entry in reversed(self.entries):
            if entry.kind is EntryKind.CONFIGURATION:
                return entry.index, decode_configuration(entry.payload)
        return None

    def payloads(self) -> list[bytes]:
        return [b"".join(e.payload) for e in self.entries if e.kind is EntryKind.NORMAL]

    def apply(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            if entry.index == self.fails_at:
                raise RuntimeError("broken rows")
            assert entry.index == self.applied_index() + 1
            self.entries.append(entry)

    def on_leader(self, term: int) -> None:
        self.told.append(("leader", term))

    def on_follower(self, term: int, leader_replica_id: int) -> None:
        self.told.append(("follower", leader_replica_id))


class Gate:
    """`RunBlocking` that can be closed: a sync that takes as long as the test wants."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self.waiting = 0

    def close(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    async def __call__(self, work: Callable[[], Result], /) -> Result:
        self.waiting += 1
        try:
            await self._open.wait()
        finally:
            self.waiting -= 1
        return work()


@dataclass
class Node:
    """One driver with what a test holds of it."""

    log: Any = field(default_factory=MemoryCommitLog)
    options: MultiRaftOptions = field(
        default_factory=lambda: MultiRaftOptions(tick_ms=1000, disk_full_retry_ms=1)
    )
    transport: Transport | None = None
    node_of: Callable[[int], str | None] = lambda replica_id: None
    fetcher: SnapshotFetcher | None = None
    metrics: Metrics = field(default_factory=Metrics.disabled)

    def __post_init__(self) -> None:
        self.gate = Gate()
        self.fatal: list[tuple[str, BaseException]] = []
        self.machines: dict[int, RecordingMachine] = {}
        self.multiraft = MultiRaft(
            self.log,
            SystemClock(),
            self.options,
            metrics=self.metrics,
            threads=LogThreads(self.gate),
            on_fatal=lambda task, error: self.fatal.append((task, error)),
            peers=PeerLinks(self.transport, self.node_of, self.fetcher),
            random_ticks=lambda least, most: least,
        )

    def host(self, raft_group: int = 1, replica_id: int = 11) -> Replica:
        return self.add(ReplicaSpec(raft_group, replica_id, frozenset({replica_id})))

    def add(self, spec: ReplicaSpec, machine: RecordingMachine | None = None) -> Replica:
        machine = self.machines[spec.raft_group] = machine or RecordingMachine()
        return self.multiraft.add_replica(spec, machine)


async def settle(turns: int = 20) -> None:
    """Let the event loop run until nothing is left to do."""
    for _ in range(turns):
        await asyncio.sleep(0)


@pytest.fixture
def make_node() -> type[Node]:
    """Make a `Node`."""
    return Node


@pytest.fixture
def settled() -> Callable[[], object]:
    """Return a coroutine function that lets the event loop come to rest."""
    return settle
