"""Fetch: reading a queue without leases, with filters and long polls; stored offsets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from strata.storage.v1 import storage_pb2 as pb
from strata_storage.rows.traffic import Amount
from strata_testing import until
from strata_testing.storage_node import (
    CONTEXT,
    GROUP,
    TOPIC,
    NodeUnderTest,
    lease_of,
    node_under_test,
)

CONSUMER_GROUP = 5


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[NodeUnderTest]:
    async with node_under_test(tmp_path) as running:
        yield running


async def fetch(node: NodeUnderTest, offset: int, **fields: object) -> pb.FetchResponse:
    """Fetch from queue 0."""
    request = pb.FetchRequest(
        raft_group=GROUP, topic_id=TOPIC.topic_id, queue=0, offset=offset, max_messages=10
    )
    request.MergeFrom(pb.FetchRequest(**fields))  # type: ignore[arg-type]
    response = await node.rpc.fetch(request, CONTEXT)
    assert not response.HasField("refusal"), response.refusal
    return response


async def state(node: NodeUnderTest, **fields: object) -> pb.ConsumerQueueState:
    """Return where the consumer group is on queue 0."""
    request = pb.GetConsumerStateRequest(
        raft_group=GROUP, consumer_group_id=CONSUMER_GROUP, topic=TOPIC, queues=[0]
    )
    request.MergeFrom(pb.GetConsumerStateRequest(**fields))  # type: ignore[arg-type]
    (found,) = (await node.rpc.get_consumer_state(request, CONTEXT)).queues
    return found


async def reset(node: NodeUnderTest, **target: object) -> pb.ResetConsumerResponse:
    """Move the consumer group on queue 0."""
    request = pb.ResetConsumerRequest(
        raft_group=GROUP,
        consumer_group_id=CONSUMER_GROUP,
        topic=TOPIC,
        queues=[0],
        **target,  # type: ignore[arg-type]
    )
    response = await node.rpc.reset_consumer(request, CONTEXT)
    assert not response.HasField("refusal"), response.refusal
    return response


async def test_a_fetch_says_where_the_next_one_goes_on(node: NodeUnderTest) -> None:
    """Behind what was given, also when limits cut the answer."""
    await node.append([b"a", b"b", b"c"])
    first = await fetch(node, 0, max_messages=2)
    assert ([m.message for m in first.messages], first.resume_offset) == ([b"a", b"b"], 2)
    by_bytes = await fetch(node, 0, max_bytes=1)
    assert ([m.message for m in by_bytes.messages], by_bytes.resume_offset) == ([b"a"], 1)
    last = await fetch(node, first.resume_offset)
    assert ([m.offset for m in last.messages], last.resume_offset) == ([2], 3)
    assert (await fetch(node, 3)).resume_offset == 3


async def test_tags_are_skipped_by_the_index_and_compared_on_the_message(
    node: NodeUnderTest,
) -> None:
    """Messages that the filter passes over are not given and not looked at again."""
    tags = ["red", "blue"] * 300
    await node.append([b"%d" % number for number in range(600)], tags=tags)
    wanted = pb.Filter(kind=pb.FILTER_KIND_TAG, expression="green")
    passed = await fetch(node, 0, filter=wanted)
    assert (list(passed.messages), passed.resume_offset) == ([], 600)


async def test_a_waiting_fetch_is_woken_by_a_message(node: NodeUnderTest) -> None:
    """All that wait at the queue get it, others go on waiting."""
    waiting = [asyncio.ensure_future(fetch(node, 0, wait_ms=600_000)) for _ in range(3)]
    elsewhere = asyncio.ensure_future(fetch(node, 0, queue=1, wait_ms=600_000))
    leader = node.app.node.engine(GROUP).leader
    assert leader is not None
    async with asyncio.timeout(60):
        await until(lambda: len(leader.arrivals) >= 4)
        await node.append([b"new"])
        for response in await asyncio.gather(*waiting):
            assert [message.message for message in response.messages] == [b"new"]
    assert not elsewhere.done()
    elsewhere.cancel()


async def test_a_fetch_that_waits_in_vain_is_answered_empty(node: NodeUnderTest) -> None:
    """At the end of its wait, with the offset it asked for."""
    response = await fetch(node, 0, wait_ms=20)
    assert (list(response.messages), response.resume_offset) == ([], 0)


async def test_a_stored_offset_is_found_again_after_a_restart(tmp_path: Path) -> None:
    """ResetConsumer with an offset is what a pull consumer stores; it says so before and after."""
    async with node_under_test(tmp_path) as node:
        await node.append([b"a", b"b", b"c"])
        assert not (await state(node)).started
        await reset(node, offset=2)
        assert ((await state(node)).started, (await state(node)).cursor) == (True, 2)
        index = node.app.node.engine(GROUP).machine.applied_index()
        await reset(node, offset=2)
        assert node.app.node.engine(GROUP).machine.applied_index() == index, "nothing to write"
    async with node_under_test(tmp_path) as node:
        again = await state(node)
        assert (again.started, again.cursor, again.head) == (True, 2, 2)


async def test_a_forgotten_consumer_group_is_as_one_that_never_came(node: NodeUnderTest) -> None:
    """Position, leases and the topic's mention go; it begins anew."""
    await node.append([b"a", b"b"])
    popped = await node.pop(queue=0)
    assert len(popped.messages) == 2
    await reset(node, forget=True)
    forgotten = await state(node)
    assert (forgotten.started, forgotten.in_flight, forgotten.head) == (False, 0, 0)
    topics = pb.GetConsumerTopicsRequest(raft_group=GROUP, consumer_group_id=CONSUMER_GROUP)
    assert list((await node.rpc.get_consumer_topics(topics, CONTEXT)).topic_ids) == []
    assert len((await node.pop(queue=0)).messages) == 2


async def test_state_tells_open_offsets_and_times(node: NodeUnderTest) -> None:
    """Offsets below head that are not consumed, and store times around the cursor."""
    await node.append([b"a", b"b"])
    node.clock.advance(5)
    await node.append([b"c"])
    popped = await node.pop(queue=0)
    await node.ack(lease_of(popped.messages[0]))
    found = await state(node, max_open_offsets=10, times=True)
    assert list(found.open_offsets) == [1, 2]
    assert found.min_time_ms == found.consumed_time_ms == found.cursor_time_ms
    assert found.last_store_time_ms >= found.cursor_time_ms + 4_000
    assert list((await state(node)).open_offsets) == []


async def test_a_key_of_many_large_messages_is_answered_in_bounds(node: NodeUnderTest) -> None:
    """The first always; then as many as 16 MiB hold."""
    for number in range(6):
        await node.append([bytes([number]) * 4_000_000], keys=["big"])
    request = pb.QueryRequest(
        raft_group=GROUP, topic_id=TOPIC.topic_id, key="big", max_messages=100
    )
    found = (await node.rpc.query(request, CONTEXT)).messages
    assert len(found) == 4


@pytest.mark.parametrize("places_only", [False, True])
async def test_what_is_fetched_counts_as_read(node: NodeUnderTest, places_only: bool) -> None:
    """Read replicas are placed by it; a fetch that finds nothing counts as nothing."""
    await node.append([b"one", b"second"])
    machine = node.app.node.engine(GROUP).machine
    machine.traffic.take()
    await fetch(node, 0, places_only=places_only)
    await fetch(node, 1, places_only=places_only)
    await fetch(node, 2, places_only=places_only)
    _, delivered = machine.traffic.take()
    assert delivered == {(0, TOPIC.topic_id, 0): Amount(3, len(b"one") + 2 * len(b"second"))}
