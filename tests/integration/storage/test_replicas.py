"""Three members over real connections: replication, failover, moved replicas, cold start."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from strata.meta.v1 import meta_pb2 as meta
from strata.storage.v1 import storage_pb2 as pb
from strata_mq.layout.rows import raft_group_prefix
from strata_seglog.ports import DiskSpace
from strata_state.rows import GroupRows
from strata_testing import until
from strata_testing.storage_node import message_id, pop_request
from tests.integration.storage.storage_cluster import ClusterUnderTest, cluster_of

GROUP = 1
QUEUES = 4


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterUnderTest]:
    async for made in cluster_of(tmp_path, 3):
        yield made


async def work(cluster: ClusterUnderTest, rng: random.Random, rounds: int) -> dict[bytes, int]:
    """Append, pop and ack at random; return body -> queue of all that was answered."""
    stored: dict[bytes, int] = {}
    for number in range(rounds):
        bodies = [
            b"%d-%d-%d" % (rng.getrandbits(32), number, at) for at in range(rng.randint(1, 8))
        ]
        result = await cluster.append(GROUP, bodies, queue=rng.randrange(-1, QUEUES))
        stored.update(dict.fromkeys(bodies, result.parts[0].queue))
        popped = await cluster.pop(GROUP, max_messages=rng.randint(1, 10), max_attempts=2)
        acked = [message for message in popped.messages if rng.random() < 0.7]
        if acked:
            await cluster.ack(GROUP, acked)
    return stored


async def stored_in(cluster: ClusterUnderTest, raft_group: int = GROUP) -> dict[bytes, int]:
    """Return body -> queue of everything that can be read; offsets must have no hole."""
    found: dict[bytes, int] = {}
    for queue in range(QUEUES):
        fetched = await cluster.fetch(raft_group, queue)
        offsets = [message.offset for message in fetched.messages]
        assert offsets == list(range(fetched.min_offset, fetched.next_offset))
        for message in fetched.messages:
            assert message.message not in found, "a message is stored twice"
            found[message.message] = queue
    return found


async def transfer(cluster: ClusterUnderTest, raft_group: int = GROUP) -> str:
    """Hand the leadership to another node; return it."""
    return await cluster.transfer(raft_group)


async def test_all_replicas_have_the_same_rows_also_after_leader_changes(
    cluster: ClusterUnderTest,
) -> None:
    """Every leader's appends, leases, acks and expiries left the same bytes everywhere."""
    rng = random.Random(7)
    stored: dict[bytes, int] = {}
    for _ in range(4):
        stored |= await work(cluster, rng, 12)
        await transfer(cluster)
    assert await stored_in(cluster) == stored
    await cluster.check_rows_equal(GROUP)


async def test_nothing_acked_is_lost_when_the_leader_loses_power(cluster: ClusterUnderTest) -> None:
    """Its memory and what it did not sync is gone; the others go on and it catches up."""
    rng = random.Random(8)
    stored = await work(cluster, rng, 10)
    for _ in range(2):
        leader = await cluster.until_led(GROUP)
        writing = asyncio.ensure_future(work(cluster, rng, 30))
        await asyncio.sleep(0.1)
        await cluster.members[leader].lose_power()
        stored |= await writing
        await cluster.start(leader)
    assert await stored_in(cluster) == stored
    await cluster.check_rows_equal(GROUP)


async def test_a_repeated_append_is_stored_once_across_a_failover(
    cluster: ClusterUnderTest,
) -> None:
    """By the broker's number and by the message id, whichever leader gets the repeat."""
    identity = message_id(b"x")
    first = await cluster.append(GROUP, [b"x"], ids=[identity], sequence=77)
    leader = await cluster.until_led(GROUP)
    await cluster.members[leader].lose_power()
    assert await cluster.append(GROUP, [b"x"], ids=[identity], sequence=77) == first
    again = await cluster.append(GROUP, [b"x"], ids=[identity], sequence=78)
    assert [(each.queue, each.offset) for each in again.parts[0].duplicates] == [(0, 0)]
    assert (await cluster.fetch(GROUP, 0)).next_offset == 1


async def test_leases_hold_across_a_failover(cluster: ClusterUnderTest) -> None:
    """A handle from the old leader is acked at the new one; what is leased is not given again."""
    await cluster.append(GROUP, [b"a", b"b", b"c"])
    popped = await cluster.pop(GROUP, max_messages=2, invisible_ms=60_000)
    await cluster.members[await cluster.until_led(GROUP)].lose_power()
    assert await cluster.ack(GROUP, [popped.messages[0]]) == [pb.OUTCOME_OK]
    rest = await cluster.pop(GROUP)
    assert [message.message for message in rest.messages] == [b"c"]


async def test_a_parked_pop_is_refused_at_once_when_leadership_is_lost(
    cluster: ClusterUnderTest,
) -> None:
    """It does not wait for its time to run out."""
    leader = await cluster.until_led(GROUP)
    request = pop_request(wait_ms=600_000)
    channel = cluster._channel(leader)
    parked = asyncio.ensure_future(
        channel.call("/strata.storage.v1.StorageService/Pop", request, pb.PopResponse)
    )
    await asyncio.sleep(0.1)
    await transfer(cluster)
    async with asyncio.timeout(60):
        assert (await parked).refusal.outcome == pb.OUTCOME_NOT_LEADER


async def test_a_follower_names_the_leader(cluster: ClusterUnderTest) -> None:
    """The refusal tells the broker where to go."""
    leader = await cluster.until_led(GROUP)
    await cluster.until_quiet(GROUP)
    other = next(name for name in cluster.members if name != leader)
    response = await cluster._channel(other).call(
        "/strata.storage.v1.StorageService/Pop", pop_request(), pb.PopResponse
    )
    assert response.refusal.outcome == pb.OUTCOME_NOT_LEADER
    assert response.refusal.leader_node_id == leader


async def test_a_preferred_leader_leads_and_a_draining_one_does_not(
    cluster: ClusterUnderTest,
) -> None:
    """The leader itself hands over, as the rows say."""
    leader = await cluster.until_led(GROUP)
    wanted = next(name for name in cluster.members if name != leader)
    cluster.stub.prefer(GROUP, wanted)
    await until(lambda: cluster.leader_of(GROUP) == wanted)
    cluster.stub.nodes[wanted].draining = True
    cluster.stub.groups[GROUP].preferred_leader_node_id = ""
    cluster.stub.write(
        meta.Change(node=cluster.stub.nodes[wanted]),
        meta.Change(raft_group=cluster.stub.groups[GROUP]),
    )
    await until(lambda: cluster.leader_of(GROUP) not in (None, wanted))


async def test_a_replica_moves_to_another_node(cluster: ClusterUnderTest) -> None:
    """The new node has the same rows; the old one has none, and nothing was lost meanwhile."""
    rng = random.Random(9)
    stored = await work(cluster, rng, 15)
    (new,) = await cluster.add(1)
    leader = await cluster.until_led(GROUP)
    writing = asyncio.ensure_future(work(cluster, rng, 60))
    # The leader's own replica goes: it hands over first.
    cluster.stub.move_replica(GROUP, leader, new)
    await until(lambda: GROUP not in cluster.members[leader].node.hosted(), 30)
    stored |= await writing
    membership = cluster.stub.groups[GROUP].membership
    wanted = sorted(each.replica_id for each in cluster.stub.groups[GROUP].replicas)
    assert (sorted(membership.voters), list(membership.outgoing)) == (wanted, [])
    assert await stored_in(cluster) == stored
    await cluster.check_rows_equal(GROUP)
    prefix = raft_group_prefix(GROUP)
    left = cluster.members[leader].store.scan(prefix, raft_group_prefix(GROUP + 1))
    assert list(left) == []


async def test_a_replica_that_moved_away_while_its_node_was_down_is_removed(
    cluster: ClusterUnderTest,
) -> None:
    """When the node comes back, neither rows nor frames of it are kept."""
    await work(cluster, random.Random(13), 5)
    leader = await cluster.until_led(GROUP)
    away = next(name for name in cluster.members if name != leader)
    replica_id = cluster.members[away].node.replicas()[GROUP].replica_id
    await cluster.members[away].stop()
    (new,) = await cluster.add(1)
    row = cluster.stub.groups[GROUP]
    cluster.stub.move_replica(GROUP, away, new)
    await until(lambda: not row.leaving, 30)
    await cluster.start(away)
    log = cluster.members[away].node._data.log
    await until(lambda: log.replicas()[replica_id].removed)
    rows = GroupRows(cluster.members[away].store, GROUP)
    await until(lambda: not list(rows.all()))
    assert rows.local.get() is None


async def test_three_replicas_become_one_and_three_again(cluster: ClusterUnderTest) -> None:
    """Shrinking and growing keep everything."""
    rng = random.Random(10)
    stored = await work(cluster, rng, 10)
    leader = await cluster.until_led(GROUP)
    others = [name for name in cluster.members if name != leader]
    for name in others:
        cluster.stub.move_replica(GROUP, name, "")
    await until(lambda: list(cluster.applied(GROUP)) == [leader])
    stored |= await work(cluster, rng, 10)
    row = cluster.stub.groups[GROUP]
    row.replicas.extend(cluster.stub.replica(name) for name in others)
    cluster.stub.write(meta.Change(raft_group=row))
    await until(lambda: len(row.membership.voters) == 3, 30)
    assert await stored_in(cluster) == stored
    await cluster.check_rows_equal(GROUP)


async def test_a_cluster_starts_without_its_nameservers(cluster: ClusterUnderTest) -> None:
    """All lose power together; they find each other from their own copies (rule 16)."""
    stored = await work(cluster, random.Random(11), 15)
    await asyncio.gather(*(member.lose_power() for member in cluster.members.values()))
    await cluster.stub.stop()
    ports = {name: member.endpoint for name, member in cluster.members.items()}
    for name, member in cluster.members.items():
        member.port = int(ports[name].rpartition(":")[2])
        await cluster.start(name)
    await cluster.until_led(GROUP)
    assert await stored_in(cluster) == stored
    assert set((await work(cluster, random.Random(12), 5)).values()) <= set(range(QUEUES))


async def test_a_leader_whose_disk_fills_up_is_followed_by_one_with_room(
    cluster: ClusterUnderTest,
) -> None:
    """Nothing is refused meanwhile: who asks the old leader is told to ask again (rule 11)."""
    await cluster.append(GROUP, [b"before"])
    leader = await cluster.until_led(GROUP)
    low = DiskSpace(300 * 1024 * 1024, 1 << 40)
    cluster.members[leader].disk.space = lambda: low  # type: ignore[method-assign]
    answered = 0
    async with asyncio.timeout(60):
        while answered <= 20 or cluster.leader_of(GROUP) in (None, leader):
            result = await cluster.append(GROUP, [b"x"])
            assert not result.HasField("refusal"), result.refusal
            answered += 1


async def test_a_leader_obeys_the_full_disks_that_its_quorum_needs(
    cluster: ClusterUnderTest,
) -> None:
    """One full follower does no harm; two refuse appends, and acks go on (rule 11)."""
    await cluster.append(GROUP, [b"a", b"b"])
    popped = await cluster.pop(GROUP, max_messages=1)
    leader = await cluster.until_led(GROUP)
    followers = [name for name in cluster.members if name != leader]
    engine = cluster.members[leader].node.engine(GROUP)
    low = DiskSpace(300 * 1024 * 1024, 1 << 40)
    real = cluster.members[leader].disk.space
    for name, expected in zip(followers, (0, 1), strict=True):
        cluster.members[name].disk.space = lambda: low  # type: ignore[method-assign]
        if expected:
            await until(lambda: engine.replica.disk_mark == 1)
        else:
            await asyncio.sleep(2.5)
            assert engine.replica.disk_mark == 0
    refused = await cluster.append(GROUP, [b"c"])
    assert refused.refusal.outcome == pb.OUTCOME_DISK_FULL
    assert await cluster.ack(GROUP, list(popped.messages)) == [pb.OUTCOME_OK]
    for name in followers:
        cluster.members[name].disk.space = real  # type: ignore[method-assign]
    await until(lambda: engine.replica.disk_mark == 0)
    assert (await cluster.append(GROUP, [b"c"])).parts[0].outcome == pb.OUTCOME_OK
