"""A node tells brokers where a pop may find messages, once for each interest (rule 35)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from strata.storage.v1 import storage_pb2 as pb
from strata_testing import ManualClock
from strata_testing.storage_node import (
    CONTEXT,
    DEAD_LETTER_TOPIC_ID,
    GROUP,
    TOPIC,
    NodeUnderTest,
    lease_of,
    node_under_test,
    pop_request,
    small_config,
)

BROKER = 0xB0B
STREAM = 7
PLACE = (GROUP, TOPIC.topic_id, 5, -1)


class Told:
    """Events that a broker is told on its stream."""

    def __init__(self, node: NodeUnderTest, stream: int = STREAM, boot_id: int = BROKER) -> None:
        request = pb.WatchRequest(broker_boot_id=boot_id, stream=stream)
        self._responses = node.rpc.watch(request, CONTEXT)

    async def open(self) -> None:
        """Take in the first answer."""
        assert list((await anext(self._responses)).led_groups) == [GROUP]

    async def next(self) -> list[tuple[int, int, int, int]]:
        """Return the places of the next answer that names some."""
        while True:
            response = await asyncio.wait_for(anext(self._responses), 10)
            if response.deliverable:
                return [
                    (one.raft_group, one.topic_id, one.consumer_group_id, one.queue)
                    for one in response.deliverable
                ]

    async def close(self) -> None:
        """End the stream."""
        await self._responses.aclose()  # type: ignore[attr-defined]


@asynccontextmanager
async def told_by(node: NodeUnderTest) -> AsyncIterator[Told]:
    told = Told(node)
    await told.open()
    try:
        yield told
    finally:
        await told.close()


async def look(node: NodeUnderTest, **fields: object) -> pb.PopResponse:
    """Pop without waiting, and want to be told."""
    request = pop_request(**{"broker_boot_id": BROKER, "tell_stream": STREAM, **fields})
    response = await node.rpc.pop(request, CONTEXT)
    assert not response.HasField("refusal"), response
    return response


def bodies(response: pb.PopResponse) -> list[bytes]:
    return [one.message for one in response.messages]


async def test_an_append_is_told_once(tmp_path: Path) -> None:
    """And again only after another look; the message is there when the broker is told."""
    async with node_under_test(tmp_path) as node, told_by(node) as told:
        for body in (b"a", b"b"):
            assert (await look(node)).told_later
            await node.append([body])
            await node.append([body + b"2"])
            assert await told.next() == [PLACE]
            assert bodies(await look(node)) == [body, body + b"2"]


async def test_a_pop_that_leaves_something_behind_arms_nothing(tmp_path: Path) -> None:
    """Another look finds the rest; what takes the last message, full or not, is told of more."""
    async with node_under_test(tmp_path) as node, told_by(node):
        for queue in (0, 1):
            await node.append([b"a", b"b", b"c"], queue=queue)
        taken = [await look(node, max_messages=2) for _ in range(3)]
        assert [(len(one.messages), one.told_later) for one in taken] == [
            (2, False),
            (2, False),
            (2, True),
        ]
        await node.append([b"d", b"e", b"f"])
        assert len((await look(node, max_messages=2)).messages) == 2
        rest = await look(node, max_messages=2)
        assert (bodies(rest), rest.told_later) == ([b"f"], True)


async def test_what_comes_while_a_pop_commits_is_told(tmp_path: Path) -> None:
    """The interest is armed in the turn of the look, not when its leases are committed."""
    async with node_under_test(tmp_path) as node, told_by(node) as told:
        for number in range(20):
            await node.append([b"a%d" % number])
            pop = asyncio.ensure_future(look(node))
            for _ in range(number):
                await asyncio.sleep(0)
            await node.append([b"b%d" % number])
            got = await pop
            wanted = [b"a%d" % number, b"b%d" % number]
            if bodies(got) != wanted:
                assert got.told_later
                assert await told.next() == [PLACE]
                assert bodies(got) + bodies(await look(node)) == wanted


async def test_an_expiry_is_told(tmp_path: Path) -> None:
    """A lease whose time is up is there again for whoever is told."""
    clock = ManualClock()
    async with node_under_test(tmp_path, clock=clock) as node, told_by(node) as told:
        await node.append([b"a"])
        assert (await look(node, invisible_ms=10_000)).told_later
        clock.advance(10.5)
        assert await told.next() == [PLACE]
        (again,) = (await look(node)).messages
        assert (again.message, again.attempt_count) == (b"a", 2)


async def test_a_release_is_told(tmp_path: Path) -> None:
    """A message that was given back may go to another broker's client."""
    async with node_under_test(tmp_path) as node, told_by(node) as told:
        await node.append([b"a"])
        (leased,) = (await look(node)).messages
        release = pb.ReleaseRequest(raft_group=GROUP, undelivered=[lease_of(leased)])
        assert (await node.rpc.release(release, CONTEXT)).released == 1
        assert await told.next() == [PLACE]
        (again,) = (await look(node)).messages
        assert (again.message, again.attempt_count) == (b"a", 1)


async def test_an_ack_that_frees_a_message_group_is_told(tmp_path: Path) -> None:
    """In a FIFO group the next message of a message group waits for the ack of the one before."""
    async with node_under_test(tmp_path) as node, told_by(node) as told:
        await node.append([b"a", b"b"], message_groups=["g", "g"])
        (first,) = (await look(node, fifo=True, max_messages=1)).messages
        blocked = await look(node, fifo=True)
        assert (bodies(blocked), blocked.told_later) == ([], True)
        ack = pb.AckRequest(groups=[pb.GroupLeases(raft_group=GROUP, leases=[lease_of(first)])])
        await node.rpc.ack(ack, CONTEXT)
        assert await told.next() == [PLACE]
        assert bodies(await look(node, fifo=True)) == [b"b"]


async def test_a_dead_letter_is_told_where_it_arrives(tmp_path: Path) -> None:
    """Consumers of the dead-letter topic wait as others do."""
    topic = pb.TopicRef(topic_id=DEAD_LETTER_TOPIC_ID, queue_count=GROUP + 1, dead_letter=True)
    async with node_under_test(tmp_path) as node, told_by(node) as told:
        await node.append([b"a"])
        (leased,) = (await look(node)).messages
        waits = {"topic": topic, "consumer_group_id": 6, "queue": GROUP}
        assert (await look(node, **waits)).told_later
        forward = pb.ForwardToDeadLetterRequest(
            raft_group=GROUP, lease=lease_of(leased), dead_letter_topic_id=DEAD_LETTER_TOPIC_ID
        )
        await node.rpc.forward_to_dead_letter(forward, CONTEXT)
        told_of = await told.next()
        if (GROUP, DEAD_LETTER_TOPIC_ID, 6, GROUP) not in told_of:
            told_of = await told.next()
        assert (GROUP, DEAD_LETTER_TOPIC_ID, 6, GROUP) in told_of
        assert bodies(await look(node, **waits)) == [b"a"]


async def test_every_consumer_group_and_broker_is_told(tmp_path: Path) -> None:
    """One event, each interest once; a place that nobody asked for is not named."""
    async with node_under_test(tmp_path) as node, told_by(node) as told:
        other = Told(node, stream=1, boot_id=99)
        await other.open()
        assert (await look(node)).told_later
        assert (await look(node, consumer_group_id=6)).told_later
        assert (await look(node, queue=3)).told_later
        assert (await look(node, broker_boot_id=99, tell_stream=1)).told_later
        await node.append([b"a"])
        places = await told.next()
        assert sorted(places) == [PLACE, (GROUP, TOPIC.topic_id, 6, -1)]
        assert await other.next() == [PLACE]
        await other.close()


@pytest.mark.parametrize("stream", [0, STREAM + 1])
async def test_a_pop_that_names_no_open_stream_is_told_nothing(tmp_path: Path, stream: int) -> None:
    """Its broker asks again by itself."""
    async with node_under_test(tmp_path) as node, told_by(node):
        assert not (await look(node, tell_stream=stream)).told_later


async def test_the_end_of_a_stream_ends_its_interests(tmp_path: Path) -> None:
    """Nothing is kept for a broker that has gone, and the room is free for others."""
    config = small_config(max_interests=2)
    async with node_under_test(tmp_path, config=config) as node:
        watchers = node.app.node.brokers.watchers
        async with told_by(node):
            assert (await look(node)).told_later
            assert (await look(node)).told_later, "the same place again takes no room"
            assert (await look(node, consumer_group_id=6)).told_later
            assert watchers.interests_used == 2
            assert not (await look(node, consumer_group_id=7)).told_later
        assert watchers.interests_used == 0
        (engine,) = node.app.node.engines()
        assert len(engine.leading().waiters.interests) == 0
        assert not (await look(node)).told_later
        async with told_by(node):
            assert (await look(node)).told_later


async def test_a_slow_reader_holds_each_place_once(tmp_path: Path) -> None:
    """Unread places take room in the limit, and no more with every event."""
    async with node_under_test(tmp_path) as node, told_by(node) as told:
        for number in range(10):
            assert (await look(node)).told_later
            await node.append([b"%d" % number])
            await look(node)
        assert node.app.node.brokers.watchers.interests_used <= 2
        assert await told.next() == [PLACE]


async def test_the_end_of_a_leadership_is_told(tmp_path: Path) -> None:
    """The broker looks for the new leader; this node takes no interest from then on."""
    async with node_under_test(tmp_path) as node, told_by(node) as told:
        assert (await look(node)).told_later
        (engine,) = node.app.node.engines()
        waiters = engine.leading().waiters
        with suppress(Exception):
            waiters.refuse_all(RuntimeError("leadership lost"))  # type: ignore[arg-type]
        assert await told.next() == [PLACE]
        stream = node.app.node.brokers.watchers.stream(BROKER, STREAM)
        assert stream is not None
        assert not waiters.interests.arm(stream, TOPIC.topic_id, 5, -1)


async def test_a_sealed_queue_is_told(tmp_path: Path) -> None:
    """The queue goes on elsewhere: the broker learns where when it looks again."""
    async with node_under_test(tmp_path) as node, told_by(node) as told:
        assert (await look(node)).told_later
        seal = pb.SealRequest(raft_group=GROUP, topic_id=7, queue=0, destination_raft_group=2)
        await node.rpc.seal(seal, CONTEXT)
        assert await told.next() == [PLACE]
        moved = await look(node)
        assert (moved.moved, moved.told_later) == (True, False)
        assert [one.queue for one in moved.sealed] == [0]


async def state(node: NodeUnderTest, **fields: Any) -> pb.GetConsumerStateResponse:
    """Ask for the state of a group, and want to be told."""
    asked = {"broker_boot_id": BROKER, "tell_stream": STREAM, "tell_queue": -1, **fields}
    request = pb.GetConsumerStateRequest(
        raft_group=GROUP, consumer_group_id=5, topic=TOPIC, **asked
    )
    response = await node.rpc.get_consumer_state(request, CONTEXT)
    assert response.refusal.outcome in (pb.OUTCOME_UNSPECIFIED, pb.OUTCOME_OK)
    return response


async def test_who_asks_for_a_state_is_told_as_who_pops(tmp_path: Path) -> None:
    """A message is new, or comes back; nothing is armed while there is one already."""
    async with node_under_test(tmp_path) as node, told_by(node) as told:
        assert (await state(node)).told_later
        assert (await state(node, queues=[1], tell_queue=1)).told_later
        await node.append([b"new"], queue=1)
        assert sorted(await told.next()) == sorted([PLACE, (*PLACE[:3], 1)])
        assert not (await state(node)).told_later, "a message is there"
        (leased,) = (await look(node)).messages
        assert (await state(node)).told_later
        release = pb.ReleaseRequest(raft_group=GROUP, undelivered=[lease_of(leased)])
        await node.rpc.release(release, CONTEXT)
        assert await told.next() == [PLACE]
        assert not (await state(node)).told_later, "it waits to be delivered again"


@pytest.mark.parametrize("stream", [0, 99])
async def test_a_state_for_no_open_stream_tells_nothing(tmp_path: Path, stream: int) -> None:
    """Most callers want to know the state once."""
    async with node_under_test(tmp_path) as node, told_by(node):
        assert not (await state(node, tell_stream=stream)).told_later
        assert node.app.node.brokers.watchers.interests_used == 0
