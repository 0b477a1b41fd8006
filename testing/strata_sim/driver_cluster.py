"""Whole drivers under random faults, over logs and rows in memory: every run follows its seed.

Each of four nodes hosts a replica of one raft group; three of them vote at first. Each turn does
one random thing: time passes, a client proposes, links are cut, a node crashes and loses what was
not durable, a log is trimmed so that a follower needs a snapshot, a transfer is cut, the leadership
or the membership changes, a disk is full for a moment. At the end everything heals, and the rows of
every voter must contain all acknowledged values in the order of the entries.

The event loop decides the order of callbacks; nothing here reads a clock, so a seed repeats.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TypeVar

from strata_multiraft import (
    LogFull,
    LogThreads,
    MembershipRefused,
    MultiRaft,
    MultiRaftOptions,
    NotLeader,
    Overloaded,
    PeerLinks,
    ReadOnly,
    Replica,
    ReplicaSpec,
    SnapshotBroken,
    TransferFailed,
)
from strata_multiraft.base import Envelope, SnapshotPart, TrafficClass, Transport
from strata_runtime.clock import SystemClock
from strata_runtime.metrics import Metrics
from strata_seglog.errors import DiskFull
from strata_sim.invariants.violation import Violation
from strata_sim.memory_commit_log import MemoryCommitLog
from strata_sim.rows_machine import RowsMachine
from strata_testing.memory_snapshots import MemorySnapshots
from strata_testing.memory_transport import MemoryNetwork

Result = TypeVar("Result")

_REFUSALS = (
    NotLeader,
    Overloaded,
    ReadOnly,
    LogFull,
    MembershipRefused,
    TransferFailed,
)
_OPTIONS = MultiRaftOptions(
    tick_ms=1 << 30,
    disk_full_retry_ms=0,
    idle_mark_ms=1 << 30,
    snapshot_part_bytes=64,
    snapshot_attempts=3,
    snapshot_retry_ms=0,
    snapshot_idle_ms=0,
)
_INITIAL = frozenset({1, 2, 3})


async def in_place(work: Callable[[], Result], /) -> Result:
    """Run a blocking call in a later turn of the event loop."""
    await asyncio.sleep(0)
    return work()


class _Life:
    """The transport of a node from one start to the next crash."""

    def __init__(self, transport: Transport) -> None:
        self.is_over = False
        self._transport = transport

    def send(self, node_id: str, envelopes: Sequence[Envelope], traffic: TrafficClass) -> bool:
        """See `ports.Transport`; the dead are silent."""
        return self.is_over or self._transport.send(node_id, envelopes, traffic)


@dataclass(slots=True)
class _Node:
    multiraft: MultiRaft
    log: MemoryCommitLog
    machine: RowsMachine
    life: _Life


class DriverCluster:
    """Drivers, what is between them, and what a client was told."""

    def __init__(self, seed: int, nodes: int = 4) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.acked: dict[int, bytes] = {}
        self.installs = 0
        self._loss = 0.1
        self._cut: set[str] = set()
        self._network = MemoryNetwork(self._passes)
        self._snapshots = MemorySnapshots(self._snapshot_passes)
        self._failures: list[str] = []
        self._background: set[asyncio.Task[None]] = set()
        self._proposed = 0
        self._nodes = {
            node_id: self._boot(node_id, MemoryCommitLog(), RowsMachine())
            for node_id in range(1, nodes + 1)
        }

    async def run(self, turns: int) -> None:
        """Do that many random things, then heal and check.

        Raises:
            Violation: something acknowledged is missing, replicas differ, or nothing goes on.
        """
        for node in self._nodes.values():
            await node.multiraft.start()
        strength = 0.5 + self.seed % 5
        actions = [
            (self._tick, 60),
            (self._propose, 30),
            (self._cut_node, strength),
            (self._heal, 1 + strength),
            (self._crash, strength),
            (self._trim, 2 * strength),
            (self._transfer, 1),
            (self._change, 2),
            (self._fill_disk, 0.5),
            (self._flush, 3),
        ]
        weights = [weight for _, weight in actions]
        for action, _ in self.random.choices(actions, weights, k=turns):
            await action()
            await self._turns(self.random.randint(0, 12))
            self._check_failures()
        await self._quiesce()
        for node in self._nodes.values():
            await node.multiraft.stop()

    # -- what can happen -------------------------------------------------------------------------

    async def _tick(self) -> None:
        self._any_node().multiraft.tick()

    async def _propose(self) -> None:
        leaders = [replica for replica in self._replicas() if replica.is_ready_leader()]
        for replica in leaders[:1]:
            self._proposed += 1
            self._spawn(self._propose_one(replica, b"%d" % self._proposed))

    async def _propose_one(self, replica: Replica, payload: bytes) -> None:
        life = self._nodes[replica.replica_id].life
        index = await replica.propose((payload,))
        if life.is_over:
            return
        if self.acked.setdefault(index, payload) != payload:
            self._failures.append(f"index {index} was acknowledged twice")

    async def _cut_node(self) -> None:
        self._cut.add(str(self.random.choice(list(self._nodes))))

    async def _heal(self) -> None:
        self._cut.clear()

    async def _crash(self) -> None:
        await self._reboot(self.random.choice(list(self._nodes)))

    async def _reboot(self, node_id: int) -> None:
        node = self._nodes[node_id]
        log, machine = node.log.crashed(), node.machine.crashed()
        self.installs += node.machine.steps.count("finish")
        # The effects of the old life reach nobody.
        node.life.is_over = True
        await node.multiraft.stop()
        self._nodes[node_id] = self._boot(node_id, log, machine)
        await self._nodes[node_id].multiraft.start()

    async def _trim(self) -> None:
        node_id = self.random.choice(list(self._nodes))
        node, replica = self._nodes[node_id], self._replica(node_id)
        applied = node.machine.flushed.index
        if replica.installing or applied <= replica.first_index:
            return
        first_index = self.random.randint(replica.first_index, applied + 1)
        node.machine.low = first_index
        node.log.trim(node_id, first_index)
        node.multiraft.log_trimmed()

    async def _flush(self) -> None:
        node = self._any_node()
        if not node.machine.rows.is_installing:
            node.machine.flush()

    async def _transfer(self) -> None:
        for replica in self._replicas():
            if replica.is_ready_leader():
                self._spawn(replica.transfer_leadership())

    async def _change(self) -> None:
        ids = list(self._nodes)
        self.random.shuffle(ids)
        voters = self.random.choice((1, 2, 3, 3, len(ids)))
        for replica in self._replicas():
            if replica.is_ready_leader():
                change = replica.change_membership(
                    frozenset(ids[:voters]), frozenset(ids[voters : voters + 1])
                )
                self._spawn(change)

    async def _fill_disk(self) -> None:
        self._any_node().log.failures = [DiskFull("no room")] * self.random.randint(1, 3)

    # -- doing it --------------------------------------------------------------------------------

    def _boot(self, node_id: int, log: MemoryCommitLog, machine: RowsMachine) -> _Node:
        life = _Life(self._network.transport(str(node_id)))
        multiraft = MultiRaft(
            log,
            SystemClock(),
            _OPTIONS,
            metrics=Metrics.disabled(),
            threads=LogThreads(in_place),
            on_fatal=lambda task, error: self._failures.append(f"{task}: {error!r}"),
            peers=PeerLinks(life, str, self._snapshots),
            random_ticks=self.random.randint,
        )
        voters = _INITIAL if node_id in _INITIAL else frozenset[int]()
        replica = multiraft.add_replica(ReplicaSpec(1, node_id, voters), machine, machine)
        if replica.read_only:
            self._failures.append(f"node {node_id} starts read-only: {replica.read_only}")
        self._network.connect(str(node_id), multiraft.receive)
        self._snapshots.connect(str(node_id), multiraft)
        return _Node(multiraft, log, machine, life)

    def _replica(self, node_id: int) -> Replica:
        return self._nodes[node_id].multiraft.replicas()[1]

    def _replicas(self) -> list[Replica]:
        return [self._replica(node_id) for node_id in self._nodes]

    def _any_node(self) -> _Node:
        return self.random.choice(list(self._nodes.values()))

    def _passes(self, source: str, target: str) -> bool:
        return not self._cut & {source, target} and self.random.random() >= self._loss

    def _snapshot_passes(self, part: SnapshotPart) -> None:
        if self.random.random() < self._loss:
            raise SnapshotBroken("cut")

    def _spawn(self, call: Coroutine[None, None, None]) -> None:
        async def run() -> None:
            with contextlib.suppress(*_REFUSALS):
                await call

        task = asyncio.ensure_future(run())
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _turns(self, number: int) -> None:
        for _ in range(number):
            await asyncio.sleep(0)

    def _check_failures(self) -> None:
        if self._failures:
            raise Violation(f"SEED={self.seed}: {self._failures}")

    # -- the end ---------------------------------------------------------------------------------

    async def _quiesce(self) -> None:
        """Heal everything and wait until all replicas of the last configuration agree."""
        self._loss = 0.0
        self._cut.clear()
        for node in self._nodes.values():
            node.log.failures = []
        for round_number in range(400):
            for node in self._nodes.values():
                node.multiraft.tick()
                await self._turns(6)
            await self._turns(40)
            if round_number % 20 == 19:
                await self._propose()
                await self._turns(40)
            if round_number > 40 and self._is_at_rest():
                break
        else:
            raise Violation(f"SEED={self.seed}: no rest: {self.describe()}")
        self._check_failures()
        for replica in self._members():
            self._check_rows(replica)
        await asyncio.gather(*self._background)

    def _leader(self) -> Replica | None:
        leaders = [replica for replica in self._replicas() if replica.is_ready_leader()]
        return max(leaders, key=lambda replica: replica.term, default=None)

    def _members(self) -> list[Replica]:
        leader = self._leader()
        ids = leader.configuration.replicas() if leader is not None else frozenset()
        return [replica for replica in self._replicas() if replica.replica_id in ids]

    def _is_at_rest(self) -> bool:
        leader = self._leader()
        return (
            leader is not None
            and not leader.configuration.is_joint()
            and all(each.applied_index == leader.last_index for each in self._members())
        )

    def _check_rows(self, replica: Replica) -> None:
        rows = self._nodes[replica.replica_id].machine.rows.values
        held = {int.from_bytes(key, "big"): value for key, value in rows.items()}
        missing = {index: each for index, each in self.acked.items() if held.get(index) != each}
        if missing:
            raise Violation(f"SEED={self.seed}: node {replica.replica_id} lacks {missing}")

    def describe(self) -> str:
        """Return one line per replica."""
        return "; ".join(
            f"{replica.replica_id}: {replica.role.name} term {replica.term} "
            f"applied {replica.applied_index} of {replica.first_index}..{replica.last_index} "
            f"installing {replica.installing} {replica.read_only} "
            f"of {sorted(replica.configuration.voters)}"
            for replica in self._replicas()
        )
