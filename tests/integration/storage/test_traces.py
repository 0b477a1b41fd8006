"""Trace: what became of a message, kept beside its index by every replica."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.layout.hashing import text_hash, unpack_message_id
from strata_testing.storage_node import (
    CONTEXT,
    DEAD_LETTER_TOPIC_ID,
    GROUP,
    TOPIC,
    NodeUnderTest,
    lease_of,
    message_id,
    node_under_test,
)

CLIENT = "host-1@17@0@abc"
HOLDER = text_hash(CLIENT)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[NodeUnderTest]:
    async with node_under_test(tmp_path) as running:
        yield running


async def tick(node: NodeUnderTest, seconds: float) -> None:
    """Let time pass and the leader's timer run."""
    node.clock.advance(seconds)
    engine = node.app.node.engine(GROUP)
    assert engine.leader is not None
    await node.app.node.expire_once(engine, engine.leader)
    await engine.leader.proposer.settled()
    await engine.barrier()


async def trace(node: NodeUnderTest, offset: int, **fields: object) -> pb.MessageTrace:
    """Return the one trace of the message at an offset of queue 0."""
    request = pb.TraceRequest(
        raft_group=GROUP,
        topic_id=TOPIC.topic_id,
        position=pb.QueueOffset(queue=0, offset=offset),
        **fields,  # type: ignore[arg-type]
    )
    response = await node.rpc.trace(request, CONTEXT)
    assert not response.HasField("refusal"), response.refusal
    (found,) = response.messages
    return found


def kinds(found: pb.MessageTrace) -> list[str]:
    prefix = "TRACE_EVENT_KIND_"
    return [
        pb.TraceEventKind.Name(event.kind).removeprefix(prefix).lower() for event in found.events
    ]


async def test_a_delivery_and_its_ack(node: NodeUnderTest) -> None:
    """The trace tells who got the message and when, and the ack; the other message has neither."""
    await node.append([b"a", b"b"])
    popped = await node.pop(queue=0, max_messages=1, holder=HOLDER, client_id=CLIENT)
    await tick(node, 1)
    await node.ack(lease_of(popped.messages[0]))
    found = await trace(node, 0)
    assert kinds(found) == ["delivered", "acked"]
    delivered, acked = found.events
    assert (delivered.client_id, delivered.attempt_count) == (CLIENT, 1)
    assert delivered.consumer_group_id == acked.consumer_group_id == 5
    assert delivered.time_ms < acked.time_ms
    assert found.raft_index > 0
    assert kinds(await trace(node, 1)) == []


async def test_the_whole_life_of_a_message_that_nobody_can_consume(node: NodeUnderTest) -> None:
    """Postponed, run out, delivered again, given up: in order, in each consumer group."""
    await node.append([b"a"])
    popped = await node.pop(queue=0, holder=HOLDER, client_id=CLIENT, max_attempts=2)
    other = await node.pop(queue=0, holder=HOLDER, client_id=CLIENT, consumer_group_id=6)
    await node.ack(lease_of(other.messages[0], 6))
    change = pb.ChangeInvisibleRequest(
        raft_group=GROUP, lease=lease_of(popped.messages[0]), invisible_ms=1_000
    )
    await node.rpc.change_invisible(change, CONTEXT)
    await tick(node, 2)
    again = await node.pop(queue=0, holder=HOLDER, client_id=CLIENT, max_attempts=2)
    forward = pb.ForwardToDeadLetterRequest(
        raft_group=GROUP,
        lease=lease_of(again.messages[0]),
        dead_letter_topic_id=DEAD_LETTER_TOPIC_ID,
    )
    await node.rpc.forward_to_dead_letter(forward, CONTEXT)
    found = await trace(node, 0)
    by_group = {
        number: [
            kind
            for kind, event in zip(kinds(found), found.events, strict=True)
            if event.consumer_group_id == number
        ]
        for number in (5, 6)
    }
    assert by_group[6] == ["delivered", "acked"]
    assert by_group[5] == ["delivered", "postponed", "released", "delivered", "dead_lettered"]
    attempts = [event.attempt_count for event in found.events if event.kind == 1]
    assert attempts == [1, 1, 2]


async def test_a_trace_is_found_by_message_id(node: NodeUnderTest) -> None:
    """By the id that the client gave."""
    packed = message_id(b"traced")
    await node.append([b"a"], ids=[packed])
    text = unpack_message_id(packed)
    assert text is not None
    request = pb.TraceRequest(raft_group=GROUP, topic_id=TOPIC.topic_id, message_id=text)
    (found,) = (await node.rpc.trace(request, CONTEXT)).messages
    assert (found.stored.queue, found.stored.offset, found.stored.message) == (0, 0, b"a")


async def test_events_beyond_the_limit_are_counted_out(node: NodeUnderTest) -> None:
    """The oldest are given, and the answer says that there are more."""
    await node.append([b"a"])
    for _ in range(3):
        await node.pop(queue=0, holder=HOLDER, invisible_ms=1_000, max_attempts=9)
        await tick(node, 2)
    found = await trace(node, 0, max_events=2)
    assert (kinds(found), found.truncated) == (["delivered", "released"], True)


async def test_traces_survive_a_restart_and_lost_rows(tmp_path: Path) -> None:
    """Rows are replayed, and rebuilt from the log when their folder is gone."""
    async with node_under_test(tmp_path) as node:
        await node.append([b"a"])
        popped = await node.pop(queue=0, holder=HOLDER, client_id=CLIENT)
        await tick(node, 1)
        await node.ack(lease_of(popped.messages[0]))
        before = await trace(node, 0)
    async with node_under_test(tmp_path) as node:
        assert await trace(node, 0) == before
    shutil.rmtree(tmp_path / "state")
    async with node_under_test(tmp_path) as node:
        assert await trace(node, 0) == before


async def test_traces_go_with_the_day_of_the_oldest_message(node: NodeUnderTest) -> None:
    """A trim that keeps nothing of a day drops the traces and names of that day."""
    await node.append([b"a"])
    await node.pop(queue=0, holder=HOLDER, client_id=CLIENT)
    await tick(node, 1)
    rows = node.app.node.engine(GROUP).machine.rows
    assert rows.traces.first_day() is not None
    assert rows.client_names.first_day() is not None
    await tick(node, 5 * 86_400)
    await node.append([b"b"])
    await node.app.node.retain_once()
    await node.app.node.engine(GROUP).barrier()
    today = node.app.node.engine(GROUP).machine.state.group_time_ms // 86_400_000
    for kind in (rows.traces, rows.client_names):
        assert kind.first_day() in (None, today)


async def test_a_client_is_named_once_a_day(node: NodeUnderTest) -> None:
    """Pops of a known client write nothing more."""
    engine = node.app.node.engine(GROUP)
    await node.append([b"a"] * 3)
    for _ in range(3):
        await node.pop(queue=0, max_messages=1, holder=HOLDER, client_id=CLIENT)
        await tick(node, 0.1)
    day = engine.machine.state.group_time_ms // 86_400_000
    assert engine.machine.rows.client_names.get(day, HOLDER) == CLIENT
    index = engine.machine.applied_index()
    await tick(node, 0.1)
    assert engine.machine.applied_index() == index
