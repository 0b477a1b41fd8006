"""Messages that the leader only names are read at every replica, equal to the byte."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from strata.storage.v1 import storage_pb2 as pb
from tests.integration.storage.storage_cluster import ClusterUnderTest, cluster_of

GROUP, TOPIC = 1, 7
_READ = "/strata.storage.v1.StorageService/ReadMessages"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterUnderTest]:
    async for made in cluster_of(tmp_path, 3):
        yield made


async def read(
    cluster: ClusterUnderTest, node_id: str, places: list[tuple[int, int]], index: int
) -> pb.ReadMessagesResponse:
    """Ask one node for messages at (queue, offset)."""
    request = pb.ReadMessagesRequest(
        raft_group=GROUP,
        topic_id=TOPIC,
        queues=[queue for queue, _ in places],
        offsets=[offset for _, offset in places],
        applied_index=index,
    )
    return await cluster._channel(node_id).call(
        _READ, request, pb.ReadMessagesResponse, timeout_s=5.0
    )


async def test_leases_without_bytes_are_read_at_any_replica(cluster: ClusterUnderTest) -> None:
    """A pop of places tells how long the messages are; each node gives the same bytes at once."""
    rng = random.Random(11)
    bodies = [rng.randbytes(rng.randint(1, 3_000)) for _ in range(40)]
    for body in bodies:
        await cluster.append(GROUP, [body], queue=rng.randrange(4))
    popped = await cluster.pop(GROUP, max_messages=100, invisible_ms=60_000, places_only=True)
    assert popped.applied_index > 0
    assert not any(message.message for message in popped.messages)
    lengths = [message.message_length for message in popped.messages]
    assert sorted(lengths) == sorted(map(len, bodies))
    places = [(message.queue, message.offset) for message in popped.messages]
    answers = [await read(cluster, node, places, popped.applied_index) for node in cluster.members]
    for answer in answers:
        assert sorted(answer.messages) == sorted(bodies)
        assert list(map(len, answer.messages)) == lengths
        assert answer.messages == answers[0].messages
    assert set(await cluster.ack(GROUP, list(popped.messages))) == {pb.OUTCOME_OK}


async def test_a_fetch_of_places_names_what_a_fetch_gives(cluster: ClusterUnderTest) -> None:
    """With the same offsets to go on from."""
    bodies = [b"%d" % number * 50 for number in range(20)]
    await cluster.append(GROUP, bodies, queue=2)
    whole = await cluster.fetch(GROUP, 2, offset=5)
    request = pb.FetchRequest(
        raft_group=GROUP, topic_id=TOPIC, queue=2, offset=5, max_messages=1_000, places_only=True
    )
    named = await cluster.call(GROUP, "Fetch", request, pb.FetchResponse)
    assert (named.min_offset, named.next_offset, named.resume_offset) == (
        whole.min_offset,
        whole.next_offset,
        whole.resume_offset,
    )
    places = [(message.queue, message.offset) for message in named.messages]
    assert places == [(2, offset) for offset in range(5, 20)]
    for node in cluster.members:
        answer = await read(cluster, node, places, named.applied_index)
        assert (
            list(answer.messages) == [message.message for message in whole.messages] == bodies[5:]
        )


async def test_a_replica_gives_nothing_that_is_not_there(cluster: ClusterUnderTest) -> None:
    """An offset behind the end is empty beside others; columns of different length are refused."""
    await cluster.append(GROUP, [b"one"], queue=1)
    await cluster.until_quiet(GROUP)
    for node in cluster.members:
        answer = await read(cluster, node, [(1, 0), (1, 1), (3, 0)], 0)
        assert list(answer.messages) == [b"one", b"", b""]
    node = await cluster.until_led(GROUP)
    request = pb.ReadMessagesRequest(raft_group=GROUP, topic_id=TOPIC, queues=[1], offsets=[0, 1])
    refused = await cluster._channel(node).call(_READ, request, pb.ReadMessagesResponse)
    assert refused.refusal.outcome == pb.OUTCOME_INVALID
