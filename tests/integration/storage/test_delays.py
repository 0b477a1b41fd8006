"""Delayed messages: never early, in the order of their times, over restarts (rules 4, 27)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from strata.storage.v1 import storage_pb2 as pb
from strata_mq.layout.batch import PartKind
from strata_testing import until
from strata_testing.storage_node import (
    CONTEXT,
    GROUP,
    TOPIC,
    NodeUnderTest,
    lease_of,
    node_under_test,
    small_config,
)
from tests.integration.storage.waiting import (
    append,
    delay,
    half,
    let_pass,
    pop_bodies,
    waiting_batch,
)

ID = b"\x01" * 17
ID_TEXT = "01" * 17


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[NodeUnderTest]:
    async with node_under_test(tmp_path) as made:
        yield made


async def drain(node: NodeUnderTest) -> list[bytes]:
    """Pop and ack until nothing comes."""
    bodies: list[bytes] = []
    while True:
        response = await node.pop(max_messages=1_000)
        assert not response.refusal.outcome, response.refusal.reason
        if not response.messages:
            return bodies
        bodies += [message.message for message in response.messages]
        await node.ack(*(lease_of(message) for message in response.messages))


def stored(node: NodeUnderTest) -> int:
    """Return how many offsets of the topic were given."""
    rows = node.app.node.engine(GROUP).machine.rows.queues.of_topic(TOPIC.topic_id)
    return sum(row.next_offset for _, row in rows)


# Delivery ---------------------------------------------------------------------------------------


async def test_a_delayed_message_is_there_when_it_is_due_and_not_before(
    node: NodeUnderTest,
) -> None:
    """A pop just before gets nothing; one that waits gets it at its time."""
    await delay(node, [b"later"], 5_000)
    assert await pop_bodies(node) == []
    let_pass(node, 4.9)
    assert await pop_bodies(node, wait_ms=100) == []
    waiting = asyncio.ensure_future(pop_bodies(node, wait_ms=60_000))
    await asyncio.sleep(0.05)
    let_pass(node, 0.2)
    assert await waiting == [b"later"]


async def test_the_timer_wakes_by_itself(node: NodeUnderTest) -> None:
    """It sleeps by the real clock: a message due in 200 ms comes without being asked for."""
    await delay(node, [b"soon"], 200)
    node.clock.advance(0.2)
    assert await pop_bodies(node, wait_ms=60_000) == [b"soon"]


async def test_messages_come_in_the_order_of_their_times(node: NodeUnderTest) -> None:
    """Messages of one queue, sent in many batches with times in no order."""
    chance = random.Random(5)
    now_ms = node.clock.wall_ms()
    times = [chance.randint(0, 2_000) for _ in range(300)]
    for at in range(0, 300, 20):
        bodies = [b"%05d-%d" % (due_ms, at) for due_ms in times[at : at + 20]]
        due_times = [now_ms + due_ms for due_ms in times[at : at + 20]]
        await append(node, waiting_batch(bodies, due_times, queue=2))
    got = []
    for _ in range(20):
        let_pass(node, 0.1)
        await asyncio.sleep(0.03)
        passed_ms = node.clock.wall_ms() - now_ms
        batch = await drain(node)
        assert all(int(body[:5]) <= passed_ms for body in batch)
        got += batch
    let_pass(node, 1)
    await until(lambda: stored(node) == 300)
    got += await drain(node)
    assert [body[:5] for body in got] == sorted(b"%05d" % due_ms for due_ms in times)


async def test_a_message_due_in_the_past_is_delivered_at_once(node: NodeUnderTest) -> None:
    """Its time passed while it was on its way."""
    await delay(node, [b"past"], -60_000)
    assert await pop_bodies(node, wait_ms=60_000) == [b"past"]


async def test_delays_are_kept_over_a_restart(tmp_path: Path) -> None:
    """Messages that fell due meanwhile come at once, the rest at their time, each once."""
    async with node_under_test(tmp_path) as node:
        await delay(node, [b"first"], 1_000)
        await delay(node, [b"second"], 60_000)
        clock = node.clock
    clock.advance(2)
    async with node_under_test(tmp_path, clock=clock) as node:
        await until(lambda: stored(node) == 1)
        assert await drain(node) == [b"first"]
        let_pass(node, 60)
        assert await pop_bodies(node, wait_ms=60_000) == [b"second"]
        assert stored(node) == 2


async def test_a_hundred_thousand_wait_and_all_are_delivered(tmp_path: Path) -> None:
    """More than the window holds, in no order, over a restart: none early, none lost or twice."""
    chance = random.Random(11)
    count, at_once = 100_000, 500
    config = small_config(max_dedupe_ids=1_000, timer_interval_ms=1)
    async with node_under_test(tmp_path, config=config) as node:
        now_ms = node.clock.wall_ms()
        for first in range(0, count, at_once):
            due_times = [now_ms + 1_000 + chance.randint(0, 9_000) for _ in range(at_once)]
            bodies = [b"%d" % due_ms for due_ms in due_times]
            ids = [b"\x01" + (first + at).to_bytes(16, "big") for at in range(at_once)]
            await append(node, waiting_batch(bodies, due_times, ids=ids))
        assert stored(node) == 0
        clock = node.clock
    async with node_under_test(tmp_path, config=config, clock=clock) as node:
        let_pass(node, 5.5)
        due_ms = node.clock.wall_ms()
        rows = node.app.node.engine(GROUP).machine.rows.pending
        await until(lambda: next(rows.keys()).due_ms > due_ms, 60)
        delivered = stored(node)
        assert 48_000 < delivered < 52_000
        assert all(int(body) <= due_ms for body in await pop_bodies(node, max_messages=1_000))
        let_pass(node, 10)
        await until(lambda: stored(node) == count, 60)
        counts = node.app.node.engine(GROUP).leading().pending.timers.counts
        await until(lambda: counts.of(PartKind.DELAYED) == 0)


# Recall -----------------------------------------------------------------------------------------


async def recall(node: NodeUnderTest, message_id: str = ID_TEXT, **what: object) -> int:
    """Recall a message; return the outcome, 0: it is recalled."""
    request = pb.RecallRequest(raft_group=GROUP, topic_id=TOPIC.topic_id, message_id=message_id)
    request.MergeFrom(pb.RecallRequest(**what))  # type: ignore[arg-type]
    return (await node.rpc.recall(request, CONTEXT)).refusal.outcome


async def test_a_recalled_message_never_comes(node: NodeUnderTest) -> None:
    """Until it is due it can be taken back; a repeat is fine, a wrong id is not."""
    due_ms = node.clock.wall_ms() + 1_000
    name = await append(node, waiting_batch([b"later"], [due_ms], ids=[ID]))
    assert await recall(node, "02" * 17, pending=name) == pb.OUTCOME_INVALID_HANDLE
    assert await recall(node, pending=name) == 0
    assert await recall(node, pending=name) == 0
    let_pass(node, 2)
    assert await pop_bodies(node, wait_ms=200) == []


async def test_a_stored_message_is_recalled_until_it_is_given_to_a_group(
    node: NodeUnderTest,
) -> None:
    """Recall and pops of other messages leave each other alone, also over a restart of rows."""
    await node.append([b"first", b"second", b"third"], ids=[ID, b"\x02" * 17, b"\x03" * 17])
    second = {"position": pb.QueueOffset(queue=0, offset=1)}
    assert await recall(node, "02" * 17, **second) == 0
    assert await pop_bodies(node) == [b"first", b"third"]
    first = {"position": pb.QueueOffset(queue=0, offset=0)}
    assert await recall(node, ID_TEXT, **first) == pb.OUTCOME_INVALID_HANDLE
    assert await recall(node, "02" * 17, **second) == 0


async def test_a_message_is_recalled_or_delivered_never_both(node: NodeUnderTest) -> None:
    """Pops and recalls race for a hundred messages."""
    chance = random.Random(3)
    recalled, popped = set(), set()
    for number in range(100):
        body = b"%d" % number
        message_id = number.to_bytes(17, "big").replace(b"\x00", b"\x05", 1)
        result = await node.append([body], ids=[message_id])
        position = pb.QueueOffset(queue=0, offset=result.parts[0].base_offset)
        calls = [
            pop_bodies(node, wait_ms=50),
            recall(node, message_id.hex().upper(), position=position),
        ]
        if chance.random() < 0.5:
            calls.reverse()
        answers = await asyncio.gather(*calls)
        got = next(answer for answer in answers if isinstance(answer, list))
        outcome = next(answer for answer in answers if isinstance(answer, int))
        popped.update(got)
        if outcome == 0:
            recalled.add(body)
    popped.update(await drain(node))
    assert recalled
    assert popped
    assert not recalled & popped
    assert len(recalled | popped) == 100


# Lists and limits -------------------------------------------------------------------------------


async def test_what_waits_is_listed_page_by_page(node: NodeUnderTest) -> None:
    """By due time and kind; single ones by name or by the message's id."""
    for number in range(5):
        await delay(node, [b"%d" % number], 10_000 - number * 1_000)
    name = await half(node, b"half", 100)
    request = pb.ListPendingRequest(
        raft_group=GROUP, kind=pb.PENDING_KIND_DELAYED, max_messages=2, with_messages=True
    )
    bodies = []
    while True:
        page = await node.rpc.list_pending(request, CONTEXT)
        assert not page.refusal.outcome, page.refusal.reason
        bodies.append([message.message for message in page.messages])
        if not page.HasField("next_after"):
            break
        request.after_due_ms = page.next_after_due_ms
        request.after.CopyFrom(page.next_after)
    assert [body for page in bodies for body in page] == [b"4", b"3", b"2", b"1", b"0"]
    one = pb.ListPendingRequest(raft_group=GROUP, topic_id=TOPIC.topic_id, pending=name)
    (found,) = (await node.rpc.list_pending(one, CONTEXT)).messages
    assert (found.kind, found.message) == (pb.PENDING_KIND_HALF, b"")
    assert found.due_ms == node.clock.wall_ms() + 100


async def test_a_list_of_an_unknown_kind_is_refused(node: NodeUnderTest) -> None:
    """A newer broker may know more kinds."""
    request = pb.ListPendingRequest(raft_group=GROUP, kind=9)  # type: ignore[arg-type]
    response = await node.rpc.list_pending(request, CONTEXT)
    assert response.refusal.outcome == pb.OUTCOME_INVALID
