"""Slots go to another raft group: never owned twice, queues with state stay (rule 17)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import google_crc32c
import pytest

from strata.meta.v1 import meta_pb2 as meta
from strata.storage.v1 import storage_pb2 as pb
from strata_mq.layout.batch import BatchBuilder, OutgoingMessage, PartKey, PartKind
from strata_runtime.clock import SystemClock
from strata_storage.cluster.slot_moves import SlotMoveOptions
from strata_storage.process.member_setup import (
    MemberOptions,
)
from strata_testing import until
from strata_testing.storage_node import message_id
from tests.integration.storage.storage_cluster import ClusterUnderTest, cluster_of

TOPIC_ID = 7
# Queue q is in slot q; of two raft groups the first one owns the even slots.
SOURCE, DESTINATION = 1, 2
SLOTS = [0, 2]
DAY_MS = 86_400_000


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterUnderTest]:
    async for made in cluster_of(tmp_path, 3, groups=2):
        topic = meta.Topic(topic_id=TOPIC_ID, name="t", queue_count=4, retention_ms=DAY_MS)
        made.stub.write(meta.Change(topic=topic))
        yield made


def owner_of(cluster: ClusterUnderTest, queue: int) -> int:
    """Return the raft group of a queue's appends, as a broker knows it."""
    override = cluster.stub.overrides.get((TOPIC_ID, queue))
    return override.epochs[-1].raft_group if override else cluster.stub.slot_owners[queue]


async def send(cluster: ClusterUnderTest, queue: int, body: bytes) -> tuple[int, int]:
    """Append as a broker does: where the metadata says, again until it is taken."""
    async with asyncio.timeout(60):
        while True:
            raft_group = owner_of(cluster, queue)
            result = await cluster.append(raft_group, [body], queue=queue)
            if result.parts and result.parts[0].outcome == pb.OUTCOME_OK:
                return raft_group, result.parts[0].base_offset
            assert result.parts[0].outcome == pb.OUTCOME_WRONG_GROUP
            await asyncio.sleep(0.01)


async def wait_at(
    cluster: ClusterUnderTest, key: PartKey, body: bytes, due_ms: int
) -> pb.PendingRef:
    """Append a message that waits at the source; return its name."""
    builder = BatchBuilder(google_crc32c.value)
    checksum = google_crc32c.value(body)
    builder.add(key, [OutgoingMessage(body, checksum, 0, 0, message_id(body), 3, 1, (), due_ms)])
    request = pb.AppendRequest(
        batches=[pb.GroupBatch(raft_group=SOURCE, batch=builder.build(), may_repeat=True)]
    )
    response = await cluster.call(SOURCE, "Append", request, pb.AppendResponse)
    (part,) = response.results[0].parts
    assert part.outcome == pb.OUTCOME_OK
    return part.first_pending


async def outcome_at(cluster: ClusterUnderTest, raft_group: int, queue: int) -> int:
    result = await cluster.append(raft_group, [b"?"], queue=queue)
    return result.parts[0].outcome


def owners(cluster: ClusterUnderTest, slot: int) -> list[int]:
    """Return the raft groups whose leaders own a slot."""
    leading = {group: cluster.leader_of(group) for group in (SOURCE, DESTINATION)}
    return [
        group
        for group, node_id in leading.items()
        if node_id and slot in cluster.members[node_id].node.engine(group).machine.ownership.slots
    ]


async def until_moved(cluster: ClusterUnderTest) -> None:
    await until(lambda: not cluster.stub.slot_moves)
    await until(lambda: all(owners(cluster, slot) == [DESTINATION] for slot in SLOTS))


async def check_rows_equal(cluster: ClusterUnderTest) -> None:
    for raft_group in (SOURCE, DESTINATION):
        await cluster.check_rows_equal(raft_group)


async def test_queues_with_state_stay_and_the_others_go(cluster: ClusterUnderTest) -> None:
    """A queue with messages or a consumer's position is served where it was, by "any queue" too."""
    await send(cluster, 0, b"a")
    cluster.stub.move_slots(SLOTS, SOURCE, DESTINATION)
    await until_moved(cluster)
    assert list(cluster.stub.overrides) == [(TOPIC_ID, 0)]
    assert await outcome_at(cluster, DESTINATION, 0) == pb.OUTCOME_WRONG_GROUP
    assert await outcome_at(cluster, SOURCE, 2) == pb.OUTCOME_WRONG_GROUP
    assert await send(cluster, 0, b"b") == (SOURCE, 1)
    assert await send(cluster, 2, b"c") == (DESTINATION, 0)
    found = await cluster.pop(SOURCE, max_messages=10)
    assert [(each.queue, each.offset) for each in found.messages] == [(0, 0), (0, 1)]
    found = await cluster.pop(DESTINATION, max_messages=10)
    assert [(each.queue, each.offset) for each in found.messages] == [(2, 0)]
    refused = await cluster.pop(DESTINATION, queue=0)
    assert refused.refusal.outcome == pb.OUTCOME_WRONG_GROUP
    await check_rows_equal(cluster)


async def test_a_consumers_position_is_state(cluster: ClusterUnderTest) -> None:
    """A queue without a message that somebody has looked at stays: its head must not be lost."""
    request = pb.ResetConsumerRequest(
        raft_group=SOURCE,
        consumer_group_id=5,
        topic=pb.TopicRef(topic_id=TOPIC_ID, queue_count=4),
        latest=True,
        queues=[2],
    )
    await cluster.call(SOURCE, "ResetConsumer", request, pb.ResetConsumerResponse)
    cluster.stub.move_slots(SLOTS, SOURCE, DESTINATION)
    await until_moved(cluster)
    assert list(cluster.stub.overrides) == [(TOPIC_ID, 2)]
    assert await send(cluster, 2, b"a") == (SOURCE, 0)


async def test_what_waits_is_delivered_where_the_slots_went(cluster: ClusterUnderTest) -> None:
    """No queue of the topic is left where a delayed and a half message wait: both are brought."""
    due_ms = SystemClock().wall_ms() + 1_500
    key = PartKey(TOPIC_ID, -1, 0, 4)
    await wait_at(cluster, key._replace(kind=PartKind.DELAYED), b"later", due_ms)
    half = await wait_at(cluster, key._replace(kind=PartKind.HALF), b"half", due_ms + DAY_MS)
    cluster.stub.move_slots(SLOTS, SOURCE, DESTINATION)
    await until_moved(cluster)
    assert cluster.stub.overrides == {}
    commit = pb.EndTransactionRequest(
        raft_group=SOURCE, pending=half, topic_id=TOPIC_ID, end=pb.TRANSACTION_END_COMMIT
    )
    answer = await cluster.call(SOURCE, "EndTransaction", commit, pb.EndTransactionResponse)
    assert not answer.refusal.outcome
    found: list[bytes] = []
    async with asyncio.timeout(60):
        while len(found) < 2:
            popped = await cluster.pop(DESTINATION, max_messages=10, wait_ms=100)
            found += [each.message for each in popped.messages]
    assert sorted(found) == [b"half", b"later"]
    await check_rows_equal(cluster)


async def test_slots_move_back_and_forth_under_load(cluster: ClusterUnderTest) -> None:
    """Every answered message is at one place, in the order of the answers, whatever moves when."""
    expected: dict[int, list[bytes]] = {queue: [] for queue in range(4)}
    done = asyncio.Event()

    async def write(queue: int, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        while not done.is_set():
            body = b"%d %d" % (queue, len(expected[queue]))
            _, offset = await send(cluster, queue, body)
            assert offset == len(expected[queue])
            expected[queue].append(body)

    async with asyncio.TaskGroup() as group:
        for queue in range(4):
            # Some begin in the middle of a move, without state.
            group.create_task(write(queue, queue * 0.1))
        for source, destination in ((1, 2), (2, 1), (1, 2)):
            cluster.stub.move_slots([0, 1, 2, 3], source, destination)
            await until(lambda: not cluster.stub.slot_moves)
        await until(lambda: min(map(len, expected.values())) > 3)
        done.set()
    for queue, bodies in expected.items():
        fetched = await cluster.fetch(owner_of(cluster, queue), queue)
        assert [message.message for message in fetched.messages] == bodies
        assert [message.offset for message in fetched.messages] == list(range(len(bodies)))
    await check_rows_equal(cluster)


async def test_a_topic_that_is_not_known_keeps_slots_back(cluster: ClusterUnderTest) -> None:
    """Rows of a deleted topic: whose slots they are in nobody can tell until they are dropped."""
    await cluster.append(SOURCE, [b"a"], queue=0, topic_id=99)
    cluster.stub.move_slots(SLOTS, SOURCE, DESTINATION)
    await asyncio.sleep(0.5)
    assert owners(cluster, 0) == [SOURCE]
    request = pb.DropRequest(raft_group=SOURCE, topic_id=99)
    await cluster.call(SOURCE, "Drop", request, pb.DropResponse)
    await until_moved(cluster)
    assert cluster.stub.overrides == {}


async def test_slots_are_not_revoked_while_no_nameserver_takes_it(
    cluster: ClusterUnderTest,
) -> None:
    """Nobody would own them: the raft group asks before it gives them up."""
    began = cluster.stub.cache.revision
    cluster.stub.move_slots(SLOTS, SOURCE, DESTINATION)
    # The move is known to the node, and not to the nameserver that it reports to.
    cluster.stub.slot_moves.clear()
    await asyncio.sleep(0.5)
    assert cluster.stub.cache.revision > began
    assert owners(cluster, 0) == [SOURCE]


@pytest.mark.parametrize("silent", ["revoked", "granted"])
@pytest.mark.parametrize("victim", [SOURCE, DESTINATION])
async def test_a_move_goes_on_when_leaders_fail(
    cluster: ClusterUnderTest, silent: str, victim: int
) -> None:
    """Between the entry and its report: the next leader finds in the rows what is left to do."""
    await send(cluster, 0, b"a")
    cluster.stub.refused_reports = {silent}
    cluster.stub.move_slots(SLOTS, SOURCE, DESTINATION)
    owner = [] if silent == "revoked" else [DESTINATION]
    await until(lambda: owners(cluster, 2) == owner)
    leader = await cluster.until_led(victim)
    await cluster.members[leader].lose_power()
    for raft_group in (SOURCE, DESTINATION):
        await cluster.until_led(raft_group)
    assert owners(cluster, 2) == owner
    await cluster.start(leader)
    cluster.stub.refused_reports.clear()
    await until_moved(cluster)
    assert await send(cluster, 0, b"b") == (SOURCE, 1)
    assert await send(cluster, 2, b"c") == (DESTINATION, 0)
    assert list(cluster.stub.overrides) == [(TOPIC_ID, 0)]
    await check_rows_equal(cluster)


async def test_few_queues_go_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A move with many queues that stay is done in several entries and reports."""
    defaults = MemberOptions(slot_moves=SlotMoveOptions(max_kept_queues=3))
    monkeypatch.setattr("strata_storage.process.member_setup.MemberOptions", lambda: defaults)
    async for cluster in cluster_of(tmp_path, 1, groups=2):
        names = range(10, 15)
        topics = [meta.Topic(topic_id=n, name=f"t{n}", queue_count=4) for n in names]
        cluster.stub.write(*(meta.Change(topic=topic) for topic in topics))
        for topic_id in names:
            for queue in SLOTS:
                await cluster.append(SOURCE, [b"a"], queue=queue, topic_id=topic_id)
        revision = cluster.stub.cache.revision
        cluster.stub.move_slots([0, 2, 4], SOURCE, DESTINATION)
        await until_moved(cluster)
        assert len(cluster.stub.overrides) == 10
        # The wish, slot 0, slot 2 with slot 4, and at least one report of the new owner.
        assert cluster.stub.cache.revision >= revision + 4
