"""Messages that wait in a cluster: over lost leaders, and when their queue moves (rules 4, 18)."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.layout.batch import PartKind
from strata_testing import until
from tests.integration.storage.storage_cluster import ClusterUnderTest, cluster_of
from tests.integration.storage.waiting import waiting_batch

TOPIC_ID = 7
# Queue 0 is in slot 0: with two raft groups that own every other slot, in the first.
QUEUE, SOURCE, DESTINATION = 0, 1, 2

MOVED_IN_MS = 5_000
"""The queue has moved by then, on a busy machine, too."""

_sequences = itertools.count(1_000_000)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterUnderTest]:
    async for made in cluster_of(tmp_path, 3, groups=2):
        yield made


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def store(
    cluster: ClusterUnderTest,
    bodies: list[bytes],
    due_times: list[int],
    kind: PartKind = PartKind.DELAYED,
) -> pb.PendingRef:
    """Append messages of a topic with one queue; return the first one's name."""
    batch = waiting_batch(bodies, due_times, kind=kind, queue_count=1)
    request = pb.AppendRequest(
        broker_boot_id=1,
        batches=[pb.GroupBatch(raft_group=SOURCE, sequence=next(_sequences), batch=batch)],
    )
    response = await cluster.call(SOURCE, "Append", request, pb.AppendResponse)
    assert response.results[0].parts[0].outcome == pb.OUTCOME_OK
    return response.results[0].parts[0].first_pending


async def end(
    cluster: ClusterUnderTest, name: pb.PendingRef, how: pb.TransactionEnd.ValueType
) -> pb.EndTransactionResponse:
    request = pb.EndTransactionRequest(raft_group=SOURCE, pending=name, topic_id=TOPIC_ID, end=how)
    return await cluster.call(SOURCE, "EndTransaction", request, pb.EndTransactionResponse)


async def read(cluster: ClusterUnderTest, raft_group: int = SOURCE) -> list[pb.StoredMessage]:
    return list((await cluster.fetch(raft_group, QUEUE)).messages)


async def until_read(
    cluster: ClusterUnderTest, count: int, raft_group: int = SOURCE
) -> list[pb.StoredMessage]:
    """Read until so many messages are there."""
    messages: list[pb.StoredMessage] = []

    async def are_there() -> bool:
        messages[:] = await read(cluster, raft_group)
        return len(messages) >= count

    await until(are_there, step_s=0.02)
    return messages


async def lose_leader(cluster: ClusterUnderTest, raft_group: int = SOURCE) -> None:
    """Cut the power of a raft group's leader and start the node again."""
    lost = await cluster.until_led(raft_group)
    await cluster.members[lost].lose_power()
    await until(lambda: cluster.leader_of(raft_group) not in (None, lost))
    await cluster.start(lost)


async def test_delays_survive_their_leaders(cluster: ClusterUnderTest) -> None:
    """Three leaders are lost meanwhile: each message comes once, none early, in order."""
    chance = random.Random(7)
    began_ms = now_ms()
    due_times = [began_ms + 500 + chance.randint(0, 8_000) for _ in range(200)]
    for at in range(0, 200, 20):
        part = due_times[at : at + 20]
        await store(cluster, [b"%d" % due_ms for due_ms in part], part)
    for _ in range(3):
        await lose_leader(cluster)
        for message in await read(cluster):
            assert int(message.message) <= message.store_time_ms <= now_ms() + 250
    messages = await until_read(cluster, 200)
    assert [int(message.message) for message in messages] == sorted(due_times)
    assert len(await read(cluster)) == 200
    # One place each, in one order, on every replica.
    await cluster.check_rows_equal(SOURCE)


async def test_transactions_survive_their_leaders(cluster: ClusterUnderTest) -> None:
    """Ended before, after, and again after the leader was lost: the outcome never changes."""
    names = [
        await store(cluster, [b"%d" % number], [now_ms() + 60_000], PartKind.HALF)
        for number in range(4)
    ]
    first = await end(cluster, names[0], pb.TRANSACTION_END_COMMIT)
    assert not first.refusal.outcome
    assert not (await end(cluster, names[1], pb.TRANSACTION_END_ROLLBACK)).refusal.outcome
    await lose_leader(cluster)
    assert await end(cluster, names[0], pb.TRANSACTION_END_COMMIT) == first
    late = await end(cluster, names[0], pb.TRANSACTION_END_ROLLBACK)
    assert late.refusal.outcome == pb.OUTCOME_INVALID_HANDLE
    late = await end(cluster, names[1], pb.TRANSACTION_END_COMMIT)
    assert late.refusal.outcome == pb.OUTCOME_INVALID_HANDLE
    assert not (await end(cluster, names[2], pb.TRANSACTION_END_COMMIT)).refusal.outcome
    assert not (await end(cluster, names[3], pb.TRANSACTION_END_ROLLBACK)).refusal.outcome
    assert [message.message for message in await read(cluster)] == [b"0", b"2"]
    await cluster.check_rows_equal(SOURCE)


async def move(cluster: ClusterUnderTest) -> None:
    """Move the topic's only queue to the other raft group."""
    cluster.stub.move_queue(TOPIC_ID, QUEUE, DESTINATION, SOURCE)
    override = cluster.stub.overrides[TOPIC_ID, QUEUE]
    await until(lambda: override.moving_to == 0 and override.epochs[-1].raft_group == DESTINATION)


async def test_what_waits_follows_its_queue_to_another_raft_group(
    cluster: ClusterUnderTest,
) -> None:
    """Delayed and committed messages come in the queue's new epoch, each once."""
    due_ms = now_ms() + MOVED_IN_MS
    await store(cluster, [b"delay-%d" % number for number in range(50)], [due_ms] * 50)
    half = await store(cluster, [b"half"], [due_ms + 60_000], PartKind.HALF)
    dropped = await store(cluster, [b"dropped"], [due_ms + 60_000], PartKind.HALF)
    await move(cluster)
    assert not (await end(cluster, dropped, pb.TRANSACTION_END_ROLLBACK)).refusal.outcome
    assert not (await end(cluster, half, pb.TRANSACTION_END_COMMIT)).refusal.outcome
    assert not (await end(cluster, half, pb.TRANSACTION_END_COMMIT)).refusal.outcome
    late = await end(cluster, half, pb.TRANSACTION_END_ROLLBACK)
    assert late.refusal.outcome == pb.OUTCOME_INVALID_HANDLE
    messages = await until_read(cluster, 51, DESTINATION)
    bodies = [message.message for message in messages]
    assert bodies[0] == b"half"
    assert sorted(bodies[1:]) == sorted(b"delay-%d" % number for number in range(50))
    assert all(message.store_time_ms >= due_ms for message in messages[1:])
    assert await read(cluster) == []
    # Confirmed: nothing waits here any more.
    node = cluster.members[await cluster.until_led(SOURCE)].node
    rows = node.engine(SOURCE).machine.rows
    await until(lambda: next(rows.pending.keys(), None) is None)
    assert next(rows.pins.scan(), None) is None


async def test_forwards_arrive_once_although_leaders_are_lost(
    cluster: ClusterUnderTest,
) -> None:
    """The source's leader, then the destination's, is lost while messages are brought there."""
    due_ms = now_ms() + MOVED_IN_MS
    bodies = [b"%d" % number for number in range(300)]
    for at in range(0, 300, 50):
        times = [due_ms + number for number in range(50)]
        await store(cluster, bodies[at : at + 50], times)
    await move(cluster)
    await asyncio.sleep(max(0, due_ms - now_ms()) / 1_000)
    await lose_leader(cluster, SOURCE)
    await lose_leader(cluster, DESTINATION)
    messages = await until_read(cluster, 300, DESTINATION)
    await asyncio.sleep(1.5)
    messages = await read(cluster, DESTINATION)
    assert sorted(message.message for message in messages) == sorted(bodies)
    node = cluster.members[await cluster.until_led(SOURCE)].node
    await until(lambda: next(node.engine(SOURCE).machine.rows.pending.keys(), None) is None)
