"""Three drivers in one process over the in-memory transport: replication through the driver."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from strata_multiraft import NotLeader, Replica, ReplicaSpec
from strata_multiraft.base.ports import Envelope
from strata_raft import Entry, EntryKind, Message, Role
from strata_raft.messages import AppendRequest, AppendResponse, HeartbeatResponse, TimeoutNow
from strata_testing.memory_transport import MemoryNetwork

Settled = Callable[[], Awaitable[None]]
NODES = (1, 2, 3)


class Cluster:
    """Nodes 1 to 3; raft group 1 has replica 10 + n on node n, raft group 2 replica 20 + n."""

    def __init__(self, make_node: Any, settled: Settled) -> None:
        self.cut: set[int] = set()
        self.network = MemoryNetwork(
            lambda source, target: not self.cut & {int(source), int(target)}
        )
        self._make_node = make_node
        self._settled = settled
        self.nodes: dict[int, Any] = {}
        for node_id in NODES:
            self.boot(node_id)

    def boot(self, node_id: int, **fields: Any) -> Any:
        node = self._make_node(
            transport=self.network.transport(str(node_id)),
            node_of=lambda replica_id: str(replica_id % 10),
            **fields,
        )
        for raft_group in (1, 2):
            voters = frozenset(10 * raft_group + other for other in NODES)
            node.add(ReplicaSpec(raft_group, 10 * raft_group + node_id, voters))
        self.network.connect(str(node_id), node.multiraft.receive)
        self.nodes[node_id] = node
        return node

    def replica(self, node_id: int, raft_group: int = 1) -> Replica:
        replica: Replica = self.nodes[node_id].multiraft.replicas()[raft_group]
        return replica

    async def start(self) -> None:
        for node in self.nodes.values():
            await node.multiraft.start()

    async def stop(self) -> None:
        for node in self.nodes.values():
            await node.multiraft.stop()

    async def tick(self, *node_ids: int, times: int = 1) -> None:
        for _ in range(times):
            for node_id in node_ids or NODES:
                if node_id not in self.cut or node_ids:
                    self.nodes[node_id].multiraft.tick()
            await self._settled()


@pytest.fixture
async def cluster(make_node: Any, settled: Settled) -> Any:
    cluster = Cluster(make_node, settled)
    await cluster.start()
    yield cluster
    await cluster.stop()


async def test_entries_reach_all_replicas(cluster: Cluster) -> None:
    """The machines of all three apply what is committed through one node."""
    await cluster.tick(1, times=7)
    leader = cluster.replica(1)
    assert leader.is_ready_leader()
    indexes = await asyncio.gather(*(leader.propose((b"%d" % n,)) for n in range(20)))
    assert indexes == list(range(2, 22))
    await cluster.tick(1)
    for node_id in NODES:
        assert cluster.nodes[node_id].machines[1].payloads() == [b"%d" % n for n in range(20)]
    assert cluster.replica(2).leader_replica_id == 11
    with pytest.raises(NotLeader) as refused:
        cluster.replica(2).propose((b"x",))
    assert refused.value.leader_replica_id == 11


async def test_commit_does_not_wait_for_the_leaders_own_sync(
    cluster: Cluster, settled: Settled
) -> None:
    """Two followers' syncs are a quorum while the leader's disk is slow."""
    await cluster.tick(1, times=7)
    gate = cluster.nodes[1].gate
    gate.close()
    future = cluster.replica(1).propose((b"x",))
    await settled()
    assert await future == 2
    assert cluster.replica(1).applied_index == 1  # not before it is synced here
    gate.open()
    await settled()
    assert cluster.replica(1).applied_index == 2


async def test_slow_disk_does_not_silence_the_leader(cluster: Cluster, settled: Settled) -> None:
    """Heartbeats go out and are answered while syncs run; nobody campaigns (rule 31)."""
    await cluster.tick(1, times=7)
    for node in cluster.nodes.values():
        node.gate.close()
    cluster.replica(1).propose((b"x",))
    await cluster.tick(times=30)
    assert cluster.replica(1).role is Role.LEADER
    assert cluster.replica(1).term == 1
    for node in cluster.nodes.values():
        node.gate.open()
    await settled()


async def test_new_leader_has_what_was_acknowledged(cluster: Cluster) -> None:
    """After the leader is cut off another one serves every acknowledged entry."""
    await cluster.tick(1, times=7)
    acked = [b"%d" % number for number in range(10)]
    for payload in acked:
        await cluster.replica(1).propose((payload,))
    cluster.cut = {1}
    lost = cluster.replica(1).propose((b"nobody hears it",))
    await cluster.tick(3, times=6)
    await cluster.tick(2, times=6)
    assert cluster.replica(2).is_ready_leader()
    await cluster.replica(2).applied(await cluster.replica(2).propose((b"later",)))
    assert cluster.nodes[2].machines[1].payloads() == [*acked, b"later"]
    cluster.cut = set()
    await cluster.tick(2)
    with pytest.raises(NotLeader) as failed:
        await lost
    assert failed.value.leader_replica_id in (0, 12)
    await cluster.tick(2)
    assert cluster.nodes[1].machines[1].payloads() == [*acked, b"later"]
    assert cluster.nodes[1].machines[1].told[-1] == ("follower", 12)


async def test_read_barrier_needs_a_majority(cluster: Cluster, settled: Settled) -> None:
    """A leader that is cut off does not answer reads; a confirmed one does (rule 12)."""
    await cluster.tick(1, times=7)
    index = await cluster.replica(1).propose((b"x",))
    assert await cluster.replica(1).read_barrier() == index
    cluster.cut = {1}
    read = asyncio.ensure_future(cluster.replica(1).read_barrier())
    await cluster.tick(1, times=13)
    with pytest.raises(NotLeader):
        await read


async def test_a_restarted_follower_catches_up_from_the_leaders_disk(
    cluster: Cluster, settled: Settled
) -> None:
    """Entries that are no longer in memory are read back for a follower."""
    await cluster.tick(1, times=7)
    cluster.cut = {3}
    for number in range(20):
        await cluster.replica(1).propose((b"%d" % number,))
    cluster.nodes[1].log.has_recent = False
    await cluster.nodes[3].multiraft.stop()
    reborn = cluster.boot(3, log=cluster.nodes[3].log.crashed())
    await reborn.multiraft.start()
    cluster.cut = set()
    await cluster.tick(1, times=3)
    assert reborn.machines[1].payloads() == [b"%d" % number for number in range(20)]


async def test_full_peer_queue_drops_and_recovers(cluster: Cluster, settled: Settled) -> None:
    """A queue without room drops messages; the follower is probed later (rule 15)."""
    await cluster.tick(1, times=7)
    futures = [cluster.replica(1).propose((b"%d" % number,)) for number in range(5)]
    cluster.network.is_full = True
    await settled()
    assert not any(future.done() for future in futures)
    cluster.network.is_full = False
    await cluster.tick(1, times=3)
    assert await asyncio.gather(*futures) == [2, 3, 4, 5, 6]


async def test_heartbeats_under_load_make_no_follower_refuse(
    cluster: Cluster, settled: Settled
) -> None:
    """Requests after a heartbeat's answer never overtake entries; each message goes once."""
    await cluster.tick(1, times=7)
    seen: list[Message] = []
    for node_id in NODES:
        receive = cluster.nodes[node_id].multiraft.receive

        def listen(envelopes: Sequence[Envelope], receive: Any = receive) -> None:
            seen.extend(each.message for each in envelopes if each.raft_group == 1)
            receive(envelopes)

        cluster.network.connect(str(node_id), listen)
    leader, futures = cluster.replica(1), []
    for turn in range(200):
        futures.append(leader.propose((b"%d" % turn,)))
        if turn % 5 == 0:
            cluster.nodes[1].multiraft.tick()
        if turn % 20 == 10:
            # Syncs that take a while: answers come for many requests at once.
            for node_id in (2, 3):
                cluster.nodes[node_id].gate.close()
        if turn % 20 == 19:
            for node_id in (2, 3):
                cluster.nodes[node_id].gate.open()
        await asyncio.sleep(0)
    await settled()
    await asyncio.gather(*futures)
    answers = [message for message in seen if isinstance(message, AppendResponse)]
    sent = [entry for each in seen if isinstance(each, AppendRequest) for entry in each.entries]
    assert any(isinstance(message, HeartbeatResponse) for message in seen)
    assert [answer for answer in answers if answer.rejected] == []
    assert len(sent) == 2 * len(futures)


async def test_the_call_to_campaign_overtakes_no_entries(cluster: Cluster) -> None:
    """A replica that is told to campaign has taken what the leader sent before (rule 15)."""
    leader = cluster.replica(1)
    await cluster.tick(1, times=7)
    heard: list[Message] = []
    cluster.network.connect("2", lambda envelopes: heard.extend(e.message for e in envelopes))
    outbox = cluster.nodes[1].multiraft._outbox
    outbox.add(
        leader, (AppendRequest(11, 12, 1, 1, 1, (Entry(1, 2, EntryKind.NORMAL, (b"x",)),), 1),)
    )
    outbox.add(leader, (TimeoutNow(11, 12, 1),))
    outbox.flush()
    await asyncio.sleep(0)
    assert [type(message) for message in heard] == [AppendRequest, TimeoutNow]
