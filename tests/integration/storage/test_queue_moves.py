"""Queues move between raft groups: no byte copied, none lost, order and offsets kept (rule 18)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from strata.storage.v1 import storage_pb2 as pb
from strata_testing import until
from strata_testing.storage_node import TOPIC, batch_of, message_id, small_config
from tests.integration.storage.storage_cluster import ClusterUnderTest, cluster_of

TOPIC_ID = 7
# Queue 0 is in slot 0: with two raft groups that own every other slot, in the first.
QUEUE, SOURCE, DESTINATION = 0, 1, 2


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterUnderTest]:
    config = small_config(default_retention_ms=1_000)
    async for made in cluster_of(tmp_path, 3, groups=2, config=config):
        yield made


async def send(cluster: ClusterUnderTest, bodies: list[bytes]) -> list[tuple[int, int]]:
    """Append to the queue as a broker does: where it is open; return (raft group, offset)."""
    override = cluster.stub.overrides.get((TOPIC_ID, QUEUE))
    raft_group = override.epochs[-1].raft_group if override else SOURCE
    async with asyncio.timeout(60):
        while True:
            result = await cluster.append(raft_group, bodies, queue=QUEUE)
            if result.parts[0].outcome == pb.OUTCOME_OK:
                base = result.parts[0].base_offset
                return [(raft_group, base + at) for at in range(len(bodies))]
            assert result.parts[0].outcome in (pb.OUTCOME_SEALED, pb.OUTCOME_WRONG_GROUP)
            override = cluster.stub.overrides[TOPIC_ID, QUEUE]
            raft_group = override.epochs[-1].raft_group
            await asyncio.sleep(0.02)


async def read(cluster: ClusterUnderTest) -> dict[int, bytes]:
    """Read the queue over all its epochs; offsets must go on without a hole."""
    override = cluster.stub.overrides.get((TOPIC_ID, QUEUE))
    groups = [epoch.raft_group for epoch in override.epochs] if override else [SOURCE]
    found: dict[int, bytes] = {}
    for raft_group in groups:
        fetched = await cluster.fetch(raft_group, QUEUE)
        for message in fetched.messages:
            assert message.offset not in found
            found[message.offset] = message.message
    return found


async def until_moved(cluster: ClusterUnderTest, destination: int) -> None:
    override = cluster.stub.overrides[TOPIC_ID, QUEUE]
    await until(lambda: override.moving_to == 0 and override.epochs[-1].raft_group == destination)


async def test_a_queue_moves_while_it_is_written(cluster: ClusterUnderTest) -> None:
    """Every answered message is there once, offsets go on in the order of the answers."""
    expected: dict[int, bytes] = {}
    homes: list[int] = []

    async def write() -> None:
        while homes.count(DESTINATION) < 20:
            body = b"%d" % len(expected)
            ((raft_group, offset),) = await send(cluster, [body])
            assert offset == len(expected)
            expected[offset] = body
            homes.append(raft_group)

    writing = asyncio.ensure_future(write())
    await until(lambda: len(expected) > 30)
    cluster.stub.move_queue(TOPIC_ID, QUEUE, DESTINATION, SOURCE)
    await until_moved(cluster, DESTINATION)
    await writing
    assert homes == sorted(homes), "the queue went back"
    assert await read(cluster) == expected


async def test_the_old_epoch_tells_what_it_stored_of_a_repeat(cluster: ClusterUnderTest) -> None:
    """Its answer was lost, and the queue left: what it has must not be stored elsewhere, too."""
    first, other = message_id(b"a"), message_id(b"b")
    await cluster.append(SOURCE, [b"a"], queue=QUEUE, ids=[first])
    cluster.stub.move_queue(TOPIC_ID, QUEUE, DESTINATION, SOURCE)
    await until_moved(cluster, DESTINATION)
    data = batch_of([b"b", b"a"], queue=QUEUE, ids=[other, first])
    request = pb.AppendRequest(
        batches=[pb.GroupBatch(raft_group=SOURCE, batch=data, may_repeat=True)]
    )
    response = await cluster.call(SOURCE, "Append", request, pb.AppendResponse)
    (part,) = response.results[0].parts
    assert part.outcome == pb.OUTCOME_SEALED
    known = [(each.ordinal, each.queue, each.offset) for each in part.duplicates]
    assert known == [(1, QUEUE, 0)]


async def test_a_move_goes_on_when_leaders_fail(cluster: ClusterUnderTest) -> None:
    """The next leader finds the move row and opens the epoch; nothing is opened twice."""
    await send(cluster, [b"a", b"b"])
    for raft_group in (SOURCE, DESTINATION):
        leader = await cluster.until_led(raft_group)
        if raft_group == SOURCE:
            cluster.stub.move_queue(TOPIC_ID, QUEUE, DESTINATION, SOURCE)
            engine = cluster.members[leader].node.engine(SOURCE)
            await engine.seal(TOPIC_ID, QUEUE, DESTINATION)
        await cluster.members[leader].lose_power()
        await cluster.until_led(SOURCE)
        await cluster.until_led(DESTINATION)
        await cluster.start(leader)
    await until_moved(cluster, DESTINATION)
    assert await send(cluster, [b"c"]) == [(DESTINATION, 2)]
    assert await read(cluster) == {0: b"a", 1: b"b", 2: b"c"}
    assert [(e.epoch, e.start_offset) for e in cluster.stub.overrides[TOPIC_ID, QUEUE].epochs] == [
        (0, 0),
        (1, 2),
    ]


async def test_the_sealed_epoch_keeps_its_leases_and_is_drained(cluster: ClusterUnderTest) -> None:
    """Pop and ack go on at the old raft group; a group starts the new epoch at its start."""
    await send(cluster, [b"a", b"b"])
    first = await cluster.pop(SOURCE, queue=QUEUE, max_messages=1, invisible_ms=60_000)
    cluster.stub.move_queue(TOPIC_ID, QUEUE, DESTINATION, SOURCE)
    await until_moved(cluster, DESTINATION)
    await send(cluster, [b"c"])
    assert await cluster.ack(SOURCE, list(first.messages)) == [pb.OUTCOME_OK]
    rest = await cluster.pop(SOURCE, queue=QUEUE, known_sealed=1)
    assert [message.message for message in rest.messages] == [b"b"]
    assert await cluster.ack(SOURCE, list(rest.messages)) == [pb.OUTCOME_OK]
    assert list((await cluster.pop(SOURCE, queue=QUEUE, known_sealed=1)).messages) == []
    later = await cluster.pop(DESTINATION, queue=QUEUE, start=pb.START_POSITION_LATEST)
    assert [(message.offset, message.message) for message in later.messages] == [(2, b"c")]


async def test_whoever_has_not_heard_of_a_move_is_told(cluster: ClusterUnderTest) -> None:
    """A sealed end is not the end: appends, pops and offset calls say where the queue goes on."""
    await send(cluster, [b"a", b"b"])
    waiting = asyncio.ensure_future(
        cluster.pop(SOURCE, queue=QUEUE, consumer_group_id=6, wait_ms=600_000, max_messages=9)
    )
    assert len((await waiting).messages) == 2
    waiting = asyncio.ensure_future(
        cluster.pop(SOURCE, queue=QUEUE, consumer_group_id=6, wait_ms=600_000)
    )
    cluster.stub.move_queue(TOPIC_ID, QUEUE, DESTINATION, SOURCE)
    await until_moved(cluster, DESTINATION)
    place = pb.SealedQueue(queue=QUEUE, next_epoch=1, start_offset=2, raft_group=DESTINATION)
    async with asyncio.timeout(60):
        parked = await waiting
    assert (parked.moved, list(parked.sealed)) == (True, [place])
    for queue in (QUEUE, -1):
        popped = await cluster.pop(SOURCE, queue=queue)
        assert (popped.moved, list(popped.sealed), len(popped.messages)) == (True, [place], 0)
        popped = await cluster.pop(SOURCE, queue=queue, known_sealed=1, max_messages=1)
        assert (popped.moved, list(popped.sealed), len(popped.messages)) == (False, [], 1)
    result = await cluster.append(SOURCE, [b"c"], queue=QUEUE)
    assert (result.parts[0].outcome, result.parts[0].sealed) == (pb.OUTCOME_SEALED, place)
    offsets = await cluster.call(
        SOURCE,
        "GetOffsets",
        pb.GetOffsetsRequest(raft_group=SOURCE, topic=TOPIC, queues=[QUEUE, 2]),
        pb.GetOffsetsResponse,
    )
    assert list(offsets.sealed) == [place]


async def test_a_drained_and_trimmed_epoch_is_reported_and_the_queue_may_come_back(
    cluster: ClusterUnderTest,
) -> None:
    """Then its raft group can open it again: 1 -> 2 -> 1."""
    await send(cluster, [b"a"])
    cluster.stub.move_queue(TOPIC_ID, QUEUE, DESTINATION, SOURCE)
    await until_moved(cluster, DESTINATION)
    override = cluster.stub.overrides[TOPIC_ID, QUEUE]
    await send(cluster, [b"b"])

    async def is_trimmed() -> bool:
        await cluster.members[await cluster.until_led(SOURCE)].node.retain_once()
        return len(override.epochs) == 1

    # A message is kept for a second of group time, which may be behind on a busy machine.
    await until(is_trimmed, step_s=0.1)
    cluster.stub.move_queue(TOPIC_ID, QUEUE, SOURCE, DESTINATION)
    await until_moved(cluster, SOURCE)
    assert await send(cluster, [b"c"]) == [(SOURCE, 2)]
    fetched = await cluster.fetch(SOURCE, QUEUE, offset=2)
    assert [message.message for message in fetched.messages] == [b"c"]


async def test_a_send_to_any_queue_avoids_the_sealed_one(cluster: ClusterUnderTest) -> None:
    """The leader chooses among its other queues."""
    cluster.stub.move_queue(TOPIC_ID, QUEUE, DESTINATION, SOURCE)
    await until_moved(cluster, DESTINATION)
    for _ in range(4):
        result = await cluster.append(SOURCE, [b"any"], queue=-1)
        assert (result.parts[0].outcome, result.parts[0].queue) == (pb.OUTCOME_OK, 2)
