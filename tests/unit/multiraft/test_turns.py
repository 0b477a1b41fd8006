"""Raft groups of a node take turns at what is long: applying and reading back (rules 39 and 40)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import pytest

from strata_multiraft import MultiRaftOptions, Replica, ReplicaSpec
from strata_multiraft.driver.apply_loop import Applier
from strata_multiraft.replica.stored_log import StoredLog
from strata_raft import Entry, Role
from strata_runtime.metrics import Metrics
from strata_seglog.errors import CorruptFrame, ReadFailed
from strata_seglog.frames import FrameKind, StoredFrame
from strata_testing import ManualClock, until
from strata_testing.memory_transport import MemoryNetwork
from tests.unit.multiraft.conftest import Gate, RecordingMachine

Settled = Callable[[], Awaitable[None]]
NODES = (1, 2, 3)
EIO = ReadFailed("00000000000000000000.log: Input/output error")


class SlowMachine(RecordingMachine):
    """Says how many slices it was given, and how many entries each had."""

    def __init__(self, on_apply: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.slices: list[int] = []
        self._on_apply = on_apply

    def apply(self, entries: Sequence[Entry]) -> None:
        super().apply(entries)
        self.slices.append(len(entries))
        self._on_apply()


async def reborn(make_node: Any, settled: Settled, **options: int) -> tuple[Any, SlowMachine]:
    """Return a restarted node, not started: raft group 1 has to replay 1,000 entries, 2 has few."""
    node = make_node()
    replicas = [node.host(1, 11), node.host(2, 12)]
    await node.multiraft.start()
    await settled()
    await asyncio.gather(*(replicas[0].propose((b"x" * 40,)) for _ in range(1000)))
    await asyncio.gather(*(replicas[1].propose((b"y",)) for _ in range(3)))
    await node.multiraft.stop()
    again = make_node(
        log=node.log.crashed(), options=MultiRaftOptions(tick_ms=1000, read_retry_ms=1, **options)
    )
    machine = SlowMachine()
    again.add(ReplicaSpec(1, 11, frozenset({11})), machine)
    again.host(2, 12)
    return again, machine


async def test_a_backlog_lets_the_others_apply(make_node: Any, settled: Settled) -> None:
    """One that replays for long gives way after a slice: the others wait for few of them."""
    node, behind = await reborn(make_node, settled, max_apply_bytes=400)
    await node.multiraft.start()
    await node.multiraft.replicas()[2].applied(4)
    assert node.machines[2].payloads() == [b"y"] * 3
    assert len(behind.slices) < 10
    await node.multiraft.replicas()[1].applied(1001)
    assert behind.payloads() == [b"x" * 40] * 1000
    assert max(behind.slices) <= 11
    await node.multiraft.stop()


async def test_who_replays_decides_when_it_is_through(make_node: Any, settled: Settled) -> None:
    """A leader knows what it decides on once the no-op of its term is applied (rule 1)."""
    node, behind = await reborn(make_node, settled, max_apply_bytes=400)
    led_at: list[int] = []
    behind.on_leader = lambda term: led_at.append(behind.applied_index())  # type: ignore[method-assign]
    await node.multiraft.start()
    replica: Replica = node.multiraft.replicas()[1]
    await replica.applied(1_002)
    assert led_at == [replica.last_index]
    await node.multiraft.stop()


async def test_a_slice_has_few_entries(make_node: Any, settled: Settled) -> None:
    """Entries in memory too come in slices of `max_apply_entries`."""
    node = make_node(options=MultiRaftOptions(tick_ms=1000, max_apply_entries=7))
    machine = SlowMachine()
    replica = node.add(ReplicaSpec(1, 11, frozenset({11})), machine)
    await node.multiraft.start()
    await settled()
    indexes = await asyncio.gather(*(replica.propose((b"x",)) for _ in range(50)))
    await replica.applied(indexes[-1])
    assert max(machine.slices) == 7
    assert machine.payloads() == [b"x"] * 50
    await node.multiraft.stop()


async def test_a_slow_slice_makes_the_next_one_smaller(make_node: Any, settled: Settled) -> None:
    """A state machine that is slow is given less at once, so that it holds nobody up."""
    node, behind = await reborn(make_node, settled, max_apply_bytes=4000)
    clock = node.multiraft._applier._clock = ManualClock()
    behind._on_apply = lambda: clock.advance(0.1 * behind.slices[-1])
    await node.multiraft.start()
    replica = node.multiraft.replicas()[1]
    await replica.applied(1001)
    read_back = len(behind.slices)
    indexes = await asyncio.gather(*(replica.propose((b"z" * 10,)) for _ in range(300)))
    await replica.applied(indexes[-1])
    # 256 entries took 25.6 s: the time of a slice is enough for one.
    assert behind.slices[read_back:] == [256] + [1] * 44
    await node.multiraft.stop()


async def test_a_slow_read_back_holds_up_nobody(make_node: Any, settled: Settled) -> None:
    """While entries of one raft group are read from a slow disk the others apply theirs."""
    node, _ = await reborn(make_node, settled)
    reads = Gate()
    node.multiraft._applier._run_reads = reads
    reads.close()
    third = node.host(3, 13)
    await node.multiraft.start()
    await settled()
    index = await third.propose((b"z",))
    await third.applied(index)
    assert reads.waiting == 1
    assert node.multiraft.replicas()[1].applied_index == 0
    reads.open()
    await node.multiraft.replicas()[1].applied(1001)
    await node.multiraft.stop()


async def test_a_read_back_that_the_disk_fails_is_tried_again(
    make_node: Any, settled: Settled
) -> None:
    """EIO while entries are read back for apply damages nothing; a wrong checksum does."""
    node, behind = await reborn(make_node, settled, max_apply_bytes=4000)
    node.log.read_failures = [None, EIO, EIO]
    await node.multiraft.start()
    replica = node.multiraft.replicas()[1]
    await replica.applied(1001)
    assert replica.read_only == ""
    assert behind.payloads() == [b"x" * 40] * 1000
    assert node.log.read_failures == []
    await node.multiraft.stop()
    node, _ = await reborn(make_node, settled)
    node.log.read_failures = [CorruptFrame(0, "0.log", "payload checksum")] * 3
    await node.multiraft.start()
    await settled()
    assert "payload checksum" in node.multiraft.replicas()[1].read_only
    await node.multiraft.stop()


class Cluster:
    """Raft group 1 with replica 10 + n on node n; nodes 1 to 3 over the network in memory."""

    def __init__(self, make_node: Any) -> None:
        self.cut: set[int] = set()
        self.network = MemoryNetwork(lambda a, b: not self.cut & {int(a), int(b)})
        self.metrics = Metrics()
        self.nodes: dict[int, Any] = {}
        for node_id in NODES:
            node = make_node(
                transport=self.network.transport(str(node_id)),
                node_of=lambda replica_id: str(replica_id % 10),
                options=MultiRaftOptions(tick_ms=1000, read_retry_ms=5),
                metrics=self.metrics if node_id == 1 else Metrics.disabled(),
            )
            node.add(ReplicaSpec(1, 10 + node_id, frozenset({11, 12, 13})))
            self.network.connect(str(node_id), node.multiraft.receive)
            self.nodes[node_id] = node

    def replica(self, node_id: int) -> Replica:
        replica: Replica = self.nodes[node_id].multiraft.replicas()[1]
        return replica


@pytest.fixture
async def cluster(make_node: Any, settled: Settled) -> Any:
    cluster = Cluster(make_node)
    for node in cluster.nodes.values():
        await node.multiraft.start()
    for _ in range(7):
        cluster.nodes[1].multiraft.tick()
        await settled()
    assert cluster.replica(1).is_ready_leader()
    yield cluster
    for node in cluster.nodes.values():
        await node.multiraft.stop()


async def fall_behind(cluster: Cluster, settled: Settled) -> None:
    """Let replica 13 miss entries that are on the leader's disk only."""
    cluster.cut = {3}
    for number in range(20):
        await cluster.replica(1).propose((b"%d" % number,))
    cluster.nodes[1].log.has_recent = False
    cluster.cut = set()


async def until_caught_up(cluster: Cluster, settled: Settled) -> None:
    """Tick the leader until replica 13 has everything."""
    for _ in range(50):
        cluster.nodes[1].multiraft.tick()
        await settled()
        await asyncio.sleep(0.005)
        if cluster.replica(3).applied_index == cluster.replica(1).commit_index:
            return
    pytest.fail("the follower did not catch up")


async def test_a_catch_up_read_that_the_disk_fails_changes_no_leader(
    cluster: Cluster, settled: Settled
) -> None:
    """EIO while old entries are read for a follower: they are read again, the leader leads on."""
    await fall_behind(cluster, settled)
    cluster.nodes[1].log.read_failures = [EIO, EIO]
    await until_caught_up(cluster, settled)
    assert cluster.nodes[1].log.read_failures == []
    leader = cluster.replica(1)
    assert (leader.role, leader.term, leader.read_only) == (Role.LEADER, 1, "")
    assert cluster.nodes[3].machines[1].payloads() == [b"%d" % number for number in range(20)]
    failed = cluster.metrics.counter("strata_raft_reads_failed_total")
    assert failed.value({"purpose": "catch-up"}) == 2


async def test_a_damaged_entry_changes_the_leader(cluster: Cluster, settled: Settled) -> None:
    """A wrong checksum is damage: the leader gives the leadership up (rule 8)."""
    await fall_behind(cluster, settled)
    cluster.nodes[1].log.read_failures = [CorruptFrame(0, "0.log", "payload checksum")]
    for _ in range(3):
        cluster.nodes[1].multiraft.tick()
        await settled()
    assert "payload checksum" in cluster.replica(1).read_only


async def test_entries_of_an_earlier_term_of_office_are_not_sent(
    cluster: Cluster, settled: Settled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries read before the leadership was lost and won again are read anew (rule 38)."""
    await fall_behind(cluster, settled)
    catch_up = cluster.nodes[1].multiraft._catch_up
    served: list[int] = []
    fetched = StoredLog.fetched

    class OncePace:
        async def spend(self, size_bytes: int) -> None:
            catch_up._pace = Unlimited()
            cluster.cut = {3}
            await cluster.replica(1).transfer_leadership(12)
            await settled()
            await cluster.replica(2).transfer_leadership(11)
            await settled()
            cluster.cut = set()

    def record(stored: StoredLog, done: Any, entries: Sequence[Entry]) -> None:
        served.append(len(entries))
        fetched(stored, done, entries)

    catch_up._pace = OncePace()
    monkeypatch.setattr(StoredLog, "fetched", record)
    await until_caught_up(cluster, settled)
    assert cluster.replica(1).term > 1
    assert served[0] == 0
    assert sum(served) >= 20
    assert cluster.nodes[3].machines[1].payloads() == [b"%d" % number for number in range(20)]


class Unlimited:
    """A pace without a limit."""

    async def spend(self, size_bytes: int) -> None:
        """Go on."""


class Restarted:
    """A replica whose one entry is out of memory, and that may go at any time."""

    def __init__(self, raft_group: int) -> None:
        self.raft_group = self.replica_id = raft_group
        self.applied_index = 0
        self.is_gone = False

    def announce_leadership(self) -> None:
        pass

    def has_ready(self) -> bool:
        return self.applied_index < 1 and not self.is_gone

    def missing_range(self) -> tuple[int, int]:
        return 1, 1

    def apply(self, entries: Sequence[Entry]) -> None:
        self.applied_index = 1


async def test_what_was_read_for_a_replica_that_goes_gives_its_place_back() -> None:
    """Eight of them would keep all others from being read back, for good."""

    class OneEntry:
        def entries(self, replica_id: int, *_: int) -> Sequence[StoredFrame]:
            frame = StoredFrame(FrameKind.ENTRY, replica_id, replica_id, 1, 1, 0, 0, 0, b"x")
            return [frame]

    async def run_here(work: Callable[[], Any]) -> Any:
        return work()

    applier = Applier(cast(Any, OneEntry()), cast(Any, run_here), MultiRaftOptions())
    reading = asyncio.ensure_future(applier.run_read_backs())
    leaving = [Restarted(raft_group) for raft_group in range(1, 9)]
    for replica in leaving:
        applier._apply_slice(cast(Replica, replica))
    await until(lambda: len(applier._read) == len(leaving))
    for replica in leaving:
        replica.is_gone = True
    applying = asyncio.ensure_future(applier.run())
    another = Restarted(9)
    applier.ready(cast(Replica, another))
    await until(lambda: another.applied_index == 1)
    assert not applier._read
    reading.cancel()
    applying.cancel()
