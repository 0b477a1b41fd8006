"""The cost of idle raft groups: CPU and memory of a node that hosts many, as one JSON object.

Run: `python bench/idle_groups.py [RAFT_GROUPS] [SECONDS]`. Three nodes in one process over real
Angelia tcp on loopback, every raft group with a replica on each; logs are in memory. After the
raft groups are quiesced, the process's CPU time over some seconds is divided by the three nodes.
`frames_per_s` counts all frames that nodes sent; `raft_messages` must be 0.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from strata_angelia.factory import open_server
from strata_multiraft import LogThreads, MultiRaft, MultiRaftOptions, ReplicaSpec
from strata_multiraft.peering import RAFT_SERVICE, PeerIdentity, Peering
from strata_raft import Configuration, Entry
from strata_runtime.clock import SystemClock
from strata_runtime.loop import run
from strata_runtime.metrics import Metrics
from strata_sim.memory_commit_log import MemoryCommitLog

Result = TypeVar("Result")

NODES = ("a", "b", "c")
REST_TIMEOUT_S = 120


class _Places:
    """A `PeerPlaces`: replicas are named by their nodes' numbers."""

    def __init__(self, endpoints: Mapping[str, str]) -> None:
        self.endpoint_of = endpoints.get

    def node_of(self, replica_id: int, /) -> str:
        return NODES[replica_id % 10]


class CountingMachine:
    """A state machine that does nothing but count."""

    def __init__(self) -> None:
        """See `StateMachine`."""
        self.index = 0
        self.term = 0

    def applied_index(self) -> int:
        """See `StateMachine`."""
        return self.index

    def applied_term(self) -> int:
        """See `StateMachine`."""
        return self.term

    def configuration(self) -> tuple[int, Configuration] | None:
        """See `StateMachine`; it never changes here."""
        return None

    def persisted_index(self) -> int:
        """See `StateMachine`."""
        return self.index

    def apply(self, entries: Sequence[Entry]) -> None:
        """See `StateMachine`."""
        self.index, self.term = entries[-1].index, entries[-1].term

    def on_leader(self, term: int) -> None:
        """See `StateMachine`."""

    def on_follower(self, term: int, leader_replica_id: int) -> None:
        """See `StateMachine`."""


class Node:
    """One node with all raft groups."""

    def __init__(self, number: int, endpoints: dict[str, str]) -> None:
        """Make it; `start` serves."""
        self.metrics = Metrics()
        clock = SystemClock()
        self.peering = Peering(
            PeerIdentity(NODES[number], number + 1),
            directory=_Places(endpoints),
            clock=clock,
            metrics=self.metrics,
            on_fatal=_fail,
        )
        self.multiraft = MultiRaft(
            MemoryCommitLog(),
            clock,
            MultiRaftOptions(),
            metrics=self.metrics,
            threads=LogThreads(_in_place),
            on_fatal=_fail,
            peers=self.peering.links,
        )
        self.peering.attach(self.multiraft)
        self.server = open_server("127.0.0.1", 0)
        self.server.register(RAFT_SERVICE, self.peering.servicer)

    def messages(self) -> float:
        """Raft messages sent so far."""
        counter = self.metrics.counter("strata_raft_messages_total")
        return counter.value({"class": "control"}) + counter.value({"class": "append"})

    def frames(self) -> float:
        """Frames sent so far."""
        return self.metrics.counter("strata_peer_frames_total").value()


async def measure(raft_groups: int, seconds: float) -> dict[str, object]:
    """Bring the raft groups to rest, then measure."""
    endpoints: dict[str, str] = {}
    nodes = [Node(number, endpoints) for number in range(len(NODES))]
    before_bytes = _resident_bytes()
    for number, node in enumerate(nodes):
        for raft_group in range(1, raft_groups + 1):
            voters = frozenset(raft_group * 10 + other for other in range(len(NODES)))
            spec = ReplicaSpec(raft_group, raft_group * 10 + number, voters)
            node.multiraft.add_replica(spec, CountingMachine())
        endpoints[NODES[number]] = await node.server.start()
    started_s = time.monotonic()
    for node in nodes:
        await node.multiraft.start()
        await node.peering.start()
    async with asyncio.timeout(REST_TIMEOUT_S):
        while any(  # noqa: ASYNC110 (rest has no event)
            len(node.multiraft.ticker.resting) < raft_groups for node in nodes
        ):
            await asyncio.sleep(0.1)
    rest_after_s = time.monotonic() - started_s
    messages = sum(node.messages() for node in nodes)
    frames = sum(node.frames() for node in nodes)
    cpu_s, wall_s = time.process_time(), time.monotonic()
    await asyncio.sleep(seconds)
    cpu_s, wall_s = time.process_time() - cpu_s, time.monotonic() - wall_s
    result: dict[str, object] = {
        "raft_groups": raft_groups,
        "replicas": raft_groups * len(NODES),
        "seconds": round(wall_s, 1),
        "rest_after_s": round(rest_after_s, 1),
        "cpu_percent_of_a_core_per_node": round(100 * cpu_s / wall_s / len(NODES), 2),
        "raft_messages": sum(node.messages() for node in nodes) - messages,
        "frames_per_s": round((sum(node.frames() for node in nodes) - frames) / wall_s, 1),
        "kib_per_replica": round(
            (_resident_bytes() - before_bytes) / 1024 / raft_groups / len(NODES), 1
        ),
    }
    for node in nodes:
        await node.server.stop(0)
        await node.peering.stop()
        await node.multiraft.stop()
    return result


async def _in_place(work: Callable[[], Result], /) -> Result:
    return work()


def _fail(task: str, failure: BaseException) -> None:
    raise SystemExit(f"{task} failed: {failure!r}")


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


if __name__ == "__main__":
    chosen = [float(argument) for argument in sys.argv[1:]] + [1000, 10][len(sys.argv) - 1 :]
    print(json.dumps(run(measure(int(chosen[0]), chosen[1]))))
