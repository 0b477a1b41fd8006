"""Snapshots through the driver: given, cut, resumed, crashed in the middle, refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from strata_multiraft import (
    MultiRaftOptions,
    Replica,
    ReplicaSpec,
    SnapshotBroken,
    WriterThread,
)
from strata_multiraft.base.errors import SnapshotRefused
from strata_multiraft.base.ports import Envelope, TrafficClass
from strata_multiraft.base.snapshots import (
    SnapshotEnd,
    SnapshotEntries,
    SnapshotFetch,
    SnapshotPart,
    SnapshotRows,
    SnapshotStart,
)
from strata_multiraft.snapshots.installs import Installs
from strata_raft import Message, Role
from strata_raft.messages import AppendRequest, AppendResponse
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import Tasks
from strata_seglog.errors import DiskFull as LogDiskFull
from strata_seglog.frames import hard_state_frame
from strata_sim.rows_machine import RowsMachine
from strata_testing.memory_snapshots import MemorySnapshots
from strata_testing.memory_transport import MemoryNetwork

Settled = Callable[[], Awaitable[None]]
VOTERS = frozenset({1, 2, 3})
OPTIONS = MultiRaftOptions(
    tick_ms=1000,
    disk_full_retry_ms=1,
    snapshot_part_bytes=24,
    snapshot_retry_ms=0,
    snapshot_idle_ms=0,
)


class Cluster:
    """Raft group 1 with replica n on node n; nodes 1 to 3, more when booted."""

    def __init__(
        self, make_node: Any, settled: Settled, options: MultiRaftOptions = OPTIONS
    ) -> None:
        self.options = options
        self.cut: set[int] = set()
        self.network = MemoryNetwork(lambda a, b: not self.cut & {int(a), int(b)})
        self.snapshots = MemorySnapshots(self._passes)
        self.machines: dict[int, RowsMachine] = {}
        self.nodes: dict[int, Any] = {}
        self.settled = settled
        self.fault: Callable[[SnapshotPart], None] = lambda part: None
        self._make_node = make_node
        for node_id in VOTERS:
            self.boot(node_id, RowsMachine())

    def _passes(self, part: SnapshotPart) -> None:
        self.fault(part)

    def boot(
        self, node_id: int, machine: RowsMachine, voters: frozenset[int] = VOTERS, **fields: Any
    ) -> Any:
        node = self._make_node(
            transport=self.network.transport(str(node_id)),
            node_of=str,
            options=self.options,
            fetcher=self.snapshots,
            **fields,
        )
        node.multiraft.add_replica(ReplicaSpec(1, node_id, voters), machine, machine)
        self.network.connect(str(node_id), node.multiraft.receive)
        self.snapshots.connect(str(node_id), node.multiraft)
        self.nodes[node_id], self.machines[node_id] = node, machine
        return node

    async def reboot(self, node_id: int) -> None:
        """Crash a node and start it again from what was durable."""
        old = self.nodes[node_id]
        log, machine = old.log.crashed(), self.machines[node_id].crashed()
        await old.multiraft.stop()
        await self.boot(node_id, machine, log=log).multiraft.start()

    def replica(self, node_id: int) -> Replica:
        replica: Replica = self.nodes[node_id].multiraft.replicas()[1]
        return replica

    async def tick(self, *node_ids: int, times: int = 1) -> None:
        for _ in range(times):
            for node_id in node_ids or list(self.nodes):
                if node_id not in self.cut:
                    self.nodes[node_id].multiraft.tick()
            await self.settled()

    async def propose(self, node_id: int, first: int, last: int) -> None:
        for number in range(first, last + 1):
            index = await self.replica(node_id).propose((b"%d" % number,))
            await self.replica(node_id).applied(index)

    async def trim(self, node_id: int, first_index: int) -> None:
        """Free a node's log below an index and keep its rows, as retention does."""
        self.machines[node_id].flush()
        self.nodes[node_id].log.trim(node_id, first_index)
        self.nodes[node_id].multiraft.log_trimmed()

    async def leave_behind(self) -> None:
        """Let replica 3 miss entries that the others then trim; node 1 leads."""
        await self.tick(1, times=7)
        await self.propose(1, 1, 5)
        await self.tick(1)
        self.cut = {3}
        await self.propose(1, 6, 20)
        for node_id in (1, 2):
            self.machines[node_id].low = 15
            await self.trim(node_id, 15)
        self.cut = set()


def expected(last: int) -> list[bytes]:
    return [b"%d" % number for number in range(1, last + 1)]


def refuse_entries(part: SnapshotPart) -> None:
    if isinstance(part, SnapshotEntries):
        raise SnapshotRefused("the source is gone")


@pytest.fixture
async def cluster(make_node: Any, settled: Settled, request: pytest.FixtureRequest) -> Any:
    cluster = Cluster(make_node, settled, replace(OPTIONS, **getattr(request, "param", {})))
    for node in cluster.nodes.values():
        await node.multiraft.start()
    yield cluster
    for node in cluster.nodes.values():
        await node.multiraft.stop()


async def test_a_follower_behind_the_log_gets_rows_and_entries(cluster: Cluster) -> None:
    """A snapshot brings all rows and the retained entries, and replication goes on after it."""
    await cluster.leave_behind()
    await cluster.tick(1, times=5)
    machine, replica = cluster.machines[3], cluster.replica(3)
    assert machine.payloads() == expected(20)
    assert machine.steps[0] == "begin"
    assert machine.steps[-2:] == ["finish", "installed"]
    assert replica.first_index == 15
    assert cluster.nodes[3].log.runs(3)[-1] == (15, replica.last_index)
    await cluster.propose(1, 21, 23)
    await cluster.tick(1, times=2)
    assert machine.payloads() == expected(23)
    assert cluster.replica(1).caught_up(3)


async def test_an_installed_replica_survives_a_restart_and_can_lead(cluster: Cluster) -> None:
    """After an install log and rows fit together: it starts again, serves entries and leads."""
    await cluster.leave_behind()
    await cluster.tick(1, times=5)
    await cluster.reboot(3)
    replica = cluster.replica(3)
    assert (replica.read_only, replica.first_index) == ("", 15)
    await cluster.tick(1, times=2)
    await cluster.replica(1).transfer_leadership(3)
    await cluster.settled()
    assert cluster.replica(3).is_ready_leader()
    await cluster.propose(3, 21, 22)
    await cluster.tick(3, times=3)
    for node_id in VOTERS:
        assert cluster.machines[node_id].payloads() == expected(22)


STAYS_OPEN = pytest.mark.parametrize("cluster", [{"snapshot_idle_ms": 10_000}], indirect=True)


@STAYS_OPEN
async def test_a_cut_transfer_goes_on_where_it_stopped(cluster: Cluster) -> None:
    """Parts that arrived are not sent again: the next call names the last row and next entry."""
    await cluster.leave_behind()
    delivered: list[SnapshotPart] = []

    def cut_every_third(part: SnapshotPart) -> None:
        delivered.append(part)
        if len(delivered) % 3 == 0:
            raise SnapshotBroken("cut")

    cluster.fault = cut_every_third
    await cluster.tick(1, times=5)
    assert cluster.machines[3].payloads() == expected(20)
    assert cluster.machines[3].steps.count("begin") == 1
    calls = cluster.snapshots.calls
    assert len(calls) > 1
    assert calls[1].is_repeated()
    assert {call.index for call in calls[1:]} == {calls[1].index}


@pytest.mark.parametrize("cluster", [{"snapshot_retry_ms": 1_000_000}], indirect=True)
@pytest.mark.parametrize("kind", [SnapshotStart, SnapshotRows, SnapshotEntries, SnapshotEnd])
async def test_a_crash_in_the_middle_begins_again(cluster: Cluster, kind: type) -> None:
    """Wherever an install is interrupted, the replica starts empty, keeps its vote, recovers."""
    await cluster.leave_behind()
    stuck = asyncio.Event()

    def stop_there(part: SnapshotPart) -> None:
        if isinstance(part, kind):
            stuck.set()
            raise SnapshotBroken("and the node dies")

    cluster.fault = stop_there
    await cluster.tick(1, times=3)
    assert stuck.is_set()
    term = cluster.replica(3).term
    cluster.fault = lambda part: None
    await cluster.reboot(3)
    await cluster.settled()
    assert cluster.replica(3).term == term
    assert not cluster.replica(3).read_only
    await cluster.tick(1, times=6)
    assert cluster.machines[3].payloads() == expected(20)
    await cluster.propose(1, 21, 22)
    await cluster.tick(1, times=2)
    assert cluster.machines[3].payloads() == expected(22)


async def test_a_transfer_that_cannot_go_on_leaves_an_empty_replica(cluster: Cluster) -> None:
    """When all calls fail the half-written rows go, and the next offer begins from the start."""
    await cluster.leave_behind()
    cluster.fault = refuse_entries
    await cluster.tick(1)
    await cluster.tick(1)
    machine = cluster.machines[3]
    assert machine.steps[-2:] == ["abandon", "installed"]
    assert (machine.applied_index(), cluster.replica(3).last_index) == (0, 0)
    cluster.fault = lambda part: None
    await cluster.tick(1, times=6)
    assert machine.payloads() == expected(20)


@STAYS_OPEN
async def test_damaged_parts_are_never_installed(cluster: Cluster) -> None:
    """A part whose checksum does not fit is asked for again, and rows end right."""
    await cluster.leave_behind()
    damaged: list[SnapshotRows] = []

    def flip(part: SnapshotPart) -> None:
        if isinstance(part, SnapshotRows) and not damaged:
            damaged.append(part)
            part.values[0] = b"flipped"  # type: ignore[index]

    cluster.fault = flip
    await cluster.tick(1, times=8)
    assert damaged
    assert cluster.machines[3].payloads() == expected(20)


async def test_no_append_is_acknowledged_while_rows_are_replaced(cluster: Cluster) -> None:
    """Entries that come during an install are not stored: log and rows would not fit together."""
    await cluster.leave_behind()
    seen: list[bool] = []
    said: list[Message] = []
    outbox = cluster.nodes[3].multiraft._outbox
    transport = outbox._transport

    class Listening:
        def send(self, node_id: str, envelopes: Sequence[Envelope], traffic: TrafficClass) -> bool:
            if cluster.replica(3).installing:
                said.extend(each.message for each in envelopes)
            return bool(transport.send(node_id, envelopes, traffic))

    outbox._transport = Listening()
    late = AppendRequest(1, 3, cluster.replica(1).term, 0, 0, (), 0)

    def look(part: SnapshotPart) -> None:
        replica = cluster.replica(3)
        seen.append(replica.installing)
        cluster.nodes[3].multiraft.receive([Envelope(1, late)])

    cluster.fault = look
    await cluster.tick(1, times=2)
    assert any(seen)
    assert not [each for each in said if isinstance(each, AppendResponse)]
    assert not cluster.replica(3).installing
    assert cluster.machines[3].steps.count("begin") == 1


async def test_a_learner_without_configuration_learns_everything(
    cluster: Cluster, settled: Settled
) -> None:
    """A replica that joins empty gets rows, entries and membership from a snapshot, then votes."""
    await cluster.leave_behind()
    await cluster.tick(1, times=5)
    node = cluster.boot(4, RowsMachine(), voters=frozenset())
    await node.multiraft.start()
    assert cluster.replica(4).role is Role.LEARNER
    leader = cluster.replica(1)
    change = asyncio.ensure_future(leader.change_membership(VOTERS, frozenset({4})))
    await cluster.tick(1, times=8)
    await change
    assert leader.caught_up(4)
    assert cluster.machines[4].payloads() == expected(20)
    change = asyncio.ensure_future(leader.change_membership(frozenset({1, 2, 4})))
    await cluster.tick(1, times=4)
    await change
    assert cluster.replica(4).configuration.voters == frozenset({1, 2, 4})
    assert cluster.replica(4).role is Role.FOLLOWER
    await cluster.reboot(4)
    assert cluster.replica(4).configuration.voters == frozenset({1, 2, 4})


async def test_a_source_refuses_what_it_does_not_have(cluster: Cluster) -> None:
    """Wrong replica, a snapshot from the future, and a closed one are refused by name."""
    await cluster.leave_behind()
    giver = cluster.nodes[1].multiraft

    async def ask(fetch: SnapshotFetch) -> list[SnapshotPart]:
        return [part async for part in giver.snapshot_parts(fetch)]

    with pytest.raises(SnapshotRefused, match="not here"):
        await ask(SnapshotFetch(1, 2, 3, 1, 1))
    with pytest.raises(SnapshotRefused, match="not applied so much"):
        await ask(SnapshotFetch(1, 1, 3, 10_000, 1))
    with pytest.raises(SnapshotRefused, match="closed"):
        await ask(SnapshotFetch(1, 1, 3, 20, 1, rows_after=b"x"))
    parts = await ask(SnapshotFetch(1, 1, 9, 20, 1))
    assert isinstance(parts[0], SnapshotStart)
    assert parts[0].first_entry_index == 15
    rows = sum(len(part.keys) for part in parts if isinstance(part, SnapshotRows))
    entries = [e for part in parts if isinstance(part, SnapshotEntries) for e in part.entries]
    assert parts[-1] == SnapshotEnd(rows, len(entries))
    assert [entry.index for entry in entries] == list(range(15, parts[0].index + 1))


async def test_a_leader_notices_by_itself_that_entries_were_trimmed(cluster: Cluster) -> None:
    """A read for a follower that finds nothing leads to a snapshot, not to a read-only leader."""
    await cluster.tick(1, times=7)
    await cluster.propose(1, 1, 3)
    await cluster.tick(1)
    cluster.cut = {3}
    await cluster.propose(1, 4, 12)
    cluster.machines[1].flush()
    cluster.machines[1].low = 9
    cluster.nodes[1].log.trim(1, 9)  # and nobody tells the driver
    cluster.cut = set()
    await cluster.tick(1, times=6)
    assert not cluster.replica(1).read_only
    assert cluster.machines[3].payloads() == expected(12)
    assert cluster.machines[3].steps.count("finish") == 1


async def test_too_many_snapshots_at_once_are_refused(cluster: Cluster) -> None:
    """An open snapshot stays open until it is sent or its target does not come back."""
    await cluster.leave_behind()
    giver = cluster.nodes[1].multiraft
    opened = [giver.snapshot_parts(SnapshotFetch(1, 1, target, 20, 1)) for target in (7, 8, 9)]
    for parts in opened[:2]:
        assert isinstance(await anext(parts), SnapshotStart)
    with pytest.raises(SnapshotRefused, match="max_snapshots_open"):
        await anext(opened[2])
    for parts in opened:
        await parts.aclose()
    await cluster.settled()
    again = giver.snapshot_parts(SnapshotFetch(1, 1, 9, 20, 1))
    assert isinstance(await anext(again), SnapshotStart)
    await again.aclose()


async def test_a_full_disk_before_the_install_changes_nothing(cluster: Cluster) -> None:
    """If the log has no room when an install begins, the replica keeps what it has."""
    await cluster.leave_behind()
    log = cluster.nodes[3].log
    before = cluster.machines[3].payloads()

    def fill(part: SnapshotPart) -> None:
        if isinstance(part, SnapshotStart) and not log.failures:
            log.failures = [LogDiskFull("no room")]
            cluster.fault = lambda part: None
            refused = cluster.nodes[3].multiraft.write_control([hard_state_frame(3, 1, 9, 0, 0)])
            refused.add_done_callback(asyncio.Future.exception)

    cluster.fault = fill
    await cluster.tick(1, times=2)
    assert cluster.machines[3].payloads() == before
    assert not cluster.replica(3).installing
    await asyncio.sleep(0.002)
    await cluster.tick(1, times=6)
    assert cluster.machines[3].payloads() == expected(20)


async def test_rows_of_an_install_that_is_cancelled_come_before_its_end() -> None:
    """They were given to a thread already: after their replica's rows were dropped they stay."""
    owner: Any = SimpleNamespace()
    written: list[str] = []
    thread, may_go_on = WriterThread(), threading.Event()
    installs = Installs(
        owner,
        None,
        str,
        run_reads=thread,
        options=OPTIONS,
        metrics=Metrics.disabled(),
        tasks=Tasks("test", lambda name, failure: None),
    )
    replica: Any = SimpleNamespace(raft_group=1)
    busy = thread(may_go_on.wait)
    installs._spawn(replica, thread(lambda: written.append("rows")))
    await asyncio.sleep(0)
    cancelling = asyncio.ensure_future(installs.cancel(replica))
    await asyncio.sleep(0.05)
    assert (cancelling.done(), written) == (False, [])
    may_go_on.set()
    await cancelling
    assert written == ["rows"]
    await busy
    await asyncio.to_thread(thread.close)
